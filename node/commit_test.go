package node

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/godbus/dbus/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/effect"
	"lockkeeper.dev/lockkeeper/node/source"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/systemd"
	"lockkeeper.dev/lockkeeper/updateengine"
)

// TestReadsBeforeACommit checks what a host reads before a commit, in which order, and what it knows then.
func TestReadsBeforeACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, api, _ := newMemoryHost(t, v1alpha1.StateRebooting)
		api.change() // the watch has not shown this version yet
		must(t, h.read(t.Context(), step.ReadCommit))
		if got, want := strings.Join(api.since(), ", "), "get n1, get lockkeeper, list cached pods, list pods"; got != want {
			t.Errorf("read %s; want %s", got, want)
		}
		n := h.facts()
		f := h.validRead(n)
		if n.ResourceVersion != "11" || f == nil || !f.Commit || f.Lease.Holder != "e1" || f.Evictable != 1 {
			t.Errorf("version %s of the Node, %+v", n.ResourceVersion, f)
		}
		// Another write to the Node ends that.
		n.ResourceVersion = "12"
		if f := h.validRead(n); f == nil || f.Commit {
			t.Errorf("after a change of the Node: %+v", f)
		}
		// The pods are listed again for other reboot managers if the last list is older than a minute.
		time.Sleep(commitPodsAge - time.Second)
		must(t, h.read(t.Context(), step.ReadCommit))
		if n := api.count("list cached pods"); n != 0 {
			t.Errorf("%d lists of the pods within a minute", n)
		}
		time.Sleep(time.Second)
		must(t, h.read(t.Context(), step.ReadCommit))
		if n := api.count("list cached pods"); n != 1 {
			t.Errorf("%d lists of the pods after a minute, want one", n)
		}
	})
}

// TestReadsOfAnEviction checks that a host that evicts learns from its reads what a silent watch does not show, and that
// a Node older than what the watch has shown allows nothing.
func TestReadsOfAnEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, api, _ := newMemoryHost(t, v1alpha1.StateDraining)
		api.node.Labels[v1alpha1.LabelState] = string(v1alpha1.StateUncordoning)
		api.change()
		must(t, h.read(t.Context(), step.ReadEviction))
		if got, want := strings.Join(api.since(), ", "), "get n1, get lockkeeper"; got != want {
			t.Errorf("read %s; want %s", got, want)
		}
		if n := h.facts(); n.State != v1alpha1.StateUncordoning || n.ResourceVersion != "11" || h.validRead(n).Commit {
			t.Errorf("version %s of the Node in %s, %+v", n.ResourceVersion, n.State, h.validRead(n))
		}
		must(t, h.read(t.Context(), step.ReadEviction)) // the same version again
		api.node.ResourceVersion = "9"
		for _, what := range []step.Read{step.ReadEviction, step.ReadCommit} {
			h.fresh = nil
			err := h.read(t.Context(), what)
			if err == nil || !strings.Contains(err.Error(), "has version 9 of Node n1, and its watch has shown another version 11") || h.fresh != nil {
				t.Errorf("an older version: %v, %+v", err, h.fresh)
			}
		}
	})
}

// TestCommitAfterARewind checks that a host commits nothing by a Node that it holds from before the API server's store went
// back in time, when the store gives that Node's version out again.
func TestCommitAfterARewind(t *testing.T) {
	for name, change := range map[string]func(*corev1.Node){
		"its turn is gone":     func(n *corev1.Node) { n.Labels[v1alpha1.LabelState] = string(v1alpha1.StateIdle) },
		"its grant is another": func(n *corev1.Node) { delete(n.Annotations, v1alpha1.AnnotationGrant) },
		"it is uncordoned":     func(n *corev1.Node) { n.Spec.Unschedulable = false },
		"it is another Node":   func(n *corev1.Node) { n.UID = "another" },
		"the boot is another":  func(n *corev1.Node) { n.Status.NodeInfo.BootID = "another" },
	} {
		synctest.Test(t, func(t *testing.T) {
			h, api, _ := newMemoryHost(t, v1alpha1.StateRebooting)
			change(api.node)
			for _, what := range []step.Read{step.ReadEviction, step.ReadCommit} {
				if err := h.read(t.Context(), what); err == nil || h.validRead(h.facts()) != nil {
					t.Errorf("%s: error %v, %+v", name, err, h.validRead(h.facts()))
				}
			}
			api.change() // a later version counts
			if err := h.read(t.Context(), step.ReadCommit); err != nil || h.validRead(h.facts()) == nil {
				t.Errorf("%s, and a later version: %v", name, err)
			}
		})
	}
}

// TestUnreadableSourceAtACommit checks that no commit follows if a source cannot be read, and that a turn that only gives
// the node back does not wait for that.
func TestUnreadableSourceAtACommit(t *testing.T) {
	for state, waits := range map[v1alpha1.State]bool{v1alpha1.StateRebooting: true, v1alpha1.StateBeforeUncordon: false} {
		synctest.Test(t, func(t *testing.T) {
			h, _, units := newMemoryHost(t, state)
			units.fails = errors.New("systemd does not answer")
			err := h.read(t.Context(), step.ReadCommit)
			if waits != (err != nil) || waits != (h.validRead(h.facts()) == nil) {
				t.Errorf("%s: %v, %+v", state, err, h.fresh)
			}
		})
	}
}

// enabledHooks plays systemd for a host on which someone has enabled hook units in every stage.
type enabledHooks struct{ *hookUnits }

func (enabledHooks) Wanted(context.Context, string) ([]string, error) {
	return []string{"a.service"}, nil
}

// TestSourcesAreReadBeforeACommit checks that the reads before a commit find what has changed since the last reads of the sources, and
// was not signaled.
func TestSourcesAreReadBeforeACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, units := newMemoryHost(t, v1alpha1.StateRebooting)
		h.watched.Watch([]string{"/etc/app.conf"}, nil, nil)
		must(t, h.watched.Refresh(t.Context()))
		h.hookUnits = effect.NewHookStages(enabledHooks{units}, h.wake)
		must(t, os.WriteFile(filepath.Join(h.Root, "etc/app.conf"), nil, 0o600))
		must(t, os.Remove(filepath.Join(h.Root, "etc/os-release"))) // the sentinel
		must(t, h.read(t.Context(), step.ReadCommit))
		changes := h.watched.Report().Changes
		stages, _ := h.hookUnits.Stages()
		present, _ := h.sentinels.Present()
		if len(changes) != 1 || len(stages) != 3 || len(present) != 0 {
			t.Errorf("changes %v, hook stages %v, sentinels %q; expected one change, three stages and no sentinel", changes, stages, present)
		}
	})
}

// TestHangingSourceAtACommit is TestUnreadableSourceAtACommit with a source that does not answer at all, and takes all of
// the time for the reads. The host then names the source, and not the API server, which has answered.
func TestHangingSourceAtACommit(t *testing.T) {
	for state, waits := range map[v1alpha1.State]bool{v1alpha1.StateRebooting: true, v1alpha1.StateBeforeUncordon: false} {
		synctest.Test(t, func(t *testing.T) {
			h, _, units := newMemoryHost(t, state)
			units.hangs = true
			err := h.read(t.Context(), step.ReadCommit)
			if waits != (err != nil) || waits != (h.validRead(h.facts()) == nil) {
				t.Errorf("%s: %v, %+v", state, err, h.fresh)
			}
			if _, own := errors.AsType[hostError](err); waits && !own {
				t.Errorf("%s: the API server is to blame: %v", state, err)
			}
		})
	}
}

// TestAgeOfARead checks that the age of a read counts from its first request, and that reads that last too long count for
// nothing.
func TestAgeOfARead(t *testing.T) {
	for what, requests := range map[step.Read]int{step.ReadCommit: 4, step.ReadEviction: 2} {
		synctest.Test(t, func(t *testing.T) {
			h, api, _ := newMemoryHost(t, v1alpha1.StateRebooting)
			api.delay = 8 * time.Second / time.Duration(requests)
			began := time.Now()
			must(t, h.read(t.Context(), what))
			time.Sleep(time.Until(began.Add(maxReadAge)) - 1)
			if !h.fresh.valid() || !h.fresh.until().Equal(began.Add(maxReadAge)) {
				t.Errorf("%d requests: invalid before 10 s are over", requests)
			}
			if time.Sleep(time.Nanosecond); h.fresh.valid() || h.validRead(h.facts()) != nil {
				t.Errorf("%d requests: still valid after 10 s", requests)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		h, api, _ := newMemoryHost(t, v1alpha1.StateRebooting)
		api.delay = 6 * time.Second
		for _, what := range []step.Read{step.ReadCommit, step.ReadEviction} {
			began := time.Now()
			h.fresh = &freshRead{began: began}
			if err := h.read(t.Context(), what); err == nil || time.Since(began) > maxReadAge || h.fresh != nil {
				t.Errorf("reads of 12 s and more ended after %v: %v, %+v", time.Since(began), err, h.fresh)
			}
		}
	})
}

// TestReadsAreCheckedLast checks that a read counts only if it is still valid after everything else was asked.
func TestReadsAreCheckedLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, api, _ := newMemoryHost(t, v1alpha1.StateIdle)
		h.Patience = time.Second
		h.observe(t.Context())
		time.Sleep(time.Second)
		h.fresh = &freshRead{began: time.Now().Add(-8 * time.Second)}
		api.since()
		api.delay = 4 * time.Second
		if o := h.observe(t.Context()); o.Fresh != nil || api.count("get lockkeeper") != 1 {
			t.Errorf("a read of 12 s counts: %+v, after %v", o.Fresh, api.requests)
		}
	})
}

// TestCommitByAnExpiredRead checks that a host whose process was stopped before its commit sends none, and starts nothing.
func TestCommitByAnExpiredRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, api, units := newMemoryHost(t, v1alpha1.StateBeforeReboot)
		must(t, h.read(t.Context(), step.ReadCommit))
		api.since()
		time.Sleep(maxReadAge)
		n := h.facts()
		ack := v1alpha1.Ack{Turn: "t1", BootID: bootID, State: n.State, Report: v1alpha1.ReportCommitted}
		must(t, h.write(t.Context(), n, &step.Write{Ack: ack}))
		o := step.Observation{Node: *n}
		for _, do := range []step.Effect{step.DoHooks, step.DoReboot, step.DoApply} {
			must(t, h.do(t.Context(), &o, do))
		}
		if got := api.since(); len(got) != 0 || !units.by.IsZero() || h.hooks.Work(effect.StageOf(n), "").Running {
			t.Errorf("it sent %q, and asked for hook units until %v", got, units.by)
		}
	})
}

// TestHooksStartByTheRead checks that hook units are asked for at most 10 s after the first read, and that the host stops
// them when it does anything else.
func TestHooksStartByTheRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, units := newMemoryHost(t, v1alpha1.StateBeforeReboot)
		began := time.Now()
		must(t, h.read(t.Context(), step.ReadCommit))
		time.Sleep(6 * time.Second)
		o := step.Observation{Node: *h.facts()}
		for range 2 { // first it looks for units of an earlier process
			must(t, h.do(t.Context(), &o, step.DoHooks))
			synctest.Wait()
		}
		if !units.by.Equal(began.Add(maxReadAge)) {
			t.Errorf("they are asked for until %v after the first read", units.by.Sub(began))
		}
		h.stopOthers(t.Context(), v1alpha1.StateBeforeDrain, step.DoHooks)
		if synctest.Wait(); units.stopped.Load() {
			t.Error("they are stopped although they are the effect of the decision")
		}
		h.stopOthers(t.Context(), v1alpha1.StateBeforeDrain, step.DoNothing)
		if h.hooks.Wait(); !units.stopped.Load() {
			t.Error("they are not stopped")
		}
	})
}

// TestHookUnitsHaveTheirTime checks that hook units get the time of the host's file, and that it depends on the file whether they are
// stopped after it.
func TestHookUnitsHaveTheirTime(t *testing.T) {
	for _, abort := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			h, _, units := newMemoryHost(t, v1alpha1.StateBeforeReboot)
			h.Reload(Settings{Sentinels: []string{"/etc/os-release"}, ManagedByDefault: true, HookTimeout: 5 * time.Minute, HookAbort: abort})
			must(t, h.read(t.Context(), step.ReadCommit))
			o := step.Observation{Node: *h.facts()}
			for range 2 { // first it looks for units of an earlier process
				must(t, h.do(t.Context(), &o, step.DoHooks))
				synctest.Wait()
			}
			for _, c := range []struct {
				after time.Duration
				ended bool
			}{{5*time.Minute - 1, false}, {1, abort}} {
				time.Sleep(c.after)
				synctest.Wait()
				if w := h.hooks.Work(effect.StageOf(h.facts()), ""); (w.Failed != "") != c.ended || w.Running == c.ended || units.stopped.Load() != c.ended {
					t.Errorf("abort %t, %v later: %+v, stopped %t; expected that they have ended: %t", abort, c.after, w, units.stopped.Load(), c.ended)
				}
			}
			h.stopOthers(t.Context(), v1alpha1.StateBeforeDrain, step.DoNothing)
			h.hooks.Wait()
		})
	}
}

// failingHooks plays systemd for hook units that fail at once.
type failingHooks struct{ *hookUnits }

func (failingHooks) RunTarget(context.Context, string, time.Time, func([]systemd.UnitState)) ([]systemd.UnitState, error) {
	return []systemd.UnitState{{Unit: "a.service", Failed: "exit-code, status 1"}}, nil
}

// TestRetryRunsHookUnitsOnce checks that an admin's retry has failed hook units run once more at once, and not again and again.
func TestRetryRunsHookUnitsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, api, units := newMemoryHost(t, v1alpha1.StateBeforeUncordon)
		h.hooks = effect.NewHooks(failingHooks{units}, h.log, h.wake)
		o := h.observe(t.Context())
		run := func() {
			t.Helper()
			must(t, h.read(t.Context(), step.ReadCommit))
			must(t, h.do(t.Context(), &o, step.DoHooks))
			h.hooks.Wait()
			o = h.observe(t.Context())
		}
		run() // it looks for units of an earlier process
		run()
		if o.Hooks.Failed == "" || o.Hooks.Due {
			t.Errorf("they failed, and there is no retry: %+v", o.Hooks)
		}
		api.node.Annotations[v1alpha1.AnnotationRetry] = "t1"
		api.change()
		must(t, h.view.Load(t.Context()))
		if o = h.observe(t.Context()); !o.Hooks.Due {
			t.Errorf("a retry: %+v", o.Hooks)
		}
		if run(); o.Hooks.Failed == "" || o.Hooks.Due {
			t.Errorf("they failed again: %+v", o.Hooks)
		}
	})
}

// TestWriteWithoutAnOutcome checks what a host knows after a write: nothing that it read before counts after an unknown
// outcome, a conflict or a refusal, and its drain stops when it cannot see an emergency stop.
func TestWriteWithoutAnOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		set    func(api *memoryAPI)
		keeps  bool // the read
		drains bool
		fails  bool
	}{
		"written":  {func(*memoryAPI) {}, true, true, false},
		"unknown":  {func(api *memoryAPI) { api.fails["patch n1"] = 0 }, false, false, true},
		"conflict": {func(api *memoryAPI) { api.change() }, false, true, false},
		"refused":  {func(api *memoryAPI) { api.fails["patch n1"] = 422 }, false, true, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			h, api, _ := newMemoryHost(t, v1alpha1.StateDraining)
			must(t, h.read(t.Context(), step.ReadCommit))
			evicts(t, h)
			c.set(api)
			ack := v1alpha1.Ack{Turn: "t1", BootID: bootID, State: v1alpha1.StateDraining, Report: v1alpha1.ReportCommitted}
			err := h.write(t.Context(), h.facts(), &step.Write{Ack: ack, Annotations: map[string]*string{v1alpha1.AnnotationAck: new(ack.String())}})
			if keeps := h.validRead(h.facts()) != nil; keeps != c.keeps || evicting(h) != c.drains || c.fails != (err != nil) {
				t.Errorf("%s: %v; the read is valid: %t, the drain runs: %t", name, err, keeps, evicting(h))
			}
			if h.facts().ResourceVersion != api.node.ResourceVersion && err == nil {
				t.Errorf("%s: the host knows version %s of its Node, %s is the present one", name, h.facts().ResourceVersion, api.node.ResourceVersion)
			}
		})
	}
}

// TestRebootThatIsNotAnswered checks that the host reads again before it asks logind for a reboot a second time.
func TestRebootThatIsNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, _ := newMemoryHost(t, v1alpha1.StateRebooting)
		h.reboot = effect.NewReboot(silentLogind{}, h.shutdown, bootID, h.log, h.wake)
		must(t, h.read(t.Context(), step.ReadCommit))
		o := step.Observation{Node: *h.facts()}
		if err := h.do(t.Context(), &o, step.DoReboot); err == nil || h.fresh.valid() {
			t.Errorf("%v; the reads before the call are valid: %t", err, h.fresh.valid())
		}
	})
}

// TestRefusalWithoutAnOutcome checks that a host keeps to a refusal whose write had no answer, because it may land at any time, until
// its Node has another version.
func TestRefusalWithoutAnOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, api, _ := newMemoryHost(t, v1alpha1.StateDraining)
		ack := v1alpha1.Ack{Turn: "t1", BootID: bootID, State: v1alpha1.StateDraining, Report: v1alpha1.ReportRefused, Reason: v1alpha1.ReasonUncordoned}
		unsettled := func(what string, want v1alpha1.Ack) {
			t.Helper()
			if o := h.observe(t.Context()); o.UnsettledRefusal != want {
				t.Errorf("%s: %q, expected %q", what, o.UnsettledRefusal, want)
			}
		}
		unsettled("before it", v1alpha1.Ack{})
		api.fails["patch n1"] = 0
		w := &step.Write{Ack: ack, Annotations: map[string]*string{v1alpha1.AnnotationAck: new(ack.String())}}
		if err := h.write(t.Context(), h.facts(), w); err == nil {
			t.Error("no error of a write without an answer")
		}
		unsettled("without an answer", ack)
		api.change()
		must(t, h.view.Load(t.Context()))
		unsettled("after another write", v1alpha1.Ack{})
	})
}

// TestDrainStopsBeforeARefusal checks that no pod is evicted any more when the host reports that it refuses.
func TestDrainStopsBeforeARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, api, _ := newMemoryHost(t, v1alpha1.StateDraining)
		evicts(t, h)
		api.node.Spec.Unschedulable = false // a user uncordoned it
		api.change()
		must(t, h.view.Load(t.Context()))
		ran := true
		api.called = func(request string) {
			if request == "patch n1" {
				ran = evicting(h)
			}
		}
		_, err := h.round(t.Context())
		if must(t, err); ran || !h.facts().HasReport(v1alpha1.ReportRefused) {
			t.Errorf("the drain ran during the refusal: %t; the ack is %+v", ran, h.facts().Ack)
		}
	})
}

// TestDrainNeedsTheLease checks that a drain ends when the Lease cannot be read, because the host cannot see an emergency
// stop then.
func TestDrainNeedsTheLease(t *testing.T) {
	for code, drains := range map[int]bool{500: false, 200: true} {
		synctest.Test(t, func(t *testing.T) {
			h, api, _ := newMemoryHost(t, v1alpha1.StateDraining)
			evicts(t, h)
			if code != 200 {
				api.fails["get lockkeeper"] = code
			}
			_, err := h.round(t.Context())
			if api.count("get lockkeeper") != 1 || drains != (err == nil) || evicting(h) != drains {
				t.Errorf("%d: %v; the drain runs: %t", code, err, evicting(h))
			}
		})
	}
}

// TestFailingLoop checks that a loop whose requests fail makes at most one attempt each second, however often it is woken.
func TestFailingLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, api, _ := newMemoryHost(t, v1alpha1.StateDraining)
		delete(api.node.Annotations, v1alpha1.AnnotationCordon)
		delete(api.node.Annotations, v1alpha1.AnnotationAck)
		api.node.Spec.Unschedulable = false
		api.change()
		must(t, h.view.Load(t.Context()))
		api.fails["patch n1"] = 500
		ctx, cancel := context.WithCancel(t.Context())
		var looping sync.WaitGroup
		defer looping.Wait()
		defer cancel()
		looping.Go(func() { _ = h.loop(ctx) })
		for range 1000 {
			time.Sleep(10 * time.Millisecond)
			h.wake()
		}
		if n := api.count("patch n1"); n < 3 || n > 11 {
			t.Errorf("%d attempts in 10 s", n)
		}
	})
}

// TestShutdownThatIsCanceled checks that a shutdown that logind cancels is not under way any more, and that the process is told: a host
// that shuts down does not campaign.
func TestShutdownThatIsCanceled(t *testing.T) {
	h, _ := newTestHost(t, v1alpha1.StateIdle)
	told := false
	h.ShutdownChanged = func(active bool) { told = active }
	for _, c := range []struct {
		active bool
		want   step.Shutdown
	}{{true, step.ShutdownUnderway}, {false, step.ShutdownNone}} {
		if h.shutdownChanged(c.active); h.shutdown.State() != c.want || told != c.active {
			t.Errorf("active %t: state %v, want %v; told %t", c.active, h.shutdown.State(), c.want, told)
		}
	}
}

// TestHealthBeforeTheKubeletReports checks that a host in a new boot looks at its health, and not at what blocks a reboot, while its Node
// still shows the boot before: its kubelet may never report, and then the turn has to fail.
func TestHealthBeforeTheKubeletReports(t *testing.T) {
	h, api, _ := newMemoryHost(t, v1alpha1.StateRebooting)
	api.node.Status.NodeInfo.BootID = "before"
	api.node.Annotations[v1alpha1.AnnotationGrant] = v1alpha1.FormatRecord(v1alpha1.Grant{
		Turn: "t1", Epoch: "e1", NodeUID: "uid", BootID: "before", Wants: v1alpha1.WantsReboot, Drains: true, StartedAt: time.Now(), StageAt: time.Now(),
	})
	api.change()
	must(t, h.view.Load(t.Context()))
	bus := &systemd.Bus{Address: "unix:path=" + t.TempDir() + "/none"}
	h.Logind.Bus, h.Units.Bus = bus, bus
	h.Reload(Settings{Sentinels: []string{"/etc/os-release"}, ManagedByDefault: true, HealthTimeout: time.Minute}) // it is up for an hour
	if o := h.observe(t.Context()); o.Blocked != "" || o.Health.Healthy || !o.Health.Overdue {
		t.Errorf("blocked by %q, health %+v; expected an unhealthy host whose time is over", o.Blocked, o.Health)
	}
}

// TestLogindThatDoesNotAnswer checks that a host whose logind does not list inhibitors or sessions does not reboot, and
// that what it read before does not count when the wait is over.
func TestLogindThatDoesNotAnswer(t *testing.T) {
	h, _, _ := newMemoryHost(t, v1alpha1.StateRebooting)
	h.Logind.Bus = &systemd.Bus{Address: "unix:path=" + t.TempDir() + "/none"}
	must(t, h.read(t.Context(), step.ReadCommit))
	o := h.observe(t.Context())
	if o.Blocked != v1alpha1.ReasonInhibited || o.Fresh == nil || o.Fresh.Commit {
		t.Errorf("blocked by %q; fresh %+v", o.Blocked, o.Fresh)
	}
	if reason, _ := h.waitForSessions(t.Context(), "t1", time.Minute); reason != v1alpha1.ReasonSessions {
		t.Errorf("sessions: %q", reason)
	}
}

// TestLeaseByTheServersClock checks that a host notices that no instance renews the Lease, also if its clock is behind, and not before
// the Lease has ended.
func TestLeaseByTheServersClock(t *testing.T) {
	for _, c := range []struct {
		ahead   time.Duration // the server's clock
		renewed time.Duration // when the Lease was renewed, from now on
		lasts   time.Duration // the Lease, after that
		none    bool          // no instance leads
	}{
		{0, 5 * time.Minute, 30 * time.Second, false},
		{10 * time.Minute, 5 * time.Minute, 30 * time.Second, true},
		{0, -2 * time.Minute, 30 * time.Second, true},
		{0, -2 * time.Minute, 5 * time.Minute, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			h, api, _ := newMemoryHost(t, v1alpha1.StateIdle)
			h.Patience, api.ahead = time.Second, c.ahead
			renewed := metav1.NewMicroTime(time.Now().Add(c.renewed))
			api.lease.Spec.RenewTime, api.lease.Spec.LeaseDurationSeconds = &renewed, new(int32(c.lasts/time.Second))
			for range 3 {
				h.observe(t.Context())
				time.Sleep(20 * time.Second)
			}
			if o := h.observe(t.Context()); (o.NoLeader != "") != c.none {
				t.Errorf("%+v: %q, %s", c, o.NoLeader, o.NoLeaderDetail)
			}
		})
	}
}

// TestRequestThatHangs checks that a request outside of a turn that gets no answer does not hold the loop. The watchdog would end the
// process, again and again.
func TestRequestThatHangs(t *testing.T) {
	for _, request := range []string{"list cached pods", "get lockkeeper"} {
		synctest.Test(t, func(t *testing.T) {
			h, api, _ := newMemoryHost(t, v1alpha1.StateIdle)
			h.Patience, api.hangs = time.Second, request
			ctx, cancel := context.WithTimeout(t.Context(), loopBound)
			defer cancel()
			for range 2 {
				began := time.Now()
				h.observe(ctx)
				if took := time.Since(began); took > kube.Timeout {
					t.Errorf("%s: the loop waited for %v", request, took)
				}
				time.Sleep(time.Second)
			}
			if n := api.count(request); n != 1 {
				t.Errorf("%s: %d requests, expected one", request, n)
			}
		})
	}
}

// TestHostThatWaitsIsAlive checks that the watchdog does not end a host that waits for the API server: before it knows its name, and
// before it has read its Node.
func TestHostThatWaitsIsAlive(t *testing.T) {
	for what, wait := range map[string]func(*Host, context.Context) error{"its name": (*Host).findNode, "its Node": (*Host).loop} {
		synctest.Test(t, func(t *testing.T) {
			h, _, _ := newMemoryHost(t, v1alpha1.StateIdle)
			h.view = kube.WatchNode(h.client, "n1", h.wake) // it has listed nothing yet
			h.beat = h.Liveness.Beat("node", loopBound)
			ctx, cancel := context.WithCancel(t.Context())
			var waiting sync.WaitGroup
			defer waiting.Wait()
			defer cancel()
			waiting.Go(func() { _ = wait(h, ctx) })
			for range 10 {
				time.Sleep(time.Minute)
				if late := h.Liveness.Late(); len(late) > 0 {
					t.Errorf("it waits for %s, and is late: %q", what, late)
				}
			}
		})
	}
}

// TestNodeThatIsGone checks that a deleted Node leaves the host's view as soon as a write of the host shows that.
func TestNodeThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, api, _ := newMemoryHost(t, v1alpha1.StateIdle)
		api.gone = true
		must(t, h.write(t.Context(), h.facts(), &step.Write{Labels: map[string]*string{v1alpha1.LabelWants: new("reboot")}}))
		if n := h.facts(); n != nil {
			t.Errorf("the host still sees version %s", n.ResourceVersion)
		}
	})
}

// TestHealthWithoutSystemd checks that a boot does not count as complete while systemd is not on the bus, nor a unit as active
// while systemd does not report on it.
func TestHealthWithoutSystemd(t *testing.T) {
	dir, err := os.MkdirTemp("", "bus") // t.TempDir can be too long for a socket's name
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	config := `<busconfig><type>system</type><listen>unix:path=` + dir + `/bus</listen><auth>EXTERNAL</auth><policy context="default">` +
		`<allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/></policy></busconfig>`
	must(t, os.WriteFile(dir+"/conf", []byte(config), 0o600))
	daemon := exec.CommandContext(t.Context(), "dbus-daemon", "--config-file="+dir+"/conf", "--nofork", "--nopidfile", "--nosyslog")
	must(t, daemon.Start())
	t.Cleanup(func() { _ = daemon.Wait() })
	h, _ := newTestHost(t, v1alpha1.StateRebooting)
	h.Units.Bus = &systemd.Bus{Address: "unix:path=" + dir + "/bus"}
	until(t, "the bus", func() bool {
		_, err := h.Units.BootIncomplete(t.Context())
		return err == nil || errors.Is(err, systemd.ErrAbsent)
	})
	if got := h.unhealthy(t.Context(), nil); !strings.Contains(got, "systemd does not say whether the boot is complete") {
		t.Errorf("without systemd: %q", got)
	}
	conn, err := dbus.Connect(h.Units.Bus.Address)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	must(t, conn.Export(bootedSystemd{}, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"))
	must(t, conn.Export(bootedSystemd{}, "/boot", "org.freedesktop.DBus.Properties"))
	_, err = conn.RequestName("org.freedesktop.systemd1", 0)
	must(t, err)
	if got := h.unhealthy(t.Context(), nil); got != "" {
		t.Errorf("after the boot: %q", got)
	}
	if got := h.unhealthy(t.Context(), []string{"a.service"}); !strings.Contains(got, "systemd does not say whether a.service is active") {
		t.Errorf("with a unit: %q", got)
	}
}

// bootedSystemd plays a systemd that has completed the boot, and answers for no other unit than boot-complete.target.
type bootedSystemd struct{}

func (bootedSystemd) LoadUnit(name string) (dbus.ObjectPath, *dbus.Error) {
	if name != "boot-complete.target" {
		return "/", dbus.MakeFailedError(errors.New("no answer"))
	}
	return "/boot", nil
}

func (bootedSystemd) GetAll(string) (map[string]dbus.Variant, *dbus.Error) {
	return map[string]dbus.Variant{
		"Id": dbus.MakeVariant("boot-complete.target"), "LoadState": dbus.MakeVariant("loaded"), "ActiveState": dbus.MakeVariant("active"),
	}, nil
}

// failingEngine plays an update engine whose answers are errors.
type failingEngine struct {
	updateengine.Object
	err error
}

func (f *failingEngine) Call(context.Context, string, ...any) ([]any, error) {
	if f.err != nil {
		return nil, f.err
	}
	return []any{int64(0), 0.0, "UPDATE_STATUS_IDLE", "", int64(0)}, nil
}

// TestNoTurnWithoutTheReadsOfACommit checks that a host has a veto while the reads before a commit fail for long, so that it
// is granted no turn that it cannot carry out. A sentinel carries its plan.
func TestNoTurnWithoutTheReadsOfACommit(t *testing.T) {
	for name, c := range map[string]struct {
		engine, systemd error
		sentinel        bool // whether one cannot be read
		commits, turn   bool // whether it commits, and whether it takes a turn in the end
	}{
		"all answer":                       {commits: true, turn: true},
		"update_engine does not run":       {engine: dbus.Error{Name: "org.freedesktop.DBus.Error.NameHasNoOwner"}, commits: true, turn: true},
		"update_engine does not answer":    {engine: errors.New("no answer")},
		"update_engine answers with error": {engine: dbus.Error{Name: "org.freedesktop.DBus.Error.AccessDenied"}},
		"systemd does not answer":          {systemd: errors.New("no answer")},
		"a sentinel cannot be read":        {sentinel: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			h, api, units := newMemoryHost(t, v1alpha1.StateDraining)
			api.node.Annotations[v1alpha1.AnnotationHost] = v1alpha1.FormatRecord(v1alpha1.Host{
				NodeUID: "uid", BootID: bootID, Protocol: v1alpha1.Protocol, Managed: true,
			})
			api.change()
			must(t, h.view.Load(t.Context()))
			object := &failingEngine{err: c.engine}
			engine := updateengine.New(updateengine.Options{Object: object})
			h.engine = source.NewEngine(engine, h.Units)
			units.fails = c.systemd
			loop := filepath.Join(h.Root, "loop")
			if h.sentinels.SetPaths([]string{"/etc/os-release", "/loop/a"}); c.sentinel {
				must(t, os.Symlink("loop", loop)) // it leads to itself
			}
			// read does what the polls do, and observes.
			read := func() step.Observation {
				_, _ = engine.Read(t.Context())
				_ = h.managers.Read(t.Context())
				_ = h.sentinels.Read()
				return h.observe(t.Context())
			}
			if o := read(); o.Veto != "" {
				t.Errorf("%s, once: veto %q (%s)", name, o.Veto, o.VetoDetail)
			}
			time.Sleep(9 * time.Second)
			if o := read(); o.Veto != "" {
				t.Errorf("%s, for 9 s: veto %q (%s)", name, o.Veto, o.VetoDetail)
			}
			time.Sleep(time.Second)
			o := read()
			if err := h.read(t.Context(), step.ReadCommit); (err == nil) != c.commits {
				t.Errorf("%s: the reads before the commit: %v", name, err)
			}
			if turn := o.Veto == ""; turn != c.turn || !turn && o.Veto != v1alpha1.ReasonSourceUnreadable {
				t.Errorf("%s, for 10 s: veto %q (%s)", name, o.Veto, o.VetoDetail)
			}
			object.err, units.fails = nil, nil
			must(t, os.RemoveAll(loop))
			if o := read(); o.Veto != "" {
				t.Errorf("%s, and then all answer: veto %q (%s)", name, o.Veto, o.VetoDetail)
			}
		})
	}
}
