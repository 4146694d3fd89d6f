package memhost

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/systemd"
)

const target = "lockkeeper-before-reboot.target"

func runTarget(w *world, by time.Duration) ([]systemd.UnitState, error) {
	return w.units.RunTarget(w.t.Context(), target, time.Now().Add(by), func([]systemd.UnitState) {})
}

// TestRunTarget runs hook units with the real client: one that succeeds, one that fails, one that is skipped.
func TestRunTarget(t *testing.T) {
	play(t, Options{}, func(t *testing.T, w *world) {
		var ended []Run
		w.Units().Set(target, Unit{Wants: []string{"a.service", "b.service", "c.service", "masked.service", "gone.service"}})
		w.Units().Set("a.service", Unit{StartTakes: time.Minute, RemainAfterExit: true, Ended: func(r Run) { ended = append(ended, r) }})
		w.Units().Set("b.service", Unit{StartTakes: 2 * time.Minute, Result: "exit-code"})
		w.Units().Set("c.service", Unit{Unmet: true})
		w.Units().Set("masked.service", Unit{Load: "masked"})
		want := []systemd.UnitState{{Unit: "a.service"}, {Unit: "b.service", Failed: "exit-code, status 1"}, {Unit: "c.service", Skipped: true}}
		for turn := range 2 {
			began := time.Now()
			states, err := runTarget(w, time.Minute)
			if err != nil || !slices.Equal(states, want) {
				t.Fatalf("turn %d: %+v, %v", turn, states, err)
			}
			if d := time.Since(began); d < 2*time.Minute || d > 2*time.Minute+3*time.Second {
				t.Errorf("the units took %v", d)
			}
			if a := w.Units().ActiveState("a.service"); a != "inactive" {
				t.Errorf("a.service is %s after its run", a)
			}
		}
		var names []string
		invocations := map[string]bool{}
		for _, r := range w.Units().Runs() {
			names = append(names, r.Unit+" "+r.Result)
			invocations[r.Invocation] = r.BootID == w.BootID()
		}
		if !slices.Equal(names, []string{"a.service success", "b.service exit-code", "a.service success", "b.service exit-code"}) || len(invocations) != 4 {
			t.Errorf("runs %v, invocations %v", names, invocations)
		}
		if len(ended) != 2 || ended[1].Ended.Sub(ended[1].Began) != time.Minute || ended[0].Invocation == ended[1].Invocation {
			t.Errorf("ended runs %+v", ended)
		}
	})
}

// TestRequired checks that a target is not active if a unit that it requires has failed.
func TestRequired(t *testing.T) {
	play(t, Options{}, func(t *testing.T, w *world) {
		w.Units().Set("x.target", Unit{Wants: []string{"a.service"}})
		w.Units().Set("y.target", Unit{Requires: []string{"a.service"}})
		w.Units().Set("a.service", Unit{Result: "exit-code"})
		for name, want := range map[string]string{"x.target": "active", "y.target": "inactive"} {
			if _, err := w.Units().request("StartUnit", name); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if got := w.Units().ActiveState(name); got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
	})
}

// TestHangingUnit stops a target while a unit hangs, and crashes a host in a run.
func TestHangingUnit(t *testing.T) {
	play(t, Options{}, func(t *testing.T, w *world) {
		w.Units().Set(target, Unit{Requires: []string{"a.service"}})
		w.Units().Set("a.service", Unit{Hangs: true, StopTakes: 20 * time.Second})
		result := make(chan error, 1)
		go func() {
			_, err := runTarget(w, time.Minute)
			result <- err
		}()
		time.Sleep(10 * time.Minute)
		if a := w.Units().ActiveState("a.service"); a != "activating" || len(result) > 0 {
			t.Errorf("a.service is %s, %d results", a, len(result))
		}
		began := time.Now()
		must(t, w.units.StopTarget(t.Context(), target))
		if d := time.Since(began); d < 20*time.Second || d > 22*time.Second {
			t.Errorf("the stop took %v", d)
		}
		if a := w.Units().ActiveState("a.service"); a != "failed" { // as seen with the real systemd
			t.Errorf("a.service is %s after the stop of its start", a)
		}
		<-result
		go func() {
			_, err := runTarget(w, time.Minute)
			result <- err
		}()
		time.Sleep(time.Minute)
		w.Crash()
		must(t, w.Boot())
		<-result // this process did not notice that the host crashed, and finds the unit inactive
		runs := w.Units().Runs()
		if len(runs) < 2 || runs[0].Result != "stopped" || runs[1].Result != "power-loss" {
			t.Errorf("runs %+v", runs)
		}
	})
}

func TestManage(t *testing.T) {
	play(t, Options{}, func(t *testing.T, w *world) {
		by := func() time.Time { return time.Now().Add(time.Minute) }
		w.Units().Set("app.service", Unit{Type: "notify", Active: "active", StartTakes: time.Minute, StopTakes: time.Second, ReloadTakes: time.Second})
		before, err := w.units.Invocation(t.Context(), "app.service")
		must(t, err)
		began := time.Now()
		left, err := w.units.Restart(t.Context(), "app.service", by())
		after, err2 := w.units.Invocation(t.Context(), "app.service")
		if d := time.Since(began); left != "" || errors.Join(err, err2) != nil || before == after || before == "" || d < time.Minute+time.Second {
			t.Errorf("restart: left %q, %v, invocations %s and %s, %v", left, err, before, after, d)
		}
		if left, err := w.units.Reload(t.Context(), "app.service", by()); left != "" || err != nil {
			t.Errorf("reload: %q, %v", left, err)
		}
		w.Units().Set("app.service", Unit{Type: "notify", Result: "exit-code", ReloadResult: "exit-code"})
		if _, err := w.units.Reload(t.Context(), "app.service", by()); err == nil || !strings.Contains(err.Error(), "reload of app.service failed (exit-code)") {
			t.Errorf("a reload that fails: %v", err)
		}
		if _, err := w.units.Restart(t.Context(), "app.service", by()); err == nil || !strings.Contains(err.Error(), "failed (exit-code, status 1)") {
			t.Errorf("a start that fails: %v", err)
		}
		w.Units().Set("app.service", Unit{Type: "notify", Hangs: true})
		if _, err := w.units.Restart(t.Context(), "app.service", by()); err == nil || !strings.Contains(err.Error(), "failed (timeout)") {
			t.Errorf("a start that hangs: %v", err)
		}
		stopped := make(chan error)
		go func() {
			_, err := w.units.Restart(t.Context(), "app.service", by())
			stopped <- err
		}()
		time.Sleep(time.Second)
		w.Units().request("StopUnit", "app.service")
		if err := <-stopped; err == nil || !strings.Contains(err.Error(), "canceled") {
			t.Errorf("a start that is called off: %v", err)
		}
		time.Sleep(time.Second)
		w.Units().Set("app.service", Unit{Type: "notify", Active: "failed"})
		if left, err := w.units.Restart(t.Context(), "app.service", by()); left != "" || err != nil {
			t.Errorf("restart of a failed unit: %q, %v", left, err)
		}
		w.Units().SetState("app.service", "inactive", "dead")
		if left, err := w.units.Restart(t.Context(), "app.service", by()); left != "inactive" || err != nil {
			t.Errorf("restart of an inactive unit: %q, %v", left, err)
		}
		w.Units().Remove("app.service")
		if gone, err := w.units.Gone(t.Context(), "app.service"); !gone || err != nil {
			t.Errorf("gone %t, %v", gone, err)
		}
		must(t, w.units.DaemonReload(t.Context(), by()))
		want := []string{
			"TryRestartUnit app.service", "ReloadUnit app.service", "ReloadUnit app.service", "TryRestartUnit app.service",
			"RestartUnit app.service", "RestartUnit app.service", "StopUnit app.service", "RestartUnit app.service", "Reload",
		}
		if jobs := w.Units().Jobs(); !slices.Equal(jobs, want) {
			t.Errorf("jobs %q", jobs)
		}
	})
}

// TestBounds checks that lockkeeper waits neither for the restart of a unit without a timeout, nor for a unit that does not stop, longer than it says.
func TestBounds(t *testing.T) {
	play(t, Options{}, func(t *testing.T, w *world) {
		took := func(bound time.Duration, call func() error, want string) {
			t.Helper()
			began := time.Now()
			err := call()
			if d := time.Since(began); err == nil || !strings.Contains(err.Error(), want) || d < bound || d > bound+time.Minute {
				t.Errorf("%v after %v, expected %q after %v", err, d, want, bound)
			}
		}
		w.Units().Set("app.service", Unit{RemainAfterExit: true, Active: "active", Hangs: true})
		took(15*time.Minute, func() error {
			_, err := w.units.Restart(t.Context(), "app.service", time.Now().Add(time.Minute))
			return err
		}, "app.service took longer than 15m0s: journalctl -u app.service")
		w.Units().Set(target, Unit{Requires: []string{"a.service"}})
		w.Units().Set("a.service", Unit{Active: "active", StopTakes: time.Hour})
		took(2*time.Minute, func() error { return w.units.StopTarget(t.Context(), target) }, "stopping a.service: not stopped within 2m0s")
	})
}

// TestHangEnds checks that a start that hangs continues once the unit's definition no longer has it hang, with the new definition's result.
func TestHangEnds(t *testing.T) {
	for _, result := range []string{"success", "exit-code"} {
		play(t, Options{}, func(t *testing.T, w *world) {
			w.Units().Change("no.service", func(*Unit) { t.Error("a unit that is not defined was changed") })
			w.Units().Set("app.service", Unit{RemainAfterExit: true, Hangs: true})
			w.Units().request("StartUnit", "app.service")
			time.Sleep(time.Hour)
			if state := w.Units().ActiveState("app.service"); state != "activating" {
				t.Errorf("a start that hangs: %s", state)
			}
			w.Units().Change("app.service", func(u *Unit) { u.Hangs, u.Result, u.StartTakes = false, result, time.Second })
			time.Sleep(2 * time.Second)
			want := map[string]string{"success": "active", "exit-code": "failed"}[result]
			if state, runs := w.Units().ActiveState("app.service"), w.Units().Runs(); state != want || len(runs) != 1 || runs[0].Result != result {
				t.Errorf("it is %s after %+v, expected %s after %s", state, runs, want, result)
			}
		})
	}
}

func TestOwnUnit(t *testing.T) {
	play(t, Options{}, func(t *testing.T, w *world) {
		if names, _, err := w.units.Own(t.Context()); len(names) > 0 || err != nil {
			t.Errorf("names %v, %v", names, err)
		}
		w.Units().Set("lockkeeper.service", Unit{Type: "notify", Active: "active", Names: []string{"alias.service"}})
		w.Units().SetOwn("lockkeeper.service")
		names, invocation, err := w.units.Own(t.Context())
		if err != nil || !slices.Equal(names, []string{"lockkeeper.service", "alias.service"}) || invocation == "" {
			t.Errorf("names %v, invocation %q, %v", names, invocation, err)
		}
		if state, loaded, err := w.units.ActiveState(t.Context(), "alias.service"); state != "active" || !loaded || err != nil {
			t.Errorf("under its alias: %s, loaded %t, %v", state, loaded, err)
		}
		if why, err := w.units.BootIncomplete(t.Context()); why != "" || err != nil {
			t.Errorf("boot incomplete: %q, %v", why, err)
		}
		w.Units().Set("boot-complete.target", Unit{RequiredBy: []string{"x.service"}})
		w.Units().SetSystemState("starting")
		if why, err := w.units.BootIncomplete(t.Context()); why != "pending" || err != nil {
			t.Errorf("boot incomplete: %q, %v, want pending", why, err)
		}
	})
}
