package forecast

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// canaries simulates what the nodes run for which policies wait (rollout.after), while these
// nodes take their own turns.
type canaries struct {
	now    time.Time
	policy map[string][]string // the names of the nodes, by policy, in order
	node   map[string]*canary
	never  map[string]string // see [rollout.Canaries]
	// asked holds the answers of until at one time of the simulation.
	asked map[wait]wakeup
}

// canary is one of these nodes in the simulation.
type canary struct {
	rollout.Canary
	inTurn bool
	// staged is the OS version that the node boots in its next turn; "" if none is staged.
	staged string
	// stuck says why the simulation gives the node no turn, or does not end it.
	stuck string
}

// wait identifies the nodes that wait for the same canaries.
type wait struct {
	line    *line
	version string
}

// wakeup is when the wait is over, or why that cannot be said yet.
type wakeup struct {
	at  time.Time
	why string
}

func newCanaries(s rollout.Snapshot) *canaries {
	c := &canaries{now: s.Now, policy: map[string][]string{}, node: map[string]*canary{}, asked: map[wait]wakeup{}}
	var all map[string]rollout.Canary
	all, c.never = rollout.Canaries(s)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		of := all[name]
		if of.Since.IsZero() {
			of.Since = s.Now // the coordinator is about to record it
		}
		c.policy[of.Policy] = append(c.policy[of.Policy], name)
		c.node[name] = &canary{Canary: of}
	}
	return c
}

// add records what the node boots in its turn, and why the simulation does not include that
// turn; "" if it does.
func (c *canaries) add(n *turn.Node, stuck string) {
	of := c.node[n.Name]
	if of == nil {
		return
	}
	of.inTurn, of.stuck = n.InTurn(), stuck
	if n.Host != nil {
		of.staged, _ = osUpdate(n.Host.Changes)
	}
	if n.InTurn() && n.Grant != nil {
		granted, _ := osUpdate(n.Grant.Changes)
		of.staged = cmp.Or(of.staged, granted)
	}
}

// begin begins the turn of the node.
func (c *canaries) begin(g *simulatedNode) {
	if of := c.node[g.Name]; of != nil {
		of.inTurn = true
		clear(c.asked)
	}
}

// end ends the turn of the node; stays reports that it is unavailable all the same.
func (c *canaries) end(g *simulatedNode, stays bool) {
	of := c.node[g.Name]
	if of == nil {
		return
	}
	if of.inTurn = false; !stays {
		of.Blocked = ""
	}
	wants := g.Wants
	if g.InTurn() {
		wants = g.Grant.Wants
	}
	if wants == v1alpha1.WantsReboot {
		of.OSVersion, of.Since, of.staged = cmp.Or(of.staged, of.OSVersion), g.end, ""
	}
}

// until returns when nodes of the line may be granted a turn for the OS version, as far as
// their canaries are concerned. As long as a canary does not run the version, it returns why.
func (c *canaries) until(l *line, version string) wakeup {
	key := wait{l, version}
	if w, known := c.asked[key]; known {
		return w
	}
	w := c.find(l, version)
	c.asked[key] = w
	return w
}

func (c *canaries) find(l *line, version string) (w wakeup) {
	if never := c.never[l.figures.Name]; never != "" {
		return wakeup{why: never}
	}
	for _, after := range l.After {
		text := "waits for policy " + after.Policy
		if version == "" {
			return wakeup{why: text + ", but a host does not say which OS version is staged"}
		}
		for _, name := range c.policy[after.Policy] {
			of := c.node[name]
			if why := of.lacks(version); why != "" {
				return wakeup{why: text + ": " + name + " " + why}
			}
			w.at = later(w.at, of.Since.Add(after.For))
		}
	}
	return w
}

// lacks returns why the canary does not run the version, or "".
func (c *canary) lacks(version string) string {
	switch lacks := c.Lacks(version); {
	case c.stuck != "" && (c.inTurn || lacks != ""):
		return c.stuck
	case c.inTurn:
		return v1alpha1.SlotInTurn.Means()
	default:
		return lacks
	}
}

// earliest returns a time before which no node of the line is granted a turn for the OS
// version, unless an admin edits the policies.
func (c *canaries) earliest(l *line, version string) (at time.Time) {
	for _, after := range l.After {
		for _, name := range c.policy[after.Policy] {
			since := c.now // the earliest time from which it may run the version
			if of := c.node[name]; of.Lacks(version) == "" {
				since = of.Since
			}
			at = later(at, since.Add(after.For))
		}
	}
	if !at.After(c.now) {
		return time.Time{}
	}
	return at
}

// osUpdate returns the OS version that is staged, which may be unknown (""); ok is false if none
// is.
func osUpdate(changes []v1alpha1.Change) (version string, ok bool) {
	for _, c := range changes {
		if c.Source == v1alpha1.SourceOSUpdate {
			return c.Version, true
		}
	}
	return "", false
}
