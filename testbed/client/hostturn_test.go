package client

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// carriedOut returns the requests that took effect. A conflict with a write that a kubelet made just before does not
// count.
func carriedOut(all []request) []request {
	return slices.DeleteFunc(all, func(r request) bool { return r.status != http.StatusOK })
}

// TestHostTurn runs a whole turn of one host. It checks what the host reads before each commit and what it commits
// before each action.
func TestHostTurn(t *testing.T) {
	h := startHost(t, nil)
	h.pod("turn-a")
	h.want()
	// The host reads the sources after the Lease and before the pods.
	var mu sync.Mutex
	var between []int
	h.w.on(func(_ context.Context, r request, forward func() (*http.Response, error)) (*http.Response, error) {
		mu.Lock()
		defer mu.Unlock()
		if r.kind == "GET lease lockkeeper" || r.kind == "LIST pods" {
			between = append(between, h.sim.Engine().Calls())
		}
		return nil, nil
	})
	h.promote("draining", nil)
	h.acks("draining/done")
	h.w.on(nil)
	mu.Lock()
	if len(between) < 2 || between[1] <= between[0] {
		t.Errorf("update_engine was queried %v times before the Lease and before the pods; expected more queries before the pods", between)
	}
	mu.Unlock()
	n := h.node()
	if !n.Spec.Unschedulable || !cordonedBy("t1", n) || h.hasPod("turn-a") {
		t.Errorf("drained: unschedulable %t, mark %q, pod there %t", n.Spec.Unschedulable, n.Annotations["lockkeeper.dev/cordon"], h.hasPod("turn-a"))
	}
	commits := carriedOut(h.commits())
	if len(commits) != 1 || !strings.Contains(commits[0].body, `"unschedulable":true`) {
		t.Fatalf("commits %+v, expected the cordon", commits)
	}
	h.isCommit(commits[0])
	evictions := h.w.requests("POST eviction")
	if n := len(evictions); n == 0 || evictions[n-1].status != http.StatusCreated {
		t.Errorf("evictions %+v, expected none after the first accepted one", evictions)
	}
	for i, e := range evictions {
		// The API server's own view of pods may lag behind the view of the drain.
		if i+1 < len(evictions) && e.status != http.StatusNotFound {
			t.Errorf("evicted again after status %d", e.status)
		}
		if e.at.Before(commits[0].answered) {
			t.Error("the eviction came before the cordon")
		}
	}

	boot := h.sim.BootID()
	h.sim.SetNextBoot(simhost.NextBoot{WithoutLockkeeper: true})
	h.promote("rebooting", nil)
	must(t, h.sim.WaitBoots(soon(t), 2))
	h.stop()
	commits = carriedOut(h.commits())
	if len(commits) != 2 || !strings.Contains(commits[1].body, "t1/"+boot+"/rebooting/committed") {
		t.Fatalf("commits %+v, expected the cordon and the commit of the reboot", commits)
	}
	h.isCommit(commits[1])
	if called := h.reboots(simhost.RebootCalled); len(called) != 1 || called[0].Time.Before(commits[1].answered) {
		t.Errorf("reboots %+v, expected one after the answer to the commit at %v", called, commits[1].answered)
	}

	// In the new boot one write contains both the wants and the report, and there is no earlier write.
	_, err := h.sim.WaitNodeReady(soon(t))
	must(t, err)
	began := time.Now()
	h.run()
	h.acks("rebooting/done")
	var writes []request
	until(t, "the answer to the first write of the new boot", func() bool {
		writes = slices.DeleteFunc(carriedOut(h.w.requests("PATCH node")), func(r request) bool { return !r.at.After(began) })
		return len(writes) > 0
	})
	if len(writes) != 1 || !strings.Contains(writes[0].body, `"lockkeeper.dev/wants":"nothing"`) || !strings.Contains(writes[0].body, "rebooting/done") {
		t.Errorf("writes of the new boot %+v, expected one with wants and done", writes)
	}
	h.promote("uncordoning", nil)
	h.acks("uncordoning/done")
	n = h.node()
	if _, mark := n.Annotations["lockkeeper.dev/cordon"]; mark || n.Spec.Unschedulable {
		t.Errorf("after the turn: unschedulable %t, marked %t", n.Spec.Unschedulable, mark)
	}
	if h.sim.Boots() != 2 || len(h.reboots(simhost.RebootCalled)) != 1 {
		t.Errorf("%d boots", h.sim.Boots())
	}
	fresh(t, h.w)
}

// cordonedBy reports whether the mark on the Node says that the turn has set the cordon and nothing else.
func cordonedBy(turn string, n *corev1.Node) bool {
	fields := strings.Split(n.Annotations["lockkeeper.dev/cordon"], "/")
	return len(fields) == 3 && fields[0] == turn && fields[2] == "Cordon"
}

// TestSlowLookIsRepeated checks that a host repeats all reads if they took too long to be valid, because the API server
// is slow or the process was stopped.
func TestSlowLookIsRepeated(t *testing.T) {
	h := startHost(t, nil)
	h.want()
	var slow atomic.Int32
	h.w.on(func(_ context.Context, r request, forward func() (*http.Response, error)) (*http.Response, error) {
		if r.kind != "LIST pods" || slow.Add(1) > 1 {
			return nil, nil
		}
		time.Sleep(10500 * time.Millisecond)
		return forward()
	})
	h.promote("draining", nil)
	h.acks("draining/done")
	commits := carriedOut(h.commits())
	if len(commits) != 1 || slow.Load() < 2 {
		t.Fatalf("commits %+v after %d reads; expected one commit after two reads", commits, slow.Load())
	}
	h.isCommit(commits[0])
}

// TestWaitingHostReadsAgain checks when a host that waits because of a stop reads the Lease again: when its Node
// changes, and every 10 s because lifting a stop changes no Node.
func TestWaitingHostReadsAgain(t *testing.T) {
	h := startHost(t, nil)
	h.want()
	stop(t)
	h.promote("draining", nil)
	h.says("Stopped")
	looks := h.w.requests("GET lease")
	if len(h.commits()) > 0 || len(looks) == 0 {
		t.Fatalf("during the stop: commits %+v after %d reads", h.commits(), len(looks))
	}
	// Without a change the host reads every 10 s at the earliest. It watches for changes after the version that it
	// read last.
	last, version := looks[len(looks)-1].at, h.node().ResourceVersion
	never(t, "the host read the Lease although nothing changed", 3*time.Second, func() bool {
		return h.lookedAgain(last) < 9*time.Second && h.node().ResourceVersion == version
	})
	// The host must react to at least one of several changes before its next regular read, even on a busy machine.
	sooner := false
	for i := 0; i < 5 && !sooner; i++ {
		looks = h.w.requests("GET lease")
		last = looks[len(looks)-1].at
		patchNode(t, h.name, fmt.Sprintf(`{"metadata":{"annotations":{"example.org/changed":"%d"}}}`, i))
		until(t, "another look", func() bool { return h.w.count("GET lease") > len(looks) })
		sooner = h.lookedAgain(last) < 9*time.Second
	}
	if !sooner {
		t.Error("the host does not read the Lease earlier when its Node changes")
	}
	lifted := time.Now()
	goOn(t)
	h.acks("draining/done")
	commit := h.commits()[0]
	h.isCommit(commit)
	if took := h.before(commit, 3)[0].at.Sub(lifted); took > looksEvery {
		t.Errorf("the host read the Lease %v after the stop was lifted", took)
	}
}

// lookedAgain returns the time from last to the next read of the Lease. Without such a read it returns the longest
// duration.
func (h *host) lookedAgain(last time.Time) time.Duration {
	looks := h.w.requests("GET lease")
	if i := slices.IndexFunc(looks, func(r request) bool { return r.at.After(last) }); i >= 0 {
		return looks[i].at.Sub(last)
	}
	return math.MaxInt64
}

// TestForeignEpochCommitsNothing checks that a host commits nothing if the leader that granted its turn no longer
// leads.
func TestForeignEpochCommitsNothing(t *testing.T) {
	h := startHost(t, nil)
	h.want()
	patchLease(t, `{"spec":{"holderIdentity":"leader_2"}}`)
	h.promote("draining", nil)
	h.says("Handover")
	if len(h.commits()) > 0 || h.node().Spec.Unschedulable {
		t.Error("committed for a leader that is gone")
	}
	must(t, cp(t).Client().CoordinationV1().Leases(leaseSpace).Delete(t.Context(), leaseName, deleteNow))
	patchNode(t, h.name, `{"metadata":{"annotations":{"example.org/changed":"yes"}}}`)
	h.says("there is no Lease")
	if len(h.commits()) > 0 {
		t.Error("committed without a Lease")
	}
}

// TestLostCordonIsRead checks that a host whose answer to the cordon was lost reads that the cordon landed, and
// continues.
func TestLostCordonIsRead(t *testing.T) {
	h := startHost(t, nil)
	h.want()
	var once atomic.Bool
	h.w.on(func(_ context.Context, r request, forward func() (*http.Response, error)) (*http.Response, error) {
		if !strings.HasPrefix(r.kind, "PATCH node") || !strings.Contains(r.body, `"unschedulable"`) || once.Load() {
			return nil, nil
		}
		resp, err := forward()
		if err == nil && resp.StatusCode == http.StatusOK && once.CompareAndSwap(false, true) {
			resp.Body.Close()
			return nil, errCut
		}
		return resp, err
	})
	h.promote("draining", nil)
	h.acks("draining/done")
	commits := h.commits()
	for len(commits) > 1 && commits[0].status == http.StatusConflict {
		commits = commits[1:] // a conflict with a write of the kubelet, without effect
	}
	if len(commits) != 1 || commits[0].status != 0 {
		t.Errorf("commits %+v, expected the one whose answer was lost", commits)
	}
	if n := h.node(); !n.Spec.Unschedulable || !cordonedBy("t1", n) {
		t.Errorf("the node is not cordoned by lockkeeper: %+v", n.Annotations)
	}
}

// TestCordonInBetweenIsNotOurs checks that the host does not mark the cordon of another user who cordons between the
// reads and the commit.
func TestCordonInBetweenIsNotOurs(t *testing.T) {
	h := startHost(t, nil)
	h.want()
	var once atomic.Bool
	h.w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
		if strings.HasPrefix(r.kind, "PATCH node") && strings.Contains(r.body, `"unschedulable"`) && once.CompareAndSwap(false, true) {
			patchNode(t, h.name, `{"spec":{"unschedulable":true}}`)
		}
		return nil, nil
	})
	h.promote("draining", nil)
	h.acks("draining/done")
	if _, mark := h.node().Annotations["lockkeeper.dev/cordon"]; mark || !once.Load() {
		t.Errorf("marked %t: an admin's cordon", mark)
	}
	commits := h.commits()
	done := carriedOut(slices.Clone(commits))
	if len(done) != 1 || commits[0].status != http.StatusConflict || strings.Contains(done[0].body, "unschedulable") {
		t.Fatalf("commits %+v, expected a conflict and then only an ack", commits)
	}
	h.isCommit(done[0])
}

func TestRefusedReboot(t *testing.T) {
	h := startHost(t, nil)
	h.sim.Logind().OnReboot(simhost.Deny)
	h.want()
	h.promote("rebooting", onlyNode)
	h.acks("rebooting/refused:RebootRefused")
	never(t, "another call", 2*time.Second, func() bool { return len(h.reboots(simhost.RebootRefused)) > 1 })
	if done := carriedOut(h.commits()); len(done) != 1 {
		t.Errorf("commits %+v, want one", h.commits())
	}
	if h.sim.Boots() != 1 {
		t.Error("the host rebooted")
	}
}

// TestInhibitedThenCancelled checks that the host waits for inhibitors and sessions before its last reads, and that a
// want that vanishes before the commit ends the turn.
func TestInhibitedThenCancelled(t *testing.T) {
	h := startHost(t, nil)
	h.want()
	release := h.sim.Logind().Hold(simhost.Inhibitor{What: "shutdown", Who: "apt", Why: "upgrade", Mode: "block"})
	h.promote("rebooting", onlyNode)
	h.says("apt")
	if h.w.count("GET lease") > 0 {
		t.Error("the host read the Lease while it was inhibited: the read would be too old")
	}
	must(t, h.sim.RemoveFile(sentinel))
	h.wants("nothing")
	release()
	never(t, "the host committed after the want was gone", 4*time.Second, func() bool { return len(h.commits()) > 0 })
	h.says("WantGone")
}

// TestIdleHostIsQuiet checks that a host reads and writes nothing while nothing changes.
func TestIdleHostIsQuiet(t *testing.T) {
	h := startHost(t, nil)
	h.want()
	h.says("no coordinator has taken this node in")
	published := func() int { return h.w.count("PATCH hostupdate") }
	until(t, "the host to publish the reason", func() bool {
		all := h.w.requests("PATCH hostupdate")
		return len(all) > 0 && strings.Contains(all[len(all)-1].body, "no coordinator has taken this node in")
	})
	count, watches, updates, lists := len(h.w.kinds()), h.w.count("WATCH nodes"), published(), h.w.count(managerPods)
	never(t, "the idle host sent a request", 6*time.Second, func() bool {
		if now := h.w.kinds(); len(now) > count {
			t.Log(now[count:])
			return true
		}
		return published() > updates
	})
	if n := h.w.count("WATCH nodes"); n != watches || watches == 0 {
		t.Errorf("%d watches; %d before the host was idle", n, watches)
	}
	// Every ten poll intervals, which are two seconds here.
	if n := h.w.count(managerPods) - lists; n == 0 || n > 4 {
		t.Errorf("%d lists of pods in 6 s, to find other reboot managers", n)
	}
	if n := h.w.count("WATCH pods", "LIST pods"); n > 0 {
		t.Errorf("%d requests for pods outside a turn", n)
	}
}

func TestSentinelComesAndGoes(t *testing.T) {
	h := startHost(t, nil)
	h.wants("nothing")
	h.want()
	if host := h.node().Annotations["lockkeeper.dev/host"]; !strings.Contains(host, sentinel) {
		t.Errorf("published %s", host)
	}
	must(t, h.sim.RemoveFile(sentinel))
	h.wants("nothing")
	until(t, "the answers to the writes", func() bool { return len(carriedOut(h.w.requests("PATCH node"))) >= 3 })
	writes := carriedOut(h.w.requests("PATCH node"))
	for _, r := range writes {
		if strings.Contains(r.body, "lockkeeper.dev/wants") != strings.Contains(r.body, "lockkeeper.dev/host") {
			t.Errorf("wants and host in two writes: %s", r.body)
		}
	}
	if len(writes) != 3 {
		t.Errorf("%d writes, want three", len(writes))
	}
}

// TestHostOfANewNode checks that the host starts from scratch after its Node was deleted and registered again.
func TestHostOfANewNode(t *testing.T) {
	h := startHost(t, nil)
	h.want()
	old := h.node().UID
	h.sim.StopKubelet()
	must(t, cp(t).Client().CoreV1().Nodes().Delete(t.Context(), h.name, deleteNow))
	h.says("its Node has not been seen yet")
	must(t, h.sim.StartKubelet())
	_, err := h.sim.WaitNodeReady(soon(t))
	must(t, err)
	h.wants("reboot")
	n := h.node()
	if n.UID == old || !strings.Contains(n.Annotations["lockkeeper.dev/host"], string(n.UID)) {
		t.Errorf("published %s for UID %s", n.Annotations["lockkeeper.dev/host"], n.UID)
	}
}

// TestHostWithoutAPIServer checks that while the API server is down, the status reports it, the loop continues, and the
// host publishes the changes afterwards.
func TestHostWithoutAPIServer(t *testing.T) {
	h := startHost(t, func(h *host) {
		cfg, err := cp(t).NodeConfig(h.name)
		must(h.t, err)
		h.opts.Connect = func() (*kube.Client, error) { return kube.ConnectConfig(cfg, "host", "test", 100, 200) }
	})
	h.wants("nothing")
	t.Cleanup(func() { must(t, cp(t).StartAPIServer(context.Background())) })
	must(t, cp(t).StopAPIServer())
	h.says("trouble with the API server")
	must(t, h.sim.WriteFile(sentinel, ""))
	// The host tries to publish and fails each time.
	until(t, "a failing write", func() bool { return h.status().API != nil && strings.Contains(h.status().API.Error, "writing node") })
	if s := h.status(); s.State.InTurn() || s.Node != h.name {
		t.Errorf("status %+v", s)
	}
	must(t, cp(t).StartAPIServer(t.Context()))
	h.wants("reboot")
	until(t, "a status without an API error", func() bool { return h.status().API == nil && h.status().Wants == "reboot" })
}

// TestHostStartsBeforeTheAPIServer checks that the host starts without an API server, and reports that.
func TestHostStartsBeforeTheAPIServer(t *testing.T) {
	var away atomic.Bool
	away.Store(true)
	h := startHost(t, func(h *host) {
		h.w.on(func(context.Context, request, func() (*http.Response, error)) (*http.Response, error) {
			if away.Load() {
				return says(503, "ServiceUnavailable"), nil
			}
			return nil, nil
		})
	})
	h.says("to find out which Node is this host's")
	if h.status().API == nil {
		t.Error("the status does not name the cause")
	}
	away.Store(false)
	h.wants("nothing")
	if !slices.Contains(h.w.kinds(), "POST selfsubjectreviews") {
		t.Errorf("requests %q", h.w.kinds())
	}
}
