package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/effect"
	"lockkeeper.dev/lockkeeper/node/source"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/policy"
	"lockkeeper.dev/lockkeeper/updateengine"
)

// applyUnits plays systemd for a plan with one step. restart is called during that step.
type applyUnits struct{ restart func() }

func (u applyUnits) Restart(context.Context, string, time.Time) (string, error) {
	u.restart()
	return "", nil
}
func (applyUnits) DaemonReload(context.Context, time.Time) error { return errors.New("not asked for") }
func (applyUnits) Reload(context.Context, string, time.Time) (string, error) {
	return "", errors.New("not asked for")
}
func (applyUnits) Own(context.Context) ([]string, string, error)      { return nil, "own", nil }
func (applyUnits) Invocation(context.Context, string) (string, error) { return "run", nil }
func (applyUnits) ActiveState(context.Context, string) (string, bool, error) {
	return "active", true, nil
}
func (applyUnits) Names(context.Context, string) ([]string, error) { return nil, nil }

// watchedFuncs is a fake of the watched files and units.
type watchedFuncs struct{ see func(what string) }

func (w watchedFuncs) MarkBegun([]v1alpha1.Change) error   { return nil }
func (w watchedFuncs) MarkApplied([]v1alpha1.Change) error { w.see("applied"); return nil }
func (w watchedFuncs) WaitSettled(context.Context, []v1alpha1.Change) error {
	w.see("settled")
	return nil
}

var (
	inApplying = effect.Stage{Turn: "t1", State: v1alpha1.StateApplying}
	done       = step.Work{Done: true}
)

func fileChange(name, version string) v1alpha1.Change {
	return v1alpha1.Change{Source: v1alpha1.SourceFile, Name: name, Version: version}
}

// newApplyingHost returns a host in applying that has not started to apply. see is called at each step of the apply.
func newApplyingHost(t *testing.T, see func(h *Host, what string)) *Host {
	t.Helper()
	h, _ := newTestHost(t, v1alpha1.StateApplying)
	h.apply = effect.NewApply(applyUnits{func() { see(h, "step") }}, watchedFuncs{func(what string) { see(h, what) }}, t.TempDir(), h.self.bootID, h.log, h.wake)
	return h
}

func applies(t *testing.T, h *Host, changes ...v1alpha1.Change) {
	t.Helper()
	p := effect.ApplyPlan{Changes: changes, Steps: []v1alpha1.Action{{Type: v1alpha1.ActionRestart, Unit: "b.service"}}}
	h.apply.Start(t.Context(), inApplying, p, time.Now().Add(time.Minute))
	h.apply.Wait()
	if w := h.apply.Work(inApplying); w != done {
		t.Fatalf("%+v", w)
	}
}

// TestApplyUnreadAfterwards checks that a change that could be read when the steps were done, but cannot be read now,
// is neither done nor failed.
func TestApplyUnreadAfterwards(t *testing.T) {
	h := newApplyingHost(t, func(*Host, string) {})
	must(t, os.MkdirAll(filepath.Join(h.Root, "etc"), 0o755))
	must(t, os.Symlink("loop", filepath.Join(h.Root, "etc/loop")))
	applies(t, h)
	for path, want := range map[string]step.Work{
		"/etc/a": done, "no/path": done, "/etc/loop/a": {Running: true, Detail: "the check whether what it applied has changed again, which cannot be read"},
	} {
		h.watched.Watch([]string{path}, nil, nil)
		if err := h.watched.Refresh(t.Context()); (err == nil) != (path == "/etc/a") {
			t.Errorf("%s: %v", path, err)
		}
		o := step.Observation{Node: *h.facts(), Apply: done, Sources: step.Sources{Complete: true}}
		o.Node.Grant = &v1alpha1.Grant{Changes: []v1alpha1.Change{fileChange("/etc/a", "1"), fileChange("/etc/loop/a", "1")}}
		if h.observeApply(t.Context(), &o); o.Apply != want {
			t.Errorf("%s: %+v, expected %+v", path, o.Apply, want)
		}
	}
}

// TestApplyEndedIsNotJudged checks that a change that appears after the host has reported the end of the stage, while
// the coordinator is down, belongs to the next turn and does not fail this one.
func TestApplyEndedIsNotJudged(t *testing.T) {
	a1, a2 := fileChange("/etc/a", "1"), fileChange("/etc/a", "2")
	for report, judged := range map[v1alpha1.Report]bool{v1alpha1.ReportCommitted: true, v1alpha1.ReportDone: false, v1alpha1.ReportFailed: false} {
		h := newApplyingHost(t, func(*Host, string) {})
		applies(t, h, a1)
		o := step.Observation{Node: *h.facts(), Apply: done, Sources: step.Sources{Complete: true, Changes: []v1alpha1.Change{a2}}}
		o.Node.Grant = &v1alpha1.Grant{Changes: []v1alpha1.Change{a1}}
		o.Node.Ack = v1alpha1.Ack{Turn: "t1", BootID: h.self.bootID, State: v1alpha1.StateApplying, Report: report}
		if h.observeApply(t.Context(), &o); (o.Apply.ChangedAgain != "") != judged || !o.Apply.Done {
			t.Errorf("%s: %+v", report, o.Apply)
		}
	}
}

// twoSteps plays systemd for a plan with two steps. The first one closes begun, and ends when wait is closed.
type twoSteps struct {
	applyUnits
	begun, wait chan struct{}
	restarts    *[]string
}

func (u twoSteps) Restart(ctx context.Context, unit string, _ time.Time) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if *u.restarts = append(*u.restarts, unit); len(*u.restarts) == 1 {
		close(u.begun)
		<-u.wait
	}
	return "", nil
}

// TestApplyEndsWithItsStage checks that the host begins no other step of a plan when its Node is in another state, as after an admin's
// retry: pods may be back by then.
func TestApplyEndsWithItsStage(t *testing.T) {
	for state, want := range map[v1alpha1.State]int{v1alpha1.StateApplying: 2, v1alpha1.StateBeforeUncordon: 1} {
		h := newApplyingHost(t, func(*Host, string) {})
		h.policies = kube.WatchPolicies(h.client, policy.Compile, h.wake)
		u := twoSteps{begun: make(chan struct{}), wait: make(chan struct{}), restarts: new([]string)}
		h.apply = effect.NewApply(u, watchedFuncs{func(string) {}}, t.TempDir(), h.self.bootID, h.log, h.wake)
		p := effect.ApplyPlan{Steps: []v1alpha1.Action{{Type: v1alpha1.ActionRestart, Unit: "b.service"}, {Type: v1alpha1.ActionRestart, Unit: "c.service"}}}
		h.apply.Start(t.Context(), inApplying, p, time.Now().Add(time.Minute))
		<-u.begun
		n := h.view.Get("n1").DeepCopy()
		n.ResourceVersion, n.Labels[v1alpha1.LabelState] = "11", string(state)
		h.view.Overlay(n)
		h.observe(t.Context())
		close(u.wait)
		if h.apply.Wait(); len(*u.restarts) != want {
			t.Errorf("in %s: restarted %q, expected %d units", state, *u.restarts, want)
		}
	}
}

// TestApplyEndsASentinel checks that a sentinel that the plan's unit removed is gone when the apply is done, also if no inotify
// event and no poll has shown that yet.
func TestApplyEndsASentinel(t *testing.T) {
	h, _ := newTestHost(t, v1alpha1.StateApplying)
	path := filepath.Join(h.Root, "run/restart-b")
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, nil, 0o644))
	h.apply = effect.NewApply(applyUnits{func() { must(t, os.Remove(path)) }}, sources{h.watched, h.sentinels}, t.TempDir(), h.self.bootID, h.log, h.wake)
	h.sentinels.SetPaths([]string{"/run/restart-b"})
	must(t, h.sentinels.Read())
	if present, _ := h.sentinels.Present(); len(present) != 1 {
		t.Fatalf("before the apply: %q", present)
	}
	applies(t, h, v1alpha1.Change{Source: v1alpha1.SourceSentinel, Name: "/run/restart-b"})
	if present, _ := h.sentinels.Present(); len(present) != 0 {
		t.Errorf("after the apply: %q", present)
	}
}

// noEngine is an update engine that does not run.
type noEngine struct{ updateengine.Object }

func (noEngine) Call(context.Context, string, ...any) ([]any, error) {
	return nil, dbus.Error{Name: "org.freedesktop.DBus.Error.NameHasNoOwner"}
}

// goneFunc is systemd, which the source asks about the engine's unit.
type goneFunc func()

func (f goneFunc) Gone(context.Context, string) (bool, error) { f(); return false, nil }

// TestApplyEndsDuringAnObservation checks that an apply that ends while the host reads its sources counts as running: what was read
// before its end may still report the changes that it applied.
func TestApplyEndsDuringAnObservation(t *testing.T) {
	end := make(chan struct{})
	h := newApplyingHost(t, func(_ *Host, what string) {
		if what == "step" {
			<-end
		}
	})
	h.policies = kube.WatchPolicies(h.client, policy.Compile, h.wake)
	engine := updateengine.New(updateengine.Options{Object: noEngine{}})
	if r, err := engine.Read(t.Context()); r.Presence != updateengine.Absent {
		t.Fatalf("%+v, %v", r, err)
	}
	asked := false
	h.engine = source.NewEngine(engine, goneFunc(func() {
		if !asked {
			close(end)
		}
		asked = true
		h.apply.Wait()
	}))
	staged := []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "2"}}
	n := h.view.Get("n1").DeepCopy()
	n.ResourceVersion = "11"
	n.Annotations[v1alpha1.AnnotationHost] = v1alpha1.FormatRecord(v1alpha1.Host{
		Protocol: v1alpha1.Protocol, Version: "v1", NodeUID: "uid", BootID: h.self.bootID, Managed: true, Changes: staged,
	})
	h.view.Overlay(n)
	h.apply.Start(t.Context(), inApplying, effect.ApplyPlan{Steps: []v1alpha1.Action{{Type: v1alpha1.ActionRestart, Unit: "b.service"}}}, time.Now().Add(time.Minute))

	for _, running := range []bool{true, false} {
		if o := h.observe(t.Context()); !asked || o.Apply.Running != running || o.Apply.Done == running {
			t.Errorf("the sources were read: %t, and the apply is %+v; expected that it runs: %t", asked, o.Apply, running)
		}
	}
}
