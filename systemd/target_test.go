package systemd

import (
	"errors"
	"testing"
	"time"
)

// TestUnitState checks that the state of a unit in a run depends on its state before the run. The cases are written by
// hand. Package hosts of the testbed runs units under a real systemd.
func TestUnitState(t *testing.T) {
	never := unit{ActiveState: "inactive", ConditionResult: true}
	before := unit{ActiveState: "inactive", ConditionResult: true, InvocationID: []byte{1}, ConditionTimestampMonotonic: 10, service: service{Result: "success"}}
	with := func(p unit, change func(*unit)) unit {
		change(&p)
		return p
	}
	failed := with(before, func(p *unit) {
		p.ActiveState, p.service.Result, p.service.ExecMainStatus, p.service.ExecMainCode = "failed", "exit-code", 3, 1
	})
	for _, c := range []struct {
		name        string
		before, now unit
		want        UnitState
	}{
		{"its job waits", before, with(before, func(p *unit) { p.Job.ID = 7 }), UnitState{Running: true}},
		{"it starts", before, with(before, func(p *unit) { p.ActiveState, p.InvocationID = "activating", []byte{2} }), UnitState{Running: true}},
		{"it is restarted by itself", before, with(before, func(p *unit) { p.ActiveState, p.SubState, p.InvocationID = "activating", "auto-restart", []byte{2} }), UnitState{Running: true}},
		{"it ran", before, with(before, func(p *unit) { p.InvocationID = []byte{2} }), UnitState{}},
		{"it ran for the first time", never, with(never, func(p *unit) { p.InvocationID, p.service.Result = []byte{1}, "success" }), UnitState{}},
		{"it ran and stays", before, with(before, func(p *unit) { p.ActiveState, p.InvocationID = "active", []byte{2} }), UnitState{}},
		{"it failed", before, with(before, func(p *unit) {
			p.ActiveState, p.InvocationID, p.service.Result, p.service.ExecMainStatus, p.service.ExecMainCode = "failed", []byte{2}, "exit-code", 3, 1
		}), UnitState{Failed: "exit-code, status 3"}},
		{"it was killed", before, with(before, func(p *unit) {
			p.ActiveState, p.InvocationID, p.service.Result, p.service.ExecMainStatus, p.service.ExecMainCode = "failed", []byte{2}, "signal", 9, 2
		}), UnitState{Failed: "signal, signal 9"}},
		{"it took too long", before, with(before, func(p *unit) { p.ActiveState, p.InvocationID, p.service.Result = "failed", []byte{2}, "timeout" }), UnitState{Failed: "timeout"}},
		{"a mount failed", never, with(never, func(p *unit) { p.ActiveState, p.InvocationID = "failed", []byte{2} }), UnitState{Failed: "failed"}},
		{"it was started too often", before, with(before, func(p *unit) { p.ActiveState, p.service.Result = "failed", "start-limit-hit" }), UnitState{Failed: "start-limit-hit"}},
		{"its conditions do not hold", before, with(before, func(p *unit) { p.ConditionResult, p.ConditionTimestampMonotonic = false, 20 }), UnitState{Skipped: true}},
		// systemd 252 leaves such a unit as it is: failed, with the last result and the invocation of the last run.
		{"it failed before, and its conditions do not hold now", failed, with(failed, func(p *unit) { p.ConditionResult, p.ConditionTimestampMonotonic = false, 20 }), UnitState{Skipped: true}},
		// As seen with systemd 252: ExecCondition= runs in an invocation of its own.
		{"its ExecCondition= does not hold", before, with(before, func(p *unit) {
			p.InvocationID, p.ConditionResult, p.ConditionTimestampMonotonic, p.service.Result = []byte{2}, false, 20, "exec-condition"
		}), UnitState{Skipped: true}},
		{"its ExecCondition= fails", before, with(before, func(p *unit) {
			p.ActiveState, p.InvocationID, p.service.Result = "failed", []byte{2}, "exit-code"
			p.service.ExecCondition = []command{{Path: "/bin/sh", Code: 1, Status: 255}}
		}), UnitState{Failed: "exit-code, ExecCondition=sh status 255"}},
		{"it failed before, and did not run", failed, failed, UnitState{Failed: "exit-code, status 3"}},
		{"its conditions did not hold the last time", with(before, func(p *unit) { p.ConditionResult = false }), with(before, func(p *unit) { p.ConditionResult = false }),
			UnitState{Failed: "was not started: a unit that it requires failed, or its start was called off"}},
		{"nothing came of it", before, before, UnitState{Failed: "was not started: a unit that it requires failed, or its start was called off"}},
		{"taken up, and done", with(before, func(p *unit) { p.ActiveState = "activating" }), before, UnitState{}},
		{"taken up, and failed", with(before, func(p *unit) { p.ActiveState = "activating" }), with(before, func(p *unit) {
			p.ActiveState, p.service.Result, p.service.ExecMainStatus, p.service.ExecMainCode = "failed", "exit-code", 1, 1
		}), UnitState{Failed: "exit-code, status 1"}},
	} {
		c.want.Unit = "a.service"
		if got := (unitRun{"a.service", c.before}).state(c.now); got != c.want {
			t.Errorf("%s: %+v, expected %+v", c.name, got, c.want)
		}
	}
}

// TestTargetWithoutSystemd checks that running a target on a bus without systemd is an error.
func TestTargetWithoutSystemd(t *testing.T) {
	b := newBus(t)
	bus := &Bus{Address: b.Address}
	defer bus.Close()
	u := Units{Bus: bus}
	if units, err := u.Wanted(t.Context(), "a.target"); !errors.Is(err, ErrAbsent) || units != nil {
		t.Errorf("wanted %v, %v", units, err)
	}
	if states, err := u.RunTarget(t.Context(), "a.target", time.Now().Add(time.Minute), func([]UnitState) { t.Error("a run was reported") }); !errors.Is(err, ErrAbsent) || states != nil {
		t.Errorf("ran %v, %v", states, err)
	}
	if err := u.StopTarget(t.Context(), "a.target"); !errors.Is(err, ErrAbsent) {
		t.Errorf("stopped: %v", err)
	}
}
