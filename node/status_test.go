package node

import (
	"context"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/systemd"
)

// situation returns an observation of a host in a state: in boot b1, Ready, with a published update that wants a
// reboot. In a turn the grant is from the current leader, and the last reads allow everything.
func situation(state v1alpha1.State, change func(*step.Observation)) step.Observation {
	update := []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "4.2"}}
	o := step.Observation{
		Node:             turn.Node{Name: "n1", UID: "u1", BootID: "b1", Ready: true},
		Self:             v1alpha1.Host{BootID: "b1", OSVersion: "4.1"},
		ManagedByDefault: true,
		Sources:          step.Sources{Complete: true, Wants: v1alpha1.WantsReboot, Drains: true, Changes: update},
		Shutdown:         step.ShutdownNone,
		Health:           step.Health{Healthy: true},
		Fresh:            &step.FreshRead{Commit: true, Lease: step.Lease{Exists: true, Holder: "e1"}},
	}
	o.Node.State = state
	if state.InTurn() {
		o.Node.Turn = "t1"
		o.Node.Ack = v1alpha1.Ack{Turn: "t1", BootID: "b1", State: state, Report: v1alpha1.ReportSeen}
		o.Node.Grant = &v1alpha1.Grant{Turn: "t1", Epoch: "e1", NodeUID: "u1", BootID: "b1", Wants: v1alpha1.WantsReboot, Drains: true, Changes: update, OSVersion: "4.1"}
	}
	if change != nil {
		change(&o)
	}
	return o
}

// TestStatusLine walks through all states: `systemctl status` must show in one line what the host does or waits for,
// and since when. The lines are written by hand.
func TestStatusLine(t *testing.T) {
	type o = step.Observation
	cordoned := func(o *o) { o.Node.Mark, o.Node.Unschedulable = true, true }
	says := func(word v1alpha1.Report) func(*o) {
		return func(o *step.Observation) { o.Node.Ack.Report = word; cordoned(o) }
	}
	with := func(all ...func(*o)) func(*o) {
		return func(o *step.Observation) {
			for _, f := range all {
				f(o)
			}
		}
	}
	none := func(o *o) { o.Sources.Wants, o.Sources.Drains, o.Sources.Changes = v1alpha1.WantsNothing, false, nil }
	units := func(w step.Work) func(*o) {
		return func(o *step.Observation) { o.Self.HookStages, o.Hooks = []v1alpha1.State{o.Node.State}, w }
	}
	const wants = "; wants reboot for OSUpdate@4.2"
	walked := map[v1alpha1.State]bool{}
	for _, c := range []struct {
		state  v1alpha1.State
		change func(*o)
		want   string
	}{
		{"", func(o *o) { o.Node = turn.Node{} }, "starting; waits: NotReady (its Node has not been seen yet) since T" + wants},
		{"", nil, "no coordinator manages this node; waits: NoCoordinator (no coordinator has taken this node in) since T" + wants},
		{"", func(o *o) { o.NoLeader, o.NoLeaderDetail = v1alpha1.ReasonForbidden, "n1 may not" }, "no coordinator manages this node; waits: Forbidden (n1 may not) since T" + wants},
		{"idle", func(o *o) {
			o.Node.Held, o.NoLeader, o.NoLeaderDetail = v1alpha1.ReasonBudget, v1alpha1.ReasonNoCoordinator, "nobody holds the Lease"
		}, "idle; waits: NoCoordinator (nobody holds the Lease) since T" + wants},
		{"idle", func(o *o) { none(o); o.NoLeader = v1alpha1.ReasonNoCoordinator }, "idle; up to date since T"},
		{"", none, "no coordinator manages this node; up to date since T"},
		{"", func(o *o) { o.Sources = step.Sources{Missing: "update_engine: not read yet"} }, "no coordinator manages this node; waits: SourceUnreadable (update_engine: not read yet) since T"},
		{"", func(o *o) { o.Node.Managed = new(false) }, "not managed; waits: Unmanaged (managed=false) since T" + wants},
		{"", func(o *o) { o.ManagedByDefault = false }, "not managed; waits: Unmanaged (managed_by_default is false in this host's file) since T" + wants},
		{"", func(o *o) { o.Node.Managed, o.Node.Detached = new(false), &v1alpha1.Intent{Reason: "theirs"} },
			"not managed; waits: Unmanaged (managed=false) since T" + wants},
		{"", func(o *o) { o.Node.Detached = &v1alpha1.Intent{Reason: "theirs"} }, "not managed; waits: Detached (theirs) since T" + wants},
		{"idle", none, "idle; up to date since T"},
		{"idle", with(none, func(o *o) { o.Sources.Unreadable = "File /x cannot be read: no" }), "idle; waits: SourceUnreadable (File /x cannot be read: no) since T"},
		{"idle", nil, "idle; waits for its turn since T" + wants},
		{"idle", func(o *o) { o.Node.Held = v1alpha1.ReasonBudget }, "idle; waits for its turn: Budget since T" + wants},
		{"paused", nil, "paused; waits for its turn since T" + wants},
		{"paused", func(o *o) { o.Node.Held = v1alpha1.ReasonPaused }, "paused; waits for its turn: Paused since T" + wants},
		{"paused", none, "paused; up to date since T"},
		{"before-drain", nil, "before-drain (turn t1); waits for hooks since T" + wants},
		{"before-drain", units(step.Work{Running: true, Detail: "hook units: backup.service"}), "before-drain (turn t1); at work on hook units: backup.service since T" + wants},
		{"before-drain", with(units(step.Work{Failed: "backup.service failed (exit-code, status 3): journalctl -u backup.service"}), func(o *o) {
			o.Node.Ack.Report, o.Node.Ack.Reason = v1alpha1.ReportFailed, v1alpha1.ReasonHookFailed
		}), "before-drain (turn t1); waits for hooks of others since T" + wants},
		{"draining", with(says(v1alpha1.ReportCommitted), func(o *o) { o.Drain.Detail = "3 pods to go, 1 evicted" }), "draining (turn t1); at work on 3 pods to go, 1 evicted since T" + wants},
		{"draining", with(says(v1alpha1.ReportCommitted), func(o *o) { o.Fresh.Lease.Stopped, o.Fresh.Lease.StopText = true, "fire" }), "draining (turn t1); waits: Stopped (fire) since T" + wants},
		{"draining", func(o *o) { o.Veto = v1alpha1.ReasonWindow }, "draining (turn t1); waits: Window (this host's own veto) since T" + wants},
		{"draining", says(v1alpha1.ReportDone), "draining (turn t1); waits for the next stage since T" + wants},
		{"draining", with(says(v1alpha1.ReportCommitted), func(o *o) { o.Node.Paused = &v1alpha1.Intent{Reason: "disk"} }), "draining (turn t1); waits: Paused (disk) since T" + wants},
		{"before-reboot", cordoned, "before-reboot (turn t1); waits for hooks since T" + wants},
		{"before-reboot", with(cordoned, func(o *o) {
			o.Node.Grant.Terms.WaitForVolumeDetach, o.Node.Volumes = true, []string{"kubernetes.io/csi/v1"}
		}), "before-reboot (turn t1); waits for volumes to detach since T" + wants},
		{"rebooting", with(says(v1alpha1.ReportSeen), func(o *o) { o.Blocked, o.BlockedDetail = v1alpha1.ReasonInhibited, "apt (pid 7): upgrade, and 0 more" }), "rebooting (turn t1); waits: Inhibited (apt (pid 7): upgrade, and 0 more) since T" + wants},
		{"rebooting", says(v1alpha1.ReportCommitted), "rebooting (turn t1); at work on the reboot since T" + wants},
		{"rebooting", with(says(v1alpha1.ReportCommitted), func(o *o) { o.Shutdown = step.ShutdownUnderway }), "rebooting (turn t1); waits for the reboot that is under way since T" + wants},
		{"rebooting", with(says(v1alpha1.ReportCommitted), none, func(o *o) {
			o.Self.BootID, o.Node.BootID, o.Health = "b2", "b2", step.Health{Detail: "boot-complete.target is pending"}
		}), "rebooting (turn t1); waits: Unhealthy (boot-complete.target is pending) since T"},
		{"applying", with(says(v1alpha1.ReportCommitted), func(o *o) { o.Apply.Running = true }), "applying (turn t1); at work on the units of its plan since T" + wants},
		{"applying", says(v1alpha1.ReportDone), "applying (turn t1); waits for the next stage since T" + wants},
		{"before-uncordon", with(cordoned, none), "before-uncordon (turn t1); waits for hooks since T"},
		{"before-uncordon", with(cordoned, none, units(step.Work{Failed: "raid.service failed (timeout): journalctl -u raid.service"}), func(o *o) {
			o.Node.Ack.Report, o.Node.Ack.Reason = v1alpha1.ReportFailed, v1alpha1.ReasonHookFailed
		}), "before-uncordon (turn t1); waits: HookFailed (raid.service failed (timeout): journalctl -u raid.service) since T"},
		{"uncordoning", with(cordoned, none, func(o *o) { o.Node.Ready = false }), "uncordoning (turn t1); waits: NotReady (the kubelet to report Ready from this boot) since T"},
		{"uncordoning", with(none, func(o *o) { o.Node.Ack.Report = v1alpha1.ReportDone }), "uncordoning (turn t1); waits for the end of the turn since T"},
		{"flooding", nil, "flooding (turn t1); waits: UnknownState (lockkeeper.dev/state=\"flooding\") since T" + wants},
	} {
		walked[c.state] = true
		h := &Host{log: slog.New(slog.DiscardHandler)}
		var line string
		h.Report = func(s local.Host) { line = s.Text() }
		obs := situation(c.state, c.change)
		h.name = obs.Node.Name
		d := step.Step(obs)
		d.Write = nil // the host publishes its record first; then it is at rest
		before := time.Now().UTC().Format(time.DateTime)
		h.reportDecision(obs, d, nil)
		got := regexp.MustCompile(`since (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC`).ReplaceAllStringFunc(line, func(s string) string {
			if at := strings.TrimSuffix(strings.TrimPrefix(s, "since "), " UTC"); at < before || at > time.Now().UTC().Format(time.DateTime) {
				t.Errorf("%s: since %s, now is %s", c.state, at, before)
			}
			return "since T"
		})
		if got != c.want {
			t.Errorf("%s: %q\n\texpected %q", c.state, got, c.want)
		}
		if len(line) > 256 {
			t.Errorf("%d bytes, systemctl shows 256: %s", len(line), line)
		}
	}
	for _, s := range v1alpha1.States() {
		if !walked[s] {
			t.Errorf("no case for %s", s)
		}
	}
}

// TestEachTransitionIsToldOnce checks that the journal gets one entry for each transition, with its kind and fields,
// and none for a state that stays the same.
func TestEachTransitionIsToldOnce(t *testing.T) {
	var told []string
	h := &Host{name: "n1", log: slog.New(recorder{told: &told}).With("node", "n1")}
	take := func(state v1alpha1.State, change func(*step.Observation)) {
		o := situation(state, change)
		h.reportDecision(o, step.Decision{Waits: o.Node.Held, Detail: "x"}, nil)
	}
	kind := map[v1alpha1.MessageID]string{
		v1alpha1.MessageStateEntered: "entered", v1alpha1.MessageWants: "wants", v1alpha1.MessageTurnEnded: "ended",
		v1alpha1.MessageTurnFailed: "failed", v1alpha1.MessageHeld: "held", v1alpha1.MessageHeldNoMore: "held no more",
	}
	expect := func(want ...string) {
		t.Helper()
		for i, line := range told {
			for id, k := range kind {
				told[i] = strings.Replace(told[i], "message_id="+string(id), k, 1)
			}
			if !strings.Contains(line, " node=n1") {
				t.Errorf("no node in %q", line)
			}
			told[i] = strings.ReplaceAll(told[i], " node=n1", "")
		}
		if !slices.Equal(told, want) {
			t.Errorf("logged\n\t%s\nexpected\n\t%s", strings.Join(told, "\n\t"), strings.Join(want, "\n\t"))
		}
		told = nil
	}
	held := func(r v1alpha1.Reason) func(*step.Observation) {
		return func(o *step.Observation) { o.Node.Held = r }
	}
	take("idle", held("Budget"))
	expect("INFO entered state=idle", "INFO wants state=idle wants=reboot", "INFO held state=idle reason=Budget")
	take("idle", held("Budget"))
	expect()
	take("idle", held("Failed"))
	expect("WARN held state=idle reason=Failed")
	take("idle", nil)
	expect("INFO held no more state=idle")
	take("draining", nil)
	expect("INFO entered turn=t1 state=draining")
	take("before-reboot", held("Stopped"))
	expect("INFO entered turn=t1 state=before-reboot", "INFO held turn=t1 state=before-reboot reason=Stopped")
	take("rebooting", held("Stopped"))
	expect("INFO entered turn=t1 state=rebooting", "INFO held turn=t1 state=rebooting reason=Stopped")
	last := func(r v1alpha1.Result, why v1alpha1.Reason) func(*step.Observation) {
		return func(o *step.Observation) { o.Node.Last = &v1alpha1.Last{Turn: "t1", Result: r, Reason: why} }
	}
	take("idle", last(v1alpha1.ResultFailed, v1alpha1.ReasonNotUpdated))
	expect("ERROR failed state=idle turn=t1 result=Failed reason=NotUpdated", "INFO entered state=idle")
	take("draining", nil)
	take("idle", last(v1alpha1.ResultDone, ""))
	expect("INFO entered turn=t1 state=draining", "INFO ended state=idle turn=t1 result=Done", "INFO entered state=idle")
}

// TestReportsAreLogged checks that every text of the catalog finds its fields in the entries; this test checks the entries
// about reports.
func TestReportsAreLogged(t *testing.T) {
	var told []string
	h := &Host{name: "n1", log: slog.New(recorder{told: &told})}
	for i, a := range []v1alpha1.Ack{
		{Turn: "t1", State: "draining", Report: v1alpha1.ReportSeen},
		{Turn: "t1", State: "draining", Report: v1alpha1.ReportCommitted}, {Turn: "t1", State: "draining", Report: v1alpha1.ReportDone},
		{Turn: "t1", State: "draining", Report: v1alpha1.ReportRefused, Reason: v1alpha1.ReasonUncordoned},
		{Turn: "t1", State: "rebooting", Report: v1alpha1.ReportFailed, Reason: v1alpha1.ReasonUnhealthy},
		{Turn: "t1", State: "rebooting", Report: v1alpha1.ReportFailed, Reason: "SomethingNew"},
	} {
		h.logAck(a, i == 0)
	}
	want := []string{
		"INFO message_id=" + string(v1alpha1.MessageTurnBegins) + " turn=t1 state=draining",
		"INFO turn=t1 state=draining report=seen",
		"INFO message_id=" + string(v1alpha1.MessageCommitted) + " turn=t1 state=draining report=committed",
		"INFO message_id=" + string(v1alpha1.MessageStageDone) + " turn=t1 state=draining report=done",
		"WARN message_id=" + string(v1alpha1.MessageRefused) + " turn=t1 state=draining report=refused reason=Uncordoned",
		"ERROR message_id=" + string(v1alpha1.MessageStageFailed) + " turn=t1 state=rebooting report=failed reason=Unhealthy",
		"ERROR message_id=" + string(v1alpha1.MessageStageFailed) + " turn=t1 state=rebooting report=failed reason=SomethingNew",
	}
	if !slices.Equal(told, want) {
		t.Errorf("logged\n\t%s\nexpected\n\t%s", strings.Join(told, "\n\t"), strings.Join(want, "\n\t"))
	}
	if systemd.MessageID != "message_id" {
		t.Error("the name of the key has changed")
	}
}

// recorder keeps entries as text: the level and the attributes, except those that only the journal's catalog uses.
// Those must come with a reason or with a new state.
type recorder struct {
	told *[]string
	with []slog.Attr
}

func (recorder) Enabled(context.Context, slog.Level) bool { return true }

func (r recorder) WithAttrs(attrs []slog.Attr) slog.Handler {
	return recorder{r.told, append(slices.Clone(r.with), attrs...)}
}

func (r recorder) WithGroup(string) slog.Handler { return r }

func (r recorder) Handle(_ context.Context, e slog.Record) error {
	var attrs []slog.Attr
	e.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, a)
		return true
	})
	attrs = append(attrs, r.with...)
	level := e.Level
	line, means, explained := level.String(), false, false
	var add func([]slog.Attr)
	add = func(attrs []slog.Attr) {
		for _, a := range attrs {
			switch {
			case a.Value.Kind() == slog.KindGroup:
				add(a.Value.Group())
			case a.Key == "means" || a.Key == "do":
				means = a.Value.String() != ""
			default:
				explained = explained || a.Key == "reason" || a.Value.String() == string(v1alpha1.MessageStateEntered)
				line += " " + a.Key + "=" + a.Value.String()
			}
		}
	}
	add(attrs)
	if means != explained {
		line += " BADLY EXPLAINED"
	}
	*r.told = append(*r.told, line)
	return nil
}

// TestCleared checks that a host's record says whether an admin has cleared its last turn, and no other.
func TestCleared(t *testing.T) {
	for retry, want := range map[string]bool{"": false, "t0": false, "t1": true} {
		n := turn.Node{Keys: v1alpha1.Keys{State: v1alpha1.StateIdle, Last: &v1alpha1.Last{Turn: "t1", Result: v1alpha1.ResultFailed}, Retry: retry}}
		var s local.Host
		if (&Host{}).describe(&s, &n); s.Cleared != want {
			t.Errorf("retry %q: cleared %t", retry, s.Cleared)
		}
	}
}
