package rollout_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
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

func saidNo(b *bool) bool { return b != nil && !*b }

// inCare: managed nodes are those that have a state, or whose host says that
// it is managed; not those of which an admin says otherwise, nor those that
// were handed to somebody else.
func inCare(n *turn.Node) bool {
	if saidNo(n.Managed) || n.State == "" && n.Detached != nil {
		return false
	}
	return n.State != "" || n.Host != nil && n.Host.Managed
}

// decides is the policy that decides the node's rollout: of those that select
// it the one with the highest priority, of two with the same the one whose name
// comes first. One with rulesOnly never does. nil is none.
func (w twin) decides(n *turn.Node) *policy.Policy {
	var best *policy.Policy
	for i := range w.Policies {
		p := &w.Policies[i]
		if !p.RulesOnly && p.Selects(n.Labels) && (best == nil || p.Priority > best.Priority || p.Priority == best.Priority && p.Name < best.Name) {
			best = p
		}
	}
	return best
}

// invalid: "an invalid policy grants nothing", on no node that it selects.
func (w twin) invalid(n *turn.Node) bool {
	for i := range w.Policies {
		if p := &w.Policies[i]; p.Selects(n.Labels) && len(p.Problems) > 0 {
			return true
		}
	}
	return false
}

// countsIn: "under the policy in its turn and the one that now matches".
func (w twin) countsIn(n *turn.Node, p *policy.Policy) bool {
	return w.decides(n) == p || inSomeTurn(n) && n.Grant != nil && n.Grant.Policy == p.Name && !p.RulesOnly
}

// countedIn are the unavailable nodes that count in the policy's budget.
func (w twin) countedIn(p *policy.Policy) map[string]bool {
	gone := w.unavailable()
	return w.all(func(n *turn.Node) bool { return gone[n.Name] && w.countsIn(n, p) })
}

// share is the limit as a number: "percent rounds down, at least 1".
func share(l policy.Limit, nodes int) int {
	if l.Percent == 0 {
		return l.Number
	}
	return max(1, nodes*l.Percent/100)
}

// allowed: a number, or a share of the managed nodes whose rollout it decides.
func (w twin) allowed(p *policy.Policy) int {
	if p.RulesOnly {
		return 0
	}
	return share(p.MaxUnavailable, len(w.all(func(n *turn.Node) bool { return n.State != "" && w.decides(n) == p })))
}

// total: "across all policies; the smallest holds"; one that is invalid holds
// as long as it can be read, and lets but one node go if it cannot.
func (w twin) total() int {
	least := w.readTotal()
	for i := range w.Policies {
		if p := &w.Policies[i]; !p.RulesOnly && p.MaxUnavailableTotal != nil && len(p.Problems) > 0 && *p.MaxUnavailableTotal == (policy.Limit{}) {
			least = min(least, 1)
		}
	}
	return least
}

func (w twin) readTotal() int {
	least := 1 << 30
	for i := range w.Policies {
		p := &w.Policies[i]
		if t := p.MaxUnavailableTotal; !p.RulesOnly && t != nil && (len(p.Problems) == 0 || t.Percent+t.Number > 0) {
			least = min(least, share(*t, len(w.all(func(n *turn.Node) bool { return n.State != "" }))))
		}
	}
	return least
}

// fits reports whether a window is open, and no blackout holds, in each minute of the time needed.
func fits(p *policy.Policy, now time.Time, need time.Duration) bool {
	windows := p.Windows
	in := func(t time.Time) bool {
		for _, b := range p.Blackouts {
			if !t.Before(b.From) && t.Before(b.To) {
				return false
			}
		}
		for _, w := range windows {
			for _, ago := range []int{0, 1} { // it opened today, or yesterday
				day := t.In(w.Zone).AddDate(0, 0, -ago)
				start := time.Date(day.Year(), day.Month(), day.Day(), w.Hour, w.Minute, 0, 0, w.Zone)
				if w.Days[day.Weekday()] && !t.Before(start) && t.Before(start.Add(w.Duration)) {
					return true
				}
			}
		}
		return len(windows) == 0
	}
	for t := now; t.Before(now.Add(need)); t = t.Add(time.Minute) {
		if !in(t) {
			return false
		}
	}
	return in(now) && in(now.Add(need-1))
}

// gated: "gates must all be open"; to a leader one that nobody answered is not.
func (w twin) gated(p *policy.Policy) bool {
	for _, g := range p.Gates {
		if answer, known := w.Gates[p.Name+"/"+g.Name]; known && !answer.Open || !known && w.Epoch != "" {
			return true
		}
	}
	return false
}

// unavailable: "in a turn or with our mark, whatever its labels say; and,
// among managed nodes, unschedulable whoever did it, or not Ready; each once";
// and a write with unknown outcome takes its slot.
func (w twin) unavailable() map[string]bool {
	return w.all(func(n *turn.Node) bool {
		return inSomeTurn(n) || n.Mark || w.Uncertain[n.Name] || inCare(n) && n.Unschedulable || inCare(n) && !n.Ready || inCare(n) && n.Deleted
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
	word := n.Ack.Report == v1alpha1.ReportCommitted || n.Ack.Report == v1alpha1.ReportDone || n.Ack.Report == v1alpha1.ReportFailed
	ofThis := n.Turn != "" && n.Ack.Turn == n.Turn && n.Ack.State == n.State
	rebooted := n.State == v1alpha1.StateRebooting && n.Grant != nil && n.BootID != "" && n.Grant.BootID != n.BootID
	return committing && word && ofThis || rebooted
}

// committedAnyTurn is barred for a node whose turn cannot be read.
func committedAnyTurn(n *turn.Node) bool {
	committing := n.State == v1alpha1.StateRebooting || n.State == v1alpha1.StateApplying
	word := n.Ack.Report == v1alpha1.ReportCommitted || n.Ack.Report == v1alpha1.ReportDone || n.Ack.Report == v1alpha1.ReportFailed
	return committing && word && n.Ack.State == n.State
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

// past: timeouts are evaluated from the stage's start less paused time; and "a
// turn does not come out of the lack of a leader overdue", nor out of a stop that
// its leader could not record.
func (w twin) past(n *turn.Node, limit time.Duration) bool {
	g := n.Grant
	frozen := g.PausedFor.Duration
	if g.PausedSince != nil && w.Now.After(*g.PausedSince) {
		frozen += w.Now.Sub(*g.PausedSince)
	}
	frozen = max(frozen, 0)
	if w.Epoch != "" && g.Epoch != w.Epoch && g.PausedSince == nil {
		led := g.StageAt.Add(frozen) // unless it is known
		if (w.LedBy == "" || w.LedBy == g.Epoch) && w.LedUntil.After(led) && !w.LedUntil.After(w.Now.Add(time.Minute)) {
			led = w.LedUntil
		}
		frozen += max(0, w.Now.Sub(led))
	}
	if (w.Epoch == "" || g.Epoch == w.Epoch) && g.PausedSince == nil {
		stop := w.StopMissed[n.Name]
		length, end := stop.Until.Sub(stop.Since), stop.Until
		if w.Stopped {
			length, end = length+w.Now.Sub(w.StoppedSince), w.Now
		}
		frozen += max(0, min(length, end.Sub(g.StageAt)))
	}
	return w.Now.Sub(g.StageAt) >= limit+frozen
}

// failed: failed and not cleared by retry naming its turn.
func (w twin) failed() map[string]bool {
	return w.all(func(n *turn.Node) bool {
		if !inSomeTurn(n) {
			return n.Last != nil && n.Last.Result == v1alpha1.ResultFailed && n.Last.Turn != n.Retry
		}
		if n.Grant == nil || n.Turn != "" && n.Turn == n.Retry {
			return false
		}
		word := func(v v1alpha1.Report) bool {
			return n.Turn != "" && n.Ack.Turn == n.Turn && n.Ack.State == n.State && n.Ack.Report == v && n.Ack.BootID == n.BootID
		}
		limit := map[v1alpha1.State]time.Duration{
			v1alpha1.StateRebooting: n.Grant.Terms.Rebooting.Duration, v1alpha1.StateApplying: n.Grant.Terms.Applying.Duration}
		over, acts := limit[n.State]
		late := acts && !word(v1alpha1.ReportDone) && w.past(n, over)
		return n.Grant.Result == v1alpha1.ResultFailed || acts && word(v1alpha1.ReportFailed) || late
	})
}

// failedIn is how many count in the policy's maxFailed.
func (w twin) failedIn(p *policy.Policy) int {
	failed := w.failed()
	return len(w.all(func(n *turn.Node) bool { return failed[n.Name] && w.countsIn(n, p) }))
}

func (w twin) settled(p *policy.Policy) bool {
	for i := range w.Nodes {
		n := &w.Nodes[i]
		if w.decides(n) != p {
			continue
		}
		times := []time.Time{n.Created}
		if n.Last != nil {
			times = append(times, n.Last.End)
		}
		for _, t := range times {
			if age := w.Now.Sub(t); age < p.Settle && age >= -time.Minute {
				return false
			}
		}
	}
	// "Nothing is granted for the settle time" after the store went back in time.
	age := w.Now.Sub(w.Rewound)
	return age >= p.Settle || age < -time.Minute
}

func (w twin) expires(n *turn.Node) bool {
	for _, i := range []*v1alpha1.Intent{n.Paused, n.Detached} {
		if i != nil && i.Until != nil && w.Now.Sub(*i.Until) >= 2*time.Second {
			return true
		}
	}
	return false
}

// backoffMax of the node's policy, or what is built in.
func (w twin) backoffMax(n *turn.Node) time.Duration {
	if p := w.decides(n); p != nil && len(p.Problems) == 0 {
		return p.BackoffMax
	}
	return time.Hour
}

// ready reports whether nothing on the node itself holds it.
func (w twin) ready(n *turn.Node) bool {
	if n.State != v1alpha1.StateIdle || n.Mark || w.Uncertain[n.Name] || w.expires(n) {
		return false
	}
	if saidNo(n.Managed) || n.Paused != nil || n.Detached != nil {
		return false
	}
	if _, refused := w.Refused[n.Name]; refused {
		return false
	}
	if n.Owner != "" {
		return false // "nothing is granted until they are gone"
	}
	if !speaks(n) || !n.Wants.Something() || !n.Host.Managed || n.Host.Veto != "" || n.Host.Protocol > 1 || !n.Ready {
		return false
	}
	// "Block is off only if the policies of both say so, and for one turn."
	if n.Host.BlockOff {
		if n.Host.BlockedSince.IsZero() {
			return false
		}
		if p := w.decides(n); p == nil || p.Terms.OnBlockTimeout != "Evict" || n.Host.BlockedSince.Add(p.Terms.BlockTimeout.Duration).After(w.Now) {
			return false
		}
	}
	if n.Request == nil && slices.Contains(n.Host.Changes, requested) {
		return false // it is carried out
	}
	// "Nothing is written that cannot be read back."
	if len(v1alpha1.FormatRecord(n.Host.Changes)) > 28<<10 {
		return false
	}
	l := n.Last
	if l != nil {
		// "A node's turns in a rolling day are bounded."
		today := 0
		for _, t := range l.Turns {
			if age := w.Now.Sub(t); age < 24*time.Hour && age >= -time.Minute {
				today++
			}
		}
		if p := w.decides(n); p != nil && today >= w.turns(p) && n.Retry != l.Turn {
			return false
		}
	}
	if l == nil || n.Retry == l.Turn || !v1alpha1.SameChanges(l.Changes, n.Host.Changes) {
		return true
	}
	if l.Result == v1alpha1.ResultBackedOut && l.NotBefore != nil {
		// The nodes here have no text of their host: this is its digest. Any
		// other says that the host has spoken since.
		const sameText = "cbf29ce484222325"
		wait := l.NotBefore.Sub(w.Now)
		return wait <= 0 || wait > w.backoffMax(n)+time.Minute || l.Reason == v1alpha1.ReasonHostSilent && l.HostDigest != sameText
	}
	return l.Result != v1alpha1.ResultFailed
}

// turns is how many turns a day the policy allows, or the default where it cannot be
// read.
func (w twin) turns(p *policy.Policy) int {
	if len(p.Problems) > 0 {
		return 6
	}
	return p.MaxTurnsPerDay
}

// before: "the end of the last turn, zone, then oldest boot; the coordinator's host
// last"; and a node that was backed out is at the end of the queue.
func (w twin) before(a, b *turn.Node) bool {
	back := func(n *turn.Node) bool {
		return n.Last != nil && n.Last.Result == v1alpha1.ResultBackedOut && n.Retry != n.Last.Turn && v1alpha1.SameChanges(n.Last.Changes, n.Host.Changes)
	}
	pa, pb := w.decides(a), w.decides(b)
	if pa.Observe != pb.Observe {
		return pb.Observe
	}
	if (a.Name == w.Self) != (b.Name == w.Self) {
		return b.Name == w.Self
	}
	if back(a) != back(b) {
		return back(b)
	}
	if pa.Priority != pb.Priority {
		return pa.Priority > pb.Priority
	}
	if pa != pb {
		return pa.Name < pb.Name
	}
	for _, key := range pa.Order {
		switch ea, eb := w.endedToday(a), w.endedToday(b); {
		case key == v1alpha1.OrderLastTurn && !ea.Equal(eb):
			return ea.Before(eb)
		case key == v1alpha1.OrderZone && a.Zone != b.Zone:
			return a.Zone < b.Zone
		case key == v1alpha1.OrderOldestBoot && !a.Host.BootTime.Equal(b.Host.BootTime):
			return a.Host.BootTime.Before(b.Host.BootTime)
		case key == v1alpha1.OrderName:
			return a.Name < b.Name
		}
	}
	return a.Name < b.Name
}

// endedToday is when the node's last turn ended; zero if that was not today, or if
// an admin retries it.
func (w twin) endedToday(n *turn.Node) time.Time {
	if n.Last == nil || n.Retry == n.Last.Turn || w.Now.Sub(n.Last.End) > 24*time.Hour || n.Last.End.Sub(w.Now) > time.Minute {
		return time.Time{}
	}
	return n.Last.End
}

// begins reports whether the policy lets anything begin.
func (w twin) begins(p *policy.Policy) bool {
	return !p.Paused && w.failedIn(p) <= p.MaxFailed && w.settled(p) && !w.gated(p) && fits(p, w.Now, p.ExpectedDuration)
}

// granted names the nodes that get their turn, in order, and those that would
// if their policies did not only observe: after, and beside, the others.
func (w twin) granted() (chosen, would []string) {
	if w.Stopped || w.Unread != "" || len(w.Uncertain) > 0 || len(w.blocks()) > 0 {
		return nil, nil
	}
	done := map[string]bool{}
	for range w.Nodes {
		var next *turn.Node
		for i := range w.Nodes {
			n := &w.Nodes[i]
			if !done[n.Name] && w.ready(n) && w.decides(n) != nil && !w.invalid(n) && (next == nil || w.before(n, next)) {
				next = n
			}
		}
		if next == nil {
			break
		}
		done[next.Name] = true
		p := w.decides(next)
		gone, of := w.unavailable(), w.countedIn(p)
		for _, name := range append(slices.Clone(chosen), would...) {
			gone[name] = true
			for i := range w.Nodes {
				if w.Nodes[i].Name == name && w.decides(&w.Nodes[i]) == p {
					of[name] = true
				}
			}
		}
		gone[next.Name], of[next.Name] = true, true
		if !w.mayBegin(next, p) || !w.proven(next, p) || len(of) > w.allowed(p) || len(gone) > w.total() || next.ControlPlane && w.quorumAtRisk(next, append(slices.Clone(chosen), would...)) {
			continue
		}
		if p.Observe {
			would = append(would, next.Name)
		} else {
			chosen = append(chosen, next.Name)
		}
	}
	return chosen, would
}

// quorumAtRisk: "at most one node with the label is unavailable through us, and
// only while the others are Ready and schedulable".
func (w twin) quorumAtRisk(n *turn.Node, chosen []string) bool {
	return len(w.all(func(o *turn.Node) bool {
		return o.ControlPlane && o.Name != n.Name && (inSomeTurn(o) || o.Mark || !o.Ready || o.Unschedulable || slices.Contains(chosen, o.Name))
	})) > 0
}

// frozen: "paused freezes the node", and so does a host that is paused or observes
// by its own file; managed=false comes before the former.
func frozen(n *turn.Node) bool {
	return !saidNo(n.Managed) && n.Paused != nil || speaks(n) && (n.Host.Veto == v1alpha1.ReasonHostPaused || n.Host.Veto == v1alpha1.ReasonObserve)
}

// blocks are the foreign turns for which nothing is granted: those that this leader
// can settle. "Neither a paused nor a damaged turn keeps others from being settled",
// nor one on a Node to which the API server refuses writes.
func (w twin) blocks() map[string]bool {
	foreign, settles := w.foreign(), w.settles()
	return w.all(func(n *turn.Node) bool {
		_, refused := w.Refused[n.Name]
		over := settles[n.Name] == "held" || settles[n.Name] == "taken"
		ending := n.State == v1alpha1.StateBeforeUncordon || n.State == v1alpha1.StateUncordoning
		waits := over && frozen(n) && !barred(n) && !ending
		return foreign[n.Name] && whole(n) && !refused && !waits
	})
}

// settles says what happens to each foreign turn: "taken" over, "back", or "held";
// "mended", where its records cannot be read; "expired", "released" or "out", where
// an admin's intent comes first.
func (w twin) settles() map[string]string {
	out := map[string]string{}
	var rest []*turn.Node
	// What is over in each budget that the node counts in, and in the total, when
	// those come back by themselves that do, and those are given back that are.
	// A limit that cannot be read turns nothing back.
	given := map[string]bool{}
	ends := w.all(func(n *turn.Node) bool {
		ending := n.State == v1alpha1.StateBeforeUncordon || n.State == v1alpha1.StateUncordoning
		return ending && n.Ready && !(n.Unschedulable && !n.Mark) && !n.Deleted
	})
	over := func(n *turn.Node, withoutEnding bool) bool {
		count := func(of map[string]bool) int {
			left := 0
			for name := range of {
				if !withoutEnding || !ends[name] && !given[name] {
					left++
				}
			}
			return left
		}
		for i := range w.Policies {
			p := &w.Policies[i]
			unread := len(p.Problems) > 0 && p.MaxUnavailable == policy.Limit{}
			if w.countsIn(n, p) && !unread && count(w.countedIn(p)) > w.allowed(p) {
				return true
			}
		}
		return count(w.unavailable()) > w.readTotal()
	}
	foreign := w.foreign()
	for i := range w.Nodes {
		switch n := &w.Nodes[i]; {
		case !foreign[n.Name]:
		case w.Stopped || w.Uncertain[n.Name]:
			out[n.Name] = "held"
		case w.expires(n):
			out[n.Name] = "expired"
		case n.Detached != nil && n.Detached.Force && !barred(n) && !(!whole(n) && committedAnyTurn(n)):
			out[n.Name] = "released"
		case !whole(n) && frozen(n):
			out[n.Name] = "held"
		case !whole(n):
			out[n.Name] = "mended"
		case !frozen(n) && !barred(n) && n.State != v1alpha1.StateBeforeUncordon && n.State != v1alpha1.StateUncordoning &&
			(saidNo(n.Managed) || n.Detached != nil || speaks(n) && !n.Host.Managed):
			out[n.Name] = "out"
		case barred(n) || n.State == v1alpha1.StateBeforeUncordon || n.State == v1alpha1.StateUncordoning:
			out[n.Name] = "taken"
		default:
			rest = append(rest, n)
		}
	}
	// "the least advanced (by state, then by mark), are backed out first"
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
	turned := map[string]bool{}
	for _, n := range rest {
		quorum := w.all(func(o *turn.Node) bool {
			return n.ControlPlane && o.ControlPlane && o.Name != n.Name && (inSomeTurn(o) || o.Mark || w.Uncertain[o.Name])
		})
		left := 0
		for name := range quorum {
			if !turned[name] {
				left++
			}
		}
		_, refused := w.Refused[n.Name]
		switch beyond := over(n, true) || left > 0; {
		case (frozen(n) || refused) && (over(n, false) || left > 0):
			out[n.Name] = "held"
		case beyond:
			out[n.Name], given[n.Name], turned[n.Name] = "back", true, true
		case over(n, false) || len(quorum) > 0:
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
	grants, many, would, foreign := 0, 0, 0, map[string]int{}
	for range count {
		b := make([]byte, 800)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		d := dice(b)
		s := randomSnapshot(&d)
		g, o, f := compare(t, s)
		would += min(o, 1)
		grants += min(g, 1)
		many += g / 2
		for _, what := range f {
			foreign[what]++
		}
		if t.Failed() {
			return
		}
	}
	if grants < count/100 || many < count/1000 || would < count/500 || foreign["back"] < count/1000 || foreign["taken"] < count/100 || foreign["mended"] < count/1000 {
		t.Errorf("too few to prove anything: %d with grants, %d with more than one, %d with some that would be, foreign turns %v", grants, many, would, foreign)
	}
}

// compare holds Decide against its twin.
func compare(t *testing.T, s rollout.Snapshot) (grants, would int, foreign map[string]string) {
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
	if got, want := out.Failed, len(w.failed()); got != want {
		report("failed: %d, the twin counts %d", got, want)
	}
	for i := range s.Policies {
		p, f := &s.Policies[i], &out.Figures.Policies[i]
		failed := w.failedIn(p)
		if f.Name != p.Name || f.Unavailable != len(w.countedIn(p)) || f.Allowed != w.allowed(p) || f.Failed != failed || f.Halted != (failed > p.MaxFailed) {
			report("policy %s: %d unavailable, %d allowed, %d failed, by the twin; told %+v", p.Name, len(w.countedIn(p)), w.allowed(p), failed, f)
		}
	}
	if got, want := out.InTurn, len(w.all(inSomeTurn)); got != want {
		report("in a turn: %d, the twin counts %d", got, want)
	}
	reporting := w.all(func(n *turn.Node) bool {
		return n.State != v1alpha1.StateAbsent && n.Host != nil && n.Host.NodeUID == n.UID && n.BootID != "" && n.Host.BootID == n.BootID && n.Wants.Known()
	})
	if got, want := out.Reporting, len(reporting); got != want {
		report("reporting: %d, the twin counts %d", got, want)
	}
	checkRequests(t, &s, &out)
	var got, gotWould []string
	foreign = w.settles()
	for _, v := range out.Verdicts {
		if v.Held == v1alpha1.ReasonWouldGrant {
			gotWould = append(gotWould, v.Node)
		}
		if v.Move != nil && v.Move.On == turn.Granted {
			got = append(got, v.Node)
		}
		if want, ok := foreign[v.Node]; ok && settled(v, s.Epoch) != want {
			report("%s: a foreign turn is %s, by the twin %s", v.Node, settled(v, s.Epoch), want)
		}
	}
	want, wantWould := w.granted()
	slices.Sort(want)
	slices.Sort(wantWould)
	if !slices.Equal(got, want) || !slices.Equal(gotWould, wantWould) {
		report("granted: %v, would be: %v; the twin grants %v and would grant %v", got, gotWould, want, wantWould)
	}
	if broken {
		for _, n := range s.Nodes {
			t.Logf("%+v\n  host %+v\n  grant %+v\n  last %+v", n, n.Host, n.Grant, n.Last)
		}
		for _, p := range s.Policies {
			t.Logf("policy %s, selects %v: %+v total %+v", p.Name, w.all(func(n *turn.Node) bool { return p.Selects(n.Labels) }), p, p.MaxUnavailableTotal)
		}
		t.Logf("stopped %t since %v, missed %v, unread %q, uncertain %v, gates %v", s.Stopped, s.StoppedSince, s.StopMissed, s.Unread, s.Uncertain, s.Gates)
	}
	return len(want), len(wantWould), foreign
}

// settled names what a verdict does with a foreign turn.
func settled(v rollout.Verdict, epoch string) string {
	switch m := v.Move; {
	case m == nil, m.From == m.To && m.Grant != nil && m.Grant.Epoch != epoch && m.Grant.PausedSince != nil &&
		m.Reason != v1alpha1.ReasonInvalidGrant: // its clock stands still
		return "held"
	case m.Keep && len(m.Remove) > 0:
		return "expired"
	case m.LetGo && m.On == turn.LetGo:
		return "released"
	case m.Reason == v1alpha1.ReasonInvalidGrant || m.Reason == v1alpha1.ReasonHandover && m.Grant != nil && v.Move.From == m.To && m.Grant.Epoch == epoch && m.NewTurn:
		return "mended"
	case m.From == m.To && m.Grant != nil && m.Grant.Epoch == epoch:
		return "taken"
	case (m.To == v1alpha1.StateBeforeUncordon || m.To == v1alpha1.StateUncordoning) && m.Grant != nil && m.Grant.Epoch == epoch && m.Reason == v1alpha1.ReasonOverBudget:
		return "back"
	case m.Grant != nil && m.Grant.Epoch == epoch && (m.Reason == v1alpha1.ReasonUnmanaged || m.Reason == v1alpha1.ReasonDetached):
		return "out"
	}
	return "something else"
}
