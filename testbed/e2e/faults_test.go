package e2e

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

// fault is something that goes wrong on one host. At its end the fleet is idle and up to date.
type fault struct {
	name string
	run  func(*testing.T, *fleet)
}

// usual lists the faults of every run.
var usual = []fault{
	{"KilledWhileDrainingAndRebooting", testKilled},
	{"UpgradedWhileDraining", testUpgraded},
	{"CutOffWhileDraining", testCutOff},
	{"SomebodyLoggedIn", testLoggedIn},
	{"RolledBack", testRolledBack},
	{"CrashedWhileDraining", testCrashed},
}

// sampled lists faults that take one turn each. A soak run includes all of them, every other run those that
// LOCKKEEPER_SEED selects.
var sampled = []fault{
	{"CutOffWhileRebooting", testCutOffWhileRebooting},
	{"BusRestartedWhileDraining", testBusRestarted},
	{"WatchdogWhileDraining", testWatchdog},
	{"DiskFull", testDiskFull},
	{"ProtocolSkew", testProtocol},
}

// long lists the faults that run only in a soak, because each takes a minute or more.
var long = []fault{
	{"KilledAnywhere", testKilledAnywhere},           // four turns
	{"KilledInEveryStage", testStages},               // two turns with five restarts each, five of them by the watchdog
	{"NeverComesBack", testNeverComesBack},           // the policy's timeout of 90 s has to pass, and two hosts have turns
	{"EngineRestartedAndMasked", testEngine},         // three turns
	{"MixedVersionsAndDowngrade", testMixedVersions}, // two rollouts through all hosts, and another version is built
	{"ClockAnHourOff", testClock},                    // two turns and four changes of the term
}

// samples is the number of sampled faults in a run, and defaultSeed selects them if LOCKKEEPER_SEED is not set.
const samples, defaultSeed = 2, 20274

// chooseFaults returns the faults of this run in order.
func chooseFaults(t *testing.T) []fault {
	t.Helper()
	if soak() {
		return slices.Concat(usual, sampled, long)
	}
	seed := rig.Number(t, "LOCKKEEPER_SEED", defaultSeed)
	chosen := slices.Clone(usual)
	var names []string
	for _, i := range rand.New(rand.NewPCG(seed, 0)).Perm(len(sampled))[:samples] {
		chosen = append(chosen, sampled[i])
		names = append(names, sampled[i].name)
	}
	t.Logf("LOCKKEEPER_SEED=%d chooses %s from %d faults; LOCKKEEPER_SOAK=1 runs all of them and %d longer ones",
		seed, strings.Join(names, " and "), len(sampled), len(long))
	return chosen
}

// testFaults breaks something on one host after another.
func testFaults(t *testing.T, f *fleet) {
	for _, fault := range chooseFaults(t) {
		ok := t.Run(fault.name, func(t *testing.T) {
			for _, h := range f.Hosts {
				until(t, aTurn, h.Name(), "to be idle, with nothing to do", content)
			}
			fault.run(t, f)
		})
		if !ok {
			t.Fatalf("%s failed, and the next fault needs an up-to-date fleet", fault.name)
		}
	}
}

func content(n *turn.Node) bool {
	return n.State == v1alpha1.StateIdle && n.Wants == v1alpha1.WantsNothing && n.Ready && !n.Unschedulable && n.Held == ""
}

// testKilled kills the service during a drain, and again while its reboot waits for an inhibitor.
func testKilled(t *testing.T, f *fleet) {
	h := f.follower(t)
	boots := h.Boots()
	inhibit(t, h)
	version, b := f.drainBlocked(t, h)
	kill(t, h)
	f.draining(t, h)
	b.lift(t)
	until(t, aTurn, h.Name(), "to be about to reboot", inState(v1alpha1.StateRebooting))
	f.says(t, h, "rebooting", "Inhibited", "somebody")
	kill(t, h)
	f.says(t, h, "rebooting", "Inhibited", "somebody")
	f.showHost(t.Context(), t, h, 12)
	letGo(t, h)
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+1)
	f.turnsCounted(t, h, 2)
}

// testKilledAnywhere kills, in each turn, the host's service when its Node reaches one state, and the coordinator's
// service when the Node reaches another state. LOCKKEEPER_SEED selects the states. A kill that comes too late for its
// state hits the next one.
func testKilledAnywhere(t *testing.T, f *fleet) {
	seed := rig.Number(t, "LOCKKEEPER_SEED", uint64(time.Now().UnixNano()))
	t.Logf("LOCKKEEPER_SEED=%d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	states := []v1alpha1.State{v1alpha1.StateBeforeDrain, v1alpha1.StateDraining, v1alpha1.StateRebooting, v1alpha1.StateUncordoning}
	for range 4 {
		h, leader := f.follower(t), f.leader(t)
		boots := h.Boots()
		kills := map[v1alpha1.State][]*realhost.Host{}
		for _, victim := range []*realhost.Host{h, leader} {
			s := states[dice.IntN(len(states))]
			kills[s] = append(kills[s], victim)
			t.Logf("%s is killed in %s of %s", victim.Name(), s, h.Name())
		}
		version := f.stage(t, h)
		for _, s := range states {
			for _, victim := range kills[s] {
				until(t, aTurn, h.Name(), "to be in "+s.String()+" or beyond", func(n *turn.Node) bool { return n.State == s || n.Wants == v1alpha1.WantsNothing })
				out, err := victim.Exec(within(t, soon), "systemctl", "kill", "--signal=KILL", "lockkeeper")
				t.Logf("killed on %s: %s %v", victim.Name(), out, err) // a host that is going down has nothing to kill
			}
		}
		f.updated(t, aTurn, version, h)
		f.booted(t, h, boots+1)
	}
}

// booted checks the number of the host's boots.
func (f *fleet) booted(t *testing.T, h *realhost.Host, boots int) {
	t.Helper()
	if h.Boots() != boots {
		t.Errorf("%s has booted %d times, expected %d", h.Name(), h.Boots(), boots)
	}
}

// testUpgraded upgrades the package during a drain. The new process must continue the turn.
func testUpgraded(t *testing.T, f *fleet) {
	h := f.follower(t)
	boots := h.Boots()
	version, b := f.drainBlocked(t, h)
	before, err := pid(within(t, soon), h)
	must(t, err)
	id := until(t, soon, h.Name(), "to be in its turn", (*turn.Node).InTurn).Turn
	out, err := install(within(t, soon), h, debs.newer)
	t.Logf("%s# dpkg -i\n%s", h.Name(), out)
	must(t, err)
	restarted(t, h, before)
	f.draining(t, h)
	n := until(t, soon, h.Name(), "to run the newer version", func(n *turn.Node) bool { return n.Host != nil && n.Host.Version == "v"+newerVersion })
	if n.Turn != id {
		t.Errorf("the node is in turn %q, before the upgrade in %q", n.Turn, id)
	}
	b.lift(t)
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+1)
}

// testCutOff cuts the host off from the API server during a drain.
func testCutOff(t *testing.T, f *fleet) {
	h := f.follower(t)
	boots := h.Boots()
	version, b := f.drainBlocked(t, h)
	cut := time.Now()
	must(t, h.CutNetwork(within(t, soon)))
	until(t, soon, h.Name(), "not to be Ready", func(n *turn.Node) bool { return !n.Ready })
	f.says(t, h, "draining", "trouble with the API server")
	f.showHost(t.Context(), t, h, 6)
	b.lift(t) // the host cannot see this yet
	stayCut(t, cut)
	n := until(t, soon, h.Name(), "to be in its turn", (*turn.Node).InTurn)
	if n.State != v1alpha1.StateDraining {
		t.Errorf("%s is in %s although it could not report anything", h.Name(), n.State)
	}
	f.booted(t, h, boots)
	must(t, h.RestoreNetwork(within(t, soon)))
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+1)
}

// stayCut extends a cut to two minutes in a soak.
func stayCut(t *testing.T, since time.Time) {
	if !soak() {
		return
	}
	select {
	case <-time.After(time.Until(since.Add(2 * time.Minute))):
	case <-t.Context().Done():
	}
}

// testCutOffWhileRebooting cuts the host off from the API server before it has committed to its reboot. The host must
// not reboot, because it cannot know whether its turn is still valid.
func testCutOffWhileRebooting(t *testing.T, f *fleet) {
	h := f.follower(t)
	boots := h.Boots()
	inhibit(t, h)
	version := f.stage(t, h)
	until(t, aTurn, h.Name(), "to be about to reboot", inState(v1alpha1.StateRebooting))
	f.says(t, h, "rebooting", "Inhibited")
	cut := time.Now()
	must(t, h.CutNetwork(within(t, soon)))
	letGo(t, h)
	until(t, soon, h.Name(), "not to be Ready", func(n *turn.Node) bool { return !n.Ready })
	f.says(t, h, "rebooting", "trouble with the API server")
	stayCut(t, cut)
	f.booted(t, h, boots)
	must(t, h.RestoreNetwork(within(t, soon)))
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+1)
}

// testRolledBack makes a host come back with its old version. The rollout must stop until an admin runs retry.
func testRolledBack(t *testing.T, f *fleet) {
	h := f.follower(t)
	other := f.leader(t)
	before := h.Version()
	h.Next(realhost.NextBoot{OldVersion: true})
	version := f.stage(t, h)
	n := until(t, aTurn, h.Name(), "to have failed", func(n *turn.Node) bool {
		return n.State == v1alpha1.StateIdle && n.Last != nil && n.Last.Result == v1alpha1.ResultFailed
	})
	if n.Last.Reason != v1alpha1.ReasonNotUpdated || h.Version() != before || n.Unschedulable {
		t.Errorf("%s failed for %s, runs %s, unschedulable %t; expected NotUpdated, %s, and the node schedulable", h.Name(), n.Last.Reason, h.Version(), n.Unschedulable, before)
	}
	must(t, other.StageUpdate(within(t, soon), version))
	until(t, soon, other.Name(), "to be held, because the rollout is halted", held(v1alpha1.ReasonHalted))
	out := f.status(t)
	if !strings.Contains(out, "HALTED") || !strings.Contains(out, "lockkeeper retry") || !strings.Contains(out, h.Name()) {
		t.Errorf("lockkeeper status does not name the host and what to do")
	}
	boots := other.Boots()
	f.admin(t, "retry", h.Name())
	f.updated(t, aTurn, version, other)
	f.booted(t, other, boots+1)
	version = f.stage(t, h)
	f.updated(t, aTurn, version, h)
}

// testCrashed cuts the power during a drain. The host comes up updated and wants nothing: lockkeeper must undo the
// drain, without another reboot.
func testCrashed(t *testing.T, f *fleet) {
	h := f.follower(t)
	boots := h.Boots()
	version, b := f.drainBlocked(t, h)
	must(t, h.Crash(within(t, soon), realhost.NextBoot{}))
	must(t, h.WaitBoots(within(t, aTurn), boots+1))
	n := until(t, aTurn, h.Name(), "to be uncordoned and idle", func(n *turn.Node) bool { return n.BootID == h.BootID() && content(n) })
	t.Logf("the turn ended as %s (%s)", n.Last.Result, n.Last.Reason)
	if h.Version() != version {
		t.Errorf("%s runs %s, expected %s", h.Name(), h.Version(), version)
	}
	b.lift(t)
	f.booted(t, h, boots+1)
}

// testNeverComesBack keeps a host down after its reboot. The rollout must stop, and the host must keep its slot.
func testNeverComesBack(t *testing.T, f *fleet) {
	h, other := f.follower(t), f.leader(t)
	h.Next(realhost.NextBoot{StayDown: true})
	version := f.stage(t, h)
	must(t, h.WaitDown(within(t, aTurn)))
	must(t, other.StageUpdate(within(t, soon), version))
	until(t, aTurn, h.Name(), "to be overdue", func(n *turn.Node) bool { return n.State == v1alpha1.StateRebooting && n.Held == v1alpha1.ReasonOverdue })
	n := until(t, soon, other.Name(), "to be held", func(n *turn.Node) bool { return n.State == v1alpha1.StateIdle && n.Held != "" })
	t.Logf("%s is held: %s", other.Name(), n.Held)
	out := f.status(t)
	for _, want := range []string{h.Name() + "  rebooting", "Overdue"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in lockkeeper status", want)
		}
	}
	h.PowerOn()
	f.updated(t, aFleet, version, h, other)
}
