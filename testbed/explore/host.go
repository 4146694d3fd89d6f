package explore

import (
	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
)

// seen contains everything that Step's observation is built from.
type seen struct {
	view          uint32
	boot, started uint8
	version       uint8
	src           bool
	known         uint8
	look          lookKind
	lh            uint8
	lx, ls, le    bool
	drain, shut   uint8
	listed        uint8
	lb, holds     bool
	refused       bool
	refusal       uint8
	apply         uint8
	hooks         workState
	sick          bool
	asking        asking
	open          bool
	world         world
}

// did is Step's decision, as far as the model executes it.
type did struct {
	read  step.Read
	write *step.Write
	wrote uint32 // the view after the write
	do    step.Effect
}

// observed returns a summary of the host's observation. ok is false if the host does not know its Node yet.
func (m *model) observed(n *node) (k seen, ok bool) {
	view := n.seen()
	if view == 0 {
		return seen{}, false
	}
	o := &m.objects[view]
	k = seen{
		view: view, boot: n.boot, started: n.started, version: n.version, src: n.src, known: n.known,
		look: n.look, lh: n.lh, lx: n.lx, ls: n.ls, le: n.le,
		shut: n.shut, refused: n.refused != 0 && n.refused == o.turn, refusal: n.refusal, sick: n.sick, world: m.world,
		listed: n.listed, lb: n.lb, holds: n.holds, asking: n.asking, open: n.open,
	}
	if n.dturn == o.turn && n.dstate == o.state {
		k.drain = n.drain
	}
	if o.st() == v1alpha1.StateApplying && n.recorded == o.turn {
		if k.apply = n.apply; k.apply == 0 && n.src && m.resumes(n) {
			k.apply = 2 // by the record of the process before
		}
	}
	if n.hturn == o.turn && n.hstate == o.state {
		k.hooks = n.hooks
	}
	return k, true
}

// resumes reports whether the record says that all steps of the plan are done.
func (m *model) resumes(n *node) bool {
	return n.stepsDone == planSteps || m.Bug == HalfIsDone && n.stepsDone > 0
}

// step calls the real Step.
func (m *model) step(k seen) *did {
	if d, ok := m.steps[k]; ok {
		return d
	}
	o := step.Observation{
		Node:             m.facts(k.view, 0, "n"),
		Self:             v1alpha1.Host{Version: "explored", BootID: id("b", k.boot), Started: at(k.started), OSVersion: version(k.version)},
		ManagedByDefault: true,
		Shutdown:         step.Shutdown(k.shut),
		Drain:            step.Drain{Running: k.drain == 1, Complete: k.drain == 2},
		Apply:            step.Work{Running: k.apply == 1, Done: k.apply == 2},
		Health:           step.Health{Healthy: !k.sick, Overdue: k.sick},
	}
	if m.Units {
		o.Self.HookStages = hookStages
		o.Hooks = step.Work{Running: k.hooks == workRuns || k.hooks == workLate, Late: k.hooks == workLate, Done: k.hooks == workDone, Due: k.hooks == workDue}
		if k.hooks == workFailed || k.hooks == workDue {
			o.Hooks.Failed = failure
		}
	}
	if o.Veto = k.world.veto(); k.world == inhibited {
		o.Blocked = v1alpha1.ReasonInhibited
	}
	if k.apply == 3 {
		o.Apply.Failed = failure
	}
	if k.refused {
		o.RebootError = "explored"
	}
	if k.refusal != 0 {
		o.UnsettledRefusal = v1alpha1.Ack{
			Turn: o.Node.Turn, BootID: o.Self.BootID, State: o.Node.State, Report: v1alpha1.ReportRefused, Reason: reasons[k.refusal],
		}
	}
	m.observeClient(&o, &k)
	if k.src {
		requested := o.Node.Request != nil
		o.Sources = step.Sources{Complete: true, Changes: withClient(changes(k.known, requested), o.Permission.Asked), Wants: v1alpha1.WantsNothing}
		if len(o.Sources.Changes) > 0 {
			o.Sources.Wants, o.Sources.Drains = m.Plan.wants()
			o.Sources.Steps = steps(k.known, o.Sources.Drains)
		}
	}
	m.observeBlocks(&o, &k)
	if k.look != noLook {
		o.Fresh = &step.FreshRead{
			Lease:  step.Lease{Exists: k.lx, Holder: id("e", k.lh), Stopped: k.ls},
			Commit: k.look == commitLook,
		}
		if k.le {
			o.Fresh.Evictable = 1
		}
		if k.lb {
			o.Fresh.Blocked = blockingPod
		}
		if m.Nodes == 1 {
			o.Term = o.Fresh.Lease.Holder // the leader runs on the only node
		}
	}
	d := m.Bug.step(&o)
	r := &did{read: d.Read, write: d.Write, do: d.Do}
	if d.Write != nil {
		r.wrote = m.object(m.objects[k.view].written(d.Write))
	}
	m.steps[k] = r
	return r
}

// hostSteps yields the steps of the host's process.
func (m *model) hostSteps(s *state, i int, yield func(*event, *state)) {
	n := &s.n[i]
	if !n.proc {
		return
	}
	do := m.on(s, i, yield)
	if n.look == halfLook {
		do(readRest, 0, func(t *node, _ *event) {
			t.look, t.lh, t.lx, t.ls, t.le = commitLook, s.lease.holder, s.lease.exists, s.lease.stop, t.pods || t.blocks
			t.lb, t.lbKept = t.blocks && !m.blockOff(t), t.blocks && !m.mayEvict(t)
			if !t.vcur {
				t.look, t.le, t.lb, t.lbKept = leaseLook, false, false, false // the Node has changed since
			}
			t.src, t.known = true, m.seesUpdate(t)
		})
		if m.fault(s, failRead) {
			do(failRead, 0, func(t *node, _ *event) {
				t.look, t.drain = noLook, 0
				if m.Bug == FailedReadPasses {
					t.look, t.lh, t.lx, t.le = commitLook, m.objects[t.seen()].grant.epoch, true, t.pods
				}
			})
		}
	}
	if !n.vcur {
		do(seeNode, 0, func(t *node, _ *event) {
			t.catchUp()
			switch t.look {
			case commitLook:
				t.look = leaseLook
			case halfLook:
				t.look = noLook // these reads do not count for a commit
			}
		})
	}
	if n.look != noLook && n.look != halfLook {
		do(expire, 0, func(t *node, _ *event) { t.look = noLook })
	}
	if !n.src || n.known != m.seesUpdate(n) {
		do(poll, 0, func(t *node, _ *event) { t.src, t.known = true, m.seesUpdate(t) })
	}
	if n.drain == 1 {
		m.evictSteps(n, do)
	}
	if m.Blocks != NoBlocks {
		do(listPods, 0, func(t *node, _ *event) { t.listed = 1 + uint8(bit(t.blocks, 0)) })
	}
	if n.apply == 1 {
		m.stepSteps(n, do)
		if m.fault(s, failApply) {
			do(failApply, 0, func(t *node, _ *event) { t.apply = 3 })
		}
	}
	if m.Units {
		m.unitSteps(s, n, do)
	}
	if n.look != halfLook {
		m.takeStep(s, i, do)
	}
}

// stepSteps yields the ends of a step of the plan. After it, the host begins the next one at once, or its read is too
// old by then, and it needs another.
func (m *model) stepSteps(n *node, do doer) {
	if n.stepsDone+1 < planSteps {
		for late := range uint8(2) {
			do(applied, int8(late), func(t *node, _ *event) { t.stepsDone, t.apply = t.stepsDone+1, 1-late })
		}
		return
	}
	do(applied, 0, func(t *node, _ *event) {
		if t.apply, t.stepsDone, t.carried = 2, planSteps, t.recorded; t.change != 0 {
			t.version, t.change = t.change, 0
		}
		t.known = t.change
	})
}

// unitSteps yields what happens to the host's hook units.
func (m *model) unitSteps(s *state, n *node, do doer) {
	switch n.hooks {
	case workRuns:
		do(ranHooks, 0, func(t *node, _ *event) {
			if t.hooks = workDone; states[t.hstate] == v1alpha1.StateBeforeUncordon {
				t.hooked = 0
			}
		})
		if n.look == noLook {
			do(lateHooks, 0, func(t *node, _ *event) { t.hooks = workLate })
		}
		if m.fault(s, failHooks) {
			do(failHooks, 0, func(t *node, _ *event) { t.hooks = workFailed })
		}
	case workFailed:
		do(dueHooks, 0, func(t *node, _ *event) { t.hooks = workDue })
	}
}

// takeStep executes Step's decision. If the host decided on the current Node, the write lands at once: no change that
// the host cannot see can come in between and leave the write valid. If the host decided on a past version, the write
// conflicts and the host reads the Node again; seeNode does that. The write of a process that dies may land later; see
// lateWrite.
func (m *model) takeStep(s *state, i int, do doer) {
	n := &s.n[i]
	k, ok := m.observed(n)
	if !ok {
		return
	}
	d := m.step(k)
	view := m.objects[k.view]
	if d.read == step.ReadNothing && d.write != nil && n.guard&guardHost != 0 {
		if m.Bug == RefusedIsWritten {
			do(stepHost, 0, func(t *node, _ *event) { t.vcur, t.view = false, d.wrote })
		}
		return // the host drops its reads, as in expire, and tries again
	}
	if d.do == step.DoPermit && d.write == nil && d.read == step.ReadNothing {
		m.permitSteps(s, n, &view, do)
		return
	}
	do(stepHost, 0, func(t *node, e *event) {
		if d.do != step.DoDrain {
			t.drain = 0
		}
		if d.do != step.DoHooks && (t.hooks == workRuns || t.hooks == workLate) {
			t.hooks = noWork
		}
		switch {
		case d.read == step.ReadShutdown:
			t.shut = 1
			if t.down {
				t.shut = 2
			}
		case d.read == step.ReadEviction:
			// Both reads at once: what comes in between stops an eviction ten seconds later, as what comes after them.
			t.catchUp()
			t.look, t.lh, t.lx, t.ls = leaseLook, s.lease.holder, s.lease.exists, s.lease.stop
		case d.read == step.ReadCommit:
			t.catchUp()
			t.look = halfLook
			t.lookFair = s.lease.exists && m.objects[t.api].grant.epoch == s.lease.holder
		case d.write != nil:
			m.hostWrite(n, t, d, e)
		case d.do == step.DoDrain && k.drain == 0:
			t.drain, t.dturn, t.dstate = 1, view.turn, view.state
		case d.do == step.DoApply && k.apply == 0:
			if t.apply = 1; t.recorded != view.turn {
				t.recorded, t.stepsDone = view.turn, 0
			}
			e.starts = d.do
		case d.do == step.DoHooks && k.hooks != workRuns:
			t.hooks, t.hturn, t.hstate = workRuns, view.turn, view.state
			if view.st() != v1alpha1.StateBeforeUncordon {
				t.hooked = view.turn
			}
			e.starts = d.do
		case d.do == step.DoReboot:
			t.down, t.shut, t.look = true, 2, noLook
			t.rebooted = view.turn
			e.starts = d.do
			e.reboots, e.turnSeen, e.grantSeen = true, view.turn, view.grant
		}
	})
	if late := m.lateWrite(n); late != 0 && m.fault(s, loseHostWrite) {
		do(loseHostWrite, 0, func(t *node, _ *event) {
			t.drain, t.look = 0, noLook
			if d.write.Ack.Report == v1alpha1.ReportRefused {
				t.refusal = number(reasons, d.write.Ack.Reason)
			}
			m.orphan(t, late)
		})
	}
	if d.write == nil && d.read == step.ReadNothing && d.do == step.DoReboot && m.fault(s, refuseReboot) {
		do(refuseReboot, 0, func(t *node, _ *event) { t.refused, t.shut, t.look = view.turn, 0, noLook })
	}
}

// hostWrite lands a write of the host, or drops it.
func (m *model) hostWrite(n, t *node, d *did, e *event) {
	after := m.objects[d.wrote]
	if !n.vcur {
		t.catchUp()
		t.look = noLook
		if m.Bug != NoPrecondition || n.api == 0 {
			return
		}
		o := m.objects[n.api]
		after = o.written(d.write)
	}
	e.writer, e.before, e.after = hostWrites, m.objects[n.api], after
	_, e.publishes = d.write.Labels[v1alpha1.LabelWants]
	m.set(t, after, byHost)
	ghostHostWrote(t, e)
}

// lateWrite returns the write that the host's process would leave in flight if it died now or lost the answer, or 0.
func (m *model) lateWrite(n *node) uint32 {
	if !n.proc || !n.vcur || n.look == halfLook {
		return 0
	}
	k, ok := m.observed(n)
	if !ok {
		return 0
	}
	if d := m.step(k); d.read == step.ReadNothing && d.write != nil && d.wrote != n.api {
		return d.wrote
	}
	return 0
}
