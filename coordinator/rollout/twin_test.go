package rollout_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// twin decides the same questions as Decide, naively, from the sentences of
// DESIGN sections 4 and 5, each as a function of the whole snapshot: no state
// between them, no order of evaluation, every answer computed anew.
type twin struct{ rollout.Snapshot }

func (w twin) all(is func(*turn.Node) bool) map[string]bool {
	names := map[string]bool{}
	for i := range w.Nodes {
		if is(&w.Nodes[i]) {
			names[w.Nodes[i].Name] = true
		}
	}
	return names
}

func inSomeTurn(n *turn.Node) bool {
	return !slices.Contains([]v1alpha1.State{"", "idle", "paused"}, n.State)
}

func said(b *bool, value bool) bool { return b != nil && *b == value }

// inCare: managed nodes are those that have a state, or whose host says that
// it is managed; not those of which an admin says otherwise, nor those that
// were handed to somebody else.
func inCare(n *turn.Node) bool {
	if said(n.Managed, false) || n.State == "" && n.Detached != nil {
		return false
	}
	return n.State != "" || n.Host != nil && n.Host.Managed
}

// unavailable: "in a turn or with our mark, whatever its labels say; and,
// among managed nodes, unschedulable whoever did it, or not Ready; each once";
// and a write with unknown outcome takes its slot.
func (w twin) unavailable() map[string]bool {
	return w.all(func(n *turn.Node) bool {
		return inSomeTurn(n) || n.Mark || w.Uncertain[n.Name] || inCare(n) && n.Unschedulable || inCare(n) && !n.Ready
	})
}

// speaks: "the coordinator reads wants and ack only while the boot id in them
// is the Node's nodeInfo.bootID".
func speaks(n *turn.Node) bool {
	return n.Host != nil && n.Wants != "" && n.BootID != "" && n.Host.BootID == n.BootID && n.Host.NodeUID == n.UID
}

func whole(n *turn.Node) bool {
	return n.Grant != nil && n.Grant.Turn == n.Turn && n.Grant.NodeUID == n.UID
}

func barred(n *turn.Node) bool {
	committing := n.State == v1alpha1.StateRebooting || n.State == v1alpha1.StateApplying
	word := n.Ack.Word == v1alpha1.WordCommitted || n.Ack.Word == v1alpha1.WordDone || n.Ack.Word == v1alpha1.WordFailed
	ofThis := n.Turn != "" && n.Ack.Turn == n.Turn && n.Ack.State == n.State
	rebooted := n.State == v1alpha1.StateRebooting && n.Grant != nil && n.BootID != "" && n.Grant.BootID != n.BootID
	return committing && word && ofThis || rebooted
}

// foreign: turns that are not known to be of this term.
func (w twin) foreign() map[string]bool {
	return w.all(func(n *turn.Node) bool {
		if w.Epoch == "" || !inSomeTurn(n) || !n.State.Known() {
			return false
		}
		if n.Grant != nil && n.Grant.NodeUID != n.UID {
			return false // void: another Node object's
		}
		return !whole(n) || n.Grant.Epoch != w.Epoch
	})
}

// past: time-outs are evaluated from the stage's start less paused time.
func (w twin) past(g *v1alpha1.Grant, limit time.Duration) bool {
	frozen := g.PausedFor.Duration
	if g.PausedSince != nil && w.Now.After(*g.PausedSince) {
		frozen += w.Now.Sub(*g.PausedSince)
	}
	return w.Now.Sub(g.StageAt) >= limit+max(frozen, 0)
}

// failed: failed and not forgiven by retry naming its turn.
func (w twin) failed() int {
	return len(w.all(func(n *turn.Node) bool {
		if !inSomeTurn(n) {
			return n.Last != nil && n.Last.Result == v1alpha1.ResultFailed && n.Last.Turn != n.Retry
		}
		if n.Grant == nil || n.Turn != "" && n.Turn == n.Retry {
			return false
		}
		word := func(v v1alpha1.Word) bool {
			return n.Turn != "" && n.Ack.Turn == n.Turn && n.Ack.State == n.State && n.Ack.Word == v && n.Ack.BootID == n.BootID
		}
		limit := map[v1alpha1.State]time.Duration{
			v1alpha1.StateRebooting: n.Grant.Terms.Rebooting.Duration, v1alpha1.StateApplying: n.Grant.Terms.Applying.Duration}
		over, acts := limit[n.State]
		late := acts && !word(v1alpha1.WordDone) && w.past(n.Grant, over)
		return n.Grant.Result == v1alpha1.ResultFailed || acts && word(v1alpha1.WordFailed) || late
	}))
}

func (w twin) settled() bool {
	for i := range w.Nodes {
		n := &w.Nodes[i]
		times := []time.Time{n.Created}
		if n.Last != nil {
			times = append(times, n.Last.End)
		}
		for _, t := range times {
			if age := w.Now.Sub(t); age < w.Policies[0].Settle && age >= -time.Minute {
				return false
			}
		}
	}
	return true
}

func (w twin) expires(n *turn.Node) bool {
	for _, i := range []*v1alpha1.Intent{n.Paused, n.Detached} {
		if i != nil && i.Until != nil && !i.Until.After(w.Now) {
			return true
		}
	}
	return false
}

// ready reports whether nothing on the node itself holds it.
func (w twin) ready(n *turn.Node) bool {
	if n.State != v1alpha1.StateIdle || n.Mark || w.Uncertain[n.Name] || w.expires(n) {
		return false
	}
	if said(n.Managed, false) || n.Paused != nil || n.Detached != nil {
		return false
	}
	if _, refused := w.Refused[n.Name]; refused {
		return false
	}
	if !speaks(n) || !n.Wants.Something() || !n.Host.Managed || n.Host.Veto != "" || n.Host.Protocol > 1 || !n.Ready {
		return false
	}
	l := n.Last
	if l == nil || n.Retry == l.Turn || !v1alpha1.SameChanges(l.Changes, n.Host.Changes) {
		return true
	}
	if l.Result == v1alpha1.ResultTurnedBack && l.NotBefore != nil {
		// The nodes here have no text of their host: this is its digest. Any
		// other says that the host has spoken since.
		const sameText = "cbf29ce484222325"
		wait := l.NotBefore.Sub(w.Now)
		return wait <= 0 || wait > w.Policies[0].BackoffMax+time.Minute || l.Reason == v1alpha1.ReasonHostSilent && l.HostDigest != sameText
	}
	return l.Result != v1alpha1.ResultFailed
}

// before: "zone, then oldest boot; the coordinator's host last"; and whoever
// was turned back is at the end of the queue.
func (w twin) before(a, b *turn.Node) bool {
	back := func(n *turn.Node) bool {
		return n.Last != nil && n.Last.Result == v1alpha1.ResultTurnedBack && n.Retry != n.Last.Turn && v1alpha1.SameChanges(n.Last.Changes, n.Host.Changes)
	}
	if (a.Name == w.Self) != (b.Name == w.Self) {
		return b.Name == w.Self
	}
	if back(a) != back(b) {
		return back(b)
	}
	if a.Zone != b.Zone {
		return a.Zone < b.Zone
	}
	if !a.Host.BootTime.Equal(b.Host.BootTime) {
		return a.Host.BootTime.Before(b.Host.BootTime)
	}
	return a.Name < b.Name
}

// granted names the nodes that get their turn, in order.
func (w twin) granted() []string {
	if w.Stopped || len(w.Uncertain) > 0 || w.Policies[0].Paused || len(w.foreign()) > 0 || w.failed() > w.Policies[0].MaxFailed || !w.settled() {
		return nil
	}
	gone := w.unavailable()
	var chosen []string
	done := map[string]bool{}
	for range w.Nodes {
		var next *turn.Node
		for i := range w.Nodes {
			n := &w.Nodes[i]
			if !done[n.Name] && w.ready(n) && (next == nil || w.before(n, next)) {
				next = n
			}
		}
		if next == nil {
			break
		}
		done[next.Name] = true
		after := len(gone)
		if !gone[next.Name] {
			after++
		}
		if after > w.Policies[0].MaxUnavailable.Number || next.ControlPlane && w.quorumAtRisk(next, chosen) {
			continue
		}
		gone[next.Name] = true
		chosen = append(chosen, next.Name)
	}
	return chosen
}

// quorumAtRisk: "at most one node with the label is unavailable through us, and
// only while the others are Ready and schedulable".
func (w twin) quorumAtRisk(n *turn.Node, chosen []string) bool {
	return len(w.all(func(o *turn.Node) bool {
		return o.ControlPlane && o.Name != n.Name && (inSomeTurn(o) || o.Mark || !o.Ready || o.Unschedulable || slices.Contains(chosen, o.Name))
	})) > 0
}

// settles says what becomes of each foreign turn: "taken" over, "back", or
// "held"; or "mended", where its records cannot be read.
func (w twin) settles() map[string]string {
	out := map[string]string{}
	var rest []*turn.Node
	gone := len(w.unavailable())
	// Of those beyond the budget, the ones that come back by themselves.
	back := len(w.all(func(n *turn.Node) bool {
		ending := n.State == v1alpha1.StateBeforeUncordon || n.State == v1alpha1.StateUncordoning
		return ending && n.Ready && !(n.Unschedulable && !n.Mark)
	}))
	over := gone - back - w.Policies[0].MaxUnavailable.Number
	foreign := w.foreign()
	for i := range w.Nodes {
		switch n := &w.Nodes[i]; {
		case !foreign[n.Name]:
		case w.Stopped || w.Uncertain[n.Name]:
			out[n.Name] = "held"
		case !whole(n):
			out[n.Name] = "mended"
		case barred(n) || n.State == v1alpha1.StateBeforeUncordon || n.State == v1alpha1.StateUncordoning:
			out[n.Name] = "taken"
		default:
			rest = append(rest, n)
		}
	}
	// "the least advanced (by state, then by mark), are turned back first"
	advance := map[v1alpha1.State]int{v1alpha1.StateBeforeDrain: 1, v1alpha1.StateDraining: 2, v1alpha1.StateBeforeReboot: 3, v1alpha1.StateRebooting: 4, v1alpha1.StateApplying: 5}
	rank := func(n *turn.Node) int {
		r := 2 * advance[n.State]
		if n.Mark {
			r++
		}
		return r
	}
	slices.SortStableFunc(rest, func(a, b *turn.Node) int {
		if ra, rb := rank(a), rank(b); ra != rb {
			return ra - rb
		}
		return map[bool]int{true: -1, false: 1}[a.Name < b.Name]
	})
	// "at most one control-plane node is unavailable through us, whatever the
	// policies say": a late grant of a stale leader's included.
	given := map[string]bool{}
	for i, n := range rest {
		frozen := !said(n.Managed, false) && (n.Paused != nil || speaks(n) && n.Host.Veto == v1alpha1.ReasonHostPaused)
		quorum := w.all(func(o *turn.Node) bool {
			return n.ControlPlane && o.ControlPlane && o.Name != n.Name && (inSomeTurn(o) || o.Mark || w.Uncertain[o.Name])
		})
		left := 0
		for name := range quorum {
			if !given[name] {
				left++
			}
		}
		switch {
		case (i < over || left > 0) && !frozen:
			out[n.Name], given[n.Name] = "back", true
		case i < over || left > 0 || gone > w.Policies[0].MaxUnavailable.Number || len(quorum) > 0:
			out[n.Name] = "held"
		default:
			out[n.Name] = "taken"
		}
	}
	return out
}

func TestTwin(t *testing.T) {
	count := 25_000
	if testing.Short() {
		count = 2_500
	}
	r := rand.New(rand.NewPCG(3, 4))
	grants, many, foreign := 0, 0, map[string]int{}
	for range count {
		b := make([]byte, 400)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		d := dice(b)
		s := randomSnapshot(&d)
		g, f := compare(t, s)
		grants += min(g, 1)
		many += g / 2
		for _, what := range f {
			foreign[what]++
		}
		if t.Failed() {
			return
		}
	}
	if grants < count/100 || many < count/1000 || foreign["back"] < count/1000 || foreign["taken"] < count/100 || foreign["mended"] < count/1000 {
		t.Errorf("too few to prove anything: %d with grants, %d with more than one, foreign turns %v", grants, many, foreign)
	}
}

// compare holds Decide against its twin.
func compare(t *testing.T, s rollout.Snapshot) (grants int, foreign map[string]string) {
	t.Helper()
	w, out := twin{s}, rollout.Decide(s)
	broken := false
	report := func(format string, args ...any) {
		broken = true
		t.Errorf(format, args...)
	}
	if got, want := out.Unavailable, len(w.unavailable()); got != want {
		report("unavailable: %d, the twin counts %d", got, want)
	}
	if got, want := out.Failed, w.failed(); got != want || out.Halted != (want > s.Policies[0].MaxFailed) {
		report("failed: %d (halted %t), the twin counts %d", got, out.Halted, want)
	}
	if got, want := out.InTurn, len(w.all(inSomeTurn)); got != want {
		report("in a turn: %d, the twin counts %d", got, want)
	}
	var got []string
	foreign = w.settles()
	for _, v := range out.Verdicts {
		if v.Move != nil && v.Move.On == turn.Granted {
			got = append(got, v.Node)
		}
		if want, ok := foreign[v.Node]; ok && settled(v, s.Epoch) != want {
			report("%s: a foreign turn is %s, by the twin %s", v.Node, settled(v, s.Epoch), want)
		}
	}
	want := w.granted()
	slices.Sort(want)
	if !slices.Equal(got, want) {
		report("granted: %v, the twin grants %v", got, want)
	}
	if broken {
		for _, n := range s.Nodes {
			t.Logf("%+v\n  host %+v\n  grant %+v\n  last %+v", n, n.Host, n.Grant, n.Last)
		}
		t.Logf("stopped %t, uncertain %v, policy %+v", s.Stopped, s.Uncertain, s.Policies)
	}
	return len(want), foreign
}

// settled names what a verdict does with a foreign turn.
func settled(v rollout.Verdict, epoch string) string {
	switch m := v.Move; {
	case m == nil:
		return "held"
	case m.Reason == v1alpha1.ReasonInvalidGrant || m.Reason == v1alpha1.ReasonHandover && m.Grant != nil && v.Move.From == m.To && m.Grant.Epoch == epoch && m.NewTurn:
		return "mended"
	case m.From == m.To && m.Grant != nil && m.Grant.Epoch == epoch:
		return "taken"
	case (m.To == v1alpha1.StateBeforeUncordon || m.To == v1alpha1.StateUncordoning) && m.Grant != nil && m.Grant.Epoch == epoch && m.Reason == v1alpha1.ReasonOverBudget:
		return "back"
	}
	return "something else"
}
