package referee

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// script builds a cluster's history write by write. Writes are one second apart unless the test says otherwise.
type script struct {
	t     *testing.T
	e     *engine
	rev   int64
	clock time.Time
	nodes map[string]*corev1.Node
	lease *coordinationv1.Lease
	pods  map[string]*corev1.Pod
	lines []string
}

func newScript(t *testing.T, nodes ...string) *script {
	s := &script{
		t: t, clock: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC),
		nodes: map[string]*corev1.Node{}, pods: map[string]*corev1.Pod{},
	}
	s.e = newEngine(config{budget: 1, lag: 5 * time.Second, late: 65 * time.Second, admins: []string{"kubectl"}, line: func(at time.Time, node, text string) {
		s.lines = append(s.lines, fmt.Sprintf("%s %s %s", at.Format(time.TimeOnly), node, text))
	}})
	s.e.first = true
	s.lead("e1")
	for _, name := range nodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{}, Annotations: map[string]string{},
		}}
		s.nodes[name] = n
		s.write(name, s.publishes("boot-1", v1alpha1.WantsReboot), ready(true), label(v1alpha1.LabelState, "idle"))
	}
	s.e.first = false
	return s
}

func (s *script) tick() moment {
	s.rev++
	s.clock = s.clock.Add(time.Second)
	return moment{rev: s.rev, after: s.clock, by: s.clock}
}

func (s *script) pass(d time.Duration) { s.clock = s.clock.Add(d) }

// rewind sets the store back to nodes.
func (s *script) rewind(nodes map[string]*corev1.Node) {
	s.e.rewind(s.tick())
	s.nodes = nodes
	s.e.onLease(s.tick(), s.lease)
	for name := range nodes {
		s.write(name)
	}
	s.e.first = false
}

// loses has another term write edits to n1, which is in a turn, and sets the store back to before that term. It leaves the store right before the
// version that was lost, so that the next write is given its number again.
func (s *script) loses(edits ...edit) {
	s.grant("n1", "t1")
	s.cordon("n1")
	s.write("n1", ack(v1alpha1.ReportDone))
	before, lease := maps.Clone(s.nodes), s.lease
	s.lead("e2")
	s.write("n1", edits...)
	lost := s.rev
	s.lease = lease
	s.rewind(before)
	s.rev = lost - 1
}

type edit func(*corev1.Node)

func (s *script) write(name string, edits ...edit) {
	n := s.nodes[name].DeepCopy()
	for _, e := range edits {
		e(n)
	}
	s.nodes[name] = n
	s.e.onNode(s.tick(), name, n)
}

// pools puts n1 and n2 each under one of the two policies web and db. Each policy allows one node at once.
func (s *script) pools(n1, n2 string) {
	for _, name := range []string{"web", "db"} {
		s.e.policies = append(s.e.policies, PolicyBudget{Policy: name, Labels: map[string]string{"pool": name}, Budget: 1})
	}
	s.write("n1", label("pool", n1))
	s.write("n2", label("pool", n2))
}

func (s *script) lead(holder string) {
	s.lease = &coordinationv1.Lease{}
	s.lease.Spec.HolderIdentity = &holder
	s.e.onLease(s.tick(), s.lease)
}

// renew has the holder renew the Lease for that long.
func (s *script) renew(d time.Duration) {
	for end := s.clock.Add(d); s.clock.Before(end); {
		s.pass(9 * time.Second)
		s.e.onLease(s.tick(), s.lease)
	}
}

// handOver has the holder give the Lease back, and another one take it.
func (s *script) handOver(holder string) {
	s.lease = s.lease.DeepCopy()
	s.lease.Spec.HolderIdentity, s.lease.Spec.LeaseDurationSeconds = new(""), new(int32(1))
	s.e.onLease(s.tick(), s.lease)
	s.lead(holder)
}

func (s *script) stop(on bool) {
	s.lease = s.lease.DeepCopy()
	delete(s.lease.Annotations, v1alpha1.AnnotationStop)
	if on {
		metav1.SetMetaDataAnnotation(&s.lease.ObjectMeta, v1alpha1.AnnotationStop, "why")
	}
	s.e.onLease(s.tick(), s.lease)
}

func label(key, value string) edit {
	return func(n *corev1.Node) {
		delete(n.Labels, key)
		if value != "" {
			n.Labels[key] = value
		}
	}
}

func annotate(key, value string) edit {
	return func(n *corev1.Node) {
		delete(n.Annotations, key)
		if value != "" {
			n.Annotations[key] = value
		}
	}
}

func ready(yes bool) edit {
	return func(n *corev1.Node) {
		status := corev1.ConditionFalse
		if yes {
			status = corev1.ConditionTrue
		}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	}
}

func boots(id string) edit { return func(n *corev1.Node) { n.Status.NodeInfo.BootID = id } }

// publishes sets what a host publishes. The kubelet reports the same boot.
func (s *script) publishes(boot string, wants v1alpha1.Wants) edit {
	return func(n *corev1.Node) {
		h := v1alpha1.Host{Protocol: 1, Version: "test", NodeUID: string(n.UID), BootID: boot, Managed: true}
		if wants.Something() {
			h.Drains, h.Changes = wants != v1alpha1.WantsApply, []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "2"}}
		}
		n.Labels[v1alpha1.LabelWants] = string(wants)
		n.Annotations[v1alpha1.AnnotationHost] = v1alpha1.FormatRecord(h)
		n.Status.NodeInfo.BootID = boot
	}
}

// enter is a leader's write of a state in a turn.
func enter(state v1alpha1.State, id, epoch string, changes ...func(*v1alpha1.Grant)) edit {
	return func(n *corev1.Node) {
		g, _ := v1alpha1.ParseGrant(n.Annotations[v1alpha1.AnnotationGrant])
		if g == nil || g.Turn != id {
			g = &v1alpha1.Grant{Turn: id, NodeUID: string(n.UID), Wants: v1alpha1.Wants(n.Labels[v1alpha1.LabelWants]), Drains: true}
		}
		g.Epoch = epoch
		if g.BootID == "" || state == v1alpha1.StateRebooting {
			g.BootID = n.Status.NodeInfo.BootID
		}
		for _, c := range changes {
			c(g)
		}
		n.Labels[v1alpha1.LabelState] = string(state)
		n.Annotations[v1alpha1.AnnotationTurn] = id
		n.Annotations[v1alpha1.AnnotationGrant] = v1alpha1.FormatRecord(g)
	}
}

// drainsFor gives a drain that begins now a timeout.
func (s *script) drainsFor(timeout time.Duration) func(*v1alpha1.Grant) {
	return func(g *v1alpha1.Grant) {
		g.StageAt, g.Terms.Draining = s.clock, metav1.Duration{Duration: timeout}
	}
}

// drainOf2m begins a turn of e1 with a drain that may take two minutes.
func (s *script) drainOf2m() {
	s.write("n1", enter(v1alpha1.StateDraining, "t1", "e1", s.drainsFor(2*time.Minute)))
}

// paused has an admin pause the node, or end that.
func paused(yes bool) edit {
	return func(n *corev1.Node) {
		value := ""
		if yes {
			value = v1alpha1.FormatRecord(v1alpha1.Intent{Reason: "a test"})
		}
		annotate(v1alpha1.AnnotationPaused, value)(n)
	}
}

// hooksFor gives a stage that begins now a hook with that timeout, and one of a minute.
func (s *script) hooksFor(timeout time.Duration) func(*v1alpha1.Grant) {
	return func(g *v1alpha1.Grant) {
		hook := func(name string, timeout time.Duration) v1alpha1.Hook {
			return v1alpha1.Hook{Name: name, Timeout: metav1.Duration{Duration: timeout}}
		}
		g.StageAt, g.Terms.BeforeDrain = s.clock, []v1alpha1.Hook{hook("long", timeout), hook("short", time.Minute)}
	}
}

// appliesFor gives an apply without a drain that begins now a timeout.
func (s *script) appliesFor(timeout time.Duration) func(*v1alpha1.Grant) {
	return func(g *v1alpha1.Grant) {
		g.Drains, g.StageAt, g.Terms.Applying = false, s.clock, metav1.Duration{Duration: timeout}
	}
}

// rebootsFor gives a reboot that begins now a timeout.
func (s *script) rebootsFor(timeout time.Duration) func(*v1alpha1.Grant) {
	return func(g *v1alpha1.Grant) {
		g.StageAt, g.Terms.Rebooting = s.clock, metav1.Duration{Duration: timeout}
	}
}

// leave is a leader's write that ends a turn.
func leave(state v1alpha1.State, result v1alpha1.Result) edit {
	return func(n *corev1.Node) {
		l := v1alpha1.Last{Turn: n.Annotations[v1alpha1.AnnotationTurn], Result: result}
		n.Annotations[v1alpha1.AnnotationLast] = v1alpha1.FormatRecord(l)
		delete(n.Annotations, v1alpha1.AnnotationTurn)
		delete(n.Annotations, v1alpha1.AnnotationGrant)
		label(v1alpha1.LabelState, string(state))(n)
	}
}

// release is a leader's write that releases a node.
func release(held v1alpha1.Reason) edit {
	return func(n *corev1.Node) {
		for _, key := range []string{v1alpha1.LabelState, v1alpha1.LabelWants} {
			delete(n.Labels, key)
		}
		for _, key := range []string{v1alpha1.AnnotationHost, v1alpha1.AnnotationAck, v1alpha1.AnnotationTurn, v1alpha1.AnnotationGrant, v1alpha1.AnnotationLast} {
			delete(n.Annotations, key)
		}
		label(v1alpha1.LabelHeld, string(held))(n)
	}
}

func ack(w v1alpha1.Report, reason ...v1alpha1.Reason) edit {
	return func(n *corev1.Node) {
		a := v1alpha1.Ack{
			Turn: n.Annotations[v1alpha1.AnnotationTurn], BootID: n.Status.NodeInfo.BootID,
			State: v1alpha1.State(n.Labels[v1alpha1.LabelState]), Report: w,
		}
		if len(reason) > 0 {
			a.Reason = reason[0]
		}
		n.Annotations[v1alpha1.AnnotationAck] = a.String()
	}
}

func unschedulable(yes bool) edit { return func(n *corev1.Node) { n.Spec.Unschedulable = yes } }
func marked(yes bool) edit {
	return func(n *corev1.Node) {
		delete(n.Annotations, v1alpha1.AnnotationCordon)
		if yes {
			n.Annotations[v1alpha1.AnnotationCordon] = "a turn"
		}
	}
}

const fenceLabel, balancersLabel = "remediation.medik8s.io/exclude-from-remediation", "node.kubernetes.io/exclude-from-external-load-balancers"

// excluded sets a mark that names what the turn has set.
func excluded(names string) edit {
	return annotate(v1alpha1.AnnotationCordon, "t1/2026-01-01T12:00:00Z/"+names)
}

func (s *script) pod(name, node string, edits ...func(*corev1.Pod)) {
	p := s.pods[name]
	if p == nil {
		p = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
	}
	p = p.DeepCopy()
	p.Spec.NodeName = node
	for _, e := range edits {
		e(p)
	}
	s.pods[name] = p
	s.e.onPod(s.tick(), "default/"+name, p)
}

func (s *script) gone(name string) {
	delete(s.pods, name)
	s.e.onPod(s.tick(), "default/"+name, nil)
}

func evict(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: evictionByAPI}}
}

func ofDaemonSet(p *corev1.Pod) {
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", Controller: &yes}}
}

// reboot calls logind in the boot that the kubelet reports.
func (s *script) reboot(name string) {
	m := s.tick()
	w := s.e.hostEvent(m, HostEvent{Time: s.clock, Host: name, Kind: RebootCalled, BootID: s.nodes[name].Status.NodeInfo.BootID})
	s.e.settle(s.tick(), w)
}

// attached sets all volumes of the node.
func attached(volumes ...corev1.UniqueVolumeName) edit {
	return func(n *corev1.Node) {
		n.Status.VolumesAttached = nil
		for _, v := range volumes {
			n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: v})
		}
	}
}

// grant begins a correct turn with a drain and a reboot, without hooks. The methods below are its later stages.
func (s *script) grant(name, id string) {
	s.write(name, enter(v1alpha1.StateDraining, id, s.holder()))
	s.write(name, ack(v1alpha1.ReportSeen))
}
func (s *script) cordon(name string) {
	s.write(name, unschedulable(true), marked(true), ack(v1alpha1.ReportCommitted))
}
func (s *script) drained(name, id string) {
	s.write(name, ack(v1alpha1.ReportDone))
	s.write(name, enter(v1alpha1.StateRebooting, id, s.holder()))
}
func (s *script) commit(name string) { s.write(name, ack(v1alpha1.ReportCommitted)) }
func (s *script) comeBack(name, boot string) {
	s.write(name, ready(false))
	s.write(name, ready(true), boots(boot))
	s.write(name, s.publishes(boot, v1alpha1.WantsNothing), ack(v1alpha1.ReportDone))
}
func (s *script) giveBack(name, id string) {
	s.write(name, enter(v1alpha1.StateUncordoning, id, s.holder()))
	s.uncordon(name)
}
func (s *script) uncordon(name string) {
	s.write(name, unschedulable(false), marked(false), ack(v1alpha1.ReportDone))
}
func (s *script) finish(name string) { s.write(name, leave(v1alpha1.StateIdle, v1alpha1.ResultDone)) }

func (s *script) holder() string { return *s.lease.Spec.HolderIdentity }

// wholeTurn is a correct turn from idle to idle.
func (s *script) wholeTurn(name, id string) {
	s.grant(name, id)
	s.cordon(name)
	s.drained(name, id)
	s.commit(name)
	s.reboot(name)
	s.comeBack(name, "boot-of-"+id)
	s.giveBack(name, id)
	s.finish(name)
}

// verdict ends the history and checks that exactly these rules are broken, each at least once.
func (s *script) verdict(want ...Rule) Report {
	s.t.Helper()
	s.e.end(s.tick())
	r := s.e.snapshot()
	var got []Rule
	for _, v := range r.Violations {
		if !slices.Contains(got, v.Rule) {
			got = append(got, v.Rule)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.t.Errorf("broken: %v, want %v\n%s\nthe history:\n%s", got, want, r.String(), strings.Join(s.lines, "\n"))
	}
	return r
}

func owns(manager string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate,
		FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`),
	}}
}
