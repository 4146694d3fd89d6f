package virtual

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// Unfinished says, a line for each, which hosts have not arrived: their Node is idle and schedulable, wants nothing, and
// the host runs the version that it staged last. It returns "" if all have. It does not look at the exceptions.
func (f *Fleet) Unfinished(except ...string) string {
	var lines []string
	for _, m := range f.hosts {
		if slices.Contains(except, m.name) {
			continue
		}
		if why := m.unfinished(); why != "" {
			lines = append(lines, m.name+": "+why)
		}
	}
	return strings.Join(lines, "\n")
}

func (m *Machine) unfinished() string {
	obj := m.f.Node(m.name)
	if obj == nil {
		return "it has no Node"
	}
	n := turn.FromNode(obj)
	describe := func(what string) string {
		return fmt.Sprintf("%s; state %q, wants %q, held %v, ack %v, cordoned %t, ready %t", what, n.State, n.Wants, n.Held, n.Ack, n.Unschedulable, n.Ready)
	}
	runs, staged := m.mem.Version(), m.stagedVersion()
	switch {
	case n.State != v1alpha1.StateIdle:
		return describe("it is not idle")
	case n.Unschedulable || n.Mark:
		return describe("it is cordoned")
	case n.Wants != v1alpha1.WantsNothing:
		return describe("it still wants something")
	case staged != "" && runs != staged:
		return describe(fmt.Sprintf("it runs %s, expected %s", runs, staged))
	case m.notInEffect() != "":
		return describe(m.notInEffect())
	case m.hooksLeft() != "":
		return describe(m.hooksLeft())
	case !n.Ready:
		return describe("it is not ready")
	}
	return m.hostUpdateLacks(n)
}

// hostUpdateLacks says how the host's HostUpdate differs from its Node; "" if it does not.
func (m *Machine) hostUpdateLacks(n turn.Node) string {
	var u v1alpha1.HostUpdate
	obj := m.f.Server.Get("hostupdates", "", m.name)
	if obj == nil {
		return "it has no HostUpdate"
	}
	text, err := json.Marshal(obj)
	if err == nil {
		err = json.Unmarshal(text, &u)
	}
	m.f.must(err)
	if s := u.Status; s.Wants != n.Wants || s.State != v1alpha1.UpdateName(n.State) {
		return fmt.Sprintf("its HostUpdate says state %q and wants %q, its Node %q and %q", s.State, s.Wants, n.State, n.Wants)
	}
	for _, c := range u.Status.Conditions {
		if !hasArrived(&c, n.Last, n.Retry) {
			return fmt.Sprintf("its HostUpdate says %s=%s (%s: %s)", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	return ""
}

// hasArrived reports whether a HostUpdate may have the condition when the host has arrived: nothing runs, blocks, or is unhealthy, and Failed is True only
// for a failure that no retry has cleared.
func hasArrived(c *metav1.Condition, last *v1alpha1.Last, retry string) bool {
	switch is := c.Status == metav1.ConditionTrue; c.Type {
	case v1alpha1.ConditionBlocked:
		return !is
	case v1alpha1.ConditionFailed:
		return !is || last != nil && last.Result == v1alpha1.ResultFailed && last.Turn != retry
	case v1alpha1.ConditionEngineReachable, v1alpha1.ConditionSourcesReadable, v1alpha1.ConditionCredentialValid, v1alpha1.ConditionClusterReachable,
		v1alpha1.ConditionCoordinatorHealthy:
		return is
	default:
		return c.Reason != v1alpha1.ConditionReasonRunning
	}
}

// lastVersion is what the hosts of a fleet with a canary arrive at. Otherwise they would wait forever for a version that the canary skipped.
const lastVersion = "3.99.0"

// Arrive waits until no host but the exceptions is unfinished, and returns what is unfinished after the limit. Meanwhile an
// admin clears the turns that ended in a failure which the host has observed, and lets hosts that had too many turns have
// another one: only these wait for a person.
func (f *Fleet) Arrive(within time.Duration, except ...string) string {
	for end := time.Now().Add(within); ; {
		f.followCanary(lastVersion) // again and again: a host that is down stages nothing
		why := f.Unfinished(except...)
		f.clearFailed(except)
		f.rebootByHand(except)
		if why == "" || time.Now().After(end) || pause(f.ctx, 10*time.Second) != nil {
			return why
		}
	}
}

// clearFailed clears the last turn of each node that is held because that turn failed, or because it had as many turns as a
// day allows.
func (f *Fleet) clearFailed(except []string) {
	for _, m := range f.hosts {
		obj := m.f.Node(m.name)
		if obj == nil || slices.Contains(except, m.name) {
			continue
		}
		n := turn.FromNode(obj)
		id := n.Turn
		if !n.InTurn() && n.Last != nil && (n.Last.Result == v1alpha1.ResultFailed || n.Held == v1alpha1.ReasonTurnLimit) {
			id = n.Last.Turn
		} else if !n.InTurn() || !n.HasReport(v1alpha1.ReportFailed) {
			continue
		}
		if n.Retry != id {
			f.exec.people.patchNode(m.name, annotate(v1alpha1.AnnotationRetry, id))
		}
	}
}

// Clean ends what admins and thieves began and the plan has not ended, because the admins' request was refused or a store that was rewound
// has it again: unknown states, intents without an end, a stop, changes of the policy, budgets that block drains, jobs, pods of kured, cordons that
// are not lockkeeper's, and a status that leaves no space on the Node. An admin who detaches a node by force takes over its cordon.
func (f *Fleet) Clean() {
	p := f.exec.people
	p.removeUnknownStates(f.Hosts())
	for _, m := range f.hosts {
		f.AllowDrains(m.name)
		f.RemoveManager(m.name)
		for _, mode := range jobModes {
			f.EndJob(m.name, mode)
		}
		obj := f.Node(m.name)
		if obj == nil { // the store was set back to a time without it, and a kubelet that runs does not create it again
			f.RestartKubelet(m.name)
			continue
		}
		n := turn.FromNode(obj)
		stays := func(in *v1alpha1.Intent) bool { // the coordinator removes it
			return in == nil || in.Until != nil && time.Until(*in.Until) <= kindIntent.spec().most
		}
		if !stays(n.Paused) {
			p.patchNode(m.name, annotate(v1alpha1.AnnotationPaused, nil))
		}
		if !stays(n.Detached) {
			p.patchNode(m.name, annotate(v1alpha1.AnnotationDetached, nil))
		}
		if obj.Labels[v1alpha1.LabelManaged] != "" {
			p.patchNode(m.name, label(v1alpha1.LabelManaged, nil))
		}
		if obj.Spec.Unschedulable && !n.OwnCordon() {
			p.patchNode(m.name, cordon(false))
		}
		if len(obj.Status.Images) > 0 { // a lie, and a kubelet that runs does not write its whole status again
			f.RestartKubelet(m.name)
		}
	}
	if lease, ok := f.Server.Get("leases", v1alpha1.DefaultLeaseNamespace, v1alpha1.DefaultLeaseName).(*coordinationv1.Lease); !ok {
		f.createLease()
	} else if _, stopped := lease.Annotations[v1alpha1.AnnotationStop]; stopped {
		p.do(admin, http.MethodPatch, leasePath, annotate(v1alpha1.AnnotationStop, nil), nil)
	}
	p.do(admin, http.MethodDelete, policiesPath+"/"+canaryPolicy, nil, nil)
	p.do(admin, http.MethodDelete, policiesPath+"/"+v1alpha1.DefaultPolicyName, nil, nil)
	p.do(admin, http.MethodDelete, policiesPath+"/"+poolPolicy, nil, nil) // after the other one, under which its hosts would be
	f.createPolicy()
	p.do(admin, http.MethodDelete, policiesPath+"/"+brokenRules, nil, nil) // a store that was set back has it again
}
