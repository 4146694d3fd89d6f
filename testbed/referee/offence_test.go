package referee

import (
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// offences are correct histories with one wrong act each. want is written by hand: exactly the rules that the act breaks.
var offences = []struct {
	name string
	want []Rule
	do   func(s *script)
}{
	{"two nodes cordoned", []Rule{Budget, Overgrant}, func(s *script) {
		s.grant("n1", "t1")
		s.grant("n2", "t2")
		s.cordon("n1")
		s.cordon("n2")
	}},
	{"a node is cordoned as a host would, in no turn, while another is in its turn", []Rule{Budget, Commit}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.cordon("n2")
	}},
	{"a commit to an apply during another node's drain", []Rule{Budget, Overgrant}, func(s *script) {
		s.write("n2", s.publishes("boot-1", v1alpha1.WantsApply))
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n2", enter(v1alpha1.StateApplying, "t2", "e1", func(g *v1alpha1.Grant) { g.Drains = false }))
		s.commit("n2")
	}},
	{"a commit to a reboot without the drain that the host's plan has", []Rule{Drain}, func(s *script) {
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsReboot))
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e1", func(g *v1alpha1.Grant) { g.Drains = false }))
		s.commit("n1")
	}},
	{"a commit to a reboot without a drain, as if the cluster had one node", []Rule{Drain}, func(s *script) {
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsReboot))
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e1", func(g *v1alpha1.Grant) { g.Drains, g.OnlyNode, g.StartedAt = false, true, s.tick().by }))
		s.commit("n1")
	}},
	{"two turns of a term long after the store was set back", []Rule{Overgrant}, func(s *script) {
		s.e.lag = time.Minute
		s.grant("n1", "t1")
		s.rewind(maps.Clone(s.nodes))
		s.pass(2 * time.Minute)
		s.grant("n2", "t2")
	}},
	{"two nodes of a policy that allows one, though the budget is two", []Rule{Budget, Overgrant}, func(s *script) {
		s.e.setBudget(s.tick(), 2)
		s.pools("web", "web")
		s.grant("n1", "t1")
		s.grant("n2", "t2")
		s.cordon("n1")
		s.cordon("n2")
	}},
	{"two nodes of two policies that allow one each, though the budget is one", []Rule{Budget, Overgrant}, func(s *script) {
		s.pools("web", "db")
		s.grant("n1", "t1")
		s.grant("n2", "t2")
		s.cordon("n1")
		s.cordon("n2")
	}},
	{"two control-plane nodes, though the budget is two", []Rule{ControlPlane}, func(s *script) {
		s.e.setBudget(s.tick(), 2)
		for _, name := range []string{"n1", "n2"} {
			s.write(name, func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" })
		}
		s.grant("n1", "t1")
		s.grant("n2", "t2")
		s.cordon("n1")
		s.cordon("n2")
	}},
	{"idle -> rebooting", []Rule{Table}, func(s *script) {
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e1"))
	}},
	{"idle -> uncordoning", []Rule{Table, Grant}, func(s *script) {
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.write("n1", ack(v1alpha1.ReportDone))
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e1"))
	}},
	{"a hook stage is skipped although it has a hook to wait for", []Rule{Table}, func(s *script) {
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1", func(g *v1alpha1.Grant) {
			g.Terms.BeforeDrain = []v1alpha1.Hook{{Name: "h"}}
		}))
	}},
	{"promoted to the reboot with a volume attached", []Rule{Table}, func(s *script) {
		detaches := func(g *v1alpha1.Grant) { g.Terms.WaitForVolumeDetach = true }
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1", detaches), attached("v"))
		s.cordon("n1")
		s.write("n1", ack(v1alpha1.ReportDone))
		s.write("n1", enter(v1alpha1.StateBeforeReboot, "t1", "e1"))
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e1"))
	}},
	{"a committed node is let go", []Rule{Table, Mark}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", leave(v1alpha1.StateAbsent, ""))
	}},
	{"released, and the host's record stays", []Rule{Released}, func(s *script) {
		s.write("n1", annotate(v1alpha1.AnnotationDetached, "why"))
		record := s.nodes["n1"].Annotations[v1alpha1.AnnotationHost]
		s.write("n1", release(v1alpha1.ReasonDetached), annotate(v1alpha1.AnnotationHost, record))
	}},
	{"released, and last stays", []Rule{Released}, func(s *script) {
		s.write("n1", label(v1alpha1.LabelManaged, "false"))
		s.write("n1", release(v1alpha1.ReasonUnmanaged), annotate(v1alpha1.AnnotationLast, `{"turn":"t0","result":"Done"}`))
	}},
	{"released, and held is empty", []Rule{Released}, func(s *script) {
		s.write("n1", label(v1alpha1.LabelManaged, "false"))
		s.write("n1", release(""))
	}},
	{"released, and held gives another reason", []Rule{Released}, func(s *script) {
		s.write("n1", label(v1alpha1.LabelManaged, "false"))
		s.write("n1", release(v1alpha1.ReasonDetached))
	}},
	{"released, and the information labels go", []Rule{Released}, func(s *script) {
		s.write("n1", label(v1alpha1.LabelOS, "flatcar"), annotate(v1alpha1.AnnotationDetached, "why"))
		s.write("n1", release(v1alpha1.ReasonDetached), label(v1alpha1.LabelOS, ""))
	}},
	{"a host publishes after it was released", []Rule{Released}, func(s *script) {
		s.write("n1", annotate(v1alpha1.AnnotationDetached, "why"))
		s.write("n1", release(v1alpha1.ReasonDetached))
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsReboot))
	}},
	{"a host publishes after its release in a store that was set back, on a version that only this store has given out", []Rule{Released}, func(s *script) {
		s.write("n1", annotate(v1alpha1.AnnotationDetached, "why"))
		s.write("n1", release(v1alpha1.ReasonDetached))
		before := maps.Clone(s.nodes)
		s.write("n1", annotate(v1alpha1.AnnotationDetached, ""))
		lost := s.rev
		s.rewind(before)
		s.rev = lost - 1
		s.write("n1", ready(true))
		s.write("n1", ready(true))
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsReboot))
	}},
	{"a host publishes after its release in a store that was set back, and it was detached in the version that is gone too", []Rule{Released}, func(s *script) {
		s.write("n1", annotate(v1alpha1.AnnotationDetached, "why"))
		s.write("n1", release(v1alpha1.ReasonDetached))
		before := maps.Clone(s.nodes)
		s.write("n1", ready(true))
		lost := s.rev
		s.rewind(before)
		s.rev = lost - 1
		s.write("n1", ready(true))
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsReboot))
	}},
	{"held goes although the node is still unmanaged, and the information labels stay", []Rule{Released}, func(s *script) {
		s.write("n1", label(v1alpha1.LabelOS, "flatcar"), label(v1alpha1.LabelManaged, "false"))
		s.write("n1", release(v1alpha1.ReasonUnmanaged))
		s.write("n1", label(v1alpha1.LabelHeld, ""))
	}},
	{"a host publishes after its node has left", []Rule{Released}, func(s *script) {
		s.write("n1", label(v1alpha1.LabelOS, "flatcar"), label(v1alpha1.LabelManaged, "false"))
		s.write("n1", release(v1alpha1.ReasonUnmanaged))
		s.write("n1", label(v1alpha1.LabelHeld, ""), label(v1alpha1.LabelOS, ""))
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsReboot))
	}},
	{"held goes although the node is still detached", []Rule{Released}, func(s *script) {
		s.write("n1", annotate(v1alpha1.AnnotationDetached, "why"))
		s.write("n1", release(v1alpha1.ReasonDetached))
		s.write("n1", label(v1alpha1.LabelHeld, ""))
	}},
	{"out of idle without a grant, into a stage with nothing to wait for", []Rule{Grant, Table}, func(s *script) {
		s.write("n1", label(v1alpha1.LabelState, "before-uncordon"), marked(false))
	}},
	{"a grant of another Node object", []Rule{Grant}, func(s *script) {
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1", func(g *v1alpha1.Grant) { g.NodeUID = "other" }))
	}},
	{"a turn's id is used twice", []Rule{Grant}, func(s *script) {
		s.wholeTurn("n1", "t1")
		s.grant("n2", "t1")
	}},
	{"a paused node is granted", []Rule{Grant}, func(s *script) {
		s.write("n1", annotate(v1alpha1.AnnotationPaused, "why"))
		s.grant("n1", "t1")
	}},
	{"a node that wants nothing is granted", []Rule{Grant}, func(s *script) {
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsNothing))
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1", func(g *v1alpha1.Grant) { g.Wants = v1alpha1.WantsReboot }))
	}},
	{"a want of another boot is granted", []Rule{Grant}, func(s *script) {
		s.write("n1", boots("boot-2"))
		s.grant("n1", "t1")
	}},
	{"managed=false is granted", []Rule{Grant}, func(s *script) {
		s.write("n1", label(v1alpha1.LabelManaged, "false"))
		s.grant("n1", "t1")
	}},
	{"a node that is not Ready is granted", []Rule{Grant}, func(s *script) {
		s.write("n1", ready(false))
		s.grant("n1", "t1")
	}},
	{"a host with a veto is granted", []Rule{Grant}, func(s *script) {
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsReboot), func(n *corev1.Node) {
			h, _ := v1alpha1.ParseHost(n.Annotations[v1alpha1.AnnotationHost])
			h.Veto = v1alpha1.ReasonWindow
			n.Annotations[v1alpha1.AnnotationHost] = v1alpha1.FormatRecord(h)
		})
		s.grant("n1", "t1")
	}},
	{"a host whose pods end Block is granted a turn with Block", []Rule{Grant}, func(s *script) {
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsReboot), func(n *corev1.Node) {
			h, _ := v1alpha1.ParseHost(n.Annotations[v1alpha1.AnnotationHost])
			h.BlockOff = true
			n.Annotations[v1alpha1.AnnotationHost] = v1alpha1.FormatRecord(h)
		})
		s.grant("n1", "t1")
	}},
	{"a node that another program has marked is granted", []Rule{Grant}, func(s *script) {
		s.write("n1", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "medik8s.io/drain"}} })
		s.grant("n1", "t1")
	}},
	{"a request that no admin has made skips the windows", []Rule{Grant}, func(s *script) {
		s.write("n1", annotate(v1alpha1.AnnotationRequest, "reboot"))
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1", func(g *v1alpha1.Grant) {
			g.Wants, g.Request = v1alpha1.WantsReboot, &v1alpha1.Request{Action: "reboot", Now: true}
		}))
	}},
	{"a host commits next to kured", []Rule{Commit}, func(s *script) {
		s.pod("k", "n1", kured)
		s.pass(kuredListAge + s.e.lag)
		s.grant("n1", "t1")
		s.cordon("n1")
	}},
	{"a host's own hook units are skipped", []Rule{Table}, func(s *script) {
		s.write("n1", func(n *corev1.Node) {
			h, _ := v1alpha1.ParseHost(n.Annotations[v1alpha1.AnnotationHost])
			h.HookStages = []v1alpha1.State{v1alpha1.StateBeforeDrain}
			n.Annotations[v1alpha1.AnnotationHost] = v1alpha1.FormatRecord(h)
		})
		s.grant("n1", "t1")
	}},
	{"the turn is replaced", []Rule{Grant}, func(s *script) {
		s.grant("n1", "t1")
		s.write("n1", enter(v1alpha1.StateDraining, "t2", "e1"))
	}},
	{"granted in a term that never existed", []Rule{Epoch}, func(s *script) {
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "nobody"))
	}},
	{"taken over in a term that never existed", []Rule{Epoch}, func(s *script) {
		s.grant("n1", "t1")
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "nobody"))
	}},
	{"a turn of another term is promoted", []Rule{Epoch}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", ack(v1alpha1.ReportDone))
		s.lead("e2")
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e2"))
	}},
	{"a turn of another term is promoted in a store that was set back, on a version that only this store has given out", []Rule{Epoch}, func(s *script) {
		s.loses(enter(v1alpha1.StateDraining, "t1", "e2"))
		s.write("n1", ready(true))
		s.write("n1", ready(true))
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e2"))
	}},
	{"a turn of another term is promoted in a store that was set back, and it was another term's in the version that is gone too", []Rule{Epoch}, func(s *script) {
		s.loses(ready(true))
		s.write("n1", ready(true))
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e2"))
	}},
	{"promoted before the host reported done", []Rule{Promotion}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e1"))
	}},
	{"promoted by a report from another boot", []Rule{Promotion}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", ack(v1alpha1.ReportDone))
		s.write("n1", boots("boot-2"))
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e1"))
	}},
	{"promoted after a reboot before the node is Ready", []Rule{Promotion}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.commit("n1")
		s.reboot("n1")
		s.write("n1", ready(false), boots("boot-2"), s.publishes("boot-2", v1alpha1.WantsNothing), ack(v1alpha1.ReportDone))
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
	}},
	{"backed out after the commit", []Rule{Promotion}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.commit("n1")
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
	}},
	{"an apply is cleared before it is overdue", []Rule{Promotion}, func(s *script) {
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsApply))
		s.write("n1", enter(v1alpha1.StateApplying, "t1", "e1", s.appliesFor(5*time.Minute)))
		s.commit("n1")
		s.write("n1", annotate(v1alpha1.AnnotationRetry, "t1"))
		s.pass(4 * time.Minute)
		s.giveBack("n1", "t1")
	}},
	{"an overdue apply is cleared by a retry of another turn", []Rule{Promotion}, func(s *script) {
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsApply))
		s.write("n1", enter(v1alpha1.StateApplying, "t1", "e1", s.appliesFor(5*time.Minute)))
		s.commit("n1")
		s.write("n1", annotate(v1alpha1.AnnotationRetry, "t0"))
		s.pass(5 * time.Minute)
		s.giveBack("n1", "t1")
	}},
	{"a reboot is cleared before it is overdue", []Rule{Promotion}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", ack(v1alpha1.ReportDone))
		s.write("n1", enter(v1alpha1.StateRebooting, "t1", "e1", s.rebootsFor(5*time.Minute)))
		s.commit("n1")
		s.reboot("n1")
		s.write("n1", boots("boot-2"))
		s.write("n1", annotate(v1alpha1.AnnotationRetry, "t1"))
		s.pass(4 * time.Minute)
		s.giveBack("n1", "t1")
	}},
	{"a reboot that may still come is cleared", []Rule{Promotion}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.commit("n1")
		s.write("n1", annotate(v1alpha1.AnnotationRetry, "t1"))
		s.pass(time.Hour)
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
	}},
	{"the turn ends before the host uncordoned its node", []Rule{Promotion, Mark, LeftCordoned}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.finish("n1")
	}},
	{"a late grant is left alone", []Rule{LateGrant}, func(s *script) {
		s.lead("e2")
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1"))
		s.pass(2 * time.Minute)
	}},
	{"promoted under the stop", []Rule{Stop}, func(s *script) {
		s.stop(true)
		s.pass(30 * time.Second)
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1"))
	}},
	{"cordoned under the stop", []Rule{Stop}, func(s *script) {
		s.stop(true)
		s.grant("n1", "t1")
		s.cordon("n1")
	}},
	{"evicted under the stop", []Rule{Stop}, func(s *script) {
		s.pod("p", "n1")
		s.grant("n1", "t1")
		s.cordon("n1")
		s.stop(true)
		s.pass(30 * time.Second)
		s.pod("p", "n1", evict)
	}},
	{"rebooted under the stop", []Rule{Stop}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.commit("n1")
		s.stop(true)
		s.pass(20 * time.Second)
		s.reboot("n1")
	}},
	{"overdue, and there was a stop for most of the time", []Rule{Overdue}, func(s *script) {
		s.stop(true)
		s.pass(20 * time.Second) // the leader has not noticed it yet
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1", s.drainsFor(2*time.Minute)))
		s.pass(2 * time.Minute)
		s.stop(false)
		s.write("n1", label(v1alpha1.LabelHeld, string(v1alpha1.ReasonOverdue)))
	}},
	{"overdue, and there was no Lease for most of the time", []Rule{Overdue}, func(s *script) {
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1", s.drainsFor(2*time.Minute)))
		s.e.onLease(s.tick(), nil)
		s.pass(2 * time.Minute)
		s.lead("e1")
		s.write("n1", label(v1alpha1.LabelHeld, string(v1alpha1.ReasonOverdue)))
	}},
	{"backed out as overdue, and no host led for most of the time", []Rule{Overdue}, func(s *script) {
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1", s.drainsFor(2*time.Minute)))
		s.pass(2 * time.Minute)
		s.lead("e2")
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e2", func(g *v1alpha1.Grant) { g.Reason = v1alpha1.ReasonOverdue }))
	}},
	{"overdue too late", []Rule{Overdue}, func(s *script) {
		s.drainOf2m()
		s.renew(2*time.Minute + s.e.late + 20*time.Second)
		s.write("n1", label(v1alpha1.LabelHeld, string(v1alpha1.ReasonOverdue)))
	}},
	{"never overdue after a change of leaders", []Rule{Overdue}, func(s *script) {
		s.drainOf2m()
		s.renew(time.Minute)
		s.handOver("e2")
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e2"))
		s.renew(time.Minute + 2*s.e.late + 30*time.Second)
	}},
	{"the time of a pause counts twice", []Rule{Overdue}, func(s *script) {
		s.drainOf2m()
		s.renew(time.Minute)
		s.write("n1", paused(true))
		s.renew(5 * time.Minute)
		s.write("n1", paused(false))
		s.renew(5 * time.Minute)
		s.write("n1", label(v1alpha1.LabelHeld, string(v1alpha1.ReasonOverdue)))
	}},
	{"never overdue after a pause that was declared as an edit", []Rule{Overdue}, func(s *script) {
		s.drainOf2m()
		s.e.declared = []Declaration{{"", "n1", "a person pauses"}}
		s.write("n1", paused(true))
		s.write("n1", paused(false))
		s.e.declared = nil
		s.renew(2*time.Minute + 2*s.e.late + 30*time.Second)
	}},
	{"never overdue after the Lease was blanked", []Rule{Overdue}, func(s *script) {
		s.drainOf2m()
		s.renew(time.Minute)
		s.lead("")
		s.lead("e2")
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e2"))
		s.renew(2*time.Minute + 2*s.e.late + 30*time.Second)
	}},
	{"a stage with hooks is not overdue after the longest of their timeouts", []Rule{Overdue}, func(s *script) {
		s.write("n1", enter(v1alpha1.StateBeforeDrain, "t1", "e1", s.hooksFor(4*time.Minute)))
		s.renew(4*time.Minute + s.e.late + 20*time.Second)
	}},
	{"cordoned while there is no Lease", []Rule{Stop}, func(s *script) {
		s.e.onLease(s.tick(), nil)
		s.grant("n1", "t1")
		s.cordon("n1")
	}},
	{"a cordon in before-drain", []Rule{Commit}, func(s *script) {
		s.write("n1", enter(v1alpha1.StateBeforeDrain, "t1", "e1", func(g *v1alpha1.Grant) {
			g.Terms.BeforeDrain = []v1alpha1.Hook{{Name: "h"}}
		}))
		s.cordon("n1")
	}},
	{"a cordon with the mark and without the ack", []Rule{Commit}, func(s *script) {
		s.grant("n1", "t1")
		s.write("n1", unschedulable(true), marked(true))
	}},
	{"committed to another boot than the grant's", []Rule{Commit}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.write("n1", s.publishes("boot-2", v1alpha1.WantsReboot))
		s.commit("n1")
	}},
	{"committed for a turn that was not its own", []Rule{Commit}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.write("n1", annotate(v1alpha1.AnnotationAck, "t0/boot-1/rebooting/committed"))
	}},
	{"an ack committed in a state without a commit", []Rule{Commit}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.commit("n1")
	}},
	{"committed from another boot than the kubelet's", []Rule{Commit}, func(s *script) {
		s.grant("n1", "t1")
		s.write("n1", unschedulable(true), marked(true), annotate(v1alpha1.AnnotationAck, "t1/boot-9/draining/committed"))
	}},
	{"committed to a drain without the cordon", []Rule{Commit}, func(s *script) {
		s.grant("n1", "t1")
		s.commit("n1")
	}},
	{"a late grant is committed", []Rule{Fence}, func(s *script) {
		s.lead("e2")
		s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1"))
		s.write("n1", ack(v1alpha1.ReportSeen))
		s.cordon("n1")
	}},
	{"committed on an old read of the Lease", []Rule{Fence}, func(s *script) {
		s.grant("n1", "t1")
		s.lead("e2")
		s.pass(20 * time.Second)
		s.cordon("n1")
	}},
	{"committed on reads from before another's write", []Rule{Fence}, func(s *script) {
		s.grant("n1", "t1")
		s.lead("")
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsNothing))
		s.write("n1", label(v1alpha1.LabelHeld, "Budget"))
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsReboot), unschedulable(true), marked(true), ack(v1alpha1.ReportCommitted))
	}},
	{"committed on reads from before a write of the kubelet", []Rule{Fence}, func(s *script) {
		s.grant("n1", "t1")
		s.lead("")
		s.write("n1") // a heartbeat
		s.cordon("n1")
	}},
	{"committed on reads from before a write that its host made long ago", []Rule{Fence}, func(s *script) {
		s.grant("n1", "t1")
		s.lead("")
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsNothing))
		s.pass(20 * time.Second)
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsReboot), unschedulable(true), marked(true), ack(v1alpha1.ReportCommitted))
	}},
	{"committed with a pod from before the turn's reads", []Rule{Drain}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.pod("p", "n1")
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsNothing))
		s.pass(20 * time.Second)
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsReboot), ack(v1alpha1.ReportCommitted))
	}},
	{"rebooted when the term had been over for long", []Rule{Fence}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.commit("n1")
		s.lead("e2")
		s.pass(20 * time.Second)
		s.reboot("n1")
	}},
	{"cordoned though paused", []Rule{Paused}, func(s *script) {
		s.grant("n1", "t1")
		s.write("n1", annotate(v1alpha1.AnnotationPaused, "why"))
		s.cordon("n1")
	}},
	{"cordoned though detached", []Rule{Paused}, func(s *script) {
		s.grant("n1", "t1")
		s.write("n1", annotate(v1alpha1.AnnotationDetached, "why"))
		s.cordon("n1")
	}},
	{"evicted though paused", []Rule{Paused}, func(s *script) {
		s.pod("p", "n1")
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", annotate(v1alpha1.AnnotationPaused, "why"))
		s.pass(20 * time.Second)
		s.pod("p", "n1", evict)
	}},
	{"uncordoned though paused", []Rule{Paused}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.write("n1", annotate(v1alpha1.AnnotationPaused, "why"))
		s.uncordon("n1")
	}},
	{"committed for a want that is gone", []Rule{Cancelled}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.write("n1", s.publishes("boot-1", v1alpha1.WantsNothing))
		s.commit("n1")
	}},
	{"rebooted for a want that was withdrawn at its source", []Rule{Cancelled}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.e.hostEvent(s.tick(), HostEvent{Time: s.clock, Host: "n1", Kind: WantCancelled})
		s.commit("n1")
		s.pass(20 * time.Second)
		s.reboot("n1")
	}},
	{"committed to a reboot before it was drained", []Rule{Drain}, func(s *script) {
		s.pod("p", "n1")
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.commit("n1")
	}},
	{"committed to a reboot with a pod that is still ending", []Rule{Drain}, func(s *script) {
		s.pod("p", "n1")
		s.grant("n1", "t1")
		s.cordon("n1")
		s.pod("p", "n1", evict)
		s.drained("n1", "t1")
		s.commit("n1")
	}},
	{"committed to a reboot on a schedulable node", []Rule{Drain, Uncordon}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.write("n1", unschedulable(false))
		s.commit("n1")
	}},
	{"rebooted long after pods had come", []Rule{Drain}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.commit("n1")
		s.pod("p", "n1")
		s.pass(20 * time.Second)
		s.reboot("n1")
	}},
	{"rebooted in no turn", []Rule{Reboot}, func(s *script) { s.reboot("n1") }},
	{"a host without a Node is rebooted", []Rule{Reboot}, func(s *script) {
		w := s.e.hostEvent(s.tick(), HostEvent{Time: s.clock, Host: "n9", Kind: RebootCalled, BootID: "boot-1"})
		s.e.settle(s.tick(), w)
	}},
	{"rebooted in draining", []Rule{Reboot}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.reboot("n1")
	}},
	{"rebooted before the commit", []Rule{Reboot}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.reboot("n1")
	}},
	{"rebooted after the turn was backed out", []Rule{Reboot}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.reboot("n1")
	}},
	{"rebooted twice in a turn", []Rule{Reboot, RebootTwice}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.drained("n1", "t1")
		s.commit("n1")
		s.reboot("n1")
		s.write("n1", ready(true), boots("boot-2"))
		s.reboot("n1")
	}},
	{"cordoned without the mark", []Rule{Cordon}, func(s *script) { s.write("n1", unschedulable(true)) }},
	{"a person's cordon is marked", []Rule{Mark}, func(s *script) {
		s.e.declared = []Declaration{{Cordon, "n1", "a person"}}
		s.write("n1", unschedulable(true))
		s.grant("n1", "t1")
		s.cordon("n1")
	}},
	{"marked without a cordon", []Rule{Mark}, func(s *script) {
		s.grant("n1", "t1")
		s.write("n1", marked(true))
	}},
	{"the mark is dropped and the cordon stays", []Rule{Mark, LeftCordoned}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.write("n1", marked(false), ack(v1alpha1.ReportDone))
		s.finish("n1")
	}},
	{"wants is removed while the mark is set", []Rule{Mark}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", label(v1alpha1.LabelWants, ""))
	}},
	{"a person's cordon is removed", []Rule{Uncordon}, func(s *script) {
		s.e.declared = []Declaration{{Cordon, "n1", "a person"}}
		s.write("n1", unschedulable(true))
		s.grant("n1", "t1")
		s.commit("n1")
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.uncordon("n1")
	}},
	{"uncordoned in draining", []Rule{Uncordon}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", unschedulable(false), marked(false))
	}},
	{"uncordoned before it was Ready", []Rule{Uncordon}, func(s *script) {
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.write("n1", ready(false))
		s.uncordon("n1")
	}},
	{"evicted in no turn", []Rule{Evict}, func(s *script) {
		s.pod("p", "n1")
		s.pod("p", "n1", evict)
	}},
	{"evicted before the cordon", []Rule{Evict}, func(s *script) {
		s.pod("p", "n1")
		s.grant("n1", "t1")
		s.pod("p", "n1", evict)
	}},
	{"evicted from another node than the one in its turn", []Rule{Evict}, func(s *script) {
		s.pod("p", "n2")
		s.grant("n1", "t1")
		s.cordon("n1")
		s.pod("p", "n2", evict)
	}},
	{"evicted long after the turn was backed out", []Rule{Evict}, func(s *script) {
		s.pod("p", "n1")
		s.grant("n1", "t1")
		s.cordon("n1")
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.pass(30 * time.Second)
		s.pod("p", "n1", evict)
	}},
	{"a DaemonSet's pod is evicted", []Rule{Evict}, func(s *script) {
		s.pod("p", "n1", ofDaemonSet)
		s.grant("n1", "t1")
		s.cordon("n1")
		s.pod("p", "n1", evict)
	}},
	{"a label that was there before is claimed, and removed", []Rule{Exclusion}, func(s *script) {
		s.write("n1", label(fenceLabel, "true"))
		s.grant("n1", "t1")
		s.write("n1", unschedulable(true), excluded("Cordon,Remediation"), ack(v1alpha1.ReportCommitted))
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.write("n1", unschedulable(false), marked(false), ack(v1alpha1.ReportDone), label(fenceLabel, "no"))
	}},
	{"a label that an admin has changed is removed", []Rule{Exclusion}, func(s *script) {
		s.grant("n1", "t1")
		s.write("n1", unschedulable(true), excluded("Cordon,Remediation"), label(fenceLabel, "true"), ack(v1alpha1.ReportCommitted))
		s.write("n1", label(fenceLabel, "until-monday"))
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.write("n1", unschedulable(false), marked(false), ack(v1alpha1.ReportDone), label(fenceLabel, ""))
	}},
	{"the uncordon leaves the label", []Rule{Exclusion}, func(s *script) {
		s.grant("n1", "t1")
		s.write("n1", unschedulable(true), excluded("Cordon,Remediation"), label(fenceLabel, "true"), ack(v1alpha1.ReportCommitted))
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.uncordon("n1")
	}},
	{"a label that no mark names comes with a report", []Rule{Exclusion}, func(s *script) {
		s.grant("n1", "t1")
		s.write("n1", unschedulable(true), marked(true), label(fenceLabel, "true"), ack(v1alpha1.ReportCommitted))
	}},
	{"another owner's cordon is undone, although the mark names only a label", []Rule{Uncordon}, func(s *script) {
		s.e.declared = []Declaration{{Cordon, "n1", "a person"}}
		s.write("n1", unschedulable(true))
		s.grant("n1", "t1")
		s.write("n1", excluded("Remediation"), label(fenceLabel, "true"), ack(v1alpha1.ReportCommitted))
		s.write("n1", enter(v1alpha1.StateUncordoning, "t1", "e1"))
		s.write("n1", unschedulable(false), marked(false), label(fenceLabel, ""), ack(v1alpha1.ReportDone))
	}},
}

func TestOffences(t *testing.T) {
	broken := map[Rule]bool{Gap: true} // the follower finds gaps, not the engine; see TestGap
	for _, o := range offences {
		t.Run(o.name, func(t *testing.T) {
			s := newScript(t, "n1", "n2")
			o.do(s)
			s.verdict(slices.Clone(o.want)...)
		})
		for _, r := range o.want {
			broken[r] = true
		}
	}
	for _, r := range Rules() {
		if !broken[r] {
			t.Errorf("no offence breaks %s", r)
		}
	}
}

// kured makes the pod one of kured's.
func kured(p *corev1.Pod) {
	p.Namespace, p.Spec.Containers = "kube-system", []corev1.Container{{Command: []string{"/usr/bin/kured"}}}
}
