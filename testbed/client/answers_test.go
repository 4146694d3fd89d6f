package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// These tests put a proxy, a lost answer or a hostile host between lockkeeper and the API server. Lockkeeper must not
// mistake other answers for an answer of the API server.

// page returns the answer of a proxy.
func page(code int) *http.Response {
	const text = "<html><body>no such site</body></html>"
	return &http.Response{
		StatusCode: code, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {"text/html"}},
		Body: io.NopCloser(strings.NewReader(text)), ContentLength: int64(len(text)),
	}
}

// later asks the client to retry in a second.
func later(r *http.Response) *http.Response {
	r.Header.Set("Retry-After", "1")
	return r
}

// inTurns returns the names of the nodes that are in a turn.
func inTurns(t *testing.T) (names []string) {
	t.Helper()
	list, err := cp(t).Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, n := range list.Items {
		if v1alpha1.State(n.Labels[v1alpha1.LabelState]).InTurn() {
			names = append(names, n.Name)
		}
	}
	return names
}

// TestRefusalAfterAnUnknownAnswer has a proxy hold up a grant and answer 503 with Retry-After. The proxy refuses each
// later request for that node, and then the grant lands. With its own retries client-go would return the refusal, and
// the slot would be free.
func TestRefusalAfterAnUnknownAnswer(t *testing.T) {
	freshLease(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		playHost(t, n, true)
	}
	var slow atomic.Value // the node of the grant that is held up
	land := make(chan struct{})
	landed := make(chan error, 1)
	l := startCandidate(t, "leader", func(c *candidate) {
		c.w.on(func(_ context.Context, r request, forward func() (*http.Response, error)) (*http.Response, error) {
			switch {
			case isGrant(r) && slow.CompareAndSwap(nil, r.kind):
				go func() {
					<-land
					resp, err := forward()
					if err == nil {
						resp.Body.Close()
					}
					landed <- err
				}()
				return later(says(http.StatusServiceUnavailable, "ServiceUnavailable")), nil
			case strings.HasPrefix(r.kind, "PATCH") && r.kind == slow.Load():
				return says(http.StatusForbidden, "Forbidden"), nil
			}
			return nil, nil
		})
	})
	l.leads(1)
	until(t, "a second attempt", func() bool { return slow.Load() != nil && l.w.count(slow.Load().(string)) >= 3 })
	never(t, "a grant while the outcome of another is unknown", 3*time.Second, func() bool {
		return slices.ContainsFunc(l.w.grants(), func(r request) bool { return r.kind != slow.Load() })
	})
	close(land)
	must(t, <-landed)
	until(t, "the grant that landed late", func() bool { return len(inTurns(t)) == 1 })
	never(t, "more nodes in a turn than the budget", 2*time.Second, func() bool { return len(inTurns(t)) > 1 })
}

// TestConflictThatIsNotConfirmed has a grant land and a proxy repeat it and pass on the conflict. The Node cannot be
// read after that.
func TestConflictThatIsNotConfirmed(t *testing.T) {
	freshLease(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		playHost(t, n, true)
	}
	var node atomic.Value
	var readable atomic.Bool
	l := startCandidate(t, "leader", func(c *candidate) {
		c.w.on(func(_ context.Context, r request, forward func() (*http.Response, error)) (*http.Response, error) {
			name := strings.TrimPrefix(r.kind, "PATCH ")
			switch {
			case isGrant(r) && node.CompareAndSwap(nil, name):
				if resp, err := forward(); err == nil {
					resp.Body.Close()
				}
				return forward()
			case !readable.Load() && (r.kind == "WATCH nodes" || node.Load() != nil && r.kind == "GET "+node.Load().(string)):
				return says(http.StatusServiceUnavailable, "ServiceUnavailable"), nil
			}
			return nil, nil
		})
	})
	l.leads(1)
	until(t, "the grant", func() bool { return len(inTurns(t)) == 1 })
	never(t, "another grant", 3*time.Second, func() bool { return len(l.w.grants()) > 1 && len(inTurns(t)) > 1 })
	readable.Store(true)
	until(t, "the Node to be read", func() bool { return l.w.count("GET "+node.Load().(string)) > 1 })
	never(t, "more nodes in a turn than the budget", 2*time.Second, func() bool { return len(inTurns(t)) > 1 })
}

// TestProxysPageIsNoDeletion has a proxy answer 404 for one of two nodes. The other node is not the only node, and the
// coordinator grants nothing until the API server answers.
func TestProxysPageIsNoDeletion(t *testing.T) {
	freshLease(t)
	playHost(t, "n1", true)
	playHost(t, "n2", true)
	var proxy atomic.Bool
	proxy.Store(true)
	l := startCandidate(t, "leader", func(c *candidate) {
		c.w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
			if proxy.Load() && strings.HasSuffix(r.kind, " node n1") {
				return page(http.StatusNotFound), nil
			}
			return nil, nil
		})
	})
	l.leads(1)
	until(t, "an answer of the proxy", func() bool { return l.w.count("PATCH node n1") > 0 })
	never(t, "a grant while the state of n1 is unknown", 4*time.Second, func() bool { return len(inTurns(t)) > 0 })
	proxy.Store(false)
	until(t, "a grant", func() bool { return len(inTurns(t)) == 1 })
	for _, g := range l.w.grants() {
		if strings.Contains(g.body, "onlyNode") {
			t.Errorf("granted as the only node: %s", g.body)
		}
	}
}

// TestTooLargeNodeHoldsItselfAlone has a kubelet make its Node so large that no key fits. The API server answers 500 to
// the leader's write. That counts as a refusal, and the other nodes get their turns.
func TestTooLargeNodeHoldsItselfAlone(t *testing.T) {
	freshLease(t)
	playHost(t, "n1", true)
	playHost(t, "n2", true)
	pad(t, "n1")
	l := startCandidate(t, "leader", nil)
	l.leads(1)
	until(t, "the other node's turn", func() bool { return slices.Equal(inTurns(t), []string{"n2"}) })
	refused := slices.DeleteFunc(l.w.requests("PATCH node n1"), func(r request) bool { return r.status == http.StatusOK })
	if len(refused) == 0 || refused[0].status != http.StatusInternalServerError {
		t.Errorf("writes to n1 %+v: the test proves nothing", refused)
	}
}

// nodeClient returns a client with a kubelet's credential.
func nodeClient(t *testing.T, name string) kubernetes.Interface {
	t.Helper()
	cfg, err := cp(t).NodeConfig(name)
	must(t, err)
	client, err := kubernetes.NewForConfig(cfg)
	must(t, err)
	return client
}

// pad fills a Node's status, as its kubelet may, until the API server stores no more.
func pad(t *testing.T, name string) {
	t.Helper()
	client := nodeClient(t, name)
	status := func(size int) error {
		patch := fmt.Sprintf(`{"status":{"images":[{"names":[%q],"sizeBytes":1}]}}`, strings.Repeat("x", size))
		_, err := client.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		if err != nil && !apierrors.IsInternalError(err) && !strings.Contains(err.Error(), "too large") {
			must(t, err)
		}
		return err
	}
	low, high := 1<<20, 2<<20 // bytes: accepted, refused
	must(t, status(low))
	for high-low > 1 {
		if mid := (low + high) / 2; status(mid) == nil {
			low = mid
		} else {
			high = mid
		}
	}
	t.Logf("%s holds %d bytes of padding", name, low)
}

// TestHugeRecordHoldsItsHostAlone writes a host record that is too large: a grant that contained it could not be
// parsed.
func TestHugeRecordHoldsItsHostAlone(t *testing.T) {
	freshLease(t)
	playHost(t, "n1", true)
	playHost(t, "n2", true)
	huge := func(size int) {
		record := getNode(t, "n1").Annotations[v1alpha1.AnnotationHost]
		record, _, _ = strings.Cut(record, `,"hookFailed"`)
		record = strings.TrimSuffix(record, "}")
		const field = `,"hookFailed":""}`
		record += fmt.Sprintf(`,"hookFailed":%q}`, strings.Repeat("x", size-len(record)-len(field)))
		patchNode(t, "n1", fmt.Sprintf(`{"metadata":{"annotations":{"lockkeeper.dev/host":%q}}}`, record), "lockkeeper.dev/host")
	}
	l := startCandidate(t, "leader", nil)
	l.leads(1)
	until(t, "n1 in a turn", func() bool { return slices.Equal(inTurns(t), []string{"n1"}) })
	huge(32738)
	writes := l.w.count("PATCH node n1")
	never(t, "repeated writes to n1", 3*time.Second, func() bool { return l.w.count("PATCH node n1") > writes+3 })
	// The coordinator honors an admin's setting, whatever the host has written.
	patchNode(t, "n1", `{"metadata":{"labels":{"lockkeeper.dev/managed":"false"}}}`)
	until(t, "n1 to be released and n2 to be in a turn", func() bool {
		return state(t, "n1") == "" && slices.Equal(inTurns(t), []string{"n2"})
	})
	patchNode(t, "n1", `{"metadata":{"labels":{"lockkeeper.dev/managed":null}}}`)
	never(t, "the coordinator manages a node whose record it cannot parse", time.Second, func() bool { return state(t, "n1") != "" })
}

// TestRewoundStore restores the store from a backup while a leader leads. The term must end. The next term must list
// again, grant nothing for the settle time, and record an Event.
func TestRewoundStore(t *testing.T) {
	freshLease(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		playHost(t, n, false)
	}
	const settle = 12 * time.Second
	_, err := cp(t).ApplyPolicy(t.Context(), controlplane.TestPolicy, "rollout: {settle: 12s, maxUnavailable: 1}")
	must(t, err)
	short := func(c *candidate) { c.opts.LeaseDuration, c.opts.RenewDeadline = 6*time.Second, 4*time.Second } // less than settle
	l, other := startCandidate(t, "leader", short), startCandidate(t, "standby", short)
	watching := view(t, nodeWire(t, "n1").client("host"), "n1")
	until(t, "the nodes to be idle", func() bool { return state(t, "n1") == "idle" && state(t, "n2") == "idle" && state(t, "n3") == "idle" })
	must(t, cp(t).BackUp(t.Context()))
	uid := string(getNode(t, "n1").UID)
	// Many writes happen after the backup.
	for i := range 50 {
		patchNode(t, "n2", fmt.Sprintf(`{"metadata":{"annotations":{"hook.lockkeeper.dev/count":"%d"}}}`, i))
	}
	sayWants(t, uid, "n1", true)
	until(t, "n1 to be in a turn", func() bool { return len(inTurns(t)) == 1 })
	until(t, "the host to see it", func() bool { n := watching.Get("n1"); return n != nil && n.Labels[v1alpha1.LabelState] != "idle" })
	restores := time.Now()
	must(t, cp(t).Restore(t.Context()))
	if len(inTurns(t)) != 0 {
		t.Fatal("the backup contains the turn: the test proves nothing")
	}
	until(t, "another term", func() bool { return len(l.epochs())+len(other.epochs()) > 1 })
	sayWants(t, string(getNode(t, "n1").UID), "n1", true)
	sayWants(t, string(getNode(t, "n2").UID), "n2", true)
	until(t, "a grant", func() bool { return len(inTurns(t)) == 1 })
	// Without the settle time the grant follows as soon as there is a term, about 4 s after the restore.
	if took := time.Since(restores); took < settle {
		t.Errorf("granted %v after the restore began, expected at least %v", took, settle)
	}
	// A host's watch, which would otherwise wait for the lost versions, has listed again.
	until(t, "the host to see the restored store", func() bool {
		n := watching.Get("n1")
		return n != nil && n.Labels[v1alpha1.LabelWants] == "reboot" && n.ResourceVersion == getNode(t, "n1").ResourceVersion
	})
	until(t, "an Event", func() bool {
		list, err := cp(t).Client().EventsV1().Events(leaseSpace).List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for _, e := range list.Items {
			if e.Reason == v1alpha1.EventStoreRewound && e.Regarding.Kind == "Lease" {
				return true
			}
		}
		return false
	})
}

// TestUnknownCommitUnderAStop checks that a host does not repeat a commit with an unknown outcome after a stop was set.
func TestUnknownCommitUnderAStop(t *testing.T) {
	h := startHost(t, nil)
	h.want()
	var away atomic.Bool
	h.w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
		if strings.Contains(r.body, "/committed") {
			away.Store(true)
		}
		if away.Load() && !strings.HasPrefix(r.kind, "WATCH") {
			return nil, errCut
		}
		return nil, nil
	})
	h.promote("draining", nil)
	until(t, "the commit that is lost", away.Load)
	stop(t)
	h.w.on(nil)
	h.says("Stopped")
	sent := h.w.count("PATCH node")
	never(t, "a commit during the stop", 3*time.Second, func() bool { return h.w.count("PATCH node") > sent || h.node().Spec.Unschedulable })
	goOn(t)
	h.acks("draining/done")
	h.isCommit(h.committed()[0])
}

// TestUnknownRefusalIsKept checks that a host that has committed to a reboot, and whose refusal has an unknown outcome,
// keeps to the refusal although its want comes back. The first try of the refusal may land after a call for the reboot.
func TestUnknownRefusalIsKept(t *testing.T) {
	h := startHost(t, nil)
	var inhibited, cut atomic.Bool
	var refusals atomic.Int32
	inhibited.Store(true)
	l := &login{answer: func() *dbus.Error {
		if inhibited.Load() {
			return dbus.NewError("org.freedesktop.DBus.Error.AccessDenied", []any{"Access denied to root due to active block inhibitor"})
		}
		return nil
	}}
	h.replaceLogind(l)
	h.want()
	h.promote("rebooting", onlyNode)
	h.acks("rebooting/committed")
	h.says("active block inhibitor")
	cut.Store(true)
	h.w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
		if cut.Load() && strings.Contains(r.body, "/refused:WantGone") {
			refusals.Add(1)
			return nil, errCut
		}
		return nil, nil
	})
	must(t, h.sim.RemoveFile(sentinel))
	until(t, "the refusal that is lost", func() bool { return refusals.Load() > 0 })
	calls := l.reboots.Load()
	must(t, h.sim.WriteFile(sentinel, ""))
	inhibited.Store(false)
	before := refusals.Load()
	until(t, "three more tries of the refusal", func() bool { return refusals.Load() > before+2 || l.reboots.Load() > calls })
	if l.reboots.Load() > calls {
		t.Fatal("the host called for a reboot while its refusal could still land")
	}
	cut.Store(false)
	h.acks("rebooting/refused:WantGone")
}

// TestGrantIsNoMoreDisruptiveThanThePolicy uses grants of a stolen coordinator credential: the host follows the less
// disruptive one of the grant and its own policy.
func TestGrantIsNoMoreDisruptiveThanThePolicy(t *testing.T) {
	t.Run("no drain as the only node", func(t *testing.T) {
		h := startHost(t, func(h *host) { h.opts.Term = func() string { return "host_of_another_term" } })
		h.pod("victim")
		h.want()
		h.promote("rebooting", onlyNode)
		h.acks("rebooting/refused:PlanChanged")
		if len(h.reboots(simhost.RebootCalled)) > 0 || !h.hasPod("victim") {
			t.Error("the host rebooted, or evicted a pod")
		}
	})
	t.Run("pods to skip", func(t *testing.T) {
		h := startHost(t, nil)
		h.pod("victim")
		h.want()
		h.promote("draining", func(g *v1alpha1.Grant) { g.Terms.Skip = []v1alpha1.PodSelector{{Namespace: "default"}} })
		h.acks("draining/done")
		if h.hasPod("victim") {
			t.Error("the pod is still on the host at the reboot")
		}
	})
	t.Run("force", func(t *testing.T) {
		h := startHost(t, nil)
		h.pod("victim")
		h.w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
			if r.kind == "POST eviction" {
				return says(http.StatusForbidden, "Forbidden"), nil
			}
			return nil, nil
		})
		h.want()
		h.promote("draining", func(g *v1alpha1.Grant) { g.Force, g.Terms.DrainTimeout = true, v1alpha1.OnTimeoutForce })
		until(t, "an eviction that is refused", func() bool { return h.w.count("POST eviction") > 0 })
		never(t, "the drain deleted a pod that may not be evicted", 3*time.Second, func() bool { return h.w.count("DELETE pod") > 0 || !h.hasPod("victim") })
		// Now the policy allows it too.
		_, err := cp(t).ApplyPolicy(t.Context(), controlplane.TestPolicy, "{rollout: {settle: 0s}, drain: {onTimeout: Force}}")
		must(t, err)
		until(t, "the deletion of the pod", func() bool { return !h.hasPod("victim") })
	})
	t.Run("pods that block", func(t *testing.T) {
		h := startHost(t, nil)
		_, err := cp(t).ApplyPolicy(t.Context(), controlplane.TestPolicy, `{rollout: {settle: 0s}, drain: {block: [{selector: {matchLabels: {app: precious}}}]}}`)
		must(t, err)
		h.want()
		h.pod("blocked") // so that the drain goes on
		h.w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
			if r.kind == "POST eviction" && h.hasPod("blocked") {
				return says(http.StatusTooManyRequests, "TooManyRequests"), nil
			}
			return nil, nil
		})
		h.promote("draining", nil) // with terms that do not name such pods
		h.acks("draining/committed")
		h.pod("precious")
		patch := []byte(`{"metadata":{"labels":{"app":"precious"}}}`)
		_, err = cp(t).Client().CoreV1().Pods("default").Patch(t.Context(), "precious", types.MergePatchType, patch, metav1.PatchOptions{})
		must(t, err)
		must(t, cp(t).Client().CoreV1().Pods("default").Delete(t.Context(), "blocked", deleteNow))
		h.pod("first")
		until(t, "the eviction of the new pod", func() bool { return !h.hasPod("first") })
		never(t, "the drain evicted a pod that the host's policy blocks", 2*time.Second, func() bool { return !h.hasPod("precious") })
	})
}
