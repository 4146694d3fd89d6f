package hostupdate

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/local"
)

var start = time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)

var update = []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "4000.1.0"}}

// show prints the conditions of a turn, one letter for each: T for True, else the
// reason.
func show(s *v1alpha1.HostUpdateStatus) string {
	var all []string
	for _, c := range s.Conditions[:7] {
		text := "True"
		if c.Status == metav1.ConditionFalse {
			text = c.Reason
		} else if c.Status != metav1.ConditionTrue {
			text = "Unknown"
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

// step is one moment of a host's life.
type step struct {
	after time.Duration // since start
	host  func(h *local.Host)
	want  string // Planned Cordoned Drained Applied Rebooted Uncordoned Complete
}

func in(state v1alpha1.State, at time.Duration, course local.Course) func(*local.Host) {
	return func(h *local.Host) {
		h.State, h.Turn, h.TurnSince, h.StageSince, h.Course = state, "t1", start.Add(10*time.Second), start.Add(at), &course
	}
}

func then(all ...func(*local.Host)) func(*local.Host) {
	return func(h *local.Host) {
		for _, f := range all {
			f(h)
		}
	}
}

func over(result v1alpha1.Result, reason v1alpha1.Reason, end time.Duration) func(*local.Host) {
	return func(h *local.Host) {
		h.State, h.Turn, h.Course, h.TurnSince, h.StageSince = v1alpha1.StateIdle, "", nil, time.Time{}, time.Time{}
		h.Last = &v1alpha1.Last{Turn: "t1", Result: result, Reason: reason, Changes: update, End: start.Add(end)}
	}
}

func run(t *testing.T, steps []step) *v1alpha1.HostUpdateStatus {
	t.Helper()
	h := local.Host{Node: "n1", UID: "u", BootID: "b1", State: v1alpha1.StateIdle, Wants: v1alpha1.WantsNothing}
	s := &v1alpha1.HostUpdateStatus{}
	for i, step := range steps {
		step.host(&h)
		was := s
		next := Next(s, &Facts{Host: h, Version: "v1"}, start.Add(step.after))
		s = &next
		if got := show(s); got != step.want {
			t.Errorf("step %d (%s):\n got %s\nwant %s", i, h.State, got, step.want)
		}
		for j, c := range s.Conditions {
			if want := v1alpha1.UpdateConditions(); want[j] != c.Type && c.Type != v1alpha1.ConditionSourcesReadable && j < 9 {
				t.Errorf("step %d: condition %d is %s, want %s", i, j, c.Type, want[j])
			}
			for _, old := range was.Conditions {
				if old.Type != c.Type {
					continue
				}
				if c.LastTransitionTime.Before(&old.LastTransitionTime) {
					t.Errorf("step %d: the time of %s runs backwards", i, c.Type)
				}
				if old.Status == c.Status && !old.LastTransitionTime.Equal(&c.LastTransitionTime) {
					t.Errorf("step %d: %s has another time and the same status", i, c.Type)
				}
			}
		}
		again := Next(s, &Facts{Host: h, Version: "v1"}, start.Add(step.after+time.Hour))
		if d := Compare(s, &again); d != Same && h.State.InTurn() {
			t.Errorf("step %d: the same facts are news (%d):\n%+v\n%+v", i, d, *s, again)
		}
	}
	return s
}

func TestRebootTurn(t *testing.T) {
	course := local.Course{Wants: v1alpha1.WantsReboot, Drains: true}
	rebooted := course
	rebooted.Rebooted = true
	cordoned := func(is bool) func(*local.Host) { return func(h *local.Host) { h.Cordoned = is } }
	s := run(t, []step{
		{0, func(*local.Host) {}, "NothingPending NothingPending NothingPending NothingPending NothingPending NothingPending NothingPending"},
		{time.Second, func(h *local.Host) { h.Wants, h.Changes, h.Drains = v1alpha1.WantsReboot, update, true },
			"True Pending Pending NotNeeded Pending Pending Pending"},
		{10 * time.Second, in(v1alpha1.StateBeforeDrain, 10*time.Second, course), "True Pending Pending NotNeeded Pending Pending Running"},
		{20 * time.Second, in(v1alpha1.StateDraining, 20*time.Second, course), "True Running Running NotNeeded Pending Pending Running"},
		{21 * time.Second, cordoned(true), "True True Running NotNeeded Pending Pending Running"},
		{40 * time.Second, in(v1alpha1.StateBeforeReboot, 40*time.Second, course), "True True True NotNeeded Pending Pending Running"},
		{50 * time.Second, then(in(v1alpha1.StateRebooting, 50*time.Second, course), func(h *local.Host) { h.Waits = v1alpha1.ReasonInhibited }),
			"True True True NotNeeded Inhibited Pending Running"},
		{90 * time.Second, then(in(v1alpha1.StateRebooting, 50*time.Second, rebooted), func(h *local.Host) { h.Waits, h.Wants, h.Changes = "", "", nil }),
			"True True True NotNeeded True Pending Running"},
		{100 * time.Second, then(in(v1alpha1.StateBeforeUncordon, 100*time.Second, rebooted), func(h *local.Host) { h.Wants = v1alpha1.WantsNothing }),
			"True True True NotNeeded True Pending Running"},
		{110 * time.Second, in(v1alpha1.StateUncordoning, 110*time.Second, rebooted), "True True True NotNeeded True Running Running"},
		{112 * time.Second, then(over(v1alpha1.ResultDone, "", 112*time.Second), cordoned(false)), "True True True NotNeeded True True True"},
		{200 * time.Second, func(*local.Host) {}, "True True True NotNeeded True True True"},
	})
	if len(s.History) != 1 || s.Turn != nil {
		t.Fatalf("history %+v, turn %+v", s.History, s.Turn)
	}
	if got, want := s.Conditions[0].Message, "reboot for OSUpdate@4000.1.0"; got != want {
		t.Errorf("Planned: %q, want %q", got, want)
	}
	got := fmt.Sprint(s.History[0].Result, s.History[0].Changes, s.History[0].Stages)
	if want := "Done[OSUpdate@4000.1.0] [{before-drain 10} {draining 20} {before-reboot 10} {rebooting 50} {before-uncordon 10} {uncordoning 2}]"; got != want {
		t.Errorf("history:\n got %s\nwant %s", got, want)
	}
	total := int64(0)
	for _, stage := range s.History[0].Stages {
		total += stage.Seconds
	}
	if want := int64(s.History[0].Ended.Sub(s.History[0].Started.Time).Seconds()); total != want {
		t.Errorf("the stages last %d s together, the turn %d s", total, want)
	}
}

// TestBackedOut: a budget blocks the drain until it is overdue.
func TestBackedOut(t *testing.T) {
	course := local.Course{Wants: v1alpha1.WantsReboot, Drains: true}
	back := course
	back.Result, back.Reason = v1alpha1.ResultBackedOut, v1alpha1.ReasonOverdue
	s := run(t, []step{
		{0, func(h *local.Host) { h.Wants, h.Changes, h.Drains = v1alpha1.WantsReboot, update, true }, "True Pending Pending NotNeeded Pending Pending Pending"},
		{20 * time.Second, then(in(v1alpha1.StateDraining, 20*time.Second, course), func(h *local.Host) { h.Cordoned = true }), "True True Running NotNeeded Pending Pending Running"},
		{3620 * time.Second, in(v1alpha1.StateUncordoning, 3620*time.Second, back), "True True BackedOut NotNeeded BackedOut Running Running"},
		{3622 * time.Second, then(over(v1alpha1.ResultBackedOut, v1alpha1.ReasonOverdue, 3622*time.Second), func(h *local.Host) { h.Cordoned = false }),
			"True True BackedOut NotNeeded BackedOut True BackedOut"},
		{3700 * time.Second, func(*local.Host) {}, "True True BackedOut NotNeeded BackedOut True BackedOut"},
		// The next turn begins from the beginning.
		{4000 * time.Second, then(in(v1alpha1.StateDraining, 4000*time.Second, course), func(h *local.Host) { h.Turn, h.TurnSince = "t2", start.Add(4000*time.Second) }),
			"True Running Running NotNeeded Pending Pending Running"},
	})
	if len(s.History) != 1 || s.History[0].Reason != "Overdue" || s.Turn == nil || s.Turn.ID != "t2" {
		t.Errorf("history %+v, turn %+v", s.History, s.Turn)
	}
}

// TestEndedWhileDown: the coordinator ends the turn of a host that is down, in the middle of its drain. No stage runs when the host is back.
func TestEndedWhileDown(t *testing.T) {
	course := local.Course{Wants: v1alpha1.WantsReboot, Drains: true}
	run(t, []step{
		{0, func(h *local.Host) { h.Wants, h.Changes, h.Drains = v1alpha1.WantsReboot, update, true }, "True Pending Pending NotNeeded Pending Pending Pending"},
		{20 * time.Second, in(v1alpha1.StateDraining, 20*time.Second, course), "True Running Running NotNeeded Pending Pending Running"},
		{300 * time.Second, over(v1alpha1.ResultCancelled, v1alpha1.ReasonOverBudget, 200*time.Second),
			"True BackedOut BackedOut NotNeeded Pending Pending Cancelled"},
	})
}

// TestApplyTurn: a turn without a drain restarts a unit, and fails.
func TestApplyTurn(t *testing.T) {
	course := local.Course{Wants: v1alpha1.WantsApply}
	failed := course
	failed.Result, failed.Reason = v1alpha1.ResultFailed, v1alpha1.ReasonApplyFailed
	s := run(t, []step{
		{0, func(h *local.Host) { h.Wants, h.Changes = v1alpha1.WantsApply, update }, "True NotNeeded NotNeeded Pending NotNeeded NotNeeded Pending"},
		{10 * time.Second, in(v1alpha1.StateApplying, 10*time.Second, course), "True NotNeeded NotNeeded Running NotNeeded NotNeeded Running"},
		{12 * time.Second, in(v1alpha1.StateApplying, 10*time.Second, failed), "True NotNeeded NotNeeded Running NotNeeded NotNeeded Running"},
		{20 * time.Second, over(v1alpha1.ResultFailed, v1alpha1.ReasonApplyFailed, 20*time.Second), "True NotNeeded NotNeeded BackedOut NotNeeded NotNeeded Failed"},
	})
	if c := s.Conditions[8]; c.Type != v1alpha1.ConditionFailed || c.Status != metav1.ConditionTrue || c.Reason != "ApplyFailed" {
		t.Errorf("%+v, want Failed=True for ApplyFailed", c)
	}
}

// TestRolledBack: the host came back with the old OS version, and its update engine forgot the update. The host wants nothing, and
// its failure halts the policy until an admin clears it.
func TestRolledBack(t *testing.T) {
	h := local.Host{UID: "u", State: v1alpha1.StateIdle, Wants: v1alpha1.WantsNothing,
		Last: &v1alpha1.Last{Turn: "t1", Result: v1alpha1.ResultFailed, Reason: v1alpha1.ReasonNotUpdated, Changes: update, End: start}}
	s := Next(&v1alpha1.HostUpdateStatus{}, &Facts{Host: h}, start)
	if c := s.Conditions[8]; c.Type != v1alpha1.ConditionFailed || c.Status != metav1.ConditionTrue || c.Reason != "NotUpdated" {
		t.Errorf("%+v, want Failed=True for NotUpdated", c)
	}
	h.Cleared = true
	if c := Next(&s, &Facts{Host: h}, start).Conditions[8]; c.Status != metav1.ConditionFalse {
		t.Errorf("cleared: %+v, want Failed=False", c)
	}
}

// TestStaysCordoned: turns without a drain, on a node that someone else cordoned. lockkeeper does not uncordon it.
func TestStaysCordoned(t *testing.T) {
	cordoned := func(h *local.Host) { h.Cordoned = true }
	apply, reboot := local.Course{Wants: v1alpha1.WantsApply}, local.Course{Wants: v1alpha1.WantsReboot}
	run(t, []step{
		{0, then(cordoned, func(h *local.Host) { h.Wants, h.Changes = v1alpha1.WantsApply, update }), "True NotNeeded NotNeeded Pending NotNeeded NotNeeded Pending"},
		{10 * time.Second, in(v1alpha1.StateApplying, 10*time.Second, apply), "True NotNeeded NotNeeded Running NotNeeded Pending Running"},
		{20 * time.Second, then(over(v1alpha1.ResultDone, "", 20*time.Second), func(h *local.Host) { h.Wants = v1alpha1.WantsNothing }),
			"True NotNeeded NotNeeded True NotNeeded NotNeeded True"},
	})
	reboot.Rebooted = true
	run(t, []step{
		{0, then(cordoned, func(h *local.Host) { h.Wants, h.Changes = v1alpha1.WantsReboot, update }), "True NotNeeded NotNeeded NotNeeded Pending NotNeeded Pending"},
		{10 * time.Second, in(v1alpha1.StateUncordoning, 10*time.Second, reboot), "True NotNeeded NotNeeded NotNeeded True Running Running"},
		{20 * time.Second, then(over(v1alpha1.ResultDone, "", 20*time.Second), func(h *local.Host) { h.Wants = v1alpha1.WantsNothing }),
			"True NotNeeded NotNeeded NotNeeded True NotNeeded True"},
	})
}

func TestBlocked(t *testing.T) {
	h := local.Host{UID: "u", Blockers: []v1alpha1.Blocker{{Kind: v1alpha1.BlockerBudget, Name: "shop/web", Pod: "shop/web-0",
		Message: "The disruption budget web needs 3 healthy pods and has 3 currently", Since: metav1.NewTime(start)}}}
	s := Next(&v1alpha1.HostUpdateStatus{}, &Facts{Host: h}, start)
	if c := s.Conditions[7]; c.Type != v1alpha1.ConditionBlocked || c.Status != metav1.ConditionTrue || c.Reason != "PodDisruptionBudget" ||
		c.Message != "shop/web: pod shop/web-0: The disruption budget web needs 3 healthy pods and has 3 currently" {
		t.Errorf("%+v", c)
	}
	more := h
	more.Blockers = []v1alpha1.Blocker{h.Blockers[0]}
	more.Blockers[0].Message = "The disruption budget web needs 4 healthy pods and has 3 currently"
	next := Next(&s, &Facts{Host: more}, start)
	if d := Compare(&s, &next); d != Same {
		t.Errorf("another figure in a message is %d, want Same", d)
	}
	next = Next(&s, &Facts{Host: local.Host{UID: "u"}}, start)
	if d := Compare(&s, &next); d != News || next.Conditions[7].Status != metav1.ConditionFalse {
		t.Errorf("difference %d, %+v", d, next.Conditions[7])
	}
}

// TestWorth: what alone is no reason for a request.
func TestWorth(t *testing.T) {
	h := local.Host{UID: "u", Wants: v1alpha1.WantsNothing, Engine: &v1alpha1.EngineStatus{Operation: "DOWNLOADING", LastChecked: new(metav1.NewTime(start))}}
	s := Next(&v1alpha1.HostUpdateStatus{}, &Facts{Host: h}, start)
	for name, c := range map[string]struct {
		change func(*Facts)
		want   Difference
	}{
		"the engine checked":      {func(f *Facts) { f.Host.Engine.LastChecked = new(metav1.NewTime(start.Add(time.Hour))) }, Same},
		"the API server was away": {func(f *Facts) { f.Gap = Gap{start, start.Add(time.Hour), "connection refused"} }, Same},
		"a download goes on":      {func(f *Facts) { f.Host.Engine.Progress = 50 }, Progress},
		"pods leave":              {func(f *Facts) { f.Host.Drain = &v1alpha1.DrainStatus{Total: 3} }, Progress},
		"the role":                {func(f *Facts) { f.Coordinator.Role = v1alpha1.RoleLeader }, News},
		"another version":         {func(f *Facts) { f.Version = "v2" }, News},
	} {
		f := Facts{Host: h}
		f.Host.Engine = new(*h.Engine)
		c.change(&f)
		next := Next(&s, &f, start.Add(time.Minute))
		if d := Compare(&s, &next); d != c.want {
			t.Errorf("%s: %d, want %d", name, d, c.want)
		}
	}
}

// TestBounds: whatever others wrote, what is published is bounded and printable.
func TestBounds(t *testing.T) {
	hostile := "\x1b[31mred\x00\u202e" + strings.Repeat("é", 1<<16) + string([]byte{0xff, 0xfe})
	h := local.Host{UID: "u", Node: "n", State: v1alpha1.State(hostile), Waits: v1alpha1.Reason(hostile), Detail: hostile, BootID: hostile,
		Wants: v1alpha1.WantsReboot, Engine: &v1alpha1.EngineStatus{Operation: v1alpha1.UpdateName(hostile), Progress: 1000},
		EngineError: hostile, SourcesError: hostile, API: &local.Failure{Error: hostile, Local: true}}
	for range 40 {
		h.Changes = append(h.Changes, v1alpha1.Change{Source: v1alpha1.SourceFile, Name: hostile, Version: hostile})
		h.Plan = append(h.Plan, hostile)
		h.Blockers = append(h.Blockers, v1alpha1.Blocker{Kind: v1alpha1.BlockerPod, Name: v1alpha1.UpdateName(hostile), Message: v1alpha1.UpdateText(hostile)})
	}
	var offline []v1alpha1.OfflineEvent
	for range 100 {
		offline = append(offline, v1alpha1.OfflineEvent{Time: metav1.NewTime(start), Message: v1alpha1.UpdateText(hostile)})
	}
	s := Next(&v1alpha1.HostUpdateStatus{}, &Facts{Host: h, Offline: offline}, start)
	if len(s.Changes) != v1alpha1.MaxUpdateChanges || len(s.Plan) != 16 || len(s.Blockers) != v1alpha1.MaxUpdateBlockers || len(s.Offline) != v1alpha1.MaxUpdateOffline {
		t.Errorf("%d changes, %d lines, %d blockers, %d events", len(s.Changes), len(s.Plan), len(s.Blockers), len(s.Offline))
	}
	texts := []string{string(s.Message), string(s.State), string(s.Waits), string(s.BootID), string(s.Engine.Operation), string(s.Plan[0]),
		string(s.Changes[0].Name), string(s.Changes[0].Version), string(s.Blockers[0].Name), string(s.Blockers[0].Message), string(s.Offline[0].Message)}
	for _, c := range s.Conditions {
		texts = append(texts, c.Message)
	}
	for _, x := range texts {
		if len(x) > v1alpha1.MaxUpdateText || strings.ContainsAny(x, "\x1b\x00\u202e") || !utf8.ValidString(x) {
			t.Errorf("%d bytes: %q", len(x), x)
		}
	}
}

// TestTurnWithoutAnEnd: a turn of which the Node does not say how it ended, because someone released the node by force or created
// it again, is over: nothing is said to be running.
func TestTurnWithoutAnEnd(t *testing.T) {
	course := local.Course{Wants: v1alpha1.WantsReboot, Drains: true}
	gone := func(h *local.Host) {
		h.State, h.Turn, h.Course, h.TurnSince, h.StageSince, h.Last = v1alpha1.StateIdle, "", nil, time.Time{}, time.Time{}, nil
	}
	wanting := func(h *local.Host) { h.Wants, h.Changes, h.Drains = v1alpha1.WantsReboot, update, true }
	s := run(t, []step{
		{0, wanting, "True Pending Pending NotNeeded Pending Pending Pending"},
		{20 * time.Second, in(v1alpha1.StateDraining, 20*time.Second, course), "True Running Running NotNeeded Pending Pending Running"},
		{30 * time.Second, gone, "True Pending Pending NotNeeded Pending Pending Pending"},
	})
	if len(s.History) != 0 || s.Turn != nil {
		t.Errorf("history %+v, turn %+v", s.History, s.Turn)
	}
	run(t, []step{
		{0, wanting, "True Pending Pending NotNeeded Pending Pending Pending"},
		{20 * time.Second, in(v1alpha1.StateDraining, 20*time.Second, course), "True Running Running NotNeeded Pending Pending Running"},
		{30 * time.Second, then(gone, func(h *local.Host) { h.Wants, h.Changes = v1alpha1.WantsNothing, nil }),
			"NothingPending NothingPending NothingPending NothingPending NothingPending NothingPending NothingPending"},
	})
	run(t, []step{
		{0, wanting, "True Pending Pending NotNeeded Pending Pending Pending"},
		{20 * time.Second, in(v1alpha1.StateDraining, 20*time.Second, course), "True Running Running NotNeeded Pending Pending Running"},
		// In another boot, in which the sources are not read yet.
		{30 * time.Second, then(gone, func(h *local.Host) { h.Wants, h.Changes = "", nil }),
			"SourceUnreadable Pending Pending Pending Pending Pending Pending"},
	})
}

// TestEngineChecks: an engine that asks for updates and finds none is no news.
func TestEngineChecks(t *testing.T) {
	of := func(e v1alpha1.EngineStatus) *v1alpha1.HostUpdateStatus {
		s := Next(&v1alpha1.HostUpdateStatus{}, &Facts{Host: local.Host{Engine: &e, Wants: v1alpha1.WantsNothing}}, start)
		return &s
	}
	idle, checks := of(v1alpha1.EngineStatus{Operation: "IDLE"}), of(v1alpha1.EngineStatus{Operation: "CHECKING_FOR_UPDATE"})
	if d := Compare(idle, checks); d != Same {
		t.Errorf("a check is news (%d)", d)
	}
	if d := Compare(idle, of(v1alpha1.EngineStatus{Operation: "DOWNLOADING", Version: "4"})); d != News {
		t.Errorf("a download is %d", d)
	}
}

// TestZeroTimes: a time that is missing where the facts come from leaves nothing that the schema refuses, and that would keep the
// HostUpdate from being written for as long as it is there.
func TestZeroTimes(t *testing.T) {
	h := local.Host{Node: "n1", UID: "u", BootID: "b1", State: v1alpha1.StateDraining, Wants: v1alpha1.WantsNothing, Turn: "t1",
		TurnSince: start, Course: &local.Course{Wants: v1alpha1.WantsDrain}}
	s := Next(&v1alpha1.HostUpdateStatus{}, &Facts{Host: h, Offline: []v1alpha1.OfflineEvent{{Message: "x"}}}, start)
	over(v1alpha1.ResultDone, "", 0)(&h)
	h.Last.End = time.Time{}
	s = Next(&s, &Facts{Host: h}, start.Add(time.Minute))
	data, err := json.Marshal(s)
	if err != nil || strings.Contains(string(data), "null") {
		t.Errorf("%s, %v", data, err)
	}
	if len(s.History) != 1 {
		t.Errorf("history %+v", s.History)
	}
}
