package report

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

var update = flag.Bool("update", false, "rewrite the golden texts; read the difference before you keep it")

var now = time.Date(2026, 11, 21, 13, 4, 5, 0, time.UTC)

func at(clock string) time.Time {
	t, err := time.Parse("15:04:05", clock)
	if err != nil {
		panic(err)
	}
	return time.Date(2026, 11, 21, t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

// world is a cluster as Go values.
type world struct {
	t     *testing.T
	nodes []*corev1.Node
	lease *coordinationv1.Lease
	err   error
	p     policy.Policy
	more  []policy.Policy
	// unread is why the policies could not be read.
	unread error
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, p: policy.Default()}
	w.lease = &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("n3_k2jd8f"), LeaseDurationSeconds: new(int32(30)),
			AcquireTime: &metav1.MicroTime{Time: at("11:04:05")}, RenewTime: &metav1.MicroTime{Time: at("13:04:00")},
		},
	}
	return w
}

// add adds a managed node that is idle and wants nothing, and changes it.
func (w *world) add(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.Time{Time: at("01:00:00")},
		Labels:      map[string]string{v1alpha1.LabelState: "idle", v1alpha1.LabelWants: "nothing"},
		Annotations: map[string]string{},
	}}
	n.Status.NodeInfo.BootID = "boot-" + name
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	setHost(n, func(*v1alpha1.Host) {})
	for _, c := range change {
		c(n)
	}
	w.nodes = append(w.nodes, n)
	return n
}

// failedUnit: a unit of n1's plan failed; the change is another one by now.
func failedUnit(t *testing.T) *world {
	w := newWorld(t)
	file := v1alpha1.Change{Source: v1alpha1.SourceFile, Name: "/etc/web.conf", Version: "0123456789ab"}
	n := w.add("n1", label(v1alpha1.LabelWants, "apply"), label(v1alpha1.LabelHeld, "Halted"),
		last(v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultFailed, Reason: v1alpha1.ReasonApplyFailed, Changes: []v1alpha1.Change{file}, End: at("12:00:00")}))
	file.Version = "ba9876543210"
	setHost(n, func(h *v1alpha1.Host) {
		h.Changes = []v1alpha1.Change{file}
		h.ApplyFailed = `restart of web.service failed (exit-code, ExecStart=web status 3): "no such directive": journalctl -u web.service`
	})
	return w
}

func setHost(n *corev1.Node, change func(*v1alpha1.Host)) {
	h := v1alpha1.Host{
		Protocol: 1, Version: "v1.0.0", NodeUID: string(n.UID), BootID: "boot-" + n.Name,
		BootTime: at("03:04:05"), Started: at("03:04:35"), Managed: true, OSVersion: "3975.2.0",
	}
	change(&h)
	n.Annotations[v1alpha1.AnnotationHost] = v1alpha1.FormatRecord(h)
}

var osUpdate = []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "4100.0.0"}}

func wantsReboot(n *corev1.Node) {
	n.Labels[v1alpha1.LabelWants] = "reboot"
	setHost(n, func(h *v1alpha1.Host) { h.Drains, h.Changes = true, osUpdate })
}

func label(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func annotation(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Annotations[key] = value }
}

func all(changes ...func(*corev1.Node)) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for _, c := range changes {
			c(n)
		}
	}
}

// inTurn puts the node into the state of turn t-NAME, begun at 12:59:05.
func inTurn(s v1alpha1.State, stageAt string, word string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		wantsReboot(n)
		g := grant(n, stageAt)
		n.Labels[v1alpha1.LabelState] = string(s)
		n.Annotations[v1alpha1.AnnotationTurn] = g.Turn
		n.Annotations[v1alpha1.AnnotationGrant] = v1alpha1.FormatRecord(g)
		n.Annotations[v1alpha1.AnnotationAck] = g.Turn + "/" + g.BootID + "/" + string(s) + "/" + word
	}
}

func grant(n *corev1.Node, stageAt string) v1alpha1.Grant {
	return v1alpha1.Grant{
		Turn: "t-" + n.Name, Epoch: "n3_k2jd8f", NodeUID: string(n.UID), BootID: "boot-" + n.Name, Wants: v1alpha1.WantsReboot, Drains: true,
		Changes: osUpdate, OSVersion: "3975.2.0", Policy: "built-in", Terms: policy.Default().Terms, StartedAt: at("12:59:05"), StageAt: at(stageAt),
	}
}

func last(l v1alpha1.Last) func(*corev1.Node) {
	return annotation(v1alpha1.AnnotationLast, v1alpha1.FormatRecord(l))
}

func cordoned(n *corev1.Node) {
	n.Spec.Unschedulable = true
	n.Annotations[v1alpha1.AnnotationCordon] = "t-" + n.Name
}

// sold is a detach that says who and why.
const sold = `{"reason":"sold","by":"ann","until":"2026-12-01T00:00:00Z"}`

// unmanaged is a node on which lockkeeper was never seen.
func unmanaged(n *corev1.Node) {
	n.Labels, n.Annotations = map[string]string{}, map[string]string{}
}

func (w *world) report() Report { return Build(w.input()) }

func (w *world) input() Input {
	in := Input{Lease: Lease{Namespace: "lockkeeper", Name: "lockkeeper", Err: w.err}}
	in.Now, in.Policies, in.PoliciesErr = now, policy.NewSet(append(w.more, w.p)...), w.unread
	if w.unread != nil {
		in.Policies = nil
	}
	for _, n := range w.nodes {
		in.Nodes = append(in.Nodes, turn.FromNode(n))
	}
	if w.lease != nil && w.err == nil {
		in.Lease.Read(w.lease)
	}
	return in
}

// golden compares with a text that was written by hand.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nexpected\n%s", name, got, want)
	}
}

func (w *world) text(f Form) (string, int) {
	w.t.Helper()
	r := w.report()
	var b strings.Builder
	exit, err := f.Print(&b, &r)
	if err != nil {
		w.t.Fatal(err)
	}
	return b.String(), exit
}

// rolling is one node in its turn, one in line, one silent, one content, one
// that is nobody's.
func rolling(t *testing.T) *world {
	w := newWorld(t)
	w.add("n4", unmanaged)
	w.add("n2", wantsReboot, label(v1alpha1.LabelHeld, "Budget"))
	w.add("n3")
	w.add("n1", inTurn(v1alpha1.StateDraining, "13:02:00", "committed"), cordoned)
	w.add("n5", wantsReboot, func(n *corev1.Node) { n.Status.NodeInfo.BootID = "another" })
	return w
}

// slots has a node in line, and one in no turn for each way of taking a slot.
func slots(t *testing.T) *world {
	w := newWorld(t)
	w.p.MaxUnavailable = policy.Limit{Number: 2}
	w.add("n1", wantsReboot, label(v1alpha1.LabelHeld, "Budget"))
	w.add("n2")
	w.add("n3", func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Time{Time: at("12:04:05")}}}
	})
	w.add("n4", func(n *corev1.Node) { n.Spec.Unschedulable = true })
	w.add("n5", unmanaged, func(n *corev1.Node) { n.Spec.Unschedulable = true })
	return w
}

// several is rolling under four policies: web has n1 in a turn and n2 in line,
// which its window holds; broken is invalid, canary selects nothing and only
// observes; the others are the built-in one's.
func several(t *testing.T) *world {
	w := rolling(t)
	for _, name := range []string{"web", "broken", "canary", "mirrors"} {
		obj := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
		obj.Name, obj.Spec.Priority, obj.Spec.NodeSelector.MatchLabels = name, 10, map[string]string{"pool": name}
		switch name {
		case "web":
			obj.Spec.Rollout.MaxUnavailable = intstr.FromString("50%")
			obj.Spec.Rollout.Windows = []v1alpha1.Window{{Start: "22:00", Duration: metav1.Duration{Duration: 4 * time.Hour}, TimeZone: "UTC"}}
		case "broken":
			obj.Spec.Rollout.MaxFailed = -1
			obj.Spec.Mode = "act"
		case "canary":
			obj.Spec.Mode, obj.Spec.Paused = v1alpha1.PolicyModeObserve, true
		case "mirrors":
			obj.Spec.RulesOnly, obj.Spec.Priority, obj.Spec.NodeSelector.MatchLabels = true, 20, nil
		}
		w.more = append(w.more, policy.Compile(obj, time.LoadLocation))
	}
	for _, n := range w.nodes {
		if n.Name == "n1" || n.Name == "n2" {
			n.Labels["pool"] = "web"
			delete(n.Labels, v1alpha1.LabelHeld)
		}
	}
	return w
}

// unruled is rolling to somebody who may not read the policies, with a node more
// that the coordinator has said nothing of yet.
func unruled(t *testing.T) *world {
	w := rolling(t)
	w.add("n6", wantsReboot)
	w.unread = errors.New("listing policies: disruptionpolicies.lockkeeper.dev is forbidden")
	return w
}

// What the policies would say is not made up by somebody who may not read them.
func TestPoliciesThatMayNotBeRead(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*world)
		held   v1alpha1.Reason // of n6
		status Status
	}{
		{"the coordinator has said nothing", func(*world) {}, v1alpha1.ReasonNone, Rolling},
		{"it has", func(w *world) { label(v1alpha1.LabelHeld, "Window")(w.nodes[5]) }, v1alpha1.ReasonWindow, Rolling},
		{"it has said that the line is stopped", func(w *world) { label(v1alpha1.LabelHeld, "Halted")(w.nodes[5]) }, v1alpha1.ReasonHalted, Halted},
		{"it is gone", func(w *world) { w.lease.Spec.RenewTime = &metav1.MicroTime{Time: at("12:00:00")} }, v1alpha1.ReasonNoCoordinator, Held},
		{"a stop", func(w *world) { w.lease.Annotations[v1alpha1.AnnotationStop] = "why" }, v1alpha1.ReasonStopped, Stopped},
	} {
		w := unruled(t)
		tc.change(w)
		r := w.report()
		if n := r.Find("n6"); n.Held != tc.held || r.Status != tc.status || r.PoliciesError == "" {
			t.Errorf("%s: %s, held %q (%s), expected %s and %q", tc.name, r.Status, n.Held, n.Why, tc.status, tc.held)
		}
	}
}

// TestHaltedBy checks that the line about the halt names the nodes that count as failed, also if something else holds them, and no others.
func TestHaltedBy(t *testing.T) {
	w := newWorld(t)
	waits := w.p
	waits.Terms.DrainTimeout = v1alpha1.OnTimeoutWait
	overdue := func(s v1alpha1.State, held string) func(*corev1.Node) {
		return all(inTurn(s, "11:00:00", "committed"), cordoned, label(v1alpha1.LabelHeld, held), func(n *corev1.Node) {
			g := grant(n, "11:00:00")
			if g.Terms = waits.Terms; held == "Paused" {
				g.PausedSince = new(at("12:00:00"))
				n.Annotations[v1alpha1.AnnotationPaused] = "looking at its console"
			}
			n.Annotations[v1alpha1.AnnotationGrant] = v1alpha1.FormatRecord(g)
		})
	}
	w.add("n1", overdue(v1alpha1.StateRebooting, "Paused"))
	w.add("n2", overdue(v1alpha1.StateDraining, "Overdue"))
	w.add("n3", overdue(v1alpha1.StateRebooting, "Overdue"), annotation(v1alpha1.AnnotationRetry, "t-n3"))
	r := w.report()
	if got := r.failed(); !r.Figures.Halted || len(got) != 1 || got[0] != "n1" {
		t.Errorf("halted %t by %q, expected n1", r.Figures.Halted, got)
	}
}

func TestTexts(t *testing.T) {
	for _, tc := range []struct {
		name  string
		world func(*testing.T) *world
		form  Form
		exit  int
	}{
		{"rolling.txt", rolling, Form{}, ExitRolling},
		{"rolling-all.txt", rolling, Form{All: true}, ExitRolling},
		{"progress.txt", progressing, Form{}, ExitRolling},
		{"rolling-80.txt", rolling, Form{Width: 80}, ExitRolling},
		{"node-80.txt", rolling, Form{Node: "n5", Width: 80}, ExitHeld},
		{"uptodate.txt", func(t *testing.T) *world {
			w := newWorld(t)
			w.add("n1")
			w.add("n2", last(v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultDone, Changes: osUpdate, End: at("12:00:00")}))
			return w
		}, Form{}, ExitOK},
		{"stopped.txt", func(t *testing.T) *world {
			w := rolling(t)
			w.lease.Annotations[v1alpha1.AnnotationStop] = "storage\nis sick"
			return w
		}, Form{}, ExitHeld},
		{"nolease.txt", func(t *testing.T) *world {
			w := newWorld(t)
			w.add("n1", unmanaged)
			w.lease = nil
			return w
		}, Form{}, ExitHeld},
		{"halted.txt", func(t *testing.T) *world {
			w := newWorld(t)
			w.add("n1", wantsReboot, label(v1alpha1.LabelHeld, "Failed"),
				last(v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultFailed, Reason: v1alpha1.ReasonNotUpdated, Changes: osUpdate, End: at("12:00:00")}))
			w.add("n2", wantsReboot)
			w.add("n3", inTurn(v1alpha1.StateRebooting, "12:00:00", "failed:Unhealthy"), cordoned, label(v1alpha1.LabelHeld, "Failed"))
			return w
		}, Form{}, ExitHeld},
		{"failed.txt", failedUnit, Form{}, ExitHeld},
		{"failed-node.txt", failedUnit, Form{Node: "n1"}, ExitHeld},
		{"no-coordinator.txt", func(t *testing.T) *world {
			w := newWorld(t)
			w.lease.Spec.RenewTime = &metav1.MicroTime{Time: at("12:50:00")}
			w.add("n1", wantsReboot, label(v1alpha1.LabelHeld, "Budget")) // said by somebody who is gone
			w.add("n2", func(n *corev1.Node) { delete(n.Labels, v1alpha1.LabelState) })
			return w
		}, Form{}, ExitHeld},
		{"intents.txt", func(t *testing.T) *world {
			w := newWorld(t)
			w.add("n1", label(v1alpha1.LabelState, "paused"), annotation(v1alpha1.AnnotationPaused, `{"reason":"disk","by":"eve","until":"2026-11-22T00:00:00Z"}`))
			w.add("n2", wantsReboot, label(v1alpha1.LabelState, "paused"), annotation(v1alpha1.AnnotationPaused, "on order"), label(v1alpha1.LabelHeld, "Paused"))
			w.add("n3", unmanaged, annotation(v1alpha1.AnnotationDetached, "the storage team")) // before lockkeeper ever managed it
			w.add("n4", unmanaged, annotation(v1alpha1.AnnotationDetached, sold), label(v1alpha1.LabelHeld, "Detached"))
			w.add("n5", annotation(v1alpha1.AnnotationGrant, "{"), annotation(v1alpha1.AnnotationAck, "\x1b[2J"))
			return w
		}, Form{}, ExitHeld},
		{"detached-node.txt", func(t *testing.T) *world {
			w := newWorld(t)
			w.add("n4", unmanaged, annotation(v1alpha1.AnnotationDetached, sold), label(v1alpha1.LabelHeld, "Detached"))
			return w
		}, Form{Node: "n4"}, ExitOK},
		{"slots.txt", slots, Form{}, ExitHeld},
		{"slots-node.txt", slots, Form{Node: "n4"}, ExitOK},
		{"policies.txt", func(t *testing.T) *world {
			w := several(t)
			w.add("n6", wantsReboot, label("pool", "broken"))
			return w
		}, Form{}, ExitRolling},
		{"policies-halted.txt", func(t *testing.T) *world {
			w := several(t)
			w.add("n6", wantsReboot, label("pool", "web"), label(v1alpha1.LabelHeld, "Failed"),
				last(v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultFailed, Reason: v1alpha1.ReasonNotUpdated, Changes: osUpdate, End: at("12:00:00")}))
			return w
		}, Form{}, ExitHeld},
		{"policies-node.txt", several, Form{Node: "n3"}, ExitOK},
		{"nopolicy.txt", func(t *testing.T) *world {
			w := newWorld(t)
			w.p.Problems = []policy.Problem{{Field: "spec.rollout.maxUnavailable", Text: "0, expected 1 to 10000"}, {Field: "spec.mode", Text: `"act", expected Act or Observe`}}
			w.add("n1", wantsReboot)
			return w
		}, Form{}, ExitHeld},
		{"policies-unread.txt", unruled, Form{}, ExitRolling},
		{"node.txt", func(t *testing.T) *world {
			w := rolling(t)
			g := grant(w.nodes[3], "13:02:00")
			g.Terms.BeforeDrain = []v1alpha1.Hook{{Name: "lb", Timeout: metav1.Duration{Duration: time.Hour}}, {Name: "storage", Timeout: metav1.Duration{Duration: time.Hour}}}
			all(inTurn(v1alpha1.StateBeforeDrain, "13:02:00", "seen"), annotation(v1alpha1.AnnotationGrant, v1alpha1.FormatRecord(g)),
				annotation(v1alpha1.HookAnnotation("lb"), "t-n1"), label(corev1.LabelTopologyZone, "a"), label(turn.LabelControlPlane, ""),
				last(v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultBackedOut, Reason: v1alpha1.ReasonOverdue, Changes: osUpdate, End: at("12:00:00"), NotBefore: new(at("14:00:00"))}),
			)(w.nodes[3])
			delete(w.nodes[3].Annotations, v1alpha1.AnnotationCordon)
			w.nodes[3].Spec.Unschedulable = false
			return w
		}, Form{Node: "n1"}, ExitRolling},
		{"node-silent.txt", rolling, Form{Node: "n5"}, ExitHeld},
		{"node-content.txt", rolling, Form{Node: "n3"}, ExitOK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, exit := tc.world(t).text(tc.form)
			golden(t, tc.name, got)
			if exit != tc.exit {
				t.Errorf("exit status %d, expected %d", exit, tc.exit)
			}
			if strings.ContainsAny(got, "\x1b\r") {
				t.Error("control characters reach the terminal")
			}
		})
	}
}

func TestOrderOfNodesChangesNothing(t *testing.T) {
	w := rolling(t)
	a, _ := w.text(Form{All: true})
	for i, j := 0, len(w.nodes)-1; i < j; i, j = i+1, j-1 {
		w.nodes[i], w.nodes[j] = w.nodes[j], w.nodes[i]
	}
	if b, _ := w.text(Form{All: true}); a != b {
		t.Errorf("the other way round it is\n%s\nand was\n%s", b, a)
	}
}

func TestTextIsBounded(t *testing.T) {
	w := newWorld(t)
	for i := range maxRows + 7 {
		w.add("n"+strings.Repeat("x", i), wantsReboot, label(v1alpha1.LabelHeld, "Budget"))
	}
	got, _ := w.text(Form{})
	if rows := strings.Count(got, "reboot  Budget"); rows != maxRows || !strings.Contains(got, "\n… and 7 more; -A shows all\n") {
		t.Errorf("%d rows:\n%s", rows, got)
	}
	got, _ = w.text(Form{All: true})
	if rows := strings.Count(got, "reboot  Budget"); rows != maxRows+7 {
		t.Errorf("-A: %d rows", rows)
	}
}

func TestNoSuchNode(t *testing.T) {
	r := rolling(t).report()
	exit, err := Form{Node: "n9"}.Print(&strings.Builder{}, &r)
	if exit != ExitError || err == nil || err.Error() != `node "n9" not found` {
		t.Errorf("%d, %v", exit, err)
	}
}

// The fields that others read. Adding is fine, renaming is not.
func TestJSON(t *testing.T) {
	got, exit := rolling(t).text(Form{Output: JSON})
	if exit != ExitRolling {
		t.Errorf("exit status %d", exit)
	}
	var r map[string]any
	if err := json.Unmarshal([]byte(got), &r); err != nil {
		t.Fatal(err)
	}
	nodes := r["nodes"].([]any)
	delete(r, "nodes")
	slot := map[string]any{"node": "n1", "reason": "InTurn", "since": "2026-11-21T12:59:05Z", "policies": []any{"built-in"}}
	// n1 has 10 more of its 15 minutes, then the fleet settles for 1, then n2 has 15; n5 is silent.
	end := map[string]any{"at": "2026-11-21T13:30:00Z", "left": 3.0, "held": 1.0, "turn": "15m0s"}
	want := map[string]any{
		"view": "cluster", "time": "2026-11-21T13:04:05Z", "status": "Rolling",
		"summary":     "Rolling: 1 of 4 managed nodes up to date, 1 in a turn, 2 want a reboot. 1 not managed.",
		"coordinator": map[string]any{"lease": "lockkeeper/lockkeeper", "live": true, "node": "n3", "epoch": "n3_k2jd8f", "since": "2026-11-21T11:04:05Z", "renewed": "2026-11-21T13:04:00Z"},
		"figures": map[string]any{"total": 5.0, "managed": 4.0, "upToDate": 1.0, "inTurn": 1.0, "wantReboot": 2.0, "wantDrain": 0.0, "wantApply": 0.0,
			"unknown": 0.0, "unavailable": 1.0, "budget": 1.0, "failed": 0.0, "maxFailed": 0.0, "halted": false},
		// Of the three that want something one is in its turn; the fourth is content.
		"policies": []any{map[string]any{"name": "built-in", "selected": 4.0, "upToDate": 1.0, "wanting": 3.0, "inTurn": 1.0, "unavailable": 1.0,
			"allowed": 1.0, "failed": 0.0, "maxFailed": 0.0, "halted": false, "held": map[string]any{"Budget": 1.0, "HostSilent": 1.0}, "end": end}},
		"end":      end,
		"versions": map[string]any{"os": []any{map[string]any{"version": "3975.2.0", "nodes": 4.0}}, "lockkeeper": []any{map[string]any{"version": "v1.0.0", "nodes": 4.0}}},
		"slots":    []any{slot},
	}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got\n%v\nexpected\n%v", r, want)
	}
	if len(nodes) != 5 {
		t.Fatalf("%d nodes", len(nodes))
	}
	n1 := nodes[0].(map[string]any)
	delete(n1, "host")
	delete(n1, "grant")
	if want := map[string]any{
		"name": "n1", "policy": "built-in", "status": "Rolling", "managed": true, "state": "draining", "wants": "reboot", "why": "waits for the host to drain", "turn": "t-n1",
		"turnSince": "2026-11-21T12:59:05Z", "stageSince": "2026-11-21T13:02:00Z", "slot": slot, "ready": true, "unschedulable": true, "marked": true, "ownCordon": true,
		"bootID": "boot-n1", "ack": "t-n1/boot-n1/draining/committed",
	}; !reflect.DeepEqual(n1, want) {
		t.Errorf("got\n%v\nexpected\n%v", n1, want)
	}
	one, exit := rolling(t).text(Form{Output: JSON, Node: "n5"})
	var only Report
	if err := json.Unmarshal([]byte(one), &only); err != nil || exit != ExitHeld || len(only.Nodes) != 1 || only.Nodes[0].Name != "n5" {
		t.Errorf("one node: %d, %v, %+v", exit, err, only.Nodes)
	}
}

func TestStatus(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(*world)
		want Status
	}{
		{"no node at all", func(*world) {}, UpToDate},
		{"lockkeeper runs nowhere", func(w *world) { w.add("a", unmanaged) }, Held},
		{"lockkeeper is to run nowhere", func(w *world) { w.add("a", unmanaged, annotation(v1alpha1.AnnotationDetached, "")) }, UpToDate},
		{"a node was released, detached", func(w *world) {
			w.add("a")
			w.add("b", unmanaged, annotation(v1alpha1.AnnotationDetached, ""), label(v1alpha1.LabelHeld, "Detached"))
		}, UpToDate},
		{"the only node was released by its host's file", func(w *world) { w.add("a", unmanaged, label(v1alpha1.LabelHeld, "Unmanaged")) }, UpToDate},
		{"a node is about to be released", func(w *world) { w.add("a", annotation(v1alpha1.AnnotationDetached, "")) }, Rolling},
		{"all content", func(w *world) { w.add("a") }, UpToDate},
		{"a paused node that wants nothing", func(w *world) {
			w.add("a", label(v1alpha1.LabelState, "paused"), annotation(v1alpha1.AnnotationPaused, ""))
		}, UpToDate},
		{"a paused node that wants a reboot", func(w *world) {
			w.add("a", wantsReboot, label(v1alpha1.LabelState, "paused"), annotation(v1alpha1.AnnotationPaused, ""))
		}, Held},
		{"the next turn is about to be granted", func(w *world) { w.add("a", wantsReboot) }, Rolling},
		{"the fleet settles", func(w *world) {
			w.add("a", wantsReboot, label(v1alpha1.LabelHeld, "Budget"))
			w.add("b", last(v1alpha1.Last{Turn: "t", Result: v1alpha1.ResultDone, End: at("13:04:00")}))
		}, Rolling},
		{"the budget is an admin's cordon", func(w *world) {
			w.add("a", wantsReboot, label(v1alpha1.LabelHeld, "Budget"))
			w.add("b", func(n *corev1.Node) { n.Spec.Unschedulable = true })
		}, Held},
		{"a node waits out its minimal uptime", func(w *world) { w.add("a", wantsReboot, label(v1alpha1.LabelHeld, "MinUptime")) }, Rolling},
		{"one is held while another moves", func(w *world) {
			w.add("a", wantsReboot, label(v1alpha1.LabelHeld, "Window"))
			w.add("b", inTurn(v1alpha1.StateDraining, "13:02:00", "committed"))
		}, Rolling},
		{"a turn is overdue and nothing else moves", func(w *world) {
			w.add("a", inTurn(v1alpha1.StateRebooting, "10:00:00", "committed"), label(v1alpha1.LabelHeld, "Overdue"))
		}, Halted}, // it counts as failed
		{"as above, and one may fail", func(w *world) {
			w.p.MaxFailed = 1
			w.add("a", inTurn(v1alpha1.StateRebooting, "10:00:00", "committed"), label(v1alpha1.LabelHeld, "Overdue"))
		}, Held},
		{"a silent host that wanted nothing in its last boot", func(w *world) {
			w.add("a", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "x" })
		}, Held},
		{"a node to be taken in", func(w *world) {
			w.add("a", func(n *corev1.Node) { delete(n.Labels, v1alpha1.LabelState) })
		}, Rolling},
		{"managed=false wants nothing of us", func(w *world) {
			w.add("a", wantsReboot, unmanaged, label(v1alpha1.LabelManaged, "false"))
		}, UpToDate},
		{"a stop, and nothing to do", func(w *world) { w.add("a"); w.lease.Annotations[v1alpha1.AnnotationStop] = "" }, Stopped},
		{"a blanked Lease, and nothing to do", func(w *world) { w.add("a"); w.lease.Spec.HolderIdentity = nil }, UpToDate},
		{"a blanked Lease, and a turn under way", func(w *world) {
			w.add("a", inTurn(v1alpha1.StateDraining, "13:02:00", "committed"))
			w.lease.Spec.HolderIdentity = nil
		}, Held},
		{"a blanked Lease, and something to do", func(w *world) { w.add("a", wantsReboot); w.lease.Spec.HolderIdentity = nil }, Held},
		{"a Lease that may not be read", func(w *world) { w.add("a", wantsReboot); w.err = errors.New("forbidden") }, Rolling},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			tc.make(w)
			if r := w.report(); r.Status != tc.want {
				t.Errorf("%s, expected %s\n%+v", r.Status, tc.want, r.Nodes)
			}
		})
	}
}

// A label counts while somebody lives to keep it true.
func TestHeldIsTheLabelOrElseTheDecision(t *testing.T) {
	w := newWorld(t)
	w.add("a", wantsReboot, label(v1alpha1.LabelHeld, "GateClosed"))
	if r := w.report(); r.Nodes[0].Held != v1alpha1.ReasonGateClosed || r.Nodes[0].Why != "a gate of the policy is closed" {
		t.Errorf("with a coordinator: %s, %q", r.Nodes[0].Held, r.Nodes[0].Why)
	}
	w.lease.Annotations[v1alpha1.AnnotationStop] = "why"
	if r := w.report(); r.Nodes[0].Held != v1alpha1.ReasonStopped || r.Nodes[0].Why != "why" {
		t.Errorf("under a stop: %s, %q", r.Nodes[0].Held, r.Nodes[0].Why)
	}
	delete(w.lease.Annotations, v1alpha1.AnnotationStop)
	w.lease.Spec.RenewTime = &metav1.MicroTime{Time: at("12:00:00")}
	if r := w.report(); r.Nodes[0].Status != Held || r.Nodes[0].Held != v1alpha1.ReasonNoCoordinator || r.Nodes[0].Why != "next in line, enters rebooting" { // the only node is not drained
		t.Errorf("without a coordinator: %s, %q", r.Nodes[0].Held, r.Nodes[0].Why)
	}
}

// TestProtocolIsTheCoordinators: an older command does not hold nodes whose hosts the coordinator works with, and a newer one holds those
// that the coordinator does not work with.
func TestProtocolIsTheCoordinators(t *testing.T) {
	speaks := func(protocol int) func(*corev1.Node) {
		return func(n *corev1.Node) {
			setHost(n, func(h *v1alpha1.Host) { h.Protocol, h.Drains, h.Changes = protocol, n.Name == "a", osUpdate })
		}
	}
	for _, c := range []struct {
		coordinator, host int
		held              v1alpha1.Reason
	}{
		{v1alpha1.Protocol + 2, v1alpha1.Protocol + 2, ""},
		{v1alpha1.Protocol + 2, v1alpha1.Protocol + 1, ""},
		{v1alpha1.Protocol + 2, v1alpha1.Protocol, v1alpha1.ReasonVersionSkew},
		{v1alpha1.Protocol, v1alpha1.Protocol, ""},
		{v1alpha1.Protocol, v1alpha1.Protocol + 1, v1alpha1.ReasonVersionSkew},
	} {
		w := newWorld(t)
		w.add("a", wantsReboot, speaks(c.host))
		w.add("n3", speaks(c.coordinator))
		if r := w.report(); r.Nodes[slices.IndexFunc(r.Nodes, func(n Node) bool { return n.Name == "a" })].Held != c.held {
			t.Errorf("protocol %d, and the coordinator's is %d: %+v", c.host, c.coordinator, r.Nodes[0])
		}
	}
}

// Three turns are done and took some four minutes; one is under way and eight wait. Two run other versions.
func progressing(t *testing.T) *world {
	w := newWorld(t)
	w.p.MaxUnavailable = policy.Limit{Number: 2}
	for i, ended := range []string{"12:10:00", "12:30:00", "13:00:00"} {
		w.add(fmt.Sprintf("done-%d", i), label(v1alpha1.LabelOS, "flatcar"), func(n *corev1.Node) {
			setHost(n, func(h *v1alpha1.Host) { h.OSVersion, h.Version = "4100.0.0", fmt.Sprintf("v1.0.%d", i) })
		}, last(v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultDone, Changes: osUpdate, End: at(ended), Turns: []time.Time{at(ended).Add(-time.Duration(3+i) * time.Minute)}}))
	}
	w.add("now", inTurn(v1alpha1.StateDraining, "13:02:00", "committed"), cordoned, label(v1alpha1.LabelOS, "flatcar"))
	for i := range 8 {
		w.add(fmt.Sprintf("waits-%d", i), wantsReboot, label(v1alpha1.LabelHeld, "Budget"), label(v1alpha1.LabelOS, "flatcar"))
	}
	return w
}

func TestVersionsAreFew(t *testing.T) {
	v := Versions{OS: []Version{{"a", 9}, {"b\x1b", 3}, {"c", 2}, {"d", 1}, {"e", 1}, {"f", 1}}}
	if got := v.line(); got != `Nodes by version: OS a (9), b\x1b (3), c (2), d (1) and 2 other versions (2).` {
		t.Error(got)
	}
}
