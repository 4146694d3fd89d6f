package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// canaryHold returns why the node may not be granted a turn for the OS version that is
// staged on it: the canaries of its policy g, which are the nodes of the policies in
// rollout.after, have not all run that version for long enough. It returns "" if it may, or
// if no version is staged.
//
// Any reboot boots the staged version. So a change of another kind, and a request that does
// not wait, do not lift this.
func (d *decision) canaryHold(n *turn.Node, g *group) string {
	if len(g.p.After) == 0 {
		return ""
	}
	i := slices.IndexFunc(n.Host.Changes, func(c v1alpha1.Change) bool { return c.Source == v1alpha1.SourceOSUpdate })
	if i < 0 {
		return ""
	}
	version := n.Host.Changes[i].Version
	why, known := g.waitsFor[version]
	if !known {
		if g.waitsFor == nil {
			g.waitsFor = map[string]string{}
		}
		why = d.waitsFor(g, version)
		g.waitsFor[version] = why
	}
	return why
}

// waitsFor returns for which policy the group waits before its nodes are granted a turn for
// the OS version, and why, or "".
func (d *decision) waitsFor(g *group, version string) string {
	if circle := d.circle(g); circle != "" {
		return d.says(g, "%s", circle)
	}
	for _, after := range g.p.After {
		text := "waits for policy " + after.Policy
		of := d.named(after.Policy)
		switch {
		case of == nil:
			return d.says(g, "%s", noCanary(after.Policy, of, false))
		case version == "":
			return d.says(g, "%s, but the host does not say which OS version is staged", text)
		}
		runs, all, blocked := 0, 0, ""
		var last time.Time
		for i := range d.all {
			c := &d.all[i]
			if c.group != of || isOut(c.Node) {
				continue
			}
			all++
			canary := d.canary(c.Node)
			if why := canary.Lacks(version); why == "" {
				runs++
				last = later(last, canary.Since)
			} else if blocked == "" {
				blocked = c.Name + " " + why
			}
		}
		until := last.Add(after.For)
		text = fmt.Sprintf("%s: %d of %d nodes run %s", text, runs, all, v1alpha1.OneLine(version, shownVersion))
		switch {
		case all == 0:
			return d.says(g, "%s", noCanary(after.Policy, of, false))
		case runs < all:
			return d.says(g, "%s; %s", text, blocked)
		case until.After(d.Now):
			d.wake(until)
			return d.says(g, "%s, the last since %s, until %s", text, moment(d.Now, last), moment(d.Now, until))
		}
	}
	return ""
}

// shownVersion bounds an OS version in a text, in bytes: a host may write anything.
const shownVersion = 40

// Canary is what a node runs for whose OS version other policies may wait.
type Canary struct {
	// Policy is the policy that decides about the node.
	Policy string
	// OSVersion is the version that it runs, and Since is since when it has run that without an
	// interruption; the zero time if no coordinator has recorded it yet.
	OSVersion string
	Since     time.Time
	// Blocked says why the node counts for no version, or is "".
	Blocked string
}

// Lacks returns why the canary does not count as one that runs the OS version, or "".
func (c *Canary) Lacks(version string) string {
	switch {
	case c.Blocked != "":
		return c.Blocked
	case c.OSVersion != version:
		return "runs " + v1alpha1.OneLine(c.OSVersion, shownVersion)
	case c.Since.IsZero():
		return "has just begun to run it"
	}
	return ""
}

// canary returns what the node runs. Only what a coordinator recorded on the Node starts the
// clock, and everything that a host or kubelet can write only makes it start later.
func (d *decision) canary(n *turn.Node) (c Canary) {
	use := d.slotUse(n)
	switch {
	case use != "":
		c.Blocked = use.Means()
	case d.failed(n):
		c.Blocked = "failed in its last turn"
	case n.State == v1alpha1.StateAbsent, !n.HostReported():
		c.Blocked = "has not reported from its present boot"
	case n.Host.OSVersion == "":
		c.Blocked = "does not say which OS version it runs"
	}
	if n.Host == nil {
		return c
	}
	if c.OSVersion = n.Host.OSVersion; !d.recorded(n) {
		return c
	}
	c.Since = later(n.Runs.Since, d.credible(n.ReadySince))
	if n.Last != nil && n.Last.Result == v1alpha1.ResultFailed {
		c.Since = later(c.Since, d.credible(n.Last.End)) // an admin's retry has cleared the failure
	}
	return c
}

// Canaries returns, by node, what the nodes run for which a policy waits (rollout.after), and by
// policy why its nodes wait, independent of what those run. Decide holds nodes by the same rules.
func Canaries(s Snapshot) (nodes map[string]Canary, never map[string]string) {
	d := newDecision(&s)
	nodes, never = map[string]Canary{}, map[string]string{}
	some := map[*group]bool{}
	awaited := d.awaited()
	for i := range d.all {
		if e := &d.all[i]; awaited[e.group] && !isOut(e.Node) {
			c := d.canary(e.Node)
			c.Policy = e.group.Name
			nodes[e.Name] = c
			some[e.group] = true
		}
	}
	for i := range d.groups {
		g := &d.groups[i]
		for _, after := range g.p.After {
			of := d.named(after.Policy)
			if why := cmp.Or(d.circle(g), noCanary(after.Policy, of, some[of])); why != "" {
				never[g.Name] = cmp.Or(never[g.Name], why)
			}
		}
	}
	return nodes, never
}

// noCanary returns why there is no canary of the policy of that name, whose group is of, or "". some is whether the
// policy decides about any node.
func noCanary(name string, of *group, some bool) string {
	switch {
	case of == nil:
		return "waits for policy " + name + ", which does not exist or only adds rules"
	case !some:
		return "waits for policy " + name + ", which decides about no node"
	}
	return ""
}

// awaited returns the groups for whose nodes another one waits.
func (d *decision) awaited() map[*group]bool {
	groups := map[*group]bool{}
	for i := range d.groups {
		for _, after := range d.groups[i].p.After {
			if of := d.named(after.Policy); of != nil {
				groups[of] = true
			}
		}
	}
	return groups
}

// recorded reports whether the node's record is about the OS version and the boot that its
// host and its kubelet report.
func (d *decision) recorded(n *turn.Node) bool {
	r := n.Runs
	return r != nil && r.OSVersion == n.Host.OSVersion && r.BootID == n.BootID && !d.credible(r.Since).IsZero()
}

// isOut reports whether an admin or the host's file took the node out, so that it is no
// canary. A node whose host has never reported is one: it does not run the version.
func isOut(n *turn.Node) bool {
	return takenOut(n) != "" || n.State == v1alpha1.StateAbsent && n.RawHost == "" && n.Managed == nil && n.Held == v1alpha1.ReasonUnmanaged
}

// circle returns the policies on the way from the group back to itself, as a text, or "".
// The nodes of all of them are held: none could ever be first.
func (d *decision) circle(g *group) string {
	seen := map[string]bool{}
	var find func(at *group) []string
	find = func(at *group) []string {
		for _, after := range at.p.After {
			next := d.named(after.Policy)
			if next == g {
				return []string{at.Name}
			}
			if next == nil || seen[next.Name] {
				continue
			}
			seen[next.Name] = true
			if way := find(next); way != nil {
				return append([]string{at.Name}, way...)
			}
		}
		return nil
	}
	way := find(g)
	if way == nil {
		return ""
	}
	return fmt.Sprintf("policies wait for each other: %s after %s; remove one of these from rollout.after", strings.Join(way, " after "), g.Name)
}

// recordEvery is the shortest time between two records about one node. Without it, a host
// that reports other versions all the time would make the coordinator write all the time.
const recordEvery = time.Minute

// recordRuns records since when the nodes run their OS versions, where other policies wait
// for them. It changes nothing else on the Nodes, and does without those that move.
func (d *decision) recordRuns() {
	if d.Stopped || d.Epoch == "" {
		return
	}
	canaries := d.awaited()
	if len(canaries) == 0 {
		return
	}
	for i := range d.all {
		e := &d.all[i]
		n := e.Node
		if !canaries[e.group] || e.verdict.Move != nil || d.Uncertain[n.Name] ||
			n.State != v1alpha1.StateIdle && n.State != v1alpha1.StatePaused ||
			!n.HostReported() || !n.Ready || d.recorded(n) || n.Host.OSVersion == "" || len(n.Host.OSVersion) > v1alpha1.MaxOSVersion {
			continue
		}
		if n.Runs != nil {
			if next := d.credible(n.Runs.Since).Add(recordEvery); next.After(d.Now) {
				d.wake(next)
				continue
			}
		}
		d.move(n, Move{To: n.State, Keep: true, Runs: &v1alpha1.Runs{OSVersion: n.Host.OSVersion, BootID: n.BootID, Since: d.Now}})
	}
}
