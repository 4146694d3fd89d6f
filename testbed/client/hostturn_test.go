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

	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// carriedOut are the requests that were: a kubelet's write just before is a conflict, and nothing to count.
func carriedOut(all []request) []request {
	return slices.DeleteFunc(all, func(r request) bool { return r.status != http.StatusOK })
}

// A whole turn of one host: what it reads before each commit, what it commits before each act.
func TestHostTurn(t *testing.T) {
	h := startHost(t, nil)
	h.pod("turn-a")
	h.want()
	// The sources are read after the Lease and before the pods.
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
		t.Errorf("update_engine was asked %v times at the Lease and at the pods, want more at the pods", between)
	}
	mu.Unlock()
	n := h.node()
	if !n.Spec.Unschedulable || n.Annotations["lockkeeper.dev/cordon"] != "t1" || h.hasPod("turn-a") {
		t.Errorf("drained: unschedulable %t, mark %q, pod there %t", n.Spec.Unschedulable, n.Annotations["lockkeeper.dev/cordon"], h.hasPod("turn-a"))
	}
	commits := carriedOut(h.commits())
	if len(commits) != 1 || !strings.Contains(commits[0].body, `"unschedulable":true`) {
		t.Fatalf("commits %+v, want the cordon", commits)
	}
	h.isCommit(commits[0])
	evictions := h.w.requests("POST eviction")
	if n := len(evictions); n == 0 || evictions[n-1].status != http.StatusCreated {
		t.Errorf("evictions %+v, want one that is accepted, and nothing after it", evictions)
	}
	for i, e := range evictions {
		// The API server's own view of pods may be behind the drain's.
		if i+1 < len(evictions) && e.status != http.StatusNotFound {
			t.Errorf("evicted again after the answer %d", e.status)
		}
		if e.at.Before(commits[0].answered) {
			t.Error("evicted before the cordon")
		}
	}

	boot := h.sim.BootID()
	h.sim.SetNextBoot(simhost.NextBoot{WithoutLockkeeper: true})
	h.promote("rebooting", nil)
	must(t, h.sim.WaitBoots(soon(t), 2))
	h.stop()
	commits = carriedOut(h.commits())
	if len(commits) != 2 || !strings.Contains(commits[1].body, "t1/"+boot+"/rebooting/committed") {
		t.Fatalf("commits %+v, want the cordon and the reboot's", commits)
	}
	h.isCommit(commits[1])
	if called := h.reboots(simhost.RebootCalled); len(called) != 1 || called[0].Time.Before(commits[1].answered) {
		t.Errorf("reboots %+v, want one after the commit was answered at %v", called, commits[1].answered)
	}

	// The new boot: wants and the word in one write, and none before.
	_, err := h.sim.WaitNodeReady(soon(t))
	must(t, err)
	began := time.Now()
	h.run()
	h.acks("rebooting/done")
	var writes []request
	until(t, "the answer to the write of the new boot", func() bool {
		writes = slices.DeleteFunc(carriedOut(h.w.requests("PATCH node")), func(r request) bool { return !r.at.After(began) })
		return len(writes) > 0
	})
	if len(writes) != 1 || !strings.Contains(writes[0].body, `"lockkeeper.dev/wants":"nothing"`) || !strings.Contains(writes[0].body, "rebooting/done") {
		t.Errorf("writes of the new boot %+v, want one with wants and done", writes)
	}
	h.promote("uncordoning", nil)
	h.acks("uncordoning/done")
	n = h.node()
	if _, mark := n.Annotations["lockkeeper.dev/cordon"]; mark || n.Spec.Unschedulable {
		t.Errorf("given back: unschedulable %t, marked %t", n.Spec.Unschedulable, mark)
	}
	if h.sim.Boots() != 2 || len(h.reboots(simhost.RebootCalled)) != 1 {
		t.Errorf("%d boots", h.sim.Boots())
	}
	fresh(t, h.w)
}

// A look that takes longer than a look is good for, because the API server is slow or the process was stopped, allows
// nothing: everything is read again.
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
		t.Fatalf("commits %+v after %d looks, want one after two", commits, slow.Load())
	}
	h.isCommit(commits[0])
}

// While a stop keeps it waiting, a host looks again when its Node has changed, and every 10 s: a lifted stop changes no Node.
func TestWaitingHostLooksAgain(t *testing.T) {
	h := startHost(t, nil)
	h.want()
	stop(t)
	h.promote("draining", nil)
	h.says("Stopped")
	looks := h.w.requests("GET lease")
	if len(h.commits()) > 0 || len(looks) == 0 {
		t.Fatalf("under the stop: commits %+v after %d looks", h.commits(), len(looks))
	}
	// By itself it looks every 10 s at the earliest. What comes between two looks is heard from the one that was looked at last.
	last, version := looks[len(looks)-1].at, h.node().ResourceVersion
	never(t, "a look although nothing changed", 3*time.Second, func() bool {
		return h.lookedAgain(last) < 9*time.Second && h.node().ResourceVersion == version
	})
	// Of some changes one at least is seen before it would have looked by itself, however busy the machine is.
	sooner := false
	for i := 0; i < 5 && !sooner; i++ {
		looks = h.w.requests("GET lease")
		last = looks[len(looks)-1].at
		patchNode(t, h.name, fmt.Sprintf(`{"metadata":{"annotations":{"example.org/changed":"%d"}}}`, i))
		until(t, "another look", func() bool { return h.w.count("GET lease") > len(looks) })
		sooner = h.lookedAgain(last) < 9*time.Second
	}
	if !sooner {
		t.Error("it looks no sooner when its Node has changed")
	}
	lifted := time.Now()
	goOn(t)
	h.acks("draining/done")
	commit := h.commits()[0]
	h.isCommit(commit)
	if took := h.before(commit, 3)[0].at.Sub(lifted); took > looksEvery {
		t.Errorf("it looked again %v after the stop was lifted", took)
	}
}

// lookedAgain is how long after a look at the Lease the next one came; indefinitely if it has not come.
func (h *host) lookedAgain(last time.Time) time.Duration {
	looks := h.w.requests("GET lease")
	if i := slices.IndexFunc(looks, func(r request) bool { return r.at.After(last) }); i >= 0 {
		return looks[i].at.Sub(last)
	}
	return math.MaxInt64
}

// The leader that granted is not the leader any more: nothing is committed.
func TestForeignEpochCommitsNothing(t *testing.T) {
	h := startHost(t, nil)
	h.want()
	patchLease(t, `{"spec":{"holderIdentity":"leader_2"}}`)
	h.promote("draining", nil)
	h.says("Handover")
	if len(h.commits()) > 0 || h.node().Spec.Unschedulable {
		t.Error("it committed for a leader that is gone")
	}
	must(t, cp(t).Client().CoordinationV1().Leases(leaseSpace).Delete(t.Context(), leaseName, deleteNow))
	patchNode(t, h.name, `{"metadata":{"annotations":{"example.org/changed":"yes"}}}`)
	h.says("there is no Lease")
	if len(h.commits()) > 0 {
		t.Error("it committed without a Lease")
	}
}

// The answer to the cordon is lost: the host reads that it landed, and continues.
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
		commits = commits[1:] // a kubelet's write just before, and nothing was carried out
	}
	if len(commits) != 1 || commits[0].status != 0 {
		t.Errorf("commits %+v, want the one whose answer was lost", commits)
	}
	if n := h.node(); !n.Spec.Unschedulable || n.Annotations["lockkeeper.dev/cordon"] != "t1" {
		t.Errorf("the node is not cordoned by us: %+v", n.Annotations)
	}
}

// Someone cordons between the look and the commit: their cordon is not marked.
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
		t.Fatalf("commits %+v, want a conflict and an ack alone", commits)
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
		t.Error("it rebooted")
	}
}

// Inhibitors and sessions come before the last look, and a want that vanishes before the commit ends it.
func TestInhibitedThenCancelled(t *testing.T) {
	h := startHost(t, nil)
	h.want()
	release := h.sim.Logind().Hold(simhost.Inhibitor{What: "shutdown", Who: "apt", Why: "upgrade", Mode: "block"})
	h.promote("rebooting", onlyNode)
	h.says("apt")
	if h.w.count("GET lease") > 0 {
		t.Error("it looked at the Lease while it is inhibited: the look would be old")
	}
	must(t, h.sim.RemoveFile(sentinel))
	h.wants("nothing")
	release()
	never(t, "a commit after the want was gone", 4*time.Second, func() bool { return len(h.commits()) > 0 })
	h.says("WantGone")
}

// Nothing changes, so nothing is written, nor read.
func TestIdleHostIsQuiet(t *testing.T) {
	h := startHost(t, nil)
	h.want()
	h.says("no coordinator has taken this node in")
	published := func() int { return h.w.count("PATCH hostupdate") }
	until(t, "it to publish that", func() bool {
		all := h.w.requests("PATCH hostupdate")
		return len(all) > 0 && strings.Contains(all[len(all)-1].body, "no coordinator has taken this node in")
	})
	count, watches, updates := len(h.w.kinds()), h.w.count("WATCH nodes"), published()
	never(t, "a request of an idle host", 6*time.Second, func() bool {
		if now := h.w.kinds(); len(now) > count {
			t.Log(now[count:])
			return true
		}
		return published() > updates
	})
	if n := h.w.count("WATCH nodes"); n != watches || watches == 0 {
		t.Errorf("%d watches, and %d before it was idle", n, watches)
	}
	if n := h.w.count("WATCH pods", "LIST pods"); n > 0 {
		t.Errorf("%d requests for pods outside of a turn", n)
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
	until(t, "the answers to its writes", func() bool { return len(carriedOut(h.w.requests("PATCH node"))) >= 3 })
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

// A Node that was deleted and registered again is another one: the host begins afresh.
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
		t.Errorf("published %s for %s", n.Annotations["lockkeeper.dev/host"], n.UID)
	}
}

// The API server is away: the status says so, the loop continues, and what happened meanwhile is published after.
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
	// It wants to publish, and fails, again and again.
	until(t, "a failing write", func() bool { return h.status().API != nil && strings.Contains(h.status().API.Error, "writing node") })
	if s := h.status(); s.State.InTurn() || s.Node != h.name {
		t.Errorf("status %+v", s)
	}
	must(t, cp(t).StartAPIServer(t.Context()))
	h.wants("reboot")
	until(t, "a status without trouble", func() bool { return h.status().API == nil && h.status().Wants == "reboot" })
}

// It starts when there is no API server at all, and says so.
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
		t.Error("it does not say why")
	}
	away.Store(false)
	h.wants("nothing")
	if !slices.Contains(h.w.kinds(), "POST selfsubjectreviews") {
		t.Errorf("requests %q", h.w.kinds())
	}
}
