package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// decision is the state of one call of Decide.
type decision struct {
	*Snapshot
	queue    []*place     // see Outcome.Queue, in any order
	all      []entry      // by name
	nodes    []*turn.Node // those of all, in its order
	verdicts []Verdict    // likewise
	groups   []group      // in the order of the Set
	matches  []*match
	again    time.Time
	taken    []*entry // the nodes that count as unavailable
	takers   string   // see slotsText
	zones    map[string]string
	Figures
	// total is how many nodes of all policies may be unavailable, because of policy
	// totalBy; math.MaxInt if no policy limits it.
	total   int
	totalBy string
	// readTotal is the same, from the limits that can be read. A limit that cannot be
	// read backs no turn out.
	readTotal int
}

// Decide returns a verdict for every node. The order of Snapshot.Nodes does not matter.
// Decide does not change the snapshot.
func Decide(s Snapshot) Outcome {
	d := newDecision(&s)
	foreign := d.foreign()
	for i, n := range d.nodes {
		switch {
		case d.all[i].decided(): // a foreign turn
		case d.Uncertain[n.Name]:
			// The snapshot may show the Node as it was before that write.
			if n.State == v1alpha1.StateAbsent && !n.Mark && (takenOut(n) != "" || n.RawHost+string(n.Wants) == "") {
				d.holdReleased(n) // nothing is written to a node that is released, or was never managed
			} else {
				d.hold(n, v1alpha1.ReasonHandover, d.uncertain(n.Name))
			}
		case s.Stopped:
			d.stopped(n)
		case d.expired(n):
		case !n.State.Known():
			d.hold(n, v1alpha1.ReasonUnknownState, fmt.Sprintf("lockkeeper.dev/state=%q", string(n.State)))
		case n.InTurn() && !n.Ours():
			// This happens only without an epoch. A leader repairs the grant.
			d.hold(n, v1alpha1.ReasonInvalidGrant, "")
		case n.InTurn():
			d.inTurn(n)
		default:
			d.outside(n)
		}
	}
	d.grant(foreign)
	d.recordRuns()

	d.Figures.Policies = d.policyFigures()
	return Outcome{Again: d.again, Slots: d.slots(), Figures: d.Figures, Verdicts: d.verdicts, queue: d.queue}
}

// newDecision matches the nodes with their policies, and counts them.
func newDecision(s *Snapshot) *decision {
	d := &decision{Snapshot: s, all: make([]entry, len(s.Nodes)), nodes: make([]*turn.Node, len(s.Nodes)), verdicts: make([]Verdict, len(s.Nodes))}
	for i := range s.Nodes {
		d.nodes[i] = &s.Nodes[i]
	}
	if byName := func(a, b *turn.Node) int { return cmp.Compare(a.Name, b.Name) }; !slices.IsSortedFunc(d.nodes, byName) {
		slices.SortFunc(d.nodes, byName)
	}
	for i, n := range d.nodes {
		e := &d.all[i]
		e.Node, e.verdict = n, &d.verdicts[i]
		e.verdict.Node = n.Name
	}
	d.match()
	d.count()
	return d
}

// at returns the entry of a node of the snapshot.
func (d *decision) at(n *turn.Node) *entry {
	i, _ := slices.BinarySearchFunc(d.nodes, n.Name, func(n *turn.Node, name string) int { return cmp.Compare(n.Name, name) })
	return &d.all[i]
}

func (d *decision) hold(n *turn.Node, reason v1alpha1.Reason, detail string) {
	d.at(n).hold(reason, detail)
}

func (e *entry) hold(reason v1alpha1.Reason, detail string) {
	e.verdict.Held, e.verdict.Detail = reason, detail
}

func (d *decision) move(n *turn.Node, m Move) {
	m.From = n.State
	v := d.at(n).verdict
	if v.Move = &m; m.To != m.From {
		v.Held = v1alpha1.ReasonNone // the node moves, so nothing holds it
	}
}

// uncertain returns the detail of a node to which a write has an unknown outcome.
func (d *decision) uncertain(node string) string {
	text := "the outcome of a write to " + node
	if why := d.Unsettled[node]; why != "" {
		return text + " has been unknown " + why
	}
	return text + " is unknown"
}

func (e *entry) decided() bool {
	return e.verdict.Move != nil || e.verdict.Held != v1alpha1.ReasonNone
}

// wake asks for another decision at t.
func (d *decision) wake(t time.Time) {
	if t.After(d.Now) && (d.again.IsZero() || t.Before(d.again)) {
		d.again = t
	}
}

// stopped holds a node under the emergency stop. It writes only that the turn's clock is
// stopped, so that no turn is overdue after the stop.
func (d *decision) stopped(n *turn.Node) {
	if n.InTurn() || managed(n) && n.Wants.Something() {
		d.hold(n, v1alpha1.ReasonStopped, d.StopText)
	} else {
		d.holdReleased(n)
	}
	if n.InTurn() && n.State.Known() && n.Ours() && d.own(n) {
		d.freeze(n)
	}
}

// expirySlack is how long the coordinator waits after an intent's until before
// it removes the intent. The admission policy refuses the removal until then by
// the API server's clock, which it reads to the second; so clocks may differ by
// one second.
const expirySlack = 2 * time.Second

// expired removes intents whose until has passed, by the coordinator's clock.
func (d *decision) expired(n *turn.Node) bool {
	var remove []string
	for _, in := range []struct {
		key    string
		intent *v1alpha1.Intent
	}{{v1alpha1.AnnotationPaused, n.Paused}, {v1alpha1.AnnotationDetached, n.Detached}} {
		if in.intent == nil || in.intent.Until == nil {
			continue
		}
		if due := in.intent.Until.Add(expirySlack); due.After(d.Now) {
			d.wake(due)
			continue
		}
		remove = append(remove, in.key)
	}
	if len(remove) == 0 {
		return false
	}
	d.move(n, Move{To: n.State, Keep: true, Remove: remove, Expired: true})
	left := *n // as the write leaves it: managed=false may still hold the node
	if slices.Contains(remove, v1alpha1.AnnotationDetached) {
		left.Detached = nil
	}
	d.holdReleased(&left)
	return true
}

// outside decides about a node in no turn, except whether it is granted one.
func (d *decision) outside(n *turn.Node) {
	to := func(on turn.Event, m Move) {
		next, ok := turn.Next(n.State, on, turn.Plan{}, nil)
		if !ok {
			return
		}
		m.To, m.On = next, on
		d.move(n, m)
	}
	forced := n.Detached != nil && n.Detached.Force
	switch out := takenOut(n); {
	case forced && (n.State != v1alpha1.StateAbsent || n.Mark):
		d.letGo(n)
	case n.Mark && n.Paused != nil && (n.Managed == nil || *n.Managed):
		// A pause undoes nothing. The node is uncordoned after the pause.
		if n.State == v1alpha1.StateIdle {
			to(turn.Paused, Move{Reason: v1alpha1.ReasonPaused})
		} else {
			d.hold(n, v1alpha1.ReasonOwnCordonLeft, n.Paused.Reason)
		}
	case n.Mark && n.Detached != nil && n.State == v1alpha1.StateAbsent:
		// The cordon belongs to the new owner. The node's host removes the mark.
		d.hold(n, v1alpha1.ReasonOwnCordonLeft, n.Detached.Reason)
	case n.Mark:
		d.giveBack(n)
	case n.State == v1alpha1.StateAbsent && out != "" && (n.Wants != "" || n.RawHost != ""):
		d.release(n, out) // the host published before a coordinator adopted the node
	case n.State == v1alpha1.StateAbsent && n.HostReported() && out == "":
		to(turn.Adopted, Move{})
	case n.State == v1alpha1.StateAbsent:
		d.holdReleased(n)
	case out == v1alpha1.ReasonUnmanaged:
		d.release(n, out)
	case n.State == v1alpha1.StatePaused && n.Paused == nil:
		to(turn.Resumed, Move{})
	case n.State == v1alpha1.StatePaused:
		d.hold(n, v1alpha1.ReasonPaused, n.Paused.Reason)
	case n.Paused != nil:
		to(turn.Paused, Move{Reason: v1alpha1.ReasonPaused})
	case out == v1alpha1.ReasonDetached:
		d.release(n, out)
	}
}

// giveBack begins a turn that only undoes a cordon of ours, on a node whose labels were
// lost or removed during its turn.
func (d *decision) giveBack(n *turn.Node) {
	g := d.newGrant(n)
	g.Result, g.Reason = v1alpha1.ResultCancelled, v1alpha1.ReasonOwnCordonLeft
	next, _ := turn.Next(n.State, turn.Marked, turn.Plan{}, WaitsIn(n, &g))
	d.move(n, Move{To: next, On: turn.Marked, Reason: v1alpha1.ReasonOwnCordonLeft, NewTurn: true, Grant: &g, Remove: hookKeys(n)})
}

// newGrant returns a grant for the node that wants nothing. It copies nothing
// from the host's records. It has the boot only if that is an ID: the kubelet may
// report any text, and the grant has to be readable. The caller sets its turn.
func (d *decision) newGrant(n *turn.Node) v1alpha1.Grant {
	p := d.policyOf(n)
	g := v1alpha1.Grant{
		Epoch: d.Epoch, NodeUID: n.UID, Wants: v1alpha1.WantsNothing,
		Policy: p.Name, Generation: p.Generation, Terms: p.Terms,
		StartedAt: d.Now, StageAt: d.Now,
	}
	if v1alpha1.ValidateID(n.BootID) == nil {
		g.BootID = n.BootID
	}
	return g
}

// fitting returns the grant as edit changes it. If what the host has written makes that
// larger than a reader accepts, it returns the grant unchanged.
func fitting(g v1alpha1.Grant, edit func(*v1alpha1.Grant)) v1alpha1.Grant {
	edited := g
	if edit(&edited); !edited.Fits() {
		return g
	}
	return edited
}

// WaitsIn returns a function that reports whether there is something to wait for in a hook
// stage of the node's turn under the grant: hooks of its terms, hook units on the host, or
// volumes to be detached before a drained node reboots.
func WaitsIn(n *turn.Node, g *v1alpha1.Grant) func(v1alpha1.State) bool {
	return func(stage v1alpha1.State) bool {
		return len(g.Terms.Hooks(stage)) > 0 || n.Host != nil && slices.Contains(n.Host.HookStages, stage) ||
			stage == v1alpha1.StateBeforeReboot && detaches(g)
	}
}

// detaches reports whether the turn waits for volumes to be detached. Without a drain the
// pods keep their volumes.
func detaches(g *v1alpha1.Grant) bool { return g.Terms.WaitForVolumeDetach && g.Drains }

// hookKeys returns the keys of the confirmations on the node. They are removed when a stage
// is entered and when it is left, so that each counts once.
func hookKeys(n *turn.Node) []string {
	keys := make([]string, 0, len(n.Hooks))
	for name := range n.Hooks {
		keys = append(keys, v1alpha1.HookAnnotation(name))
	}
	slices.Sort(keys)
	return keys
}
