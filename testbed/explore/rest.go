package explore

import (
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// world is what lockkeeper waits for in a run to rest, and what never comes.
type world uint8

// The worlds.
const (
	fairWorld world = iota // everything comes
	unhealthy
	unconfirmed
	podsStay
	inhibited
	otherManager
	hostPaused
	deadHosts
	podsBlock
	blackout
	clientStays
	worldCount
)

// worlds has for each world the steps that never happen in it, and the end of the description of a violation.
var worlds = [worldCount]struct {
	lacks []kind
	text  string
}{
	unhealthy:    {[]kind{heal}, ", while hosts stay unhealthy after their boot"},
	unconfirmed:  {[]kind{confirm}, ", while no hook confirms"},
	podsStay:     {[]kind{evicted}, ", while pods cannot be evicted"},
	inhibited:    {nil, ", while something inhibits shutdowns"},
	otherManager: {nil, ", while another reboot manager is active on the hosts"},
	hostPaused:   {nil, ", while the hosts' own files pause them"},
	deadHosts:    {[]kind{start, goDown}, ", while hosts that are down stay down"},
	podsBlock:    {[]kind{podEnds}, ", while pods that block do not end"},
	blackout:     {[]kind{blackoutEnds}, ", in a blackout"},
	clientStays:  {[]kind{clientReboots}, ", while FleetLock clients do not reboot"},
}

// veto returns the hosts' own veto in the world.
func (w world) veto() v1alpha1.Reason {
	switch w {
	case otherManager:
		return v1alpha1.ReasonOtherManager
	case hostPaused:
		return v1alpha1.ReasonHostPaused
	}
	return v1alpha1.ReasonNone
}

// Rest is a cause for which a turn may wait indefinitely.
type Rest struct {
	// Cause is what the turn waits for, and End what ends the wait; for people.
	Cause, End string
	// Held is what the label held may say meanwhile.
	Held []v1alpha1.Reason
	// States are those in which the turn may wait. nil means all.
	States []v1alpha1.State
	// is reports whether node i has the cause. Its reason is Held, and its state one of States.
	is func(p *progress, w world, s *state, i int) bool
}

// Rests returns all causes for which a turn may wait indefinitely: an intent, a failure that the host has reported, or
// something outside of lockkeeper for which a stage is meant to wait: onTimeout is Wait, the host has committed to a
// disruption, or the stage gives the node back, which has no Abort. docs/safety.md has this table.
func Rests() []Rest { return slices.Clone(rests) }

var rests = []Rest{
	{
		Cause: "the emergency stop is set, or the Lease is missing", End: "an admin lifts the stop", Held: []v1alpha1.Reason{v1alpha1.ReasonStopped},
		is: func(*progress, world, *state, int) bool { return false }, // see progress.rest
	}, {
		Cause: "the API server refuses writes to the Node (an admission webhook or policy)", End: "an admin changes what refuses them", Held: []v1alpha1.Reason{v1alpha1.ReasonOverdue, v1alpha1.ReasonFailed},
		is: func(_ *progress, _ world, s *state, i int) bool { return s.n[i].guard != 0 }, // of the coordinator's writes, see progress.rest
	}, {
		Cause: "an admin has paused the node", End: "the pause ends", Held: []v1alpha1.Reason{v1alpha1.ReasonPaused},
		is: func(p *progress, _ world, s *state, i int) bool { return p.objects[s.n[i].api].paused },
	}, {
		Cause: "the host's file pauses it, or lets it only observe", End: "an admin of the host changes the file", Held: []v1alpha1.Reason{v1alpha1.ReasonHostPaused, v1alpha1.ReasonObserve},
		is: inWorld(hostPaused),
	}, {
		Cause: "the host is not healthy after its reboot", End: "the host recovers, or an admin sets `retry`", Held: []v1alpha1.Reason{v1alpha1.ReasonFailed},
		States: []v1alpha1.State{v1alpha1.StateRebooting},
		is: func(_ *progress, w world, s *state, i int) bool {
			return w == unhealthy && s.n[i].sick || w == deadHosts && s.n[i].dead()
		},
	}, {
		Cause: "a hook does not confirm, and does not have `onTimeout: Abort` or `Continue`", End: "the hook confirms", Held: []v1alpha1.Reason{v1alpha1.ReasonOverdue},
		States: []v1alpha1.State{v1alpha1.StateBeforeDrain, v1alpha1.StateBeforeReboot, v1alpha1.StateBeforeUncordon},
		is: func(p *progress, w world, s *state, i int) bool {
			return w == unconfirmed && (p.Wait || p.objects[s.n[i].api].st() == v1alpha1.StateBeforeUncordon)
		},
	}, {
		Cause: "pods cannot be evicted, and the drain has `onTimeout: Wait`, or do not end although `onTimeout: Force` deletes them", End: "the pods leave", Held: []v1alpha1.Reason{v1alpha1.ReasonOverdue},
		States: []v1alpha1.State{v1alpha1.StateDraining},
		is:     func(p *progress, w world, s *state, i int) bool { return w == podsStay && s.n[i].pods && p.Wait },
	}, {
		Cause: "pods came after the drain and cannot be evicted, and the drain has `onTimeout: Wait`, or the host has committed to the disruption", End: "the pods leave", Held: []v1alpha1.Reason{v1alpha1.ReasonOverdue},
		States: []v1alpha1.State{v1alpha1.StateRebooting, v1alpha1.StateApplying},
		is: func(p *progress, w world, s *state, i int) bool {
			return w == podsStay && s.n[i].latePod && (p.Wait || p.objects[s.n[i].api].committed())
		},
	}, {
		Cause: "pods that `drain.block` selects came after the cordon, and the drain has `onTimeout: Wait`, or `Force` in draining, or the host has committed to the disruption", End: "the pods end", Held: []v1alpha1.Reason{v1alpha1.ReasonOverdue},
		States: []v1alpha1.State{v1alpha1.StateDraining, v1alpha1.StateRebooting, v1alpha1.StateApplying},
		is: func(p *progress, w world, s *state, i int) bool {
			return w == podsBlock && s.n[i].blocks && (p.Wait || p.objects[s.n[i].api].committed())
		},
	}, {
		Cause: "something on the host inhibits shutdowns, and the drain has `onTimeout: Wait`, or the host has committed to the reboot", End: "the inhibitor is gone", Held: []v1alpha1.Reason{v1alpha1.ReasonOverdue},
		States: []v1alpha1.State{v1alpha1.StateRebooting},
		is: func(p *progress, w world, s *state, i int) bool {
			return w == inhibited && !s.n[i].down && (p.Wait || p.objects[s.n[i].api].committed())
		},
	}, {
		Cause: "another reboot manager is active on the host, and the drain has `onTimeout: Wait`, or the host has committed to the disruption", End: "an admin of the host switches it off", Held: []v1alpha1.Reason{v1alpha1.ReasonOverdue},
		States: []v1alpha1.State{v1alpha1.StateDraining, v1alpha1.StateRebooting, v1alpha1.StateApplying},
		is: func(p *progress, w world, s *state, i int) bool {
			return w == otherManager && (p.Wait || p.objects[s.n[i].api].committed())
		},
	}, {
		Cause: "the host has committed to let its FleetLock client reboot, and the client neither reboots nor asks again, or someone has uncordoned the node", End: "the client reboots the host, or an admin does", Held: []v1alpha1.Reason{v1alpha1.ReasonOverdue},
		States: []v1alpha1.State{v1alpha1.StateRebooting},
		is: func(p *progress, w world, s *state, i int) bool {
			n := &s.n[i]
			return p.stuck(n) || w == clientStays && p.permits(n)
		},
	}, {
		Cause: "the machine is down, or lockkeeper does not run on it",
		End:   "the host is back, or an admin detaches the node with force or deletes it", Held: []v1alpha1.Reason{v1alpha1.ReasonOverdue},
		is: func(_ *progress, w world, s *state, i int) bool {
			return w == deadHosts && s.n[i].dead()
		},
	}, {
		Cause: "a new leader found more turns than the budget allows, and waits for a node that only has to be uncordoned",
		End:   "the wait of that node, which has one of the causes above, ends", Held: []v1alpha1.Reason{v1alpha1.ReasonHandover},
		is: func(p *progress, w world, s *state, i int) bool {
			for k := range p.Nodes {
				o := &p.objects[s.n[k].api]
				if st := o.st(); k != i && (st == v1alpha1.StateBeforeUncordon || st == v1alpha1.StateUncordoning) {
					return w != fairWorld || o.paused || s.n[k].guard != 0
				}
			}
			return false
		},
	},
}

// inWorld returns a function that reports whether the run is in the world.
func inWorld(in world) func(*progress, world, *state, int) bool {
	return func(_ *progress, w world, _ *state, _ int) bool { return w == in }
}

// restOf returns the cause for which node i is held in its turn, or nil if it is none of rests.
func (p *progress) restOf(w world, s *state, i int, held v1alpha1.Reason) *Rest {
	for k := range rests {
		r := &rests[k]
		if slices.Contains(r.Held, held) && (r.States == nil || slices.Contains(r.States, p.objects[s.n[i].api].st())) && r.is(p, w, s, i) {
			return r
		}
	}
	return nil
}
