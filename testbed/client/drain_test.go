package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/drain"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

func TestManyPodsCostOneRequestEach(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "many")
	const n = 200
	var pods []*corev1.Pod
	for i := range n {
		pods = append(pods, w.pod(fmt.Sprintf("p-%03d", i)))
	}
	made := w.create(pods...)
	var wire drainWire
	wire.before = func(kind string, req *http.Request) (*http.Response, error) {
		if q := req.URL.Query(); kind == kindList && (q.Has("resourceVersion") || q.Get("fieldSelector") != "spec.nodeName="+w.node) {
			t.Errorf("the list is not a quorum read, or not for this node: %s", req.URL.RawQuery)
		}
		return nil, nil
	}
	start := time.Now()
	r := w.drain(w.host(&wire))
	r.drained()
	t.Logf("%d pods drained in %v with %v", n, time.Since(start).Round(time.Millisecond), &wire)
	if lists, watches := wire.count(kindList), wire.count(kindWatch); lists != 2 || watches != 1 {
		t.Errorf("requests %v, expected a list, a watch, and a list of one pod after that", &wire)
	}
	if other := wire.others(); len(other) != 0 {
		t.Errorf("unexpected requests: %v", other)
	}
	wire.acceptedOnce(t, made...)
	if p := r.last(); p.Evicted != n || p.Evictable != 0 {
		t.Errorf("last progress %+v", p)
	}
	if left := w.names(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestABudgetBlocksUntilItAllows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "budget")
	w.create(w.pod("db-0", app("db")), w.pod("db-1", app("db")), w.pod("web"))
	w.budget("keep-db", "db", 2, 2)
	var wire drainWire
	r := w.drain(w.host(&wire))
	for _, name := range []string{"db-0", "db-1"} {
		r.blocked(name, drain.PodDisruptionBudget, "The disruption budget keep-db needs 2 healthy pods and has 2 currently; "+
			"another of its pods is not Ready, or the budget never allows an eviction (maxUnavailable: 0, or minAvailable as high as the replicas)")
	}
	w.pods("without web, which no budget protects", func(now []*corev1.Pod) bool {
		return !slices.ContainsFunc(now, func(p *corev1.Pod) bool { return p.Name == "web" })
	})
	w.release("keep-db")
	r.drained()
	if p := r.last(); p.Evicted != 3 || p.Blocked != 0 {
		t.Errorf("last progress %+v", p)
	}
	if slices.Index(wire.answers(), http.StatusTooManyRequests) < 0 {
		t.Errorf("the budget never refused an eviction: %v", wire.answers())
	}
}

// TestACrashLoopUnderABudget checks that the default unhealthyPodEvictionPolicy is recognized, and that the drain
// continues once a user does what the message says.
func TestACrashLoopUnderABudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "crashloop")
	w.create(w.pod("web-0"))
	w.post(w.pod("web-1", annotation(controlplane.ReadyAnnotation, "never")))
	w.pods("running", func(now []*corev1.Pod) bool {
		return !slices.ContainsFunc(now, func(p *corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning })
	})
	crash := []byte(`{"status":{"containerStatuses":[{"name":"app","image":"","imageID":"","ready":false,"restartCount":7,"state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}}`)
	if _, err := w.admin.CoreV1().Pods(w.space).Patch(t.Context(), "web-1", types.MergePatchType, crash, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	w.budget("web", w.space, 2, 1)
	var wire drainWire
	r := w.drain(w.host(&wire))
	r.blocked("web-1", drain.PodDisruptionBudget, "The disruption budget web needs 2 healthy pods and has 1 currently; "+
		"this pod itself is not Ready (container app: CrashLoopBackOff, restart count 7): fix it, or set unhealthyPodEvictionPolicy: AlwaysAllow")
	r.blocked("web-0", drain.PodDisruptionBudget, "The disruption budget web needs 2 healthy pods and has 1 currently; "+
		"other pods of the budget are missing or not Ready")
	allow := []byte(`{"spec":{"unhealthyPodEvictionPolicy":"AlwaysAllow"}}`)
	if _, err := w.admin.PolicyV1().PodDisruptionBudgets(w.space).Patch(t.Context(), "web", types.MergePatchType, allow, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.pods("without the one that crashes", func(now []*corev1.Pod) bool { return len(now) == 1 && now[0].Name == "web-0" })
	w.release("web")
	r.drained()
}

// TestOverduePodsBlockFromTheFirstReport checks pods that should be gone when the drain begins: one with a finalizer,
// and one that its kubelet does not end.
func TestOverduePodsBlockFromTheFirstReport(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "overdue")
	w.create(
		w.pod("held", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/volume"} }),
		w.pod("runs", annotation(controlplane.StopsAfterAnnotation, "1h")),
	)
	for _, name := range []string{"held", "runs"} {
		if err := w.admin.CoreV1().Pods(w.space).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}); err != nil {
			t.Fatal(err)
		}
	}
	var overdue time.Time
	w.pods("held has ended, and only its finalizer is left", func(now []*corev1.Pod) bool {
		ended := false
		for _, p := range now {
			if p.DeletionTimestamp == nil {
				return false
			}
			if p.DeletionTimestamp.After(overdue) {
				overdue = p.DeletionTimestamp.Time
			}
			ended = ended || p.Name == "held" && *p.DeletionGracePeriodSeconds == 0
		}
		return ended
	})
	<-time.After(time.Until(overdue.Add(10500 * time.Millisecond))) // the drain allows clocks and kubelets 10 s
	var wire drainWire
	r := w.drain(w.host(&wire))
	said := map[string]string{}
	for _, b := range r.first().Blockers {
		said[b.Name] = string(b.Reason) + ": " + b.Message
	}
	want := map[string]string{
		"held": "Finalizer: the pod's grace period is over, but it has finalizers: example.com/volume; have their owner remove them, or remove them by hand if it is gone",
		"runs": "Terminating: the pod's grace period is over, but this node's kubelet has not ended it; on the host, see `systemctl status kubelet` and the container runtime",
	}
	if !maps.Equal(said, want) {
		t.Errorf("first report: %q, want %q", said, want)
	}
	if _, err := w.admin.CoreV1().Pods(w.space).Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.end("runs")
	r.drained()
	if got := wire.count(kindEvict); got != 0 {
		t.Errorf("%d evictions", got)
	}
}

// TestForce checks that a drain with Force evicts what can be evicted, deletes a pod that a budget protects, with the grace
// period of that pod, and leaves the pods that every drain leaves.
func TestForce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "force")
	made := w.create(w.pod("held", annotation(controlplane.StopsAfterAnnotation, "1h")), w.pod("free", app("free")), w.pod("kept", app("kept")))
	w.budget("keep-all", w.space, 1, 1)
	var wire drainWire
	skip := func(p *corev1.Pod, v drain.Verdict) drain.Verdict {
		if p.Name == "kept" {
			return drain.Verdict{Class: drain.Leave, Reason: "Skipped"}
		}
		return v
	}
	deleted := make(chan string, 8)
	r := w.drain(w.host(&wire), func(d *drain.Drainer) {
		d.Force, d.Policy = true, skip
		d.Deleted = func(p drain.Pod, refusal string) { deleted <- p.Name + ": " + refusal }
	})
	w.pods("with held terminating", func(now []*corev1.Pod) bool {
		return slices.ContainsFunc(now, func(p *corev1.Pod) bool {
			return p.Name == "held" && p.DeletionTimestamp != nil && *p.DeletionGracePeriodSeconds == corev1.DefaultTerminationGracePeriodSeconds
		})
	})
	w.end("held")
	r.drained()
	if left := w.names(); !slices.Equal(left, []string{"kept"}) {
		t.Errorf("left: %v", left)
	}
	close(deleted)
	var said []string
	for text := range deleted {
		said = append(said, text)
	}
	if want := "held: The disruption budget keep-all needs 1 healthy pods and has 1 currently"; !slices.Equal(said, []string{want}) {
		t.Errorf("deleted %q, expected %q", said, want)
	}
	if got := wire.answersTo(made[0].UID); !slices.Equal(got, []int{http.StatusTooManyRequests}) {
		t.Errorf("evictions of held were answered %v, expected one refusal", got)
	}
	wire.accepted(t, made[1])
	if n := wire.count("DELETE /api/v1/namespaces/force/pods/held"); n != 1 {
		t.Errorf("%d deletions of held", n)
	}
	if others := wire.others(); len(others) != 1 {
		t.Errorf("other requests: %v", others)
	}
}

// TestNoGracePeriod checks that a pod with a grace period of 0 stays until its kubelet has ended it: the API server would
// forget it at once otherwise.
func TestNoGracePeriod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "nograce")
	none := func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64) }
	stays := annotation(controlplane.StopsAfterAnnotation, "1h")
	w.create(w.pod("free", none, stays), w.pod("held", none, stays, app("held")))
	w.budget("keep-held", "held", 1, 1)
	var wire drainWire
	r := w.drain(w.host(&wire), func(d *drain.Drainer) { d.Force = true })
	w.pods("both terminating", func(now []*corev1.Pod) bool {
		return len(now) == 2 && !slices.ContainsFunc(now, func(p *corev1.Pod) bool {
			return p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 1
		})
	})
	w.end("free")
	w.end("held")
	r.drained()
}

func TestTwoBudgetsAreReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "twobudgets")
	w.create(w.pod("a"), w.pod("free", app("free")))
	w.budget("first", w.space, 0, 1)
	w.budget("second", w.space, 0, 1)
	var wire drainWire
	r := w.drain(w.host(&wire))
	r.blocked("a", drain.PodDisruptionBudget, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support; "+
		"leave one budget that selects this pod: kubectl get pdb -n twobudgets")
	if err := w.admin.PolicyV1().PodDisruptionBudgets(w.space).Delete(t.Context(), "second", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.drained()
	if got := r.reasons("a"); len(got) != 1 {
		t.Errorf("it was blocked by %v, expected a budget from the first answer on", got)
	}
	if !slices.Contains(wire.answers(), http.StatusInternalServerError) {
		t.Errorf("answers %v", wire.answers())
	}
}

// signalManager sends a signal to the controller manager.
func signalManager(t *testing.T, s syscall.Signal) {
	t.Helper()
	for _, p := range drainPlane().Processes() {
		if p.Component == controlplane.ControllerManager {
			if err := syscall.Kill(p.PID, s); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestAStaleBudgetIsWaitedForAsTold checks a budget that the disruption controller has not processed yet: the server
// answers 429 with Retry-After.
func TestAStaleBudgetIsWaitedForAsTold(t *testing.T) {
	w := newWorld(t, "stale")
	w.create(w.pod("a"))
	signalManager(t, syscall.SIGSTOP)
	defer signalManager(t, syscall.SIGCONT)
	w.budgetUnseen("unseen", w.space, 0)
	var wire drainWire
	var mu sync.Mutex
	var at []time.Time
	wire.before = func(kind string, _ *http.Request) (*http.Response, error) {
		if kind == kindEvict {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Now())
		}
		return nil, nil
	}
	r := w.drain(w.host(&wire))
	r.blocked("a", drain.PodDisruptionBudget, "unseen")
	signalManager(t, syscall.SIGCONT)
	r.drained()
	// The controller may take any time: after each such answer the drain waits for the server's 10 s and a little
	// more.
	answers := wire.answers()
	if len(answers) != len(at) || !slices.Contains(answers, http.StatusTooManyRequests) {
		t.Fatalf("answers %v to %d evictions; expected at least one 429 and an answer to each eviction", answers, len(at))
	}
	for i, answer := range answers[:len(answers)-1] {
		if d := at[i+1].Sub(at[i]); answer == http.StatusTooManyRequests && (d < 10*time.Second || d > time.Minute) {
			t.Errorf("retried after %v; expected the server's 10 s and a little more", d)
		}
	}
}

func TestWhatIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alone")
	daemon := w.daemonPod("ds")
	web := w.create(w.pod("web"))[0]
	for _, ph := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		finished := w.create(w.pod("was-" + strings.ToLower(string(ph))))[0]
		patch := fmt.Appendf(nil, `{"status":{"phase":%q}}`, ph)
		if _, err := w.admin.CoreV1().Pods(w.space).Patch(t.Context(), finished.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
	}
	w.mirrorPod("static")

	var wire drainWire
	client := w.host(&wire)
	d := &drain.Drainer{Client: client, Node: w.node}
	left, err := d.Remaining(t.Context())
	if err != nil || len(left) != 1 || left[0].Name != "web" || left[0].UID != web.UID {
		t.Errorf("remaining %v, %v", left, err)
	}
	w.drain(client).drained()
	if got, want := w.names(), []string{daemon.Name, "static", "was-failed", "was-succeeded"}; !slices.Equal(got, want) {
		t.Errorf("on the node: %v, want %v", got, want)
	}
	wire.acceptedOnce(t, web)
	if left, err := d.Remaining(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("remaining %v, %v", left, err)
	}
}

func TestLowestPriorityFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "priority")
	var pods []*corev1.Pod
	for name, value := range map[string]int32{"low": -10, "mid": 0, "high": 1000} {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "test-" + name}, Value: value}
		if _, err := w.admin.SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"high", "mid", "low"} {
		for i := range 2 {
			pods = append(pods, w.pod(fmt.Sprintf("%s-%d", name, i), func(p *corev1.Pod) { p.Spec.PriorityClassName = "test-" + name }))
		}
	}
	made := w.create(pods...)
	var wire drainWire
	// One at a time: requests that start 50 ms apart may overtake each other.
	w.drain(w.host(&wire), func(d *drain.Drainer) { d.Concurrency = 1 }).drained()
	wire.acceptedOnce(t, made...)
	var got []string
	for _, name := range wire.order() {
		got = append(got, strings.TrimRight(name, "-01"))
	}
	if want := []string{"low", "low", "mid", "mid", "high", "high"}; !slices.Equal(got, want) {
		t.Errorf("evicted %v, want %v", got, want)
	}
}

// TestASuccessorOfTheSameNameIsNotHit deletes a pod between the list and its eviction, and creates another pod with the
// same name.
func TestASuccessorOfTheSameNameIsNotHit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		asAdmin   bool
		elsewhere bool
		answers   []int // any of these is correct
	}{
		// NodeRestriction checks before the precondition does, but its watch may lag. It may see the successor,
		// neither pod, or still the first pod. In the last case the precondition decides.
		"elsewhere":    {false, true, []int{http.StatusForbidden, http.StatusNotFound, http.StatusConflict}},
		"unrestricted": {true, true, []int{http.StatusConflict}},
		// The server repeats a conflict for some seconds. In that time the drain sees the successor and evicts it,
		// and then there is no pod.
		"here": {false, false, []int{http.StatusConflict, http.StatusNotFound}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits some ten seconds for the server
			w := newWorld(t, "successor-"+name)
			other := w.node
			if c.elsewhere {
				other = w.node + "-other"
				w.addNode(other)
			}
			// A pod that terminates slowly, so that the drain always has something to wait for.
			made := w.create(w.pod("db-0"), w.pod("slow", annotation(controlplane.StopsAfterAnnotation, "1h")))
			if err := w.admin.CoreV1().Pods(w.space).Delete(t.Context(), "slow", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			var wire drainWire
			var successor *corev1.Pod
			var once sync.Once
			wire.before = func(kind string, _ *http.Request) (*http.Response, error) {
				if kind == kindEvict {
					once.Do(func() { successor = w.replace("db-0", other) })
				}
				return nil, nil
			}
			config, err := drainPlane().NodeConfig(w.node)
			if c.asAdmin {
				config, err = drainPlane().AdminConfig(), nil
			}
			if err != nil {
				t.Fatal(err)
			}
			r := w.drain(w.client(config, &wire))
			w.until("an answer to the first pod's eviction", func() bool { return len(wire.answersTo(made[0].UID)) > 0 })
			w.end("slow")
			r.drained()
			for _, got := range wire.answersTo(made[0].UID) {
				if !slices.Contains(c.answers, got) {
					t.Errorf("answer to the eviction of the first pod: %d, expected one of %v", got, c.answers)
				}
			}
			if !c.elsewhere {
				wire.accepted(t, successor)
				return
			}
			p, err := w.admin.CoreV1().Pods(w.space).Get(t.Context(), "db-0", metav1.GetOptions{})
			if err != nil || p.UID != successor.UID || p.DeletionTimestamp != nil {
				t.Errorf("the drain deleted the successor on another node: %v, %v", p, err)
			}
		})
	}
}

func TestCancelDuringADrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "cancel")
	const n = 100
	var pods []*corev1.Pod
	for i := range n {
		pods = append(pods, w.pod(fmt.Sprintf("p-%02d", i)))
	}
	made := w.create(pods...)
	var wire drainWire
	cancelled := make(chan struct{}) // the evictions after the tenth wait for it, so that the cancel happens during the drain
	wire.before = func(kind string, _ *http.Request) (*http.Response, error) {
		if kind == kindEvict && wire.count(kindEvict) > 10 {
			<-cancelled
		}
		return nil, nil
	}
	r := w.drain(w.host(&wire))
	w.until("more than ten evictions", func() bool { return wire.count(kindEvict) > 10 })
	r.cancel()
	before := wire.count(kindEvict)
	close(cancelled)
	if err := r.ends(); !errors.Is(err, context.Canceled) {
		t.Fatalf("Run: %v", err)
	}
	sent := wire.count(kindEvict)
	if sent-before > drain.DefaultConcurrency {
		t.Errorf("%d evictions sent between the cancel and the return of Run", sent-before)
	}
	// Only a wait can show that no more evictions follow.
	<-time.After(3 * time.Second)
	if more := wire.count(kindEvict) - sent; more != 0 {
		t.Errorf("%d evictions after Run returned", more)
	}
	if left := len(w.names()); left < n-sent || left == 0 {
		t.Errorf("%d of %d pods left after %d evictions", left, n, sent)
	}
	// A second run finishes the drain. It may send again only the evictions whose answers were cut off.
	w.drain(w.host(&wire)).drained()
	if cut := wire.count(kindEvict) - len(wire.answers()); cut > drain.DefaultConcurrency {
		t.Errorf("%d evictions were cut off", cut)
	}
	for _, p := range made {
		// There is no answer if the only eviction was cut off but took effect.
		got := wire.answersTo(p.UID)
		if yes := believed(got); len(yes) != 0 && !slices.Equal(yes, []int{http.StatusCreated}) {
			t.Errorf("answers to the evictions of %s: %v", p.Name, got)
		}
	}
	if got := wire.count(kindList); got != 4 {
		t.Errorf("%d lists for two runs, each of which also reads one pod after its watch", got)
	}
}

func TestALaterPodIsSeen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "later")
	slow := w.create(w.pod("slow", annotation(controlplane.StopsAfterAnnotation, "1h")))[0]
	var wire drainWire
	r := w.drain(w.host(&wire))
	w.until("the pod to terminate", func() bool { return r.last().Terminating == 1 })
	late := w.post(w.pod("late")) // it may be gone before it runs
	w.until("the new pod's eviction", func() bool { return slices.Contains(wire.answersTo(late.UID), http.StatusCreated) })
	w.end("slow")
	r.drained()
	wire.acceptedOnce(t, slow, late)
	if left := w.names(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestAPodThatIsLeavingIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "leaving")
	p := w.create(w.pod("slow", annotation(controlplane.StopsAfterAnnotation, "1h")))[0]
	if err := w.admin.CoreV1().Pods(w.space).Delete(t.Context(), p.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var wire drainWire
	client := w.host(&wire)
	if left, err := (&drain.Drainer{Client: client, Node: w.node}).Remaining(t.Context()); err != nil || len(left) != 1 {
		t.Errorf("remaining %v, %v; expected the running pod", left, err)
	}
	r := w.drain(client)
	w.until("the drain to wait for it", func() bool { return r.last().Terminating == 1 })
	select {
	case err := <-r.done:
		t.Fatalf("the drain finished before the pod was gone: %v", err)
	case <-time.After(time.Second):
	}
	w.end("slow")
	r.drained()
	if got := wire.count(kindEvict); got != 0 {
		t.Errorf("%d evictions", got)
	}
}

func TestADroppedWatchIsResumed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "dropped")
	w.create(w.pod("db-0", app("db")))
	w.budget("keep-db", "db", 1, 1)
	config, err := drainPlane().NodeConfig(w.node)
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCable(strings.TrimPrefix(drainPlane().URL(), "https://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.l.Close()
	config.Host = "https://" + c.l.Addr().String()
	var wire drainWire
	r := w.drain(w.client(config, &wire))
	r.blocked("db-0", drain.PodDisruptionBudget, "keep-db")

	c.set(true)
	w.until("the drain to report that its watch failed", func() bool { return r.last().Err != nil })
	w.create(w.pod("late")) // created while the watch is cut
	c.set(false)

	w.pods("without the pod that was created during the cut", func(now []*corev1.Pod) bool {
		return !slices.ContainsFunc(now, func(p *corev1.Pod) bool { return p.Name == "late" })
	})
	w.until("the watch to recover", func() bool { return r.last().Err == nil })
	w.release("keep-db")
	r.drained()
	t.Logf("requests: %v", &wire)
	if wire.count(kindWatch) < 2 {
		t.Errorf("requests %v; expected the watch to be dropped", &wire)
	}
}

func TestAnExpiredWatchIsListedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "expired")
	a := w.create(w.pod("a"))[0]
	var wire drainWire
	var once sync.Once
	wire.before = func(kind string, req *http.Request) (resp *http.Response, err error) {
		if kind == kindWatch {
			once.Do(func() { resp = gone(req) })
		}
		return resp, nil
	}
	w.drain(w.host(&wire)).drained()
	// A pod that is gone at the time of the second list leaves nothing to watch. A watch that begins is followed by a list of
	// one pod, unless the drain is over.
	if lists, watches := wire.count(kindList), wire.count(kindWatch); lists < 2 || lists > 1+watches || watches > 2 {
		t.Errorf("requests %v", &wire)
	}
	wire.acceptedOnce(t, a)
}

func TestANodeMayDrainItselfOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "stranger")
	w.create(w.pod("a"))
	config, err := drainPlane().NodeConfig("host-of-nobody")
	if err != nil {
		t.Fatal(err)
	}
	var wire drainWire
	client := w.client(config, &wire)
	if left, err := (&drain.Drainer{Client: client, Node: w.node}).Remaining(t.Context()); err == nil {
		t.Errorf("remaining %v without an error", left)
	}
	r := w.drain(client)
	w.until("the drain to report that the list is forbidden", func() bool {
		return r.last().Err != nil && strings.Contains(r.last().Err.Error(), "forbidden")
	})
	r.cancel()
	if err := r.ends(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	if wire.count(kindEvict) != 0 || len(w.names()) != 1 {
		t.Errorf("requests %v, pods %v", &wire, w.names())
	}
}

func TestTheAPIServerRestartsDuringADrain(t *testing.T) {
	w := newWorld(t, "restart")
	w.create(w.pod("db-0", app("db")), w.pod("web"))
	w.budget("keep-db", "db", 1, 1)
	var wire drainWire
	r := w.drain(w.host(&wire))
	r.blocked("db-0", drain.PodDisruptionBudget, "keep-db")
	if err := drainPlane().StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	w.until("the drain to report that its watch failed", func() bool { return r.last().Err != nil })
	ctx, cancel := context.WithTimeout(t.Context(), drainPatience)
	defer cancel()
	if err := drainPlane().StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	w.release("keep-db")
	r.drained()
	t.Logf("requests: %v", &wire)
}
