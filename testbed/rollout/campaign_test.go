package rollout

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	// defaultSeed and defaultRounds are the settings of `make test`. LOCKKEEPER_SEED and LOCKKEEPER_SOAK override
	// them.
	defaultSeed, defaultRounds = 20261, 1
	// faultsPerRound is the number of faults in one rollout.
	faultsPerRound = 20
	// lateMoment bounds the wait for the moment of the next fault.
	lateMoment = 1500 * time.Millisecond
	// recovered bounds the end of a rollout after all faults were lifted. If the API server is interrupted during an
	// eviction, for example by SIGKILL, the eviction uses up the budget for two minutes. That is the behavior of
	// Kubernetes.
	recovered = 4 * time.Minute
	// slow is the interval at which a slow recovery logs what it waits for.
	slow = 15 * time.Second
)

// TestCampaign injects random faults into rollouts. No fault may lead to a violation, and at the end the fleet must be
// updated. LOCKKEEPER_SEED repeats the choices of a campaign, and LOCKKEEPER_ROUND those of a single round. The timing
// depends on the machine.
func TestCampaign(t *testing.T) {
	t.Parallel()
	only := rig.Number(t, "LOCKKEEPER_ROUND", 0) // from 1
	seed, rounds := rig.Number(t, "LOCKKEEPER_SEED", defaultSeed), rig.Number(t, "LOCKKEEPER_SOAK", defaultRounds)
	turns, violations, failed := 0, 0, 0
	for round := range rounds {
		if only > 0 {
			round = only - 1
		}
		passed := t.Run(fmt.Sprint("round-", round+1), func(t *testing.T) {
			c := newCampaign(t, rand.New(rand.NewPCG(seed, round)))
			c.run()
			report := c.Verdict()
			violations += report.Count()
			for _, n := range report.Turns {
				turns += n
			}
		})
		if !passed {
			failed++
		}
	}
	line := fmt.Sprintf("campaign: seed %d, %d rounds, %d turns, %d violations", seed, rounds, turns, violations)
	if failed > 0 {
		line += fmt.Sprintf(", %d rounds failed", failed)
	}
	fmt.Println(line)
}

// campaign is one rollout and its faults.
type campaign struct {
	*scene
	*rand.Rand
	faults []fault
	undo   []undo
	pods   *blockade
}

// fault is a kind of fault. It returns the target, or "" if there was no occasion, and a function that undoes the
// fault, or nil.
type fault struct {
	name string
	do   func(*campaign) (what string, undo func())
}

type undo struct {
	name string
	do   func()
}

func newCampaign(t *testing.T, random *rand.Rand) *campaign {
	hosts, coordinators, budget := 4+random.IntN(2), 2+random.IntN(2), 1+random.IntN(2)
	t.Logf("%d hosts, %d candidates, %d at once", hosts, coordinators, budget)
	policy := fmt.Sprintf("rollout: {settle: 1s, maxUnavailable: %d, backoff: 1s, backoffMax: 2s, maxTurnsPerDay: 48}\n", budget) + hooksEverywhere
	s := play(t, hosts, coordinators, policy, quick, func(o *rig.Options) {
		o.Budget = budget
		o.Lag = 20 * time.Second // an API server that is down, processes that are stopped
		o.Fleet.Zones = []string{"a", "b"}
	})
	return &campaign{scene: s, Rand: random, faults: faults()}
}

func (c *campaign) run() {
	t := c.T
	c.spread()
	for _, h := range c.Fleet.Hosts {
		c.stage(h.Name())
	}
	for range faultsPerRound {
		c.moment()
		if len(c.undo) > 0 && c.IntN(3) == 0 || len(c.undo) > 3 {
			c.undoOne(c.IntN(len(c.undo)))
			continue
		}
		i := c.IntN(len(c.faults))
		f := c.faults[i]
		what, back := f.do(c)
		if what == "" {
			t.Logf("no occasion to: %s", f.name)
			continue
		}
		t.Logf("FAULT: %s: %s", f.name, what)
		if back != nil {
			c.undo = append(c.undo, undo{f.name + ": " + what, back})
		}
	}
	for len(c.undo) > 0 {
		c.undoOne(0)
	}
	t.Log("all faults are lifted")
	c.recover()
}

func (c *campaign) undoOne(i int) {
	u := c.undo[i]
	c.undo = append(c.undo[:i], c.undo[i+1:]...)
	c.T.Logf("OVER: %s", u.name)
	u.do()
}

// moment waits for some more writes to Nodes, so that faults happen during activity. It does not wait for a quiet
// fleet.
func (c *campaign) moment() {
	want := c.Referee.Report().NodeEvents + 1 + c.IntN(8)
	late := time.NewTimer(lateMoment)
	defer late.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for c.Referee.Report().NodeEvents < want {
		select {
		case <-late.C:
			return
		case <-tick.C:
		}
	}
}

// spread gives the fleet some pods, with a budget that allows one eviction at a time.
func (c *campaign) spread() {
	b := &blockade{s: c.scene, namespace: fmt.Sprintf("rollout-%d", workloads.Add(1))}
	c.pods = b
	one := intstr.FromInt32(1)
	c.Must(c.ControlPlane.CreateWorkload(c.Within(rig.Soon), controlplane.Workload{
		Namespace: b.namespace, Name: "db", Replicas: int32(len(c.Fleet.Hosts)), MaxUnavailable: &one,
	}))
	c.T.Cleanup(b.remove)
	c.Must(c.ControlPlane.WaitWorkload(c.Within(rig.Soon), b.namespace, "db"))
}

// recover waits until every host is updated and back. As an admin or the engine would do, it stages an update again
// that was lost in a crash, and clears a turn that failed because of a crash.
func (c *campaign) recover() {
	ctx := c.Within(recovered)
	tick := time.NewTicker(10 * pollEvery)
	defer tick.Stop()
	tell := time.NewTicker(slow)
	defer tell.Stop()
	for {
		var missing []string
		for _, h := range c.Fleet.Hosts {
			if why := c.missing(h); why != "" {
				missing = append(missing, h.Name()+" "+why)
			}
		}
		if len(missing) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			c.T.Fatalf("%v after all faults were lifted: %s; %s", recovered, strings.Join(missing, "; "), c.pods.describe())
		case <-tell.C:
			c.T.Logf("still: %s; %s", strings.Join(missing, "; "), c.pods.describe())
		case <-tick.C:
		}
	}
}

func (c *campaign) missing(h *simhost.Host) string {
	n := c.Now(h.Name())
	status, runs := h.Engine().Status()
	switch {
	case h.BootID() == "":
		return "is down"
	case h.Version() != newVersion && runs && status.Operation == simhost.OpIdle && n.BootID == h.BootID():
		c.Referee.WantMade(h.Name())
		if err := h.StageUpdate(newVersion); err != nil {
			return err.Error() // a reboot happened in between
		}
		return "its update was staged again"
	case n.State == v1alpha1.StateIdle && n.Held == v1alpha1.ReasonFailed && n.Retry != n.Last.Turn:
		c.Annotate(h.Name(), v1alpha1.AnnotationRetry, n.Last.Turn)
		return "is cleared"
	case n.State == v1alpha1.StateIdle && n.Last != nil && n.Last.Result == v1alpha1.ResultFailed && n.Retry != n.Last.Turn:
		c.Annotate(h.Name(), v1alpha1.AnnotationRetry, n.Last.Turn)
		return "is cleared"
	case h.Version() != newVersion || n.State != v1alpha1.StateIdle || n.BootID != h.BootID() || !n.Ready || n.Unschedulable ||
		n.Wants != v1alpha1.WantsNothing || !n.HostReported():
		return fmt.Sprintf("runs %s and is %s (held %q, ready %t, unschedulable %t, wants %q)",
			h.Version(), n.State, n.Held, n.Ready, n.Unschedulable, n.Wants)
	}
	return ""
}

func (c *campaign) any() *simhost.Host { return c.Fleet.Hosts[c.IntN(len(c.Fleet.Hosts))] }

// named returns the target of a fault, or "" if the fault failed.
func named(h *simhost.Host, err error) string {
	if err != nil {
		return ""
	}
	return h.Name()
}

// faults returns all faults, in a fixed order.
func faults() []fault {
	ignore := func(error) {} // something else has undone it already: a boot, for example, starts all programs
	return []fault{
		{"kill a host's lockkeeper", func(c *campaign) (string, func()) {
			h := c.any()
			h.Kill()
			return h.Name(), nil
		}},
		{"kill the coordinator", func(c *campaign) (string, func()) {
			name, _, ok := strings.Cut(c.Epoch(), "_")
			if !ok {
				return "", nil
			}
			c.Host(name).Kill()
			return name, nil
		}},
		{"crash, and come up updated", func(c *campaign) (string, func()) {
			h := c.any()
			return named(h, h.Crash(simhost.CrashOptions{ComesUpUpdated: true})), nil
		}},
		{"crash, and come up as it was", func(c *campaign) (string, func()) {
			h := c.any()
			return named(h, h.Crash(simhost.CrashOptions{})), nil
		}},
		{"cancel", func(c *campaign) (string, func()) {
			h := c.any()
			if status, runs := h.Engine().Status(); !runs || status.Operation != simhost.OpNeedReboot || h.ResetStatus() != nil {
				return "", nil
			}
			c.Referee.WantCancelled(h.Name())
			return h.Name(), func() {
				c.Referee.WantMade(h.Name())
				if h.Version() != newVersion {
					ignore(h.StageUpdate(newVersion))
				}
			}
		}},
		{"pause", func(c *campaign) (string, func()) {
			h := c.any()
			c.Annotate(h.Name(), v1alpha1.AnnotationPaused, "campaign")
			return h.Name(), func() { c.Annotate(h.Name(), v1alpha1.AnnotationPaused, nil) }
		}},
		{"emergency stop", func(c *campaign) (string, func()) {
			c.Stop("campaign")
			return "all", c.resume
		}},
		{"restart the bus", func(c *campaign) (string, func()) {
			h := c.any()
			return named(h, h.RestartBus(c.Within(rig.Soon), 100*time.Millisecond)), nil
		}},
		{"stop the update engine", func(c *campaign) (string, func()) {
			h := c.any()
			h.Engine().Stop()
			return h.Name(), func() { ignore(h.Engine().Start()) }
		}},
		{"stop a process where it is", func(c *campaign) (string, func()) {
			h := c.any()
			return named(h, h.Pause()), func() { ignore(h.Continue()) }
		}},
		{"stop the kubelet", func(c *campaign) (string, func()) {
			h := c.any()
			h.StopKubelet()
			return h.Name(), func() { ignore(h.StartKubelet()) }
		}},
		{"restart the API server", func(c *campaign) (string, func()) {
			c.Must(c.ControlPlane.StopAPIServer())
			c.Must(c.ControlPlane.StartAPIServer(c.Within(rig.Soon)))
			return "it", nil
		}},
		{"blank the Lease", func(c *campaign) (string, func()) {
			c.PatchLease(map[string]any{"spec": map[string]any{"holderIdentity": ""}})
			return "it", nil
		}},
		{"cordon as a person", func(c *campaign) (string, func()) {
			n := c.Now(c.any().Name())
			if n.Unschedulable || !c.edit(n, true) {
				return "", nil
			}
			return n.Name, func() { c.giveBack(n.Name) }
		}},
	}
}

// edit cordons or uncordons the Node. It reports whether the Node still had the version that was read.
func (c *campaign) edit(n *turn.Node, unschedulable bool) bool {
	var value any
	if unschedulable {
		value = true
	}
	return c.TryPatch(n.Name, map[string]any{
		"metadata": map[string]any{"resourceVersion": n.ResourceVersion}, "spec": map[string]any{"unschedulable": value},
	})
}

// giveBack removes an admin's cordon, unless the admin no longer owns it.
func (c *campaign) giveBack(name string) {
	declared := false
	c.Eventually("the uncordon of "+name, func(context.Context) (bool, error) {
		n := c.Now(name)
		if !n.Unschedulable || n.Mark {
			return true, nil
		}
		if !declared {
			c.Referee.AdminUncordon(name)
			declared = true
		}
		return c.edit(n, false), nil
	})
}
