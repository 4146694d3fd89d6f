package simulate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// host is a machine with its kubelet and its lockkeeper process.
type host struct {
	node  *turn.Node // points into sim.nodes
	group *Group
	dice  *rand.Rand
	rank  int // index of the policy that decides; -1: none
	rules []policy.OwnedRule

	up      bool
	lost    bool // it does not come back from its reboot without help
	boots   int
	bootAt  time.Time
	version string

	changes []v1alpha1.Change // includes changes without a disruption
	plan    policy.Plan
	wanted  bool // it has wanted something at any time

	look   *step.FreshRead
	lookAt time.Time
	// The work in progress, with its turn and state: a result for another turn or state does not count.
	pods      int // the pods that a drain would evict
	drain     step.Drain
	drainOf   string
	apply     step.Work
	applyOf   string
	down      bool // the shutdown is in progress
	unhealthy bool
	overdue   bool // the time to become healthy is over
	retryOf   string
	gone      bool // as the budgets count it; see watch
	began     time.Time
}

const (
	// firstVersion is the OS version before all changes.
	firstVersion = "as-installed"
	// healthTimeout is the default of [health] timeout in a host's file.
	healthTimeout = 15 * time.Minute
	// bootAge is the default age of a boot at the start of the run.
	bootAge = 24 * time.Hour
	// podsOn is the number of pods on a node that was not drained. Only zero or nonzero matters.
	podsOn = 1
)

func (s *sim) makeHosts() {
	for i := range s.Nodes {
		g := &s.Nodes[i]
		for k := range g.Count {
			s.nodes = append(s.nodes, turn.Node{Name: g.node(k), Labels: g.labels(k), Zone: g.zone(k), ControlPlane: g.ControlPlane})
			s.hosts = append(s.hosts, &host{group: g})
		}
	}
	for i, h := range s.hosts {
		n := &s.nodes[i] // is not moved after this
		h.node, s.at[n.Name] = n, h
		h.dice = rand.New(rand.NewPCG(s.Seed, uint64(i)+1))
		m := s.Policies.For(n.Labels)
		h.rules, h.rank = m.Rules(), -1
		if m.Policy != nil {
			h.rank = slices.IndexFunc(s.Policies, func(p policy.Policy) bool { return p.Name == m.Policy.Name })
		}
		age := bootAge
		if d, ok := h.group.BootAge.draw(h.dice); ok && h.group.BootAge.said() {
			age = d
		}
		h.up, h.pods, h.boots, h.bootAt, h.version = true, podsOn, 1, s.now.Add(-age), firstVersion
		n.UID, n.Created, n.BootID, n.Ready = n.Name+"-uid", h.bootAt.Add(-longest), h.boot(), true
		h.replan()
		s.stage(h)
		s.see(h)
	}
}

func (h *host) boot() string { return fmt.Sprintf("%s-boot-%d", h.node.Name, h.boots) }

// see queues the host, because it has something new to see.
func (s *sim) see(h *host) { s.todo = append(s.todo, h) }

// stage schedules the group's changes on the host.
func (s *sim) stage(h *host) {
	for i, c := range h.group.Changes {
		change := v1alpha1.Change{Version: fmt.Sprint(i + 1)}
		switch {
		case c.OS != "":
			change.Source, change.Version = v1alpha1.SourceOSUpdate, c.OS
		case c.File != "":
			change.Source, change.Name = v1alpha1.SourceFile, c.File
		case c.Unit != "":
			change.Source, change.Name = v1alpha1.SourceUnit, c.Unit
		case c.Sentinel != "":
			change.Source, change.Name, change.Version = v1alpha1.SourceSentinel, c.Sentinel, ""
		case c.Request:
			change.Source, change.Version = v1alpha1.SourceRequest, ""
		case c.FleetLock:
			change.Source, change.Version = v1alpha1.SourceFleetLock, ""
		}
		at := c.At.in(s.Start).Sub(s.Start) + time.Duration(h.dice.Float64()*float64(c.Within.Duration))
		staged := func() {
			h.changes = slices.DeleteFunc(h.changes, func(o v1alpha1.Change) bool { return o.Source == change.Source && o.Name == change.Name })
			h.changes = append(h.changes, change)
			if change.Source == v1alpha1.SourceRequest {
				h.node.Request, h.node.Requests = &v1alpha1.Request{Action: "reboot"}, v1alpha1.Requests{Waits: v1alpha1.Digest("reboot")}
			}
			h.replan()
			h.wanted = h.wanted || h.plan.Wants.Something()
			s.see(h)
		}
		if at == 0 {
			staged() // before the host's first report
			continue
		}
		s.in(at, h.dice, staged)
	}
}

// replan computes the plan again. A change without a disruption is in effect at once.
func (h *host) replan() {
	h.plan = policy.MakePlan(h.rules, h.changes)
	for _, c := range h.plan.Nothing {
		h.changes = slices.DeleteFunc(h.changes, func(o v1alpha1.Change) bool { return o == c.Change })
	}
}

// stageOf returns the turn and the state that work belongs to.
func (h *host) stageOf() string { return h.node.Turn + "/" + string(h.node.State) }

// observe returns the host's current observation.
func (s *sim) observe(h *host) step.Observation {
	o := step.Observation{
		Node:             *h.node,
		Self:             v1alpha1.Host{Version: epoch, BootID: h.boot(), BootTime: h.bootAt, Started: h.bootAt, OSVersion: h.version},
		ManagedByDefault: true,
		Veto:             h.plan.Veto,
		Term:             epoch, // in a cluster with one node the leader is the host's own process
		Sources:          step.Sources{Complete: true, Changes: h.changes, Wants: h.plan.Wants, Drains: h.plan.Drains, Steps: h.plan.Actions()},
		Shutdown:         step.ShutdownNone,
		Health:           step.Health{Healthy: !h.unhealthy, Detail: "a unit is not active", Overdue: h.overdue},
	}
	asks := v1alpha1.Has(h.changes, v1alpha1.SourceFleetLock)
	o.Permission, o.ImageVersion = step.Permission{Known: true, Asked: asks, Open: asks}, asks
	if h.lookAt.Equal(s.now) {
		o.Fresh = h.look
	}
	if h.down {
		o.Shutdown = step.ShutdownUnderway
	}
	if h.drainOf == h.stageOf() {
		o.Drain = h.drain
	}
	if h.applyOf == h.stageOf() {
		o.Apply = h.apply
	}
	return o
}

// mostSteps limits the steps of a host in one instant.
const mostSteps = 30

// act lets the host do everything that it can do now. It skips the reads that Step repeats every ten seconds, because
// their result would not change: there is only one leader, and no emergency stop.
func (s *sim) act(h *host) error {
	for range mostSteps {
		if !h.up || !s.step(h) {
			return nil
		}
	}
	return fmt.Errorf("%s: the host of %s does not become idle", s.stamp(), h.node.Name)
}

// step lets the host take one step. It reports whether there may be another.
func (s *sim) step(h *host) bool {
	d := step.Step(s.observe(h))
	if d.Do != step.DoDrain {
		h.drain.Running = false
	}
	switch {
	case d.Read != step.ReadNothing:
		h.lookAt = s.now
		h.look = &step.FreshRead{Lease: step.Lease{Exists: true, Holder: epoch}, Commit: d.Read == step.ReadCommit, Evictable: h.pods}
		return true
	case d.Write != nil:
		s.hostWrites(h, d.Write)
		return true
	case d.Do == step.DoDrain:
		s.drainHost(h)
	case d.Do == step.DoApply:
		s.applyPlan(h)
	case d.Do == step.DoReboot, d.Do == step.DoPermit:
		s.reboot(h)
	}
	return false
}

// hostWrites applies a host's write to its Node.
func (s *sim) hostWrites(h *host, w *step.Write) {
	n := h.node
	for key, v := range w.Labels {
		if key == v1alpha1.LabelWants {
			n.Wants = v1alpha1.Wants(*v)
			s.dirty = true
		}
	}
	for key, v := range w.Annotations {
		switch {
		case key == v1alpha1.AnnotationCordon:
			n.Mark = v != nil
		case key == v1alpha1.AnnotationHost:
			host, err := v1alpha1.ParseHost(*v)
			if err != nil {
				s.breaks("%s: what the host says of itself cannot be read: %v", n.Name, err)
			}
			n.RawHost, n.Host = *v, host
			s.dirty = true
		}
	}
	if w.Unschedulable != nil {
		if n.Unschedulable = *w.Unschedulable; !n.Unschedulable {
			h.pods = podsOn
		}
	}
	if w.Ack != (v1alpha1.Ack{}) {
		n.Ack = w.Ack
		// The leader considers the reports seen and committed in its decisions, but does not act on them, except in a
		// hook stage, where it waits for seen.
		s.dirty = s.dirty || w.Ack.Report != v1alpha1.ReportSeen && w.Ack.Report != v1alpha1.ReportCommitted || n.State.HookStage()
	}
	s.count(h)
}

func (s *sim) drainHost(h *host) {
	if h.drainOf == h.stageOf() && h.drain.Running {
		return
	}
	h.drainOf, h.drain = h.stageOf(), step.Drain{Running: true}
	if d, ok := h.group.Takes.Drain.draw(h.dice); ok {
		of := h.drainOf
		s.in(d, h.dice, func() { s.drained(h, of) })
	}
	if h.node.Grant.Force {
		s.drained(h, h.drainOf)
	}
}

// drained records that the last pod is gone, in the turn and state of its eviction.
func (s *sim) drained(h *host, of string) {
	if h.drainOf != of || h.drainOf != h.stageOf() || !h.drain.Running {
		return
	}
	h.drain.Complete, h.pods, h.look = true, 0, nil // the earlier reads are obsolete
	if takes := h.group.Takes.Detach; takes.said() {
		h.node.Volumes = []string{"csi-volume"}
		if d, ok := takes.draw(h.dice); ok {
			s.in(d, h.dice, func() {
				h.node.Volumes = nil
				s.dirty = true
			})
		}
	}
	s.see(h)
}

func (s *sim) applyPlan(h *host) {
	if h.applyOf == h.stageOf() {
		return
	}
	h.applyOf, h.apply = h.stageOf(), step.Work{Running: true}
	d, ok := h.group.Takes.Apply.draw(h.dice)
	if !ok {
		return
	}
	of := h.applyOf
	s.in(d, h.dice, func() {
		if h.applyOf != of || of != h.stageOf() {
			return
		}
		h.apply = step.Work{Done: true}
		switch {
		case h.group.Fails.Apply.falls(h.dice):
			h.apply = step.Work{Failed: "a unit failed"}
		case !h.group.Fails.Update.falls(h.dice):
			h.inEffect(false)
		}
		s.see(h)
	})
}

// inEffect removes the changes that an apply, or a boot, brings into effect.
func (h *host) inEffect(boots bool) {
	h.changes = slices.DeleteFunc(h.changes, func(c v1alpha1.Change) bool {
		switch {
		case !boots:
		case c.Source == v1alpha1.SourceOSUpdate:
			h.version = c.Version
		case c.Source == v1alpha1.SourceFleetLock: // the client has staged an update
			h.version += ", updated"
		}
		return c.Source != v1alpha1.SourceRequest && (boots || c.Source != v1alpha1.SourceOSUpdate && c.Source != v1alpha1.SourceFleetLock)
	})
	h.replan()
}

func (s *sim) reboot(h *host) {
	if h.down {
		return
	}
	h.down, h.up, h.node.Ready = true, false, false
	s.count(h)
	d, ok := h.group.Takes.Reboot.draw(h.dice)
	if h.lost = !ok; ok {
		s.in(d, h.dice, func() { s.boot(h) })
	}
	s.dirty = true
}

func (s *sim) boot(h *host) {
	h.down, h.up, h.lost, h.apply = false, true, false, step.Work{}
	h.boots++
	h.bootAt = s.now
	h.node.BootID, h.node.Ready = h.boot(), true
	if !h.group.Fails.Update.falls(h.dice) {
		h.inEffect(true)
	}
	if h.unhealthy, h.overdue = h.group.Fails.Unhealthy.falls(h.dice), false; h.unhealthy {
		of := h.boots
		s.in(healthTimeout, h.dice, func() {
			h.overdue = h.overdue || h.boots == of
			s.see(h)
		})
	}
	s.count(h)
	s.see(h)
	s.dirty = true
}

// confirm schedules the confirmations of the hooks in the stage that the node has entered.
func (s *sim) confirm(h *host) error {
	of := h.stageOf()
	for _, hook := range h.node.Grant.Terms.Hooks(h.node.State) {
		takes, said := h.group.Takes.Hooks[hook.Name]
		if !said {
			return fmt.Errorf("nodes: %s: takes.hooks: nothing of %s, which policy %s waits for", h.group.Name, hook.Name, h.node.Grant.Policy)
		}
		d, ok := takes.draw(h.dice)
		if !ok {
			continue
		}
		s.in(d, h.dice, func() {
			if of != h.stageOf() {
				return
			}
			if h.node.Hooks == nil {
				h.node.Hooks = map[string]string{}
			}
			h.node.Hooks[hook.Name], _, _ = strings.Cut(of, "/")
			s.dirty = true
		})
	}
	return nil
}

// retry is an admin who repairs the host and runs retry.
func (s *sim) retry(h *host) {
	n := h.node
	switch {
	case n.InTurn():
		n.Retry = n.Turn
	case n.Last != nil:
		n.Retry = n.Last.Turn
	}
	h.unhealthy, s.dirty = false, true
	if h.lost {
		s.boot(h)
		h.unhealthy = false
	}
	s.see(h)
}
