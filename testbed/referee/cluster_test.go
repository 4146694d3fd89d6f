package referee

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

var cp *controlplane.ControlPlane

func TestMain(m *testing.M) {
	opts := controlplane.Options{Without: []controlplane.Component{controlplane.Scheduler, controlplane.Ballast}}
	os.Exit(controlplane.RunTests(m, opts, func(c *controlplane.ControlPlane) { cp = c }))
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// fleet is a cluster with a referee and two hosts. The test itself makes the writes of the hosts.
type fleet struct {
	t   *testing.T
	ctx context.Context
	*Referee
	World
}

func newFleet(t *testing.T) *fleet {
	f := &fleet{t: t, ctx: soon(t)}
	f.must(cp.ApplyLockkeeper(f.ctx))
	f.Client, f.Writer, f.Nodes = cp.Client(), cp.NodeWriter, []string{"n1", "n2"}
	f.Reboot = func(ctx context.Context, node string) error {
		n := f.node(node)
		f.HostEvent(HostEvent{Time: time.Now(), Host: node, Kind: RebootCalled, BootID: n.BootID})
		return nil
	}
	f.lead("e1")
	var err error
	f.Referee, err = Start(f.ctx, cp, Options{OnEvent: func(s string) { t.Log(s) }})
	f.must(err)
	t.Cleanup(func() { _, _ = f.Close() })
	for _, name := range f.Nodes {
		_, err := cp.CreateNode(f.ctx, controlplane.NodeSpec{Name: name})
		f.must(err)
		t.Cleanup(func() {
			f.must(cp.Client().CoreV1().Nodes().Delete(context.WithoutCancel(f.ctx), name, metav1.DeleteOptions{}))
		})
		f.must(cp.SetNodeReady(f.ctx, name, "boot-1", true))
		n := f.node(name)
		h := v1alpha1.Host{Protocol: 1, NodeUID: n.UID, BootID: "boot-1", Managed: true, Drains: true, Changes: []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "2"}}}
		f.write(name, map[string]any{v1alpha1.LabelWants: "reboot"}, map[string]any{v1alpha1.AnnotationHost: v1alpha1.FormatRecord(h)})
		f.write(name, map[string]any{v1alpha1.LabelState: "idle"}, nil)
	}
	return f
}

func (f *fleet) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) node(name string) *turn.Node {
	f.t.Helper()
	n, err := f.Client.CoreV1().Nodes().Get(f.ctx, name, metav1.GetOptions{})
	f.must(err)
	facts := turn.FromNode(n)
	return &facts
}

func (f *fleet) write(name string, labels, annotations map[string]any) {
	f.t.Helper()
	f.with(name, func(n *turn.Node) error { return f.patch(f.ctx, n, "lockkeeper", nil, labels, annotations) })
}

// with changes the current version of the Node. It retries on a conflict, because controllers write to the Node too.
func (f *fleet) with(name string, write func(*turn.Node) error) {
	f.t.Helper()
	f.must(f.until(f.ctx, func(nodes []*turn.Node) (bool, error) {
		for _, n := range nodes {
			if n.Name == name {
				return settled(write(n))
			}
		}
		return false, nil
	}))
}

func (f *fleet) lead(epoch string) {
	f.t.Helper()
	l, err := f.Client.CoordinationV1().Leases(v1alpha1.DefaultLeaseNamespace).Get(f.ctx, v1alpha1.DefaultLeaseName, metav1.GetOptions{})
	f.must(err)
	l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &epoch}
	_, err = f.Client.CoordinationV1().Leases(l.Namespace).Update(f.ctx, l, metav1.UpdateOptions{})
	f.must(err)
}

func (f *fleet) enter(name string, state v1alpha1.State, id string) {
	f.t.Helper()
	n := f.node(name)
	g := v1alpha1.Grant{Turn: id, Epoch: "e1", NodeUID: n.UID, BootID: n.BootID, Wants: v1alpha1.WantsReboot, Drains: true}
	f.write(name, map[string]any{v1alpha1.LabelState: string(state)},
		map[string]any{v1alpha1.AnnotationTurn: id, v1alpha1.AnnotationGrant: v1alpha1.FormatRecord(g)})
}

func (f *fleet) ack(name string, report v1alpha1.Report) {
	f.t.Helper()
	n := f.node(name)
	a := v1alpha1.Ack{Turn: n.Turn, BootID: n.BootID, State: n.State, Report: report}
	f.write(name, nil, map[string]any{v1alpha1.AnnotationAck: a.String()})
}

// draining writes a node's turn up to the cordon.
func (f *fleet) draining(name string) {
	f.t.Helper()
	f.enter(name, v1alpha1.StateDraining, "turn-"+name)
	f.ack(name, v1alpha1.ReportSeen)
	f.with(name, func(n *turn.Node) error { return f.cordon(f.ctx, n) })
}

// wholeTurn writes a correct turn with drain and reboot.
func (f *fleet) wholeTurn(name string) {
	f.t.Helper()
	p := f.pod(name)
	f.draining(name)
	f.must(f.evictNow(f.ctx, p))
	_, err := cp.WaitPods(f.ctx, p.Namespace, "", "to be gone", func(pods []*corev1.Pod) bool { return len(pods) == 0 })
	f.must(err)
	f.ack(name, v1alpha1.ReportDone)
	f.enter(name, v1alpha1.StateRebooting, "turn-"+name)
	f.ack(name, v1alpha1.ReportCommitted)
	f.must(f.Reboot(f.ctx, name))
	f.must(cp.SetNodeReady(f.ctx, name, "", false))
	f.must(cp.SetNodeReady(f.ctx, name, "boot-2", true))
	f.ack(name, v1alpha1.ReportDone)
	f.enter(name, v1alpha1.StateUncordoning, "turn-"+name)
	f.with(name, func(n *turn.Node) error {
		a := v1alpha1.Ack{Turn: n.Turn, BootID: n.BootID, State: n.State, Report: v1alpha1.ReportDone}
		return f.patch(f.ctx, n, "lockkeeper", unschedulablePatch(nil), nil,
			map[string]any{v1alpha1.AnnotationAck: a.String(), v1alpha1.AnnotationCordon: nil})
	})
	l := v1alpha1.Last{Turn: "turn-" + name, Result: v1alpha1.ResultDone}
	f.write(name, map[string]any{v1alpha1.LabelState: "idle"},
		map[string]any{v1alpha1.AnnotationTurn: nil, v1alpha1.AnnotationGrant: nil, v1alpha1.AnnotationLast: v1alpha1.FormatRecord(l)})
}

func (f *fleet) pod(node string) *corev1.Pod {
	f.t.Helper()
	p, err := f.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(f.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app"}}},
	}, metav1.CreateOptions{})
	f.must(err)
	return p
}

func TestLawfulTurnsOnARealStore(t *testing.T) {
	f := newFleet(t)
	f.wholeTurn("n1")
	f.wholeTurn("n2")
	r, err := f.Close()
	if err != nil {
		t.Error(err)
	}
	if got, want := r.Summary(2), "2 of 2 hosts updated, at most 1 disrupted at once, 2 reboots, 0 violations"; got != want {
		t.Errorf("Summary: %s\nwant:    %s", got, want)
	}
	if r.Evictions != 2 {
		t.Errorf("%d evictions, want 2", r.Evictions)
	}
}

// TestOffenders runs each offender against the real API server. The referee must report the rule that the offender breaks.
func TestOffenders(t *testing.T) {
	for _, name := range OffenderNames() {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			o := Offenders[name]
			if o.NeedsTurn {
				f.draining("n1")
			}
			f.must(o.Run(f.ctx, f.World))
			r, err := f.Close()
			if err == nil || !r.Broke(o.Breaks) {
				t.Errorf("%s: the offender %s; the error of the referee is %v\n%s", name, o.Does, err, r.String())
			}
			if r.Broke(Gap) {
				t.Errorf("a gap: %s", r.String())
			}
		})
	}
}

func TestDeclared(t *testing.T) {
	f := newFleet(t)
	f.AdminCordon("n1")
	f.AdminUncordon("n1")
	f.AdminEvict("n2")
	for _, value := range []any{true, nil} {
		f.with("n1", func(n *turn.Node) error { return f.patch(f.ctx, n, "somebody", unschedulablePatch(value), nil, nil) })
	}
	f.must(f.evictNow(f.ctx, f.pod("n2")))
	f.AdminEdit("n1")
	f.must(f.Sync(f.ctx))
	if n := f.Withdraw(); n != 1 {
		t.Errorf("%d declarations were withdrawn, expected the unused one", n)
	}
	f.AdminCordon("n2")
	r, err := f.Close()
	if err != nil || len(r.Expected) != 3 || len(r.Unused) != 1 {
		t.Errorf("%v\n%s", err, r.String())
	}
}

// TestRestarts checks that the referee resumes the watch where it ended, whatever component restarts, and judges the writes in between.
func TestRestarts(t *testing.T) {
	f := newFleet(t)
	f.draining("n1")
	f.must(cp.RestartEtcd(f.ctx))
	f.must(cp.StopAPIServer())
	f.must(cp.StartAPIServer(f.ctx))
	f.must(Offenders["budget"].Run(f.ctx, f.World))
	r, err := f.Close()
	if err == nil || !r.Broke(Budget) || r.Broke(Gap) || r.Reconnects == 0 {
		t.Errorf("%v\n%s", err, r.String())
	}
}

// TestGap checks that a watch that cannot be resumed fails the run. The test cuts the watch and compacts the history before the watch resumes.
func TestGap(t *testing.T) {
	f := newFleet(t)
	f.must(f.Sync(f.ctx))
	f.mu.Lock() // the referee takes nothing from the watch in the meantime
	_, rev, err := f.store.list(f.ctx, leaseKey, 0)
	if err == nil {
		f.last = 1
		err = f.store.compact(f.ctx, rev)
	}
	f.mu.Unlock()
	f.must(err)
	f.must(cp.RestartEtcd(f.ctx))
	r, err := f.Close()
	if err == nil || !r.Broke(Gap) || !strings.Contains(err.Error(), "compacted") {
		t.Errorf("%v\n%s", err, r.String())
	}
}

// TestAMissedWrite checks that the referee notices a write that the watch did not deliver when the next write of the same object arrives.
func TestAMissedWrite(t *testing.T) {
	f := newFleet(t)
	f.must(f.Sync(f.ctx))
	f.mu.Lock()
	f.known[nodePrefix+"n1"]-- // as if the watch had not delivered the last write
	f.mu.Unlock()
	f.write("n1", nil, map[string]any{"example.com/a": "b"})
	r, err := f.Close()
	if err == nil || !r.Broke(Gap) || !strings.Contains(err.Error(), "missed") {
		t.Errorf("%v\n%s", err, r.String())
	}
}

func TestNoStore(t *testing.T) {
	if _, err := Start(t.Context(), nowhere{}, Options{}); err == nil {
		t.Error("the referee started without a store")
	}
}

type nowhere struct{}

func (nowhere) EtcdEndpoint() string { return "unix:///nowhere" }
