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
)

// pool has the control planes. The tests mostly wait for the product's own times, so more of them run at once than there are
// cores, each with a control plane to itself: there is one Lease in a cluster, and a coordinator cares for all its Nodes.
// drainPool has the one control plane that all tests of drains share: each has a node and a namespace of its own. They bind pods by
// hand.
var pool, drainPool *controlplane.Pool

// drainPlane returns it.
func drainPlane() *controlplane.ControlPlane { return drainPool.Shared() }

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "4")
	flag.Parse()
	os.Exit(controlplane.RunTestsApart(m, controlplane.Options{
		// Nodes and pods are played by the tests.
		Without: []controlplane.Component{
			controlplane.ControllerManager, controlplane.Scheduler, controlplane.Ballast, controlplane.Pods,
		},
	}, func(p *controlplane.Pool) {
		pool = p
		drainPool = p.With(controlplane.Options{Without: []controlplane.Component{controlplane.Scheduler, controlplane.Pods}})
	}))
}

// taken are the control planes that tests have, by their *testing.T.
var taken sync.Map

// cp is the control plane that freshLease took for the test.
func cp(t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	c, ok := taken.Load(t)
	if !ok {
		t.Fatal("the test has no control plane: it begins with freshLease, or startHost")
	}
	return c.(*controlplane.ControlPlane)
}

// patience bounds every wait for something that is to happen.
const patience = 150 * time.Second

// until waits for a condition that no watch tells of.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !cond() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// never fails if the condition comes true within d.
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

// testLog writes to the test's log, and says nothing after its end.
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

// logger is a logger of one part of a test.
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

// freshLease lets the test run next to others, gives it a control plane to itself, and applies what an administrator applies,
// with a Lease that no one holds and no one has stopped, and no Nodes.
func freshLease(t *testing.T) {
	t.Helper()
	t.Parallel()
	// What the test starts carries its name, so that what is left of it can be told from the others'.
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

// allow is the policy that the candidates grant by: so many nodes at once.
func allow(t *testing.T, budget int) {
	t.Helper()
	_, err := cp(t).ApplyPolicy(t.Context(), controlplane.TestPolicy, fmt.Sprintf("rollout: {settle: 0s, maxUnavailable: %d}", budget))
	must(t, err)
}

// testLabel is the label of goroutines with the name of the test that they belong to.
const testLabel = "test"

// ours matches the functions of lockkeeper's packages in a stack, not those of the test bed.
var ours = regexp.MustCompile(`lockkeeper\.dev/lockkeeper/(coordinator|drain|kube|node|systemd|updateengine)[/.]`)

// nothingRuns fails unless all goroutines of lockkeeper's have ended: whatever was started in the test was also stopped.
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
	t.Errorf("%d goroutines of lockkeeper's are left:\n%s", len(left), strings.Join(left, "\n\n"))
}

func getLease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	l, err := cp(t).Client().CoordinationV1().Leases(leaseSpace).Get(context.Background(), leaseName, metav1.GetOptions{})
	must(t, err)
	return l
}

// holder is the Lease's holderIdentity, "" for none, or no Lease.
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

// stop sets the emergency stop, goOn lifts it.
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

// patchNode is the write of whoever writes keys, an administrator's if there are none.
func patchNode(t *testing.T, name, patch string, keys ...string) *corev1.Node {
	t.Helper()
	client, err := cp(t).NodeWriter(name, keys...)
	must(t, err)
	n, err := client.CoreV1().Nodes().Patch(context.Background(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
	return n
}

// playHost makes a Node whose host wants a reboot, or nothing, and says no more than that.
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
