package referee

import (
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// lawful lists histories that look wrong at first but are correct: faults and actions of admins that DESIGN allows. A referee that reported
// a violation for one of these would be useless in a test with faults.
var lawful = []struct {
	name string
	do   func(s *script)
}{
	{"a whole turn", func(s *script) { s.wholeTurn("n1", "t1") }},
	{"one node after the other, pods evicted", func(s *script) {
		s.pod("p", "n1")
		s.pod("d", "n1", ofDaemonSet)
		s.grant("n1", "t1")
		s.cordon("n1")
		s.pod("p", "n1", evict)
		s.gone("p")
		s.pod("p2", "n2")
		s.drained("n1", "t1")
		s.commit("n1")
		s.reboot("n1")
		s.comeBack("n1", "boot-2")
		s.giveBack("n1", "t1")
		s.finish("n1")
		s.gone("p2")
		s.wholeTurn("n2", "t2")
	}},
	{"through hooks at every stage", func(s *script) {
		hooks := func(g *v1alpha1.Grant) {
			g.Terms.BeforeDrain, g.Terms.BeforeReboot, g.Terms.BeforeUncordon =
				[]v1alpha1.Hook{{Name: "a"}}, []v1alpha1.Hook{{Name: "b"}}, []v1alpha1.Hook{{Name: "c"}}
		}
		s.write("n1", enter(v1alpha1.StateBeforeDrain, "t1", "e1", hooks))
		s.write("n1", ack(v1alpha1.ReportSeen))
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1"))
		s.cordon("n1")
		s.write("n1", ack(v1alpha1.ReportDone))
		s.write("n1", enter(v1alpha1.StateBeforeReboot, "t1", "e1"))
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e1"))
		s.commit("n1")
		s.reboot("n1")
		s.comeBack("n1", "boot-2")
		s.write("n1", enter(v1alpha1.StateBeforeUncordon, "t1", "e1"))
		s.giveBack("n1", "t1")
		s.finish("n1")
	}},
	{"the volumes are detached before the reboot", func(s *script) {
		detaches := func(g *v1alpha1.Grant) { g.Terms.WaitForVolumeDetach = true }
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1", detaches), attached("v"))
		s.cordon("n1")
		s.write("n1", ack(v1alpha1.ReportDone))
		s.write("n1", enter(v1alpha1.StateBeforeReboot, "t1", "e1"))
		s.write("n1", attached())
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e1"))
		s.commit("n1")
		s.reboot("n1")
		s.comeBack("n1", "boot-2")
		s.giveBack("n1", "t1")
		s.finish("n1")
	}},
	{"kured elsewhere, in another namespace, and too young for a list", func(s *script) {
		s.pod("k2", "n2", kured, ofDaemonSet)
		s.pod("k1", "n1", kured, ofDaemonSet, func(p *corev1.Pod) { p.Namespace = "default" })
		s.pass(2 * kuredListAge)
		s.pod("k3", "n1", kured, ofDaemonSet)
		s.wholeTurn("n1", "t1")
	}},
	{"cancelled while draining", func(s *script) {
		s.pod("p", "n1")
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsNothing))
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.pod("p", "n1", evict) // the eviction was already in flight
		s.uncordon("n1")
		s.write("n1", leave(v1alpha1.StateIdle, v1alpha1.ResultCancelled))
	}},
	{"cancelled between the promotion to rebooting and the commit", func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsNothing))
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.uncordon("n1")
		s.write("n1", leave(v1alpha1.StateIdle, v1alpha1.ResultCancelled))
	}},
	{"the want is withdrawn right after the host's last read", func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.commit("n1")
		s.e.hostEvent(s.tick(), HostEvent{Time: s.clock, Host: "n1", Kind: WantCancelled})
		s.reboot("n1")
	}},
	{"labels come and go with the cordon, except those of others", func(s *script) {
		s.write("n1", label(balancersLabel, "x"))
		s.grant("n1", "t1")
		s.write("n1", unschedulable(true), excluded("Cordon,Remediation"), label(fenceLabel, "true"), ack(v1alpha1.ReportCommitted))
		s.write("n1", label(balancersLabel, ""))
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.write("n1", unschedulable(false), marked(false), label(fenceLabel, ""), ack(v1alpha1.ReportDone))
		s.write("n1", leave(v1alpha1.StateIdle, v1alpha1.ResultCancelled))
	}},
	{"a person's cordon keeps its label, and gets one for the turn", func(s *script) {
		s.e.declared = []Declaration{{Cordon, "n1", "a person"}}
		s.write("n1", unschedulable(true))
		s.grant("n1", "t1")
		s.write("n1", excluded("Remediation"), label(fenceLabel, "true"), ack(v1alpha1.ReportCommitted))
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.write("n1", marked(false), label(fenceLabel, ""), ack(v1alpha1.ReportDone))
		s.write("n1", leave(v1alpha1.StateIdle, v1alpha1.ResultCancelled))
	}},
	{"a person's cordon survives a whole turn", func(s *script) {
		s.e.declared = []Declaration{{Cordon, "n1", "a person"}}
		s.write("n1", unschedulable(true))
		s.grant("n1", "t1")
		s.commit("n1")
		s.drained("n1", "t1")
		s.commit("n1")
		s.reboot("n1")
		s.comeBack("n1", "boot-2")
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.write("n1", ack(v1alpha1.ReportDone))
		s.finish("n1")
	}},
	{"kubectl's cordon needs no declaration", func(s *script) {
		s.write("n1", unschedulable(true), func(n *corev1.Node) { n.ManagedFields = owns("kubectl-cordon") })
	}},
	{"a person uncordons during the drain", func(s *script) {
		s.e.declared = []Declaration{{Uncordon, "n1", "a person"}}
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", unschedulable(false))
		s.write("n1", marked(false), ack(v1alpha1.ReportRefused, v1alpha1.ReasonUncordoned))
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.write("n1", ack(v1alpha1.ReportDone))
		s.write("n1", leave(v1alpha1.StateIdle, v1alpha1.ResultBackedOut))
	}},
	{"a crash during the drain, updated by it", func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", ready(false))
		s.write("n1", ready(true), boots("boot-2"))
		s.write("n1", s.publishes("boot-2", v1alpha1.WantsNothing))
		s.giveBack("n1", "t1")
		s.write("n1", leave(v1alpha1.StateIdle, v1alpha1.ResultCancelled))
	}},
	{"a crash during the drain, which continues in the new boot", func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", ready(true), boots("boot-2"))
		s.write("n1", s.publishes("boot-2", v1alpha1.WantsReboot))
		s.drained("n1", "t1")
		s.commit("n1")
		s.reboot("n1")
		s.comeBack("n1", "boot-3")
		s.giveBack("n1", "t1")
		s.finish("n1")
	}},
	{"a crash in rebooting, without a report", func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.comeBack("n1", "boot-2")
		s.giveBack("n1", "t1")
		s.finish("n1")
	}},
	{"a new leader takes a turn over between two reads", func(s *script) {
		s.grant("n1", "t1")
		s.lead("") // the host had read the Lease before
		s.lead("e2")
		s.cordon("n1")
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e2"))
		s.drained("n1", "t1")
		s.commit("n1")
		s.lead("e3")
		s.reboot("n1")
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e3"))
		s.comeBack("n1", "boot-2")
		s.giveBack("n1", "t1")
		s.finish("n1")
	}},
	{"the Lease is deleted between the host's reads and what it publishes before its commit", func(s *script) {
		s.grant("n1", "t1")
		s.e.onLease(s.tick(), nil)
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsNothing))
		s.lead("")
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsReboot), unschedulable(true), marked(true), ack(v1alpha1.ReportCommitted))
	}},
	{"a pod comes between the host's list and what it publishes before its commit", func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.pod("p", "n1")
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsNothing))
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsReboot), ack(v1alpha1.ReportCommitted))
	}},
	{"a late grant is backed out", func(s *script) {
		// e1 sent it before it lost the Lease; e2 listed the Nodes before the write landed.
		s.lead("e2")
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n2", enter(v1alpha1.StateDraining, "t2", "e1"))
		s.write("n2", enter(v1alpha1.StateUncordoning, "t2", "e2"))
		s.write("n2", ack(v1alpha1.ReportDone))
		s.write("n2", leave(v1alpha1.StateIdle, v1alpha1.ResultCancelled))
		s.pass(5 * time.Minute)
	}},
	{"a late grant is taken over where the budget allows it", func(s *script) {
		s.lead("e2")
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1"))
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e2"))
		s.write("n1", ack(v1alpha1.ReportSeen))
		s.cordon("n1")
		s.pass(5 * time.Minute)
	}},
	{"the leader's last grant lands, and no host leads after it", func(s *script) {
		s.lead("")
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1"))
		s.pass(5 * time.Minute)
	}},
	{"a pod comes after the host's list", func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.pod("p", "n1")
		s.commit("n1")
		s.reboot("n1")
	}},
	{"a late grant is backed out before the leader's own grant lands", func(s *script) {
		s.lead("e2")
		s.write("n2", enter(v1alpha1.StateDraining, "t1", "e1"))
		s.write("n2", enter(v1alpha1.StateUncordoning, "t1", "e2"))
		s.grant("n1", "t2")
	}},
	{"a turn that someone grants under the stop, and that its leader sees only after it, is overdue", func(s *script) {
		s.stop(true)
		s.pass(20 * time.Second)
		s.e.declared = []Declaration{{"", "n1", "a thief grants"}}
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1", s.drainsFor(2*time.Minute)))
		s.e.declared = nil
		s.pass(2 * time.Minute)
		s.stop(false)
		s.write("n1", label(v1alpha1.LabelHeld, string(v1alpha1.ReasonOverdue)))
	}},
	{"overdue after a stop", func(s *script) {
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1", s.drainsFor(2*time.Minute)))
		s.stop(true)
		s.pass(10 * time.Minute)
		s.stop(false)
		s.pass(time.Minute)
		s.lead("e1")
		s.pass(time.Minute)
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1", func(g *v1alpha1.Grant) { g.Reason = v1alpha1.ReasonOverdue }))
		s.uncordon("n1")
		s.finish("n1")
	}},
	{"overdue after two stops that its leader has hardly noticed", func(s *script) {
		s.drainOf2m()
		for range 2 {
			s.renew(20 * time.Second)
			s.stop(true)
			s.pass(20 * time.Second)
			s.stop(false)
		}
		s.renew(40 * time.Second)
		s.write("n1", label(v1alpha1.LabelHeld, string(v1alpha1.ReasonOverdue)))
	}},
	{"overdue at once, and for hours", func(s *script) {
		s.drainOf2m()
		s.renew(2 * time.Minute)
		s.write("n1", label(v1alpha1.LabelHeld, string(v1alpha1.ReasonOverdue)))
		s.renew(time.Hour)
		s.write("n1", paused(true), label(v1alpha1.LabelHeld, string(v1alpha1.ReasonPaused)))
		s.write("n1", paused(false))
		s.renew(time.Hour)
	}},
	{"a host has failed, and its stage continues", func(s *script) {
		s.drainOf2m()
		s.write("n1", ack(v1alpha1.ReportFailed, v1alpha1.ReasonUnhealthy))
		s.renew(time.Hour)
	}},
	{"not overdue in a long pause, nor right after it", func(s *script) {
		s.drainOf2m()
		s.renew(time.Minute)
		s.write("n1", paused(true))
		s.renew(time.Hour)
		s.write("n1", paused(false))
		s.renew(time.Minute)
	}},
	{"not overdue while the host's own veto stops the clock", func(s *script) {
		s.drainOf2m()
		s.write("n1", func(n *corev1.Node) {
			s.publishes("boot-1", v1alpha1.WantsReboot)(n)
			h, _ := v1alpha1.ParseHost(n.Annotations[v1alpha1.AnnotationHost])
			h.Veto = v1alpha1.ReasonHostPaused
			n.Annotations[v1alpha1.AnnotationHost] = v1alpha1.FormatRecord(h)
		})
		s.renew(time.Hour)
	}},
	{"not overdue under a stop", func(s *script) {
		s.drainOf2m()
		s.stop(true)
		s.renew(time.Hour)
		s.stop(false)
		s.renew(2 * time.Minute)
	}},
	{"its leader notices late that a stop from the start of the stage is over", func(s *script) {
		s.drainOf2m()
		s.stop(true)
		s.renew(5 * time.Minute)
		s.stop(false)
		s.renew(2*time.Minute + 2*s.e.late - 20*time.Second)
		s.write("n1", label(v1alpha1.LabelHeld, string(v1alpha1.ReasonOverdue)))
	}},
	{"not overdue while another term leaves the turn alone, and a whole timeout after it", func(s *script) {
		s.drainOf2m()
		s.renew(110 * time.Second)
		s.handOver("e2")
		s.renew(time.Hour)
		s.handOver("e3")
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e3"))
		s.renew(2*time.Minute + s.e.late)
	}},
	{"its leader notices late that a pause is over", func(s *script) {
		s.drainOf2m()
		s.renew(time.Minute)
		s.write("n1", paused(true))
		s.renew(5 * time.Minute)
		s.write("n1", paused(false))
		s.renew(time.Minute + 2*s.e.late - 20*time.Second)
		s.write("n1", label(v1alpha1.LabelHeld, string(v1alpha1.ReasonOverdue)))
	}},
	{"a whole timeout after the Lease was blanked, and its next leader takes over late", func(s *script) {
		s.drainOf2m()
		s.renew(110 * time.Second)
		s.lead("")
		s.lead("e2")
		s.renew(time.Minute)
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e2"))
		s.renew(2*time.Minute + s.e.late)
	}},
	{"not overdue in its next stage", func(s *script) {
		s.write("n1", enter(v1alpha1.StateBeforeDrain, "t1", "e1", s.hooksFor(4*time.Minute)))
		s.renew(4 * time.Minute)
		s.drainOf2m()
		s.renew(2 * time.Minute)
	}},
	{"someone edits the turn so that its clock stops", func(s *script) {
		s.drainOf2m()
		s.e.declared = []Declaration{{"", "n1", "a person edits"}}
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1", func(g *v1alpha1.Grant) { g.PausedFor.Duration = time.Hour }))
		s.e.declared = nil
		s.renew(10 * time.Minute)
	}},
	{"a stop right after the host's read", func(s *script) {
		s.pod("p", "n1")
		s.grant("n1", "t1")
		s.stop(true)
		s.cordon("n1")
		s.pod("p", "n1", evict)
		s.pass(5 * time.Minute)
		s.stop(false)
		s.gone("p")
		s.drained("n1", "t1")
		s.commit("n1")
		s.stop(true)
		s.reboot("n1")
	}},
	{"paused during the drain, and resumed", func(s *script) {
		s.pod("p", "n1")
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", annotate(v1alpha1.AnnotationPaused, "why"))
		s.pod("p", "n1", evict)
		s.pass(time.Hour)
		s.write("n1", annotate(v1alpha1.AnnotationPaused, ""))
		s.gone("p")
		s.drained("n1", "t1")
		s.commit("n1")
	}},
	{"a node leaves: an admin removes what the release has left", func(s *script) {
		s.write("n1", label(v1alpha1.LabelOS, "flatcar"), label(v1alpha1.LabelManaged, "false"))
		s.write("n1", release(v1alpha1.ReasonUnmanaged))
		s.write("n1", label(v1alpha1.LabelHeld, ""), label(v1alpha1.LabelOS, ""))
	}},
	{"a node leaves with what admins have set on it", func(s *script) {
		s.write("n1", annotate(v1alpha1.AnnotationRequest, "reboot"), annotate(v1alpha1.AnnotationRequestNow, "reboot"), label(v1alpha1.LabelManaged, "false"))
		s.write("n1", release(v1alpha1.ReasonUnmanaged))
	}},
	{"paused and managed=false: the host uncordons its node", func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", annotate(v1alpha1.AnnotationPaused, "why"))
		s.write("n1", label(v1alpha1.LabelManaged, "false"))
		s.giveBack("n1", "t1")
		s.write("n1", leave(v1alpha1.StateIdle, v1alpha1.ResultCancelled))
		s.write("n1", label(v1alpha1.LabelOS, "flatcar"))
		s.write("n1", release(v1alpha1.ReasonUnmanaged))
		s.write("n1", annotate(v1alpha1.AnnotationPaused, ""))
		s.write("n1", annotate(v1alpha1.AnnotationDetached, "why"))
		s.write("n1", label(v1alpha1.LabelManaged, ""))
		s.write("n1", label(v1alpha1.LabelHeld, "Detached"))
		s.write("n1", annotate(v1alpha1.AnnotationDetached, ""))
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsNothing))
	}},
	{"detached with force: the cordon is the new owner's", func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", annotate(v1alpha1.AnnotationDetached, `{"reason":"r","force":true}`))
		s.write("n1", release(v1alpha1.ReasonDetached), marked(false))
		s.wholeTurn("n2", "t2")
	}},
	{"a host publishes while held names the intent, and the stop keeps the coordinator from releasing its node", func(s *script) {
		s.e.declared = []Declaration{{"", "n1", "a person edits"}}
		s.write("n1", leave(v1alpha1.StateAbsent, ""), annotate(v1alpha1.AnnotationLast, ""))
		s.e.declared = nil
		s.write("n1", annotate(v1alpha1.AnnotationDetached, "why"))
		s.write("n1", label(v1alpha1.LabelHeld, "Detached"))
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsReboot))
	}},
	{"the state label is lost, and the next turn removes the mark", func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.e.declared = []Declaration{{"", "n1", "a person edits"}}
		s.write("n1", leave(v1alpha1.StateAbsent, ""), annotate(v1alpha1.AnnotationLast, ""))
		s.write("n1", enter(v1alpha1.StateUncordoning, "t2", "e1", func(g *v1alpha1.Grant) { g.Wants, g.Drains = v1alpha1.WantsNothing, false }))
		s.uncordon("n1")
		s.write("n1", leave(v1alpha1.StateIdle, ""), annotate(v1alpha1.AnnotationLast, ""))
	}},
	{"a deleted Node frees its slot", func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.e.onNode(s.tick(), "n1", nil)
		s.wholeTurn("n2", "t2")
	}},
	{"a store that is set back between a commit and its reboot", func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		before := maps.Clone(s.nodes)
		s.drained("n1", "t1")
		s.commit("n1")
		s.rewind(before)
		s.reboot("n1")
		s.write("n1", ready(true), boots("boot-2"), s.publishes("boot-2", v1alpha1.WantsReboot))
		s.pass(time.Minute)
		s.drained("n1", "t1")
		s.commit("n1")
		s.reboot("n1")
	}},
	{"a store that is set back to after a drain under an admin's cordon, and a pod that came late", func(s *script) {
		s.e.declared = []Declaration{{Cordon, "n1", "a person"}}
		s.write("n1", unschedulable(true))
		s.grant("n1", "t1")
		s.write("n1", ack(v1alpha1.ReportCommitted))
		s.drained("n1", "t1")
		s.pod("late", "n1")
		s.rewind(maps.Clone(s.nodes))
		s.pass(time.Hour)
		s.pod("late", "n1", evict)
	}},
	{"a store that is set back while a grant is under way, which names a version that the store gives out again", func(s *script) {
		before := maps.Clone(s.nodes)
		s.rewind(before)
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsDrain))
		s.write("n1", enter(v1alpha1.StateDraining, "t1", s.holder(), func(g *v1alpha1.Grant) { g.Wants = v1alpha1.WantsReboot }))
	}},
	{"a store that is set back while a grant is under way, and in which another turn has not ended", func(s *script) {
		s.e.lag = time.Minute
		s.grant("n1", "t1")
		s.rewind(maps.Clone(s.nodes))
		s.grant("n2", "t2")
	}},
	{"a store that is set back while a host publishes, which names a version that the store gives out again", func(s *script) {
		s.write("n1", annotate(v1alpha1.AnnotationDetached, "why"))
		s.write("n1", release(v1alpha1.ReasonDetached))
		before := maps.Clone(s.nodes)
		s.write("n1", annotate(v1alpha1.AnnotationDetached, ""))
		lost := s.rev
		s.rewind(before)
		s.rev = lost - 1
		s.write("n1", ready(true))
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsReboot))
		s.write("n1", release(v1alpha1.ReasonDetached))
	}},
	{"a store that is set back while a promotion is under way, which names a version that the store gives out again", func(s *script) {
		s.loses(enter(v1alpha1.StateDraining, "t1", "e2"))
		s.write("n1", ready(true))
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e2"))
		s.lead("e3")
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e3"))
		s.commit("n1")
		s.reboot("n1")
	}},
	{"a restored Node carries another one's turn", func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.e.onNode(s.tick(), "n1", nil)
		s.write("n1", func(n *corev1.Node) { n.UID = "another" })
		s.write("n1", leave(v1alpha1.StateAbsent, ""), annotate(v1alpha1.AnnotationLast, ""))
	}},
	{"a restored Node has a mark while another node is disturbed", func(s *script) {
		s.e.onNode(s.tick(), "n2", nil)
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n2", func(n *corev1.Node) { n.UID = "another" }, unschedulable(true), marked(true))
	}},
	{"no drain: applied", func(s *script) {
		s.pod("p", "n1")
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsApply))
		s.write("n1", enter(v1alpha1.StateApplying, "t1", "e1", func(g *v1alpha1.Grant) { g.Drains = false }))
		s.write("n1", ack(v1alpha1.ReportSeen))
		s.commit("n1")
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsNothing), ack(v1alpha1.ReportDone))
		s.finish("n1")
	}},
	{"the only node reboots with its pods", func(s *script) {
		s.e.onNode(s.tick(), "n2", nil)
		s.pod("p", "n1")
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e1", func(g *v1alpha1.Grant) { g.Drains, g.OnlyNode = false, true }))
		s.write("n1", ack(v1alpha1.ReportSeen))
		s.commit("n1")
		s.reboot("n1")
		s.comeBack("n1", "boot-2")
		s.giveBack("n1", "t1")
		s.finish("n1")
	}},
	{"a silent host is taken back", func(s *script) {
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1"))
		s.write("n1", leave(v1alpha1.StateIdle, v1alpha1.ResultBackedOut))
	}},
	{"refused after the commit: logind would not", func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.commit("n1")
		w := s.e.hostEvent(s.tick(), HostEvent{Time: s.clock, Host: "n1", Kind: RebootRefused, BootID: "boot-1"})
		s.e.settle(s.tick(), w)
		s.write("n1", ack(v1alpha1.ReportRefused, v1alpha1.ReasonRebootRefused))
		s.giveBack("n1", "t1")
		s.write("n1", leave(v1alpha1.StateIdle, v1alpha1.ResultBackedOut))
	}},
	{"failed, and cleared", func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.commit("n1")
		s.reboot("n1")
		s.write("n1", s.publishes("boot-2", v1alpha1.WantsNothing), ack(v1alpha1.ReportFailed, v1alpha1.ReasonUnhealthy))
		s.write("n1", annotate(v1alpha1.AnnotationRetry, "t1"))
		s.giveBack("n1", "t1")
		s.write("n1", leave(v1alpha1.StateIdle, v1alpha1.ResultFailed))
	}},
	{"an apply that does not report is overdue, and cleared", func(s *script) {
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsApply))
		s.write("n1", enter(v1alpha1.StateApplying, "t1", "e1", s.appliesFor(5*time.Minute)))
		s.commit("n1")
		s.write("n1", annotate(v1alpha1.AnnotationRetry, "t1"))
		s.pass(5 * time.Minute)
		s.giveBack("n1", "t1")
		s.write("n1", leave(v1alpha1.StateIdle, v1alpha1.ResultFailed))
	}},
	{"rebooted, but the host does not report, and cleared", func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", ack(v1alpha1.ReportDone))
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e1", s.rebootsFor(5*time.Minute)))
		s.commit("n1")
		s.reboot("n1")
		s.write("n1", boots("boot-2"))
		s.write("n1", annotate(v1alpha1.AnnotationRetry, "t1"))
		s.pass(5 * time.Minute)
		s.giveBack("n1", "t1")
		s.write("n1", leave(v1alpha1.StateIdle, v1alpha1.ResultFailed))
	}},
	{"a budget that shrinks under two turns", func(s *script) {
		s.e.setBudget(s.tick(), 2)
		s.grant("n1", "t1")
		s.grant("n2", "t2")
		s.e.setBudget(s.tick(), 1)
		s.pass(time.Hour)
		s.cordon("n1")
		s.cordon("n2")
	}},
	{"a node of each of two policies, one at once allowed by each", func(s *script) {
		s.e.setBudget(s.tick(), 2)
		s.pools("web", "db")
		s.grant("n1", "t1")
		s.cordon("n1")
		s.grant("n2", "t2")
		s.cordon("n2")
	}},
	{"pods that end for other reasons", func(s *script) {
		s.pod("p", "n1")
		s.pod("p", "n1", func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager"}}
		})
		s.gone("p")
	}},
}

func TestLawful(t *testing.T) {
	for _, l := range lawful {
		t.Run(l.name, func(t *testing.T) {
			s := newScript(t, "n1", "n2")
			l.do(s)
			if r := s.verdict(); len(r.Unused) > 0 {
				t.Errorf("declared but not observed: %v", r.Unused)
			}
		})
	}
}

func TestCounts(t *testing.T) {
	s := newScript(t, "n1", "n2", "n3")
	s.wholeTurn("n1", "t1")
	s.lead("e2")
	s.grant("n2", "t2")
	s.write("n3", enter(v1alpha1.StateDraining, "t3", "e1"))
	s.write("n3", enter(v1alpha1.StateUncordoning, "t3", "e2"))
	s.write("n3", ack(v1alpha1.ReportDone))
	s.write("n3", leave(v1alpha1.StateIdle, v1alpha1.ResultCancelled))
	s.cordon("n2")
	s.drained("n2", "t2")
	s.commit("n2")
	s.reboot("n2")
	s.reboot("n2") // the same boot counts as one reboot
	s.comeBack("n2", "boot-2")
	s.giveBack("n2", "t2")
	s.finish("n2")
	r := s.verdict()
	if got, want := r.Summary(3), "2 of 3 hosts updated, at most 1 disrupted at once, 2 reboots, 0 violations"; got != want {
		t.Errorf("Summary: %s\nwant:    %s", got, want)
	}
	if r.LateGrants != 1 || r.LateGrantsOpen != 0 || r.Terms != 2 || r.Turns[v1alpha1.ResultDone] != 2 || r.Turns[v1alpha1.ResultCancelled] != 1 {
		t.Errorf("%+v", r)
	}
}

// TestTheBeginning checks that the referee does not judge what existed when it started, and counts it from then on.
func TestTheBeginning(t *testing.T) {
	s := newScript(t, "n1", "n2")
	delete(s.e.nodes, "n1")
	s.e.first = true
	s.pod("p", "n1")
	s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e0"), unschedulable(true), marked(true), ack(v1alpha1.ReportCommitted))
	s.e.first = false
	s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e1"))
	s.pod("p", "n1", evict) // allowed: the first list already had the commit
	s.gone("p")
	s.reboot("n1")
	if r := s.verdict(); r.MaxDisturbed != 1 || r.Reboots != 1 || r.NodeEvents != 1 {
		t.Errorf("%+v", r)
	}
	s.cordon("n2")
	s.verdict(Budget, Commit)
}

// TestADeclarationIsUsedUp checks that a declared edit covers one write and no later write.
func TestADeclarationIsUsedUp(t *testing.T) {
	s := newScript(t, "n1", "n2")
	s.e.declared = []Declaration{{"", "n1", "a person edits"}}
	s.write("n1", label(v1alpha1.LabelState, "rebooting")) // breaks two rules
	if r := s.verdict(); len(r.Expected) != 2 {
		t.Errorf("%d expected, want 2", len(r.Expected))
	}
	s.write("n2", label(v1alpha1.LabelState, "rebooting"))
	s.write("n1", label(v1alpha1.LabelState, "absurd"))
	s.verdict(Table, Grant)
}

// TestManyViolations checks that the list of violations is limited and the count is not.
func TestManyViolations(t *testing.T) {
	s := newScript(t, "n1")
	for range MaxViolations + 5 {
		s.reboot("n1")
	}
	r := s.verdict(Reboot)
	if len(r.Violations) != MaxViolations || r.Count() != MaxViolations+5 {
		t.Errorf("%d listed of %d", len(r.Violations), r.Count())
	}
}
