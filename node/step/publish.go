package step

import (
	"cmp"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// managed reports whether the host is managed: by the Node's label or, without one, by
// the host's file. A host that leaves is not, whatever the label says.
func (o *Observation) managed() bool {
	if o.Leaving {
		return false
	}
	if o.Node.Managed != nil {
		return *o.Node.Managed
	}
	return o.ManagedByDefault
}

// frozen returns why nothing may be evicted, committed or undone now, or "".
// managed=false takes precedence over paused, because it gives the node back.
func (o *Observation) frozen() (v1alpha1.Reason, string) {
	n := &o.Node
	switch {
	case n.Detached != nil && n.Detached.Force && !n.Committed():
		return v1alpha1.ReasonDetached, n.Detached.Reason
	case n.Paused != nil && (n.Managed == nil || *n.Managed):
		return v1alpha1.ReasonPaused, n.Paused.Reason
	case o.Veto == v1alpha1.ReasonHostPaused || o.Veto == v1alpha1.ReasonObserve:
		return o.Veto, ""
	}
	return "", ""
}

// withdrawn returns why the host begins nothing new in this turn, or "". It still gives
// the node back.
func (o *Observation) withdrawn() v1alpha1.Reason {
	switch {
	case !o.managed():
		return v1alpha1.ReasonUnmanaged
	case o.Node.Detached != nil:
		return v1alpha1.ReasonDetached
	}
	return ""
}

// lacksDrain reports whether the plan drains, and the turn does not, although the grant
// does not name this as the only node of the cluster.
func (o *Observation) lacksDrain() bool {
	g := o.Node.Grant
	return !g.Drains && !g.OnlyNode && o.drains()
}

// drains reports whether the plan drains: that of the turn in applying, otherwise the
// present one.
func (o *Observation) drains() bool {
	if p := o.fixed(v1alpha1.Ack{}); p != nil {
		return p.Drains
	}
	return o.Sources.Drains
}

// Eviction is how a host evicts its pods in a turn.
type Eviction struct {
	// Force deletes pods that cannot be evicted.
	Force bool
	// Rules are for [drain.Selecting].
	Rules []v1alpha1.PodRules
}

// EvictionBy returns how to evict the Node's pods. It combines the grant and own, the terms of
// the host's own policy, into the less disruptive of the two: the host skips or deletes a
// pod only if both say so, and waits for a pod if either does. Without a grant, and with nil
// terms, no pod is special.
//
// Block is off only if three say so: the grant, the host's own policy, and the host's record,
// which says that the host itself found the time to be over. With a stolen coordinator's
// credential, an attacker can write only the grant.
func EvictionBy(n *turn.Node, own *v1alpha1.Terms) Eviction {
	g := n.Grant
	if g == nil {
		return Eviction{}
	}
	if own == nil {
		own = &v1alpha1.Terms{} // it skips nothing
	}
	e := Eviction{
		Force: g.Force && own.DrainTimeout == v1alpha1.OnTimeoutForce,
		Rules: []v1alpha1.PodRules{g.Terms.PodRules, own.PodRules},
	}
	if g.BlockOff && own.BlockLimit() > 0 && n.Host != nil && n.Host.NodeUID == n.UID && n.Host.BlockOff {
		for i := range e.Rules {
			e.Rules[i] = e.Rules[i].WithoutBlock()
		}
	}
	return e
}

// granted returns the plan of the turn: what the host itself published in this boot, if
// the grant has the digest of its steps. Otherwise it returns nil.
func (o *Observation) granted() *v1alpha1.Host {
	n := &o.Node
	if h := n.Host; n.Ours() && h != nil && h.NodeUID == n.UID && h.BootID == o.Self.BootID &&
		n.Grant.Steps != "" && n.Grant.Steps == v1alpha1.StepsDigest(h.Steps) {
		return h
	}
	return nil
}

// fixed returns the plan that the host keeps publishing: that of the turn, from applying
// on until the host has reported how the turn went. ack is the report that goes out with
// the record. Changes that come meanwhile, and other rules, are for the next turn.
func (o *Observation) fixed(ack v1alpha1.Ack) *v1alpha1.Host {
	if o.Node.State != v1alpha1.StateApplying {
		return nil
	}
	for _, r := range []v1alpha1.Report{v1alpha1.ReportDone, v1alpha1.ReportFailed, v1alpha1.ReportRefused} {
		if ack.Report == r || o.reported(r) {
			return nil
		}
	}
	return o.granted()
}

// hostRecord returns the host's record, with what depends on the Node and the sources.
// ack is the report that goes out with it.
func (o *Observation) hostRecord(ack v1alpha1.Ack) v1alpha1.Host {
	h := o.Self
	h.Protocol = v1alpha1.Protocol
	h.NodeUID = o.Node.UID
	h.Managed = o.managed()
	h.Veto = o.Veto
	h.BlockedSince, h.BlockOff = o.Blocking.Since, o.Blocking.Off
	h.Drains = o.Sources.Drains
	h.Changes, h.HeldBack, h.Plan = o.Sources.Changes, o.Sources.HeldBack, o.Sources.Plan
	h.Steps, h.PendingSince = o.Sources.Steps, o.pendingSince()
	if p := o.fixed(ack); p != nil {
		h.Drains, h.Changes, h.HeldBack, h.Plan, h.Steps, h.PendingSince = p.Drains, p.Changes, p.HeldBack, p.Plan, p.Steps, p.PendingSince
	}
	if o.takesPart() {
		h.TakesPart = o.Node.Turn
	}
	if commits := ack.Report == v1alpha1.ReportCommitted && ack.State == v1alpha1.StateRebooting; o.permitted() || commits && o.Permission.Asked {
		h.Permits = o.Node.Turn
	}
	h.HookFailed = o.Hooks.Failed
	h.ApplyFailed = o.applyFailed()
	return h
}

// pendingSince returns since when the host has had a pending change. The published time
// stays, across processes and boots, as long as one of the published changes is still
// pending.
func (o *Observation) pendingSince() time.Time {
	if !o.Sources.Wants.Something() {
		return time.Time{}
	}
	if was := o.Node.Host; was != nil && was.NodeUID == o.Node.UID && !was.PendingSince.IsZero() {
		for _, c := range was.Changes {
			if slices.ContainsFunc(o.Sources.Changes, c.Same) {
				return was.PendingSince
			}
		}
	}
	return o.Self.PendingSince
}

// applyFailed returns what failed of the plan, for people: what the present stage
// reports or, after that, what was published. It stays until retry clears the turn or
// another one begins, because the unit's message is kept nowhere else.
func (o *Observation) applyFailed() string {
	n := &o.Node
	if now := cmp.Or(o.Apply.Failed, o.Apply.ChangedAgain); now != "" {
		return now
	}
	var failed bool
	switch {
	case !n.InTurn():
		failed = n.Last != nil && n.Last.Result == v1alpha1.ResultFailed && n.Retry != n.Last.Turn
	case n.Grant != nil && n.Grant.Result == v1alpha1.ResultFailed:
		failed = true
	default:
		failed = n.Ack.Turn == n.Turn && n.Ack.Report == v1alpha1.ReportFailed
	}
	if !failed || n.Host == nil || n.Host.NodeUID != n.UID {
		return ""
	}
	return n.Host.ApplyFailed
}

// newBoot reports whether the host is in another boot than the one that the turn's
// reboot had to end.
func (o *Observation) newBoot() bool {
	return o.Node.State == v1alpha1.StateRebooting && o.Node.Ours() && o.Self.BootID != o.Node.Grant.BootID
}

// publishes reports whether the host's record goes out now, together with ack or, if that is
// the zero Ack, alone.
//
// In rebooting, in a new boot, it only goes out together with done or failed. A want that
// vanished through the reboot, published alone, would look like a cancel to the
// coordinator. And done alone, with the wants of the last boot still there, would end the
// turn and begin the next one at once. In applying, hostRecord takes care of that.
func (o *Observation) publishes(ack v1alpha1.Ack) bool {
	switch {
	case !o.Sources.Complete:
		return false
	case o.newBoot():
		return ack.Report == v1alpha1.ReportDone || ack.Report == v1alpha1.ReportFailed ||
			o.reported(v1alpha1.ReportDone) || o.reported(v1alpha1.ReportFailed)
	case o.Released(), o.Leaving && o.Node.State == v1alpha1.StateAbsent && !o.Node.Mark:
		return false
	case o.Node.State == v1alpha1.StateRebooting:
		return o.Node.Ours() // otherwise it is unknown whether this is a new boot
	}
	return true
}

// reported reports whether the host made the report about this turn and state in its
// present boot. The kubelet need not have reported this boot yet.
func (o *Observation) reported(report v1alpha1.Report) bool {
	return o.Node.HasAck(o.Node.State) && o.Node.Ack.Report == report && o.Node.Ack.BootID == o.Self.BootID
}

// publish adds to w those of wants, host and the information labels that differ from
// what is on the Node.
func (o *Observation) publish(w *Write) {
	self, wants := o.hostRecord(w.Ack), o.Sources.Wants
	if o.fixed(w.Ack) != nil {
		wants = o.Node.Wants
	}
	self.Trim()
	host := v1alpha1.FormatRecord(&self)
	changed := o.Node.Wants != wants || o.Node.RawHost != host && !o.publishedEnough(self)
	for _, key := range []string{v1alpha1.LabelOS, v1alpha1.LabelOSVersion, v1alpha1.LabelGroup} {
		want := o.Info[key]
		if have, ok := o.Node.Info[key]; want == have && ok == (want != "") {
			continue
		}
		changed = true
		if want == "" {
			w.setLabel(key, nil)
		} else {
			w.setLabel(key, &want)
		}
	}
	if !changed {
		return
	}
	// Both go in one write, so that no reader sees the wants of one plan with the
	// changes of another.
	w.setLabel(v1alpha1.LabelWants, new(string(wants)))
	w.setAnnotation(v1alpha1.AnnotationHost, &host)
}

// bootTimeSlack is by how much two processes of one boot may differ about when it began:
// each subtracts the uptime from a clock that is corrected now and then.
const bootTimeSlack = time.Minute

// publishedEnough reports whether the node is in no turn, and what is published differs
// from self in nothing that anyone has to know. Then it stays as it is, so that a restart
// of lockkeeper in a whole fleet writes nothing, and a release is one write.
//
//   - The start of the process. In a turn it is written, because a late write of the
//     process before this one must conflict. The same write acks the turn's first state,
//     so none is added. After a turn that was taken back because the host was silent, it
//     is written too: it shows the coordinator that the host is back.
//   - That an admin has set managed=false. The coordinator reads the label itself, and
//     releases the node.
func (o *Observation) publishedEnough(self v1alpha1.Host) bool {
	n := &o.Node
	if n.Host == nil || n.State != v1alpha1.StateIdle && n.State != v1alpha1.StatePaused ||
		n.Last != nil && n.Last.Reason == v1alpha1.ReasonHostSilent {
		return false
	}
	self.Started = n.Host.Started
	if d := self.BootTime.Sub(n.Host.BootTime); d.Abs() < bootTimeSlack {
		self.BootTime = n.Host.BootTime
	}
	if n.Managed != nil && !*n.Managed {
		self.Managed = n.Host.Managed
	}
	return v1alpha1.FormatRecord(&self) == n.RawHost
}

// ack adds a report about the present state to w.
func (o *Observation) ack(w *Write, report v1alpha1.Report, reason v1alpha1.Reason) {
	a := v1alpha1.Ack{Turn: o.Node.Turn, BootID: o.Self.BootID, State: o.Node.State, Report: report, Reason: reason}
	if a == o.Node.Ack {
		return
	}
	w.setAnnotation(v1alpha1.AnnotationAck, new(a.String()))
	w.Ack = a
}
