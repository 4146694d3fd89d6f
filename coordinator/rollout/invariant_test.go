package rollout_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// checkOutcome holds what was decided against what may never be decided.
func checkOutcome(t *testing.T, s rollout.Snapshot) {
	t.Helper()
	before := mustJSON(s)
	out := rollout.Decide(s)
	if mustJSON(s) != before {
		t.Fatalf("the snapshot was changed:\n%s\n%s", before, mustJSON(s))
	}
	if len(out.Verdicts) != len(s.Nodes) || !slices.IsSortedFunc(out.Verdicts, func(a, b rollout.Verdict) int {
		return map[bool]int{true: -1, false: 1}[a.Node < b.Node]
	}) {
		t.Fatalf("not one verdict for each node, in order: %+v", out.Verdicts)
	}
	if !out.Again.IsZero() && !out.Again.After(s.Now) {
		t.Fatalf("asks to be woken at %v, now is %v", out.Again, s.Now)
	}
	nodes := map[string]*turn.Node{}
	for i := range s.Nodes {
		nodes[s.Nodes[i].Name] = &s.Nodes[i]
	}
	w := twin{s}
	gone, taken := w.unavailable(), 0
	for _, v := range out.Verdicts {
		if v.Move == nil {
			continue
		}
		if bad := offence(s, nodes[v.Node], v); bad != "" {
			t.Errorf("%s: %s\nmove %+v\nnode %+v\nhost %+v\ngrant %+v", v.Node, bad, *v.Move, *nodes[v.Node], nodes[v.Node].Host, nodes[v.Node].Grant)
		}
		if v.Move.On == turn.Granted && !gone[v.Node] {
			taken++
		}
	}
	if taken > 0 && len(gone)+taken > w.total() {
		t.Errorf("%d unavailable and %d granted, %d allowed in all", len(gone), taken, w.total())
	}
}

// offence says which rule the move breaks, or "".
func offence(s rollout.Snapshot, n *turn.Node, v rollout.Verdict) string {
	m, w := v.Move, twin{s}
	removesMark := slices.Contains(m.Remove, v1alpha1.AnnotationCordon)
	changed := m.From != m.To
	turnedRound := slices.Contains([]turn.Event{turn.Vanished, turn.Aborted, turn.TakenBack, turn.LetGo}, m.On)
	paused := n.Paused != nil && !saidNo(n.Managed)
	switch {
	case m.From != n.State:
		return "moves from a state it is not in"
	case !m.From.Known() && !m.Keep:
		return "moves out of an unknown state"
	case changed && !turn.Reachable(m.From, m.To):
		return "off the table"
	case changed && v.Held != v1alpha1.ReasonNone && !m.LetGo:
		return "moves and is held"
	case m.LetGo && (m.To != v1alpha1.StateAbsent || v.Held != m.Reason || m.Reason != v1alpha1.ReasonDetached && m.Reason != v1alpha1.ReasonUnmanaged):
		return "releases the node, and held does not say why"
	case changed && m.To == v1alpha1.StateAbsent && !m.LetGo && m.On != turn.Replaced:
		return "takes the state away and leaves our other keys"
	case m.LetGo && !saidNo(n.Managed) && n.Detached == nil && (!speaks(n) || n.Host.Managed):
		return "releases a node that nobody has taken out"
	case m.LetGo && n.Last != nil && (m.Last != nil) != (!saidNo(n.Managed) && speaks(n) && !n.Host.Managed && m.Reason == v1alpha1.ReasonUnmanaged):
		return "keeps last on a node that an admin took out, or removes it from one that its host's file took out"
	case s.Stopped && changed:
		return "moves under the emergency stop"
	case s.Uncertain[n.Name]:
		return "a write over one whose outcome is not known"
	case n.Mark && changed && (m.To == v1alpha1.StateIdle || m.To == v1alpha1.StateAbsent) && !removesMark && m.On != turn.Replaced:
		return "the mark stands"
	case removesMark && (n.Detached == nil || !n.Detached.Force):
		return "takes a mark away"
	case whole(n) && barred(n) && turnedRound:
		return "turns a commit round"
	case paused && inSomeTurn(n) && changed && m.On != turn.LetGo && m.On != turn.Replaced && m.Reason != v1alpha1.ReasonInvalidGrant:
		return "moves a paused node"
	case m.On == turn.Granted && (s.Stopped || s.Unread != "" || len(s.Uncertain) > 0 || n.Mark):
		return "grants although nothing may be granted"
	case m.On == turn.Granted && (w.decides(n) == nil || w.invalid(n) || w.decides(n).Paused || w.decides(n).Observe):
		return "grants although its policy grants nothing"
	case m.On == turn.Granted && (m.Grant.Policy != w.decides(n).Name || !reflect.DeepEqual(m.Grant.Terms, w.decides(n).Terms)):
		return "grants by other terms than the policy's"
	case m.On == turn.Granted && m.Grant.BlockOff != n.Host.BlockOff:
		return "grants another Block than the host published"
	case m.Reason == v1alpha1.ReasonWindow && changed && !w.shut(n):
		return "calls a turn off although no window has closed on it"
	case m.To.HookStage() && changed && len(m.Grant.Terms.Hooks(m.To)) == 0 && !(n.Host != nil && slices.Contains(n.Host.HookStages, m.To)) &&
		!(m.To == v1alpha1.StateBeforeReboot && m.Grant.Terms.WaitForVolumeDetach && m.Grant.Drains):
		return "enters a hook stage with nothing to wait for"
	case m.To.InTurn() && !m.Keep && (m.Grant == nil || m.Grant.NodeUID != n.UID):
		return "a turn without its grant"
	case m.To.InTurn() && changed && s.Epoch != "" && m.Grant.Epoch != s.Epoch:
		return "promotes for another epoch"
	case m.NewTurn && m.Grant == nil, m.Grant != nil && m.NewTurn == (m.Grant.Turn != ""):
		return "a grant has either its id or is to get one"
	case !m.To.InTurn() && m.Grant != nil:
		return "leaves a grant on a node in no turn"
	case inSomeTurn(n) && m.To == v1alpha1.StateIdle && m.Last == nil:
		return "a turn ends without a record"
	case m.NewTurn && changed && (m.Grant.StageAt != s.Now || m.Grant.StartedAt != s.Now):
		return "a new turn with an old start"
	case m.From == v1alpha1.StateBeforeReboot && m.To == v1alpha1.StateRebooting && n.Grant.Terms.WaitForVolumeDetach && n.Grant.Drains && len(n.Volumes) > 0:
		return "reboots under volumes that are attached"
	case m.Grant != nil && n.Grant != nil && m.Grant.Turn == n.Grant.Turn && m.Grant.Force && !n.Grant.Force && (n.Grant.Terms.DrainTimeout != v1alpha1.OnTimeoutForce || n.State != v1alpha1.StateDraining || !w.past(n, n.Grant.Terms.Draining.Duration)):
		return "forces a drain that is not to be forced"
	case m.To == v1alpha1.StateRebooting && changed && (m.Grant.BootID != n.BootID || !speaks(n)):
		return "promotes to rebooting without a word of the present boot"
	}
	if s.Epoch == "" {
		return "" // nobody writes what a command computes
	}
	return unreadable(m)
}

// unreadable says which record the move writes that nobody can read, or "".
func unreadable(m *rollout.Move) string {
	if m.Grant != nil {
		g := *m.Grant
		if m.NewTurn {
			g.Turn = "t9"
		}
		if _, err := v1alpha1.ParseGrant(v1alpha1.FormatRecord(g)); err != nil {
			return "the grant: " + err.Error()
		}
	}
	if m.Last != nil {
		if _, err := v1alpha1.ParseLast(v1alpha1.FormatRecord(m.Last)); err != nil {
			return "the last turn: " + err.Error()
		}
	}
	return ""
}

// shut: the turn is to be called off when its policy's windows close, the policy
// is there and valid, and no window is open.
func (w twin) shut(n *turn.Node) bool {
	if n.Grant == nil || n.Grant.Terms.OnClose != v1alpha1.OnCloseCancel || barred(n) || hurried(n) && n.Grant.Request != nil && n.Grant.Request.Now {
		return false
	}
	for _, p := range w.Policies {
		if p.Name == n.Grant.Policy && !p.RulesOnly {
			return len(p.Problems) == 0 && !fits(&p, w.Now, time.Minute)
		}
	}
	return false
}

func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestInvariants(t *testing.T) {
	count := 8_000
	switch {
	case os.Getenv("LOCKKEEPER_SOAK") != "":
		count *= 30
	case testing.Short():
		count = 2_500
	}
	r := rand.New(rand.NewPCG(5, 6))
	events := map[turn.Event]int{}
	for range count {
		b := make([]byte, 800)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		d := dice(b)
		s := randomSnapshot(&d)
		checkOutcome(t, s)
		out := rollout.Decide(s)
		for _, v := range out.Verdicts {
			if v.Move != nil {
				events[v.Move.On]++
			}
		}
		r.Shuffle(len(s.Nodes), func(i, j int) { s.Nodes[i], s.Nodes[j] = s.Nodes[j], s.Nodes[i] })
		again := rollout.Decide(s)
		if !reflect.DeepEqual(parts(&out), parts(&again)) {
			t.Fatalf("another order, another outcome:\n%s\n%s", mustJSON(parts(&out)), mustJSON(parts(&again)))
		}
		if t.Failed() {
			return
		}
	}
	for _, on := range turn.Events() {
		if on == turn.Overran || on == turn.Failed {
			continue // they move nothing, except out of a hook stage
		}
		if events[on] < count/5000 {
			t.Errorf("%q came %d times in %d snapshots, too few to prove anything", on, events[on], count)
		}
	}
}

func FuzzDecide(f *testing.F) {
	f.Add([]byte("a cluster of a few nodes"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := dice(b)
		s := randomSnapshot(&d)
		checkOutcome(t, s)
		compare(t, s)
	})
}

// FuzzSoup decides over Nodes with anything at all in their labels and
// annotations: whatever people and restored backups leave there.
func FuzzSoup(f *testing.F) {
	f.Add("draining", "reboot", `{"protocol":1,"nodeUID":"u","bootID":"b","managed":true}`, "t/b/draining/done", `{"turn":"t","epoch":"e1","nodeUID":"u","bootID":"b","wants":"reboot"}`, "t", `{"until":"2026-01-01T00:00:00Z","force":true}`, uint8(255))
	f.Add("rebooting", "nothing", `{"protocol":1,"nodeUID":"u","bootID":"b"}`, "t/c/rebooting/committed", `{"turn":"t","epoch":"e0","nodeUID":"u","wants":"drain"}`, "", "x", uint8(3))
	f.Add("idle", "reboot", `{"protocol":1,"nodeUID":"u","bootID":"b","managed":true,"drains":true}`, "", `{"result":"BackedOut","notBefore":"9999-12-31T00:00:00Z","turn":"t","attempts":999999999}`, "t", "", uint8(0))
	f.Fuzz(func(t *testing.T, state, wants, host, ack, record, id, intent string, bits uint8) {
		has := func(bit int) bool { return bits>>bit&1 == 1 }
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", ResourceVersion: "1",
			Labels: map[string]string{v1alpha1.LabelState: state, v1alpha1.LabelWants: wants},
			Annotations: map[string]string{v1alpha1.AnnotationHost: host, v1alpha1.AnnotationAck: ack, v1alpha1.AnnotationGrant: record,
				v1alpha1.AnnotationLast: record, v1alpha1.AnnotationTurn: id, v1alpha1.AnnotationRetry: id}}}
		n.Spec.Unschedulable = has(0)
		n.Status.NodeInfo.BootID = "b"
		if has(1) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		}
		for bit, key := range map[int]string{2: v1alpha1.AnnotationCordon, 3: v1alpha1.AnnotationPaused, 4: v1alpha1.AnnotationDetached, 5: v1alpha1.AnnotationRequest} {
			if has(bit) {
				n.Annotations[key] = intent
			}
		}
		if has(6) {
			n.Labels[v1alpha1.LabelManaged] = intent
		}
		other := *n.DeepCopy()
		other.Name, other.UID = "n2", types.UID("u2")
		s := rollout.Snapshot{Now: atNoon, Epoch: "e1", Policies: policy.Set{policy.Default()}, Nodes: []turn.Node{turn.FromNode(&n), turn.FromNode(&other)}}
		checkOutcome(t, s)
		s.Epoch = "" // somebody who only looks
		rollout.Decide(s)
		s.Nodes = s.Nodes[:1]
		s.Stopped = has(7)
		rollout.Decide(s)
		for _, n := range s.Nodes {
			for _, boot := range []string{"b", "c"} {
				o := step.Observation{Node: n, Self: v1alpha1.Host{BootID: boot}, ManagedByDefault: true,
					Sources: step.Sources{Complete: true, Wants: v1alpha1.WantsReboot, Drains: true}, Fresh: &step.FreshRead{Commit: true, Lease: step.Lease{Exists: true, Holder: "e1"}}}
				step.Step(o)
			}
		}
	})
}

// TestOnlyLooking: for somebody who only looks, every turn's epoch is their
// own, and nothing is handed over.
func TestOnlyLooking(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 2000 {
		b := make([]byte, 800)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		d := dice(b)
		s := randomSnapshot(&d)
		s.Epoch, s.Uncertain = "", nil
		for _, v := range rollout.Decide(s).Verdicts {
			if v.Held == v1alpha1.ReasonHandover {
				t.Fatalf("%s is held %s for somebody who only looks", v.Node, v.Held)
			}
		}
	}
}

// parts returns everything that an outcome says.
func parts(o *rollout.Outcome) []any {
	all := []any{o.Queue()}
	for field, value := range reflect.ValueOf(o).Elem().Fields() {
		if field.IsExported() {
			all = append(all, value.Interface())
		}
	}
	return all
}
