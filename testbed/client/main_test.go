package client

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

// pool holds the control planes. The tests mostly wait for timeouts of the product, so more of them run at once than
// there are cores. Each has its own control plane, because a cluster has one Lease and a coordinator manages all Nodes
// of a cluster. drainPool holds the one control plane that all drain tests share. Each of them has its own node and
// namespace and binds its pods itself.
var pool, drainPool *controlplane.Pool

// drainPlane returns the control plane of the drain tests.
func drainPlane() *controlplane.ControlPlane { return drainPool.Shared() }

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "4")
	flag.Parse()
	os.Exit(controlplane.RunTestsApart(m, controlplane.Options{
		// The tests play the kubelet and the scheduler.
		Without: []controlplane.Component{
			controlplane.ControllerManager, controlplane.Scheduler, controlplane.Ballast, controlplane.Pods,
		},
	}, func(p *controlplane.Pool) {
		pool = p
		drainPool = p.With(controlplane.Options{Without: []controlplane.Component{controlplane.Scheduler, controlplane.Pods}})
	}))
}

// taken maps the *testing.T of each test to its control plane.
var taken sync.Map

// cp returns the control plane that freshLease took for the test.
func cp(t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	c, ok := taken.Load(t)
	if !ok {
		t.Fatal("the test has no control plane: call freshLease or startHost first")
	}
	return c.(*controlplane.ControlPlane)
}

// patience bounds the wait for each expected condition.
const patience = 150 * time.Second

// until polls until the condition holds. Use it for conditions that no watch reports.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !cond() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

// never fails the test if the condition becomes true within d.
func never(t *testing.T, what string, d time.Duration, cond func() bool) {
	t.Helper()
	for end := time.After(d); ; {
		if cond() {
			t.Fatalf("%s", what)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-end:
			return
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testLog writes to the test's log, and drops everything after the test's end.
type testLog struct {
	t    *testing.T
	mu   sync.Mutex
	over bool
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.t.Log(strings.TrimSuffix(string(p), "\n"))
	}
	return len(p), nil
}

// logger returns the logger of one part of a test.
func logger(t *testing.T, name string) *slog.Logger {
	l := &testLog{t: t}
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.over = true
	})
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug})).With("who", name)
}

// deleteNow deletes without a grace period.
var deleteNow = metav1.DeleteOptions{GracePeriodSeconds: new(int64)}

const leaseName, leaseSpace = controlplane.LockkeeperLease, controlplane.LockkeeperNamespace

// freshLease makes the test parallel and gives it its own control plane, with the manifests that an administrator
// applies, a Lease without a holder and without a stop, and no Nodes. `make test` plays a sample of these tests.
func freshLease(t *testing.T) {
	t.Helper()
	rig.Sample(t, 2)
	t.Parallel()
	// Goroutines of the test carry its name as a label, so that nothingRuns can find those that are left.
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels(testLabel, t.Name())))
	taken.Store(t, pool.Take(t))
	t.Cleanup(func() { taken.Delete(t) })
	ctx := context.Background()
	clean := func() {
		if err := cp(t).Client().CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
		err := cp(t).Client().CoordinationV1().Leases(leaseSpace).Delete(ctx, leaseName, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	clean()
	must(t, cp(t).ApplyLockkeeper(ctx))
	allow(t, 1)
	t.Cleanup(func() {
		clean()
		nothingRuns(t)
	})
}

// allow applies the policy of the test, with this many nodes at once.
func allow(t *testing.T, budget int) {
	t.Helper()
	_, err := cp(t).ApplyPolicy(t.Context(), controlplane.TestPolicy, fmt.Sprintf("rollout: {settle: 0s, maxUnavailable: %d}", budget))
	must(t, err)
}

// testLabel is the pprof label that names the test of a goroutine.
const testLabel = "test"

// ours matches functions of lockkeeper packages in a stack, except those of the testbed.
var ours = regexp.MustCompile(`lockkeeper\.dev/lockkeeper/(coordinator|drain|kube|node|systemd|updateengine)[/.]`)

// nothingRuns fails the test if goroutines of lockkeeper still run: the test must stop everything that it started.
func nothingRuns(t *testing.T) {
	t.Helper()
	mine := fmt.Sprintf("{%q:%q}", testLabel, t.Name())
	var left []string
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		left = nil
		var stacks strings.Builder
		must(t, pprof.Lookup("goroutine").WriteTo(&stacks, 1))
		for stack := range strings.SplitSeq(stacks.String(), "\n\n") {
			if strings.Contains(stack, mine) && ours.MatchString(stack) && !strings.Contains(stack, "lockkeeper/testbed/client.") {
				left = append(left, stack)
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	t.Errorf("%d goroutines of lockkeeper still run:\n%s", len(left), strings.Join(left, "\n\n"))
}

func getLease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	l, err := cp(t).Client().CoordinationV1().Leases(leaseSpace).Get(context.Background(), leaseName, metav1.GetOptions{})
	must(t, err)
	return l
}

// holder returns the Lease's holderIdentity, or "" without a holder or a Lease.
func holder(t *testing.T) string {
	l, err := cp(t).Client().CoordinationV1().Leases(leaseSpace).Get(context.Background(), leaseName, metav1.GetOptions{})
	if err != nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

func patchLease(t *testing.T, patch string) {
	t.Helper()
	_, err := cp(t).Client().CoordinationV1().Leases(leaseSpace).
		Patch(context.Background(), leaseName, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

// stop sets the emergency stop.
func stop(t *testing.T) {
	t.Helper()
	patchLease(t, `{"metadata":{"annotations":{"lockkeeper.dev/paused":"a test"}}}`)
}

func goOn(t *testing.T) {
	t.Helper()
	patchLease(t, `{"metadata":{"annotations":{"lockkeeper.dev/paused":null}}}`)
}

func getNode(t *testing.T, name string) *corev1.Node {
	t.Helper()
	n, err := cp(t).Client().CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	must(t, err)
	return n
}

// patchNode patches a Node as the field manager with these keys, or as an administrator if there are none.
func patchNode(t *testing.T, name, patch string, keys ...string) *corev1.Node {
	t.Helper()
	client, err := cp(t).NodeWriter(name, keys...)
	must(t, err)
	n, err := client.CoreV1().Nodes().Patch(context.Background(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
	return n
}

// playHost creates a Node whose host wants either a reboot or nothing, and reports nothing else.
func playHost(t *testing.T, name string, wants bool) {
	t.Helper()
	n, err := cp(t).CreateNode(t.Context(), controlplane.NodeSpec{Name: name})
	must(t, err)
	must(t, cp(t).SetNodeReady(t.Context(), name, "boot-1", true))
	sayWants(t, string(n.UID), name, wants)
}

func sayWants(t *testing.T, uid, name string, wants bool) {
	t.Helper()
	word, changes := "nothing", "[]"
	if wants {
		word, changes = "reboot", `[{"source":"Sentinel","name":"/run/reboot-required"}]`
	}
	host := fmt.Sprintf(`{"protocol":1,"version":"test","nodeUID":%q,"bootID":"boot-1","bootTime":"2026-01-01T00:00:00Z",`+
		`"started":"2026-01-01T00:00:00Z","managed":true,"drains":%t,"changes":%s}`, uid, wants, changes)
	patchNode(t, name, fmt.Sprintf(`{"metadata":{"labels":{"lockkeeper.dev/wants":%q},"annotations":{"lockkeeper.dev/host":%q}}}`, word, host),
		"lockkeeper.dev/wants", "lockkeeper.dev/host")
}
