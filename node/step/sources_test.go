package step

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// rules makes a match of one policy: a file that restarts a unit after a drain, a file that
// reloads one, a file that costs nothing, and a version of the OS that is held back.
func rules() policy.Match {
	p := policy.Policy{Name: "p", Rules: []v1alpha1.Rule{
		{Source: v1alpha1.SourceOSUpdate, Actions: []v1alpha1.Action{{Type: v1alpha1.ActionReboot}}, HoldBack: "9.*"},
		{Source: v1alpha1.SourceFile, Path: "/restart", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionDrain}, {Type: v1alpha1.ActionRestart, Unit: "a.service"}}},
		{Source: v1alpha1.SourceFile, Path: "/reload", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionReload, Unit: "b.service"}}},
		{Source: v1alpha1.SourceFile, Path: "/none", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionNone}}},
	}}
	return policy.Match{Policy: &p, All: []*policy.Policy{&p}}
}

func file(name string) v1alpha1.Change {
	return v1alpha1.Change{Source: v1alpha1.SourceFile, Name: name, Version: "1"}
}

// TestCombine has what the host wants by what its sources report, and what it does about
// sources that cannot be read. Written by hand.
func TestCombine(t *testing.T) {
	const engineUnconfirmed = "update_engine: it reported an update that waits for a reboot, and does not confirm it now"
	update := func(version string) []v1alpha1.Change {
		return []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: version}}
	}
	published := func(o *Observation) { o.Node.Host = &v1alpha1.Host{NodeUID: aUID, BootID: aBoot} }
	inTurn := func(o *Observation) { o.Node.State, o.Node.Turn = v1alpha1.StateDraining, aTurn; published(o) }
	for name, c := range map[string]struct {
		reports     func(*Reports)
		node        func(*Observation)
		wants       v1alpha1.Wants // "" if Sources is incomplete
		drains      bool
		missing     string
		unconfirmed string
		veto        v1alpha1.Reason
		vetoDetail  string
		unreadable  string
		changes     string // sources and names
	}{
		"nothing":                   {wants: "nothing"},
		"an update":                 {reports: func(r *Reports) { r.Engine = update("4.2") }, wants: "reboot", drains: true, changes: "OSUpdate@4.2"},
		"a sentinel":                {reports: func(r *Reports) { r.Sentinels = []string{"/run/s"} }, wants: "reboot", drains: true, changes: "Sentinel /run/s"},
		"a request":                 {node: func(o *Observation) { o.Node.Request = &v1alpha1.Request{} }, wants: "reboot", drains: true, changes: "Request"},
		"a file that restarts":      {reports: func(r *Reports) { r.Files = []v1alpha1.Change{file("/restart")} }, wants: "drain", drains: true, changes: "File /restart"},
		"a file that reloads":       {reports: func(r *Reports) { r.Files = []v1alpha1.Change{file("/reload")} }, wants: "apply", changes: "File /reload"},
		"a file that costs nothing": {reports: func(r *Reports) { r.Files = []v1alpha1.Change{file("/none")} }, wants: "nothing"},
		"a version held back":       {reports: func(r *Reports) { r.Engine = update("9.1") }, wants: "nothing"},
		"a reboot into a version held back": {reports: func(r *Reports) { r.Engine, r.Sentinels = update("9.1"), []string{"/run/s"} }, wants: "reboot", drains: true,
			veto: "HeldBack", vetoDetail: "its plan would boot a version that a policy holds back", changes: "Sentinel /run/s"},

		"a FleetLock client": {reports: func(r *Reports) { r.Permission = Permission{Asked: true, Known: true} }, wants: "reboot", drains: true, changes: "FleetLock"},
		"a FleetLock client of the process before": {node: func(o *Observation) {
			published(o)
			o.Node.Host.Changes = []v1alpha1.Change{{Source: v1alpha1.SourceFleetLock}}
		}, wants: "reboot", drains: true, changes: "FleetLock"},
		"a FleetLock client of the process before that has not asked again": {reports: func(r *Reports) { r.Permission.Known = true }, node: func(o *Observation) {
			published(o)
			o.Node.Host.Changes = []v1alpha1.Change{{Source: v1alpha1.SourceFleetLock}}
		}, wants: "nothing"},
		"a FleetLock client of another boot": {node: func(o *Observation) {
			published(o)
			o.Node.Host.BootID, o.Node.Host.Changes = "b0", []v1alpha1.Change{{Source: v1alpha1.SourceFleetLock}}
		}, wants: "nothing"},

		"no answer of the engine":          {reports: func(r *Reports) { r.EngineError = "no bus" }, missing: "update_engine: no bus"},
		"no answer after it was published": {reports: func(r *Reports) { r.EngineError = "no bus" }, node: published, wants: "nothing"},
		"no answer, and an update": {reports: func(r *Reports) { r.Engine, r.EngineError = update("4.2"), "no bus" }, node: published, wants: "reboot", drains: true,
			unconfirmed: engineUnconfirmed, changes: "OSUpdate@4.2"},
		"no answer, and a sentinel carries the plan": {reports: func(r *Reports) { r.Engine, r.EngineError, r.Sentinels = update("4.2"), "no bus", []string{"/run/s"} }, node: published,
			wants: "reboot", drains: true, changes: "OSUpdate@4.2 Sentinel /run/s"},
		"no answer, and without the update the plan only restarts": {reports: func(r *Reports) {
			r.Engine, r.EngineError, r.Files = update("4.2"), "no bus", []v1alpha1.Change{file("/restart")}
		}, node: published, wants: "reboot", drains: true, unconfirmed: engineUnconfirmed, changes: "File /restart OSUpdate@4.2"},
		"published in another boot": {reports: func(r *Reports) { r.EngineError = "no bus" }, node: func(o *Observation) { published(o); o.Node.Host.BootID = "b0" }, missing: "update_engine: no bus"},
		"published by another Node": {reports: func(r *Reports) { r.EngineError = "no bus" }, node: func(o *Observation) { published(o); o.Node.Host.NodeUID = "u0" }, missing: "update_engine: no bus"},

		"sentinels not read":                       {reports: func(r *Reports) { r.SentinelsRead = false }, node: published, missing: "sentinels: not read yet"},
		"hooks not read":                           {reports: func(r *Reports) { r.HooksRead = false }, missing: "hook units: systemd has not answered yet"},
		"hooks not read after they were published": {reports: func(r *Reports) { r.HooksRead = false }, node: published, wants: "nothing"},
		"files not read":                           {reports: func(r *Reports) { r.FilesRead = false }, node: published, missing: "watched files: not read yet"},
		"a file that cannot be read":               {reports: func(r *Reports) { r.FilesError = "File /x cannot be read" }, wants: "nothing", unreadable: "File /x cannot be read"},
		"a file that cannot be read, and an update": {reports: func(r *Reports) { r.Engine, r.FilesError = update("4.2"), "File /x cannot be read" }, wants: "reboot", drains: true,
			veto: "SourceUnreadable", vetoDetail: "File /x cannot be read", unreadable: "File /x cannot be read", changes: "OSUpdate@4.2"},
		"sentinels that cannot be read": {reports: func(r *Reports) { r.SentinelsRead, r.Unread = false, "sentinel: lstat /s: permission denied" }, node: published,
			missing: "sentinel: lstat /s: permission denied", unreadable: "sentinel: lstat /s: permission denied"},

		"the reads before a commit fail, and nothing": {reports: func(r *Reports) { r.Unread = "update_engine: no answer" }, wants: "nothing", unreadable: "update_engine: no answer"},
		"the reads before a commit fail, and a sentinel": {reports: func(r *Reports) { r.Unread, r.Sentinels = "update_engine: no answer", []string{"/run/s"} },
			wants: "reboot", drains: true, veto: "SourceUnreadable", vetoDetail: "update_engine: no answer", unreadable: "update_engine: no answer", changes: "Sentinel /run/s"},
		"the reads before a commit fail, and a version is held back": {reports: func(r *Reports) {
			r.Unread, r.Engine, r.Sentinels = "sentinel: no", update("9.1"), []string{"/run/s"}
		}, wants: "reboot", drains: true, veto: "HeldBack", vetoDetail: "its plan would boot a version that a policy holds back", unreadable: "sentinel: no", changes: "Sentinel /run/s"},
		"the reads before a commit fail, and a file cannot be read": {reports: func(r *Reports) {
			r.Unread, r.Engine, r.FilesError = "other reboot managers: no", update("4.2"), "File /x cannot be read"
		}, wants: "reboot", drains: true, veto: "SourceUnreadable", vetoDetail: "File /x cannot be read", unreadable: "File /x cannot be read", changes: "OSUpdate@4.2"},
		"an engine that does not run, and a sentinel": {reports: func(r *Reports) { r.EngineError, r.Sentinels = "it does not run", []string{"/run/s"} }, node: published,
			wants: "reboot", drains: true, changes: "Sentinel /run/s"},

		"policies not read": {reports: func(r *Reports) { r.Policies = Policies{} }, missing: "policies: not read yet"},
		"policies refused from the start": {reports: func(r *Reports) {
			r.Policies = Policies{Error: "forbidden", Unread: "again: forbidden", UnreadVeto: true}
		}, node: published, missing: "policies: forbidden"},
		"policies refused from the start, and an update": {reports: func(r *Reports) {
			r.Engine, r.Policies = update("4.2"), Policies{Error: "forbidden", Unread: "again: forbidden", UnreadVeto: true}
		}, missing: "policies: forbidden"},
		"policies away, and an update": {reports: func(r *Reports) { r.Engine, r.Policies.Unread = update("4.2"), "again: away" }, wants: "reboot", drains: true, unconfirmed: "again: away", changes: "OSUpdate@4.2"},
		"policies away for long, and an update": {reports: func(r *Reports) {
			r.Engine, r.Policies.Unread, r.Policies.UnreadVeto = update("4.2"), "again: away", true
		}, wants: "reboot", drains: true,
			unconfirmed: "again: away", veto: "SourceUnreadable", vetoDetail: "again: away", changes: "OSUpdate@4.2"},
		"policies away for long, and nothing": {reports: func(r *Reports) { r.Policies.Unread, r.Policies.UnreadVeto = "again: away", true }, wants: "nothing", unconfirmed: "again: away"},
		"no valid policies": {reports: func(r *Reports) {
			r.Policies.Match, r.FilesRead = policy.Match{Reason: v1alpha1.ReasonInvalidPolicy, Detail: "policy p: no"}, false
		}, node: published, wants: "nothing"},
		"an invalid policy, and an update": {reports: func(r *Reports) { r.Engine, r.Policies.Invalid = update("4.2"), "policy p: no" }, wants: "reboot", drains: true,
			veto: "InvalidPolicy", vetoDetail: "policy p: no", changes: "OSUpdate@4.2"},
		"an invalid policy, and nothing": {reports: func(r *Reports) { r.Policies.Invalid = "policy p: no" }, wants: "nothing"},
		"an invalid policy during the turn": {reports: func(r *Reports) { r.Engine, r.Policies.Invalid = update("4.2"), "policy p: no" }, node: inTurn, wants: "reboot", drains: true,
			changes: "OSUpdate@4.2"},
		"no valid policies during the turn": {reports: func(r *Reports) {
			r.Policies.Match, r.FilesRead = policy.Match{Reason: v1alpha1.ReasonInvalidPolicy, Detail: "policy p: no"}, false
		}, node: inTurn, missing: "policies: policy p: no"},
		"no valid policies during the turn, in a new boot": {reports: func(r *Reports) {
			r.Policies.Match, r.FilesRead = policy.Match{Reason: v1alpha1.ReasonInvalidPolicy, Detail: "policy p: no"}, false
		}, node: func(o *Observation) { inTurn(o); o.Node.Host.BootID = "b0" }, wants: "nothing"},
	} {
		r := Reports{SentinelsRead: true, FilesRead: true, HooksRead: true, Policies: Policies{Listed: true, Match: rules()}}
		if c.reports != nil {
			c.reports(&r)
		}
		o := observe(t, []string{"idle"})
		o.Node.Host, o.Sources = nil, Sources{}
		if c.node != nil {
			c.node(&o)
		}
		o.Combine(&r)
		s := o.Sources
		if s.Complete != (c.missing == "") || s.Missing != c.missing {
			t.Errorf("%s: complete %t, misses %q, expected %q", name, s.Complete, s.Missing, c.missing)
		}
		var names []string
		for _, change := range s.Changes {
			names = append(names, strings.TrimSuffix(change.String(), "@1"))
		}
		if s.Complete && (s.Wants != c.wants || s.Drains != c.drains || strings.Join(names, " ") != c.changes) {
			t.Errorf("%s: wants %s, drains %t, for %q, expected %s, %t, %q", name, s.Wants, s.Drains, names, c.wants, c.drains, c.changes)
		}
		if s.Unconfirmed != c.unconfirmed || s.Veto != c.veto || s.VetoDetail != c.vetoDetail {
			t.Errorf("%s: unconfirmed %q, veto %q (%s), expected %q, %q (%s)", name, s.Unconfirmed, s.Veto, s.VetoDetail, c.unconfirmed, c.veto, c.vetoDetail)
		}
		if s.Unreadable != c.unreadable {
			t.Errorf("%s: unreadable %q, expected %q", name, s.Unreadable, c.unreadable)
		}
	}
}

// TestLongPlan: a plan whose steps take more than MaxSteps bytes is not carried out.
func TestLongPlan(t *testing.T) {
	for _, c := range []struct {
		bytes int
		veto  v1alpha1.Reason
	}{{v1alpha1.MaxSteps, ""}, {v1alpha1.MaxSteps + 1, v1alpha1.ReasonInvalidRecord}} {
		const around = len(`[{"type":"Restart","unit":""}]`)
		unit := strings.Repeat("u", c.bytes-around)
		p := policy.Policy{Rules: []v1alpha1.Rule{{Source: v1alpha1.SourceFile, Path: "/long", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRestart, Unit: unit}}}}}
		r := Reports{SentinelsRead: true, FilesRead: true, HooksRead: true, Files: []v1alpha1.Change{file("/long")},
			Policies: Policies{Listed: true, Match: policy.Match{Policy: &p, All: []*policy.Policy{&p}}}}
		o := observe(t, []string{"idle"})
		o.Combine(&r)
		if got := len(v1alpha1.FormatRecord(o.Sources.Steps)); got != c.bytes || o.Sources.Veto != c.veto {
			t.Errorf("steps of %d bytes: veto %q, expected %d bytes, %q", got, o.Sources.Veto, c.bytes, c.veto)
		}
	}
}

// TestCombineHookStages: before systemd has answered, the stages with hook units are those
// that this boot has published.
func TestCombineHookStages(t *testing.T) {
	before, now := []v1alpha1.State{v1alpha1.StateBeforeDrain}, []v1alpha1.State{v1alpha1.StateBeforeReboot}
	for _, c := range []struct {
		read bool
		boot string
		want []v1alpha1.State
	}{{true, aBoot, now}, {false, aBoot, before}, {false, "b0", nil}} {
		o := observe(t, []string{"idle"})
		o.Node.Host = &v1alpha1.Host{NodeUID: aUID, BootID: c.boot, HookStages: before}
		r := Reports{HooksRead: c.read}
		if c.read {
			r.HookStages = now
		}
		if o.Combine(&r); !slices.Equal(o.Self.HookStages, c.want) {
			t.Errorf("%+v: %v", c, o.Self.HookStages)
		}
	}
}

// TestPlanLines: the lines are bounded, and say what each step is for.
func TestPlanLines(t *testing.T) {
	plan := rules().Plan([]v1alpha1.Change{file("/restart"), file("/none"), {Source: v1alpha1.SourceOSUpdate, Version: "9.1"}})
	want := []string{"Drain: File /restart@1, by File /restart of p", "Restart a.service: File /restart@1, by File /restart of p",
		"held back by 9.*: OSUpdate@9.1, by OSUpdate of p", "None: File /none@1, by File /none of p"}
	if got := planLines(&plan, nil); !slices.Equal(got, want) {
		t.Errorf("%q, expected %q", got, want)
	}
	plan = rules().Plan([]v1alpha1.Change{{Source: v1alpha1.SourceRequest}, {Source: v1alpha1.SourceSentinel, Name: "/s"}})
	request := &v1alpha1.Request{Action: "reboot", Reason: "memory", By: "ada", Now: true}
	want = []string{"Drain: Request, by no rule (now, by ada: memory); Sentinel /s, by no rule", "Reboot: Request, by no rule (now, by ada: memory); Sentinel /s, by no rule"}
	if got := planLines(&plan, request); !slices.Equal(got, want) {
		t.Errorf("%q, expected %q", got, want)
	}
	for length, want := range map[int]string{maxPlanLine: "/none of p", maxPlanLine + 1: "/none …"} {
		const around = len("None: File /none/@1, by File /none of p")
		plan = rules().Plan([]v1alpha1.Change{file("/none/" + strings.Repeat("x", length-around))})
		if got := planLines(&plan, nil); len(got) != 1 || !strings.HasSuffix(got[0], want) || len(got[0]) > maxPlanLine {
			t.Errorf("a line of %d bytes: %q, expected it to end with %q", length, got, want)
		}
	}
	var some []v1alpha1.Change
	for i := range maxPlanLines {
		some = append(some, file(fmt.Sprintf("/none/%02d", i)))
	}
	plan = rules().Plan(some)
	if lines := planLines(&plan, nil); len(lines) != maxPlanLines || !strings.HasPrefix(lines[maxPlanLines-1], "None: File /none/15") {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
	var many []v1alpha1.Change
	for i := range 20 {
		many = append(many, file(fmt.Sprintf("/none/%02d%s", i, strings.Repeat("é", 150))))
	}
	plan = rules().Plan(many)
	lines := planLines(&plan, nil)
	if len(lines) != maxPlanLines || lines[maxPlanLines-1] != "and 5 more" || len(lines[0]) > maxPlanLine || !strings.HasSuffix(lines[0], "é…") {
		t.Errorf("%d lines, the last %q, the first %q", len(lines), lines[len(lines)-1], lines[0])
	}
}
