package systemd

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestRestartLeavesWhatIsStopped checks what a restart does with a unit that does not run. Package hosts of the testbed
// restarts units under a real systemd.
func TestRestartLeavesWhatIsStopped(t *testing.T) {
	for _, c := range []struct {
		name   string
		unit   unit
		method string // "" if the unit stays as it is
	}{
		{"runs", unit{ActiveState: "active", UnitFileState: "enabled"}, "TryRestartUnit"},
		{"starts", unit{ActiveState: "activating", SubState: "start", UnitFileState: "enabled"}, "RestartUnit"},
		{"waits for its next start", unit{ActiveState: "activating", SubState: "auto-restart", UnitFileState: "enabled"}, "RestartUnit"},
		{"a user stopped it", unit{ActiveState: "inactive", UnitFileState: "enabled", ConditionResult: true}, ""},
		{"a user disabled it", unit{ActiveState: "inactive", UnitFileState: "disabled", ConditionResult: true}, ""},
		{"stops", unit{ActiveState: "deactivating", UnitFileState: "enabled"}, ""},
		{"failed", unit{ActiveState: "failed", UnitFileState: "enabled"}, "RestartUnit"},
		{"its conditions did not hold", unit{ActiveState: "inactive", UnitFileState: "enabled", ConditionTimestampMonotonic: 7}, "RestartUnit"},
		{"has done its work", unit{ActiveState: "inactive", UnitFileState: "static", service: service{Type: "oneshot"}}, "RestartUnit"},
	} {
		method, left, err := chooseRestart("a.service", &c.unit)
		if method != c.method || (left == "") != (c.method != "") || err != nil {
			t.Errorf("%s: %q, left %q, %v; want %q", c.name, method, left, err, c.method)
		}
	}
}

// TestReloadLeavesWhatDoesNotRun checks what a reload does with a unit in each state.
func TestReloadLeavesWhatDoesNotRun(t *testing.T) {
	for _, c := range []struct {
		active, sub  string
		method, left string
	}{
		{"active", "running", "ReloadUnit", ""},
		{"activating", "start", "ReloadUnit", ""},
		{"activating", "auto-restart", "", "activating"},        // systemd 252 ends a reload's job with invalid
		{"activating", "auto-restart-queued", "", "activating"}, // systemd 254 and later
		{"deactivating", "stop-sigterm", "", "deactivating"},
		{"inactive", "dead", "", "inactive"},
		{"failed", "failed", "", "failed"},
	} {
		method, left, err := chooseReload("a.service", &unit{ActiveState: c.active, SubState: c.sub, CanReload: true})
		if method != c.method || left != c.left || err != nil {
			t.Errorf("%s (%s): %q, left %q, %v; want %q, left %q", c.active, c.sub, method, left, err, c.method, c.left)
		}
	}
}

// TestJudge checks what the end of a restart means.
func TestJudge(t *testing.T) {
	active := unit{Id: "a.mount", ActiveState: "active"}
	for _, c := range []struct {
		result string
		now    unit
		fails  bool
	}{
		{"done", active, false},
		{"done", unit{Id: "a.service", ActiveState: "failed", service: service{Result: "exit-code"}}, true},
		{"done", unit{Id: "a.service", ActiveState: "activating", SubState: "auto-restart"}, true},
		{"canceled", active, true},
		{"failed", active, true},
		{"dependency", active, true},
		{"timeout", active, true},
	} {
		j := job{unit: c.now.Id, method: "RestartUnit"}
		_, err := j.judge(t.Context(), c.result, c.now)
		if _, failed := errors.AsType[*JobError](err); failed != c.fails || failed != (err != nil) {
			t.Errorf("%s, then %s: %v", c.result, c.now.ActiveState, err)
		}
	}
}

// TestJudgeWithoutARun checks what it means that a unit that had failed is failed after its restart. systemd 252 calls the
// job of a unit whose conditions do not hold done, and leaves the unit with the result and the invocation of its last run.
func TestJudgeWithoutARun(t *testing.T) {
	before := unit{Id: "a.service", ActiveState: "failed", InvocationID: []byte{1}, ConditionResult: true, ConditionTimestampMonotonic: 10,
		service: service{Result: "exit-code", ExecMainCode: 1, ExecMainStatus: 3}}
	for _, c := range []struct {
		name   string
		change func(now *unit)
		fails  bool
	}{
		{"its conditions do not hold", func(now *unit) { now.ConditionResult, now.ConditionTimestampMonotonic = false, 20 }, false},
		{"its conditions were not checked", func(now *unit) { now.ConditionResult = false }, true},
		{"it ran, and failed again", func(now *unit) { now.InvocationID, now.ConditionTimestampMonotonic = []byte{2}, 20 }, true},
		{"it ran, and was then not started again", func(now *unit) {
			now.InvocationID, now.ConditionResult, now.ConditionTimestampMonotonic = []byte{2}, false, 20
		}, true},
	} {
		j, now := job{unit: before.Id, method: "RestartUnit", before: before}, before
		c.change(&now)
		left, err := j.judge(t.Context(), "done", now)
		if (err != nil) != c.fails || (left == "failed") == c.fails {
			t.Errorf("%s: left %q, %v", c.name, left, err)
		}
	}
}

// TestManaging checks which errors of systemd's are about the unit. A host that shuts down fails no plan.
func TestManaging(t *testing.T) {
	for name, fails := range map[string]bool{
		managerName + ".NoSuchUnit": true, managerName + ".TransactionIsDestructive": false, managerName + ".ShuttingDown": false,
		dbusName + ".Error.LimitsExceeded": false, dbusName + ".Error.NoReply": false, dbusName + ".Error.ServiceUnknown": false,
	} {
		err := managing("a.service", &CallError{Method: "RestartUnit", Name: name, Message: "no"})
		if _, failed := errors.AsType[*JobError](err); failed != fails {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBusThatIsAwayForAMoment checks that a run waits for a bus that goes away, and not indefinitely.
func TestBusThatIsAwayForAMoment(t *testing.T) {
	away := errors.New("no bus")
	for _, c := range []struct {
		from, lasts time.Duration // the units run until the bus is away, and have ended when it is back
		fails       bool
	}{
		{0, 20 * time.Second, false}, {0, time.Minute, true},
		{10 * time.Minute, 20 * time.Second, false}, {10 * time.Minute, time.Minute, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			err := Units{}.poll(t.Context(), nil, func() (bool, error) {
				switch since := time.Since(began); {
				case since < c.from:
					return false, nil
				case since < c.from+c.lasts:
					return false, away
				}
				return true, nil
			})
			if (err != nil) != c.fails {
				t.Errorf("away after %v for %v: %v after %v", c.from, c.lasts, err, time.Since(began))
			}
		})
	}
}
