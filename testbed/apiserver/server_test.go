package apiserver_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/testbed/apiserver"
)

// connect returns lockkeeper's own client of the server.
func connect(t testing.TB, s *apiserver.Server, user string) *kube.Client {
	t.Helper()
	c, err := kube.ConnectConfig(&rest.Config{Host: "http://apiserver", Transport: s.Client(user)}, "test", "v1", 1e6, 1e6)
	must(t, err)
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

// stopped returns a context that the test ends, and waits for its goroutines.
func stopped(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); synctest.Wait() })
	return ctx
}

// label sets a label of a Node.
func label(t testing.TB, c *kube.Client, name, value string) {
	t.Helper()
	_, err := c.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{"test":%q}}}`, value), metav1.PatchOptions{FieldManager: "test"})
	must(t, err)
}

// TestWatch checks that the product's reflector follows the server: through a cut, forgotten history, and a store that goes back in time.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apiserver.New()
		c := connect(t, s, "admin")
		for i := range 3 {
			_, err := c.CoreV1().Nodes().Create(t.Context(), node(fmt.Sprint("n", i)), metav1.CreateOptions{})
			must(t, err)
		}
		rewound := 0
		w := kube.WatchNodes(c, func() {}, func() { rewound++ })
		go w.Run(stopped(t))
		expect := func(want string) {
			t.Helper()
			time.Sleep(time.Minute)
			n := w.Get("n1")
			if n == nil || n.Labels["test"] != want {
				t.Fatalf("the watch has %v, expected the label %q", n, want)
			}
		}
		expect("")
		label(t, c, "n1", "a")
		expect("a")
		s.CutWatches("")
		label(t, c, "n1", "b")
		expect("b")
		old := s.Snapshot()
		label(t, c, "n1", "c")
		s.CutWatches("nodes")
		label(t, c, "n1", "d")
		s.Compact()
		expect("d")
		time.Sleep(3 * time.Hour)
		expect("d")
		s.Restore(old)
		expect("b")
		if rewound == 0 {
			t.Error("the watch saw no rewind")
		}
	})
}

// TestElection checks that an election runs for three hours, and that another candidate takes over after the leader stops without releasing the Lease.
func TestElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apiserver.New()
		var mu sync.Mutex
		leading := map[string]bool{}
		leases := 0
		s.Observe(func(w apiserver.Write) {
			if w.Resource == "leases" {
				mu.Lock()
				leases++
				mu.Unlock()
			}
		})
		run := func(ctx context.Context, name string) {
			c := connect(t, s, name)
			leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
				Lock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Name: "lock", Namespace: "default"}, Client: c.CoordinationV1(),
					LockConfig: resourcelock.ResourceLockConfig{Identity: name}},
				LeaseDuration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 5 * time.Second,
				Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {
					mu.Lock()
					leading[name] = true
					mu.Unlock()
				}, OnStoppedLeading: func() {}},
			})
		}
		first, stop := context.WithCancel(stopped(t))
		go run(first, "a")
		time.Sleep(time.Second)
		go run(stopped(t), "b")
		time.Sleep(3 * time.Hour)
		mu.Lock()
		leaders, writes := len(leading), leases
		mu.Unlock()
		if leaders != 1 || writes < 2000 {
			t.Errorf("%d leaders, %d writes of the Lease, expected 1 and at least 2000", leaders, writes)
		}
		stop()
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if !leading["b"] {
			t.Error("no second leader")
		}
	})
}

// workload creates pods that run on n1, and a budget of them.
func workload(t *testing.T, c *kube.Client, pods, minAvailable int) {
	t.Helper()
	ctx := t.Context()
	for i := range pods {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), Labels: map[string]string{"app": "web"}},
			Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		pod, err := c.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
		must(t, err)
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		_, err = c.CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		must(t, err)
	}
	_, err := c.PolicyV1().PodDisruptionBudgets("default").Create(ctx, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(int32(minAvailable))),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}, metav1.CreateOptions{})
	must(t, err)
}

// evict evicts a pod, without the repetitions of client-go.
func evict(t *testing.T, c *kube.Client, name string) error {
	return c.PolicyV1().Evictions("default").Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}})
}

// TestEviction checks that a budget allows as many evictions as it says, and that an evicted pod stays until its kubelet deletes it.
func TestEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apiserver.New()
		go s.RunBudgets(stopped(t), 100*time.Millisecond)
		c := connect(t, s, "admin")
		workload(t, c, 3, 2)
		err := evict(t, c, "p0")
		if delay, later := apierrors.SuggestsClientDelay(err); !apierrors.IsTooManyRequests(err) || !later || delay != 10 {
			t.Fatalf("a budget without a status: %v, again after %d s", err, delay)
		}
		time.Sleep(time.Second)
		must(t, evict(t, c, "p0"))
		if err := evict(t, c, "p1"); !apierrors.IsTooManyRequests(err) || !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
			t.Fatalf("a second eviction: %v", err)
		}
		time.Sleep(3 * time.Minute) // the budget no longer counts the eviction, but the pod is still terminating
		if err := evict(t, c, "p1"); !apierrors.IsTooManyRequests(err) {
			t.Fatalf("a second eviction while the first pod is terminating: %v", err)
		}
		pod := s.Get("pods", "default", "p0").(*corev1.Pod)
		if pod.DeletionTimestamp == nil || *pod.DeletionGracePeriodSeconds != 30 {
			t.Fatalf("the evicted pod has %v", pod.ObjectMeta)
		}
		must(t, c.CoreV1().Pods("default").Delete(t.Context(), "p0", *metav1.NewDeleteOptions(0)))
		if s.Get("pods", "default", "p0") != nil {
			t.Fatal("the pod still exists")
		}
	})
}
