package forecast

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// answers returns the plan for the nodes, with the changes of ParseChange that asked lists.
func answers(t *testing.T, in Input, asked string, names ...string) Forecast {
	t.Helper()
	in.Names = names
	for text := range strings.FieldsSeq(asked) {
		change, err := ParseChange(text)
		if err != nil {
			t.Fatal(err)
		}
		in.Asked = append(in.Asked, change)
	}
	return Ask(in).Answer(Pods{})
}

var invalid = []policy.Problem{{Field: "spec", Text: "x"}}

// What the policy allows, and what is missing if no turn is expected.
func TestRollout(t *testing.T) {
	requestNow := requestingNow("n1")
	silent := idle("n1")
	silent.BootID = "another"
	gate := func(p *policy.Policy, _ *rollout.Snapshot) { p.Gates = []v1alpha1.Gate{{Name: "alerts"}} }
	held := func(reason v1alpha1.Reason, change ...func(*policy.Policy, *rollout.Snapshot)) func(*policy.Policy, *rollout.Snapshot) {
		return func(p *policy.Policy, s *rollout.Snapshot) {
			s.Nodes[1].Held = reason
			for _, c := range change {
				c(p, s)
			}
		}
	}
	onClose := func(p *policy.Policy, _ *rollout.Snapshot) { p.Terms.OnClose = v1alpha1.OnCloseCancel }
	for _, tc := range []struct {
		name     string
		node     turn.Node
		change   func(*policy.Policy, *rollout.Snapshot)
		noLeader string
		want     string
	}{
		{name: "no windows and gates", node: wanting("n1"), want: `{"allowed":1,"unavailable":0}`},
		{name: "one node is cordoned", node: wanting("n1"), change: func(_ *policy.Policy, s *rollout.Snapshot) { s.Nodes[1].Unschedulable = true }, want: `{"allowed":1,"unavailable":1}`},
		{name: "a window is open", node: wanting("n1"), change: window("11:30", time.Hour), want: `{"allowed":1,"unavailable":0,"closes":"2026-11-21T12:30:00Z"}`},
		{name: "a window is open, and a turn does not fit", node: wanting("n1"), change: window("11:00", 65*time.Minute), want: `{"allowed":1,"unavailable":0,"opens":"2026-11-22T11:00:00Z","closes":"2026-11-21T12:05:00Z"}`},
		{name: "a window opens later", node: wanting("n1"), change: window("22:00", time.Hour), want: `{"allowed":1,"unavailable":0,"opens":"2026-11-21T22:00:00Z"}`},
		{name: "no window is long enough", node: wanting("n1"), change: window("22:00", 5*time.Minute), want: `{"allowed":1,"unavailable":0,"neverOpens":true}`},
		{name: "turns are backed out at the end", node: wanting("n1"), change: func(p *policy.Policy, s *rollout.Snapshot) { window("11:30", time.Hour)(p, s); onClose(p, s) },
			want: `{"allowed":1,"unavailable":0,"closes":"2026-11-21T12:30:00Z","onClose":"Cancel"}`},
		{name: "a window is open until a blackout begins", node: wanting("n1"), change: func(p *policy.Policy, s *rollout.Snapshot) {
			window("11:30", time.Hour)(p, s)
			p.Blackouts = []policy.Blackout{{From: noon.Add(20 * time.Minute), To: noon.Add(time.Hour), Name: "blackout x"}}
		}, want: `{"allowed":1,"unavailable":0,"closes":"2026-11-21T12:20:00Z","blackout":"blackout x","blackoutEnds":"2026-11-21T13:00:00Z"}`},
		{name: "and there is no end", node: wanting("n1"), change: onClose, want: `{"allowed":1,"unavailable":0}`},
		{name: "a request for now", node: requestNow, change: func(p *policy.Policy, s *rollout.Snapshot) { window("22:00", time.Hour)(p, s); gate(p, s) }, want: `{"allowed":1,"unavailable":0}`},
		{name: "a gate", node: wanting("n1"), change: gate, want: `{"allowed":1,"unavailable":0,"gates":["alerts"]}`},
		{name: "a closed gate", node: wanting("n1"), change: held(v1alpha1.ReasonGateClosed, gate), want: `{"allowed":1,"unavailable":0,"gates":["alerts"],"gateClosed":true}`},
		{name: "nobody checks the gate", node: wanting("n1"), change: held(v1alpha1.ReasonGateClosed, gate), noLeader: "x", want: `{"allowed":1,"unavailable":0,"gates":["alerts"]}`},
		{name: "held for something else", node: wanting("n1"), change: held(v1alpha1.ReasonWindow, gate), want: `{"allowed":1,"unavailable":0,"gates":["alerts"]}`},
		{name: "the gate that was closed is gone", node: wanting("n1"), change: held(v1alpha1.ReasonGateClosed), want: `{"allowed":1,"unavailable":0}`},
		{name: "no policy", node: wanting("n1"), change: func(_ *policy.Policy, s *rollout.Snapshot) { s.Policies = nil }, want: "null"},
		{name: "an invalid policy", node: wanting("n1"), change: func(p *policy.Policy, _ *rollout.Snapshot) { p.Problems = invalid }, want: "null"},
		{name: "a silent node that wants nothing", node: silent, want: "null"},
	} {
		s, p := rolls(tc.node, idle("n2"))
		if tc.change != nil {
			tc.change(p, &s)
		}
		got, err := json.Marshal(answers(t, Input{Snapshot: s, NoLeader: tc.noLeader}, "", "n1").Groups[0].Rollout)
		if err != nil || string(got) != tc.want {
			t.Errorf("%s: %s, %v, expected %s", tc.name, got, err, tc.want)
		}
	}
}

// A request for now waits for a slot, but for no window and no settle time.
func TestRequestForNow(t *testing.T) {
	for _, tc := range []struct {
		other turn.Node
		in    time.Duration
	}{{idle("n2"), 0}, {turning("n2", 6*time.Minute), 4 * time.Minute}} {
		s, p := rolls(requestingNow("n1"), tc.other)
		window("22:00", time.Hour)(p, &s)
		got := answers(t, Input{Snapshot: s}, "", "n1").Groups[0].Nodes[0].BeginsIn
		if got == nil || got.Duration != tc.in {
			t.Errorf("while the other is %s: it begins in %v, expected %v", tc.other.State, got, tc.in)
		}
	}
}

// The stages of a turn have the limits of the policy's terms.
func TestStages(t *testing.T) {
	neverHeardOf := idle("n1")
	neverHeardOf.State, neverHeardOf.Wants, neverHeardOf.Host = v1alpha1.StateAbsent, "", nil
	withHooks := wanting("n1")
	withHooks.Host.HookStages = []v1alpha1.State{v1alpha1.StateBeforeReboot}
	idleWithHooks := idle("n1")
	idleWithHooks.Host.HookStages = withHooks.Host.HookStages
	hooks := func(terms *v1alpha1.Terms) {
		terms.BeforeDrain, terms.WaitForVolumeDetach = []v1alpha1.Hook{{Name: "a"}}, true
	}
	for _, tc := range []struct {
		name   string
		node   turn.Node
		change func(*v1alpha1.Terms)
		asked  string
		want   string
	}{
		{name: "Wait", node: wanting("n1"), change: func(t *v1alpha1.Terms) { t.DrainTimeout = v1alpha1.OnTimeoutWait },
			want: "draining 1m0s Wait, rebooting 2m0s Wait, uncordoning 5m0s Wait"},
		{name: "Abort", node: wanting("n1"), change: func(*v1alpha1.Terms) {},
			want: "draining 1m0s Abort, rebooting 2m0s Abort, uncordoning 5m0s Wait"},
		{name: "Force", node: wanting("n1"), change: func(t *v1alpha1.Terms) { t.DrainTimeout = v1alpha1.OnTimeoutForce },
			want: "draining 1m0s Force, rebooting 2m0s Abort, uncordoning 5m0s Wait"},
		{name: "only to apply", node: idle("n1"), change: func(*v1alpha1.Terms) {}, asked: "file:/etc/x", want: "applying 3m0s Abort"},
		{name: "hooks and volumes", node: withHooks, change: hooks,
			want: "before-drain hook a, draining 1m0s Abort, before-reboot units 4m0s volumes, rebooting 2m0s Abort, uncordoning 5m0s Wait"},
		{name: "volumes stay without a drain", node: idleWithHooks, change: hooks, asked: "file:/etc/reboot", want: "before-reboot units 4m0s, rebooting 2m0s Abort, uncordoning 5m0s Wait"},
		{name: "a host that is not known yet", node: neverHeardOf, change: hooks, asked: "os",
			want: "before-drain hook a, draining 1m0s Abort, before-reboot volumes, rebooting 2m0s Abort, uncordoning 5m0s Wait"},
	} {
		s, p := rolls(tc.node, idle("n2"))
		p.Rules = append(p.Rules,
			v1alpha1.Rule{Source: v1alpha1.SourceFile, Path: "/etc/x", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRestart, Unit: "a.service"}}},
			v1alpha1.Rule{Source: v1alpha1.SourceFile, Path: "/etc/reboot", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionReboot}}, Drain: v1alpha1.DrainNever})
		minutes := func(n time.Duration) metav1.Duration { return metav1.Duration{Duration: n * time.Minute} }
		p.Terms = v1alpha1.Terms{Draining: minutes(1), Rebooting: minutes(2), Applying: minutes(3), HostHooks: minutes(4), Uncordoning: minutes(5), DrainTimeout: v1alpha1.OnTimeoutAbort}
		tc.change(&p.Terms)
		var got []string
		for _, stage := range answers(t, Input{Snapshot: s}, tc.asked, "n1").Groups[0].Stages {
			var text strings.Builder
			text.WriteString(string(stage.State))
			if stage.Limit.Duration > 0 || stage.OnTimeout != "" {
				text.WriteString(" " + stage.Limit.Duration.String() + " " + string(stage.OnTimeout))
			}
			for _, h := range stage.Hooks {
				text.WriteString(" hook " + h.Name)
			}
			if stage.HostHooks.Duration > 0 {
				text.WriteString(" units " + stage.HostHooks.Duration.String())
			}
			if stage.Volumes {
				text.WriteString(" volumes")
			}
			got = append(got, text.String())
		}
		if got := strings.Join(got, ", "); got != tc.want {
			t.Errorf("%s:\n%s\nexpected\n%s", tc.name, got, tc.want)
		}
	}
}

// The steps of the plan, and the remarks on it.
func TestSteps(t *testing.T) {
	const older = "this plan uses the current policies; the host published "
	inTurn := func() turn.Node { return turning("n1", time.Minute) }
	published := func(wants v1alpha1.Wants, drains bool) turn.Node {
		n := wanting("n1")
		n.Wants, n.Host.Drains = wants, drains
		return n
	}
	for _, tc := range []struct {
		name    string
		node    turn.Node
		only    bool // the cluster has no other node
		invalid bool
		asked   string
		steps   string
		drains  bool
		notes   string
	}{
		{name: "a reboot", node: wanting("n1"), steps: "Drain, Reboot", drains: true},
		{name: "a reboot of the only node", node: wanting("n1"), only: true, steps: "Reboot", notes: "it is the only node, so its turn has no drain"},
		{name: "no drain", node: idle("n1"), asked: "file:/etc/x", steps: "Restart a.service"},
		{name: "no drain of the only node", node: idle("n1"), only: true, asked: "file:/etc/x", steps: "Restart a.service"},
		{name: "the host published less", node: published(v1alpha1.WantsApply, false), steps: "Drain, Reboot", drains: true,
			notes: older + "wants=apply, by the policies that it had read last"},
		{name: "the host published no drain", node: published(v1alpha1.WantsReboot, false), steps: "Drain, Reboot", drains: true,
			notes: older + "wants=reboot without a drain, by the policies that it had read last"},
		{name: "the host published less than a reboot, with a drain", node: published(v1alpha1.WantsDrain, true), steps: "Drain, Reboot", drains: true,
			notes: older + "wants=drain, by the policies that it had read last"},
		{name: "what the host published does not matter to changes that are asked about", node: published(v1alpha1.WantsApply, false), asked: "request", steps: "Drain, Reboot", drains: true},
		{name: "a sentinel", node: idle("n1"), asked: "sentinel:/run/x", steps: "Drain, Reboot", drains: true,
			notes: "hosts look for a sentinel only if [sources] sentinels in their file names it"},
		{name: "a version", node: idle("n1"), asked: "os:3", steps: "Drain, Reboot", drains: true},
		{name: "a version that is held back", node: idle("n1"), asked: "os:4"},
		{name: "a version that is held back, and a request", node: idle("n1"), asked: "os:4 request", steps: "Drain, Reboot", drains: true},
		{name: "a version that is not named", node: idle("n1"), asked: "os",
			notes: "without a version, this change counts as held back, because its version may be one that holdBack matches: name it with --change os:VERSION"},
		{name: "in a turn", node: inTurn(), steps: "Drain, Reboot", drains: true},
		{name: "in a turn, and more comes", node: inTurn(), asked: "request", steps: "Drain, Reboot", drains: true,
			notes: "a change that arrives during the turn joins it if it makes the turn stronger and draining is not over; otherwise it waits for the next turn"},
		{name: "an invalid policy", node: wanting("n1"), invalid: true, steps: "Drain, Reboot", drains: true,
			notes: "a host that has read valid policies since it started continues to use them"},
		{name: "an invalid policy, and nothing to do", node: idle("n1"), invalid: true},
	} {
		s, p := rolls(tc.node, idle("n2"))
		if tc.only {
			s.Nodes = s.Nodes[:1]
		}
		p.Rules = append(p.Rules,
			v1alpha1.Rule{Source: v1alpha1.SourceFile, Path: "/etc/x", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRestart, Unit: "a.service"}}},
			v1alpha1.Rule{Source: v1alpha1.SourceOSUpdate, HoldBack: "4", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionReboot}}})
		if tc.invalid {
			p.Problems = invalid
		}
		g := answers(t, Input{Snapshot: s}, tc.asked, "n1").Groups[0]
		var steps []string
		for _, step := range g.Steps {
			steps = append(steps, step.Action)
		}
		if got := strings.Join(steps, ", "); got != tc.steps || g.Drains != tc.drains {
			t.Errorf("%s: %q, drains %t, expected %q, %t", tc.name, got, g.Drains, tc.steps, tc.drains)
		}
		if got := strings.Join(g.Notes, "\n"); got != tc.notes {
			t.Errorf("%s: the notes\n%s\nexpected\n%s", tc.name, got, tc.notes)
		}
	}
}

// A host does not watch files and units that no rule names. While a policy is invalid, it
// may still watch what an earlier version named, so what it publishes counts.
func TestUnwatched(t *testing.T) {
	for _, tc := range []struct {
		asked, pending string
		invalid        bool
		want           bool
	}{
		{asked: "file:/usr/x", want: true},
		{asked: "unit:a.service", want: true},
		{asked: "sentinel:/run/x"},
		{asked: "file:/etc/x"},
		{asked: "file:/usr/x", invalid: true, want: true},
		{pending: "/usr/x", want: true},
		{pending: "/usr/x", invalid: true},
		{pending: "/etc/x"},
	} {
		n := idle("n1")
		if tc.pending != "" {
			n.Host.Changes = []v1alpha1.Change{{Source: v1alpha1.SourceFile, Name: tc.pending}}
		}
		s, p := rolls(n, idle("n2"))
		p.Rules = append(p.Rules, v1alpha1.Rule{Source: v1alpha1.SourceFile, Path: "/etc/x", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionReboot}}})
		if tc.invalid {
			p.Problems = invalid
		}
		g := answers(t, Input{Snapshot: s}, tc.asked, "n1").Groups[0]
		if len(g.Changes) != 1 || g.Changes[0].Unwatched != tc.want || g.Wants.Something() == tc.want {
			t.Errorf("%+v: %+v, wants %s", tc, g.Changes, g.Wants)
		}
	}
}

// A pending request is shown with its record, and keeps that record if something else comes.
func TestRequests(t *testing.T) {
	n := requesting("n1")
	n.Request.Now, n.Host.Changes = true, append(n.Host.Changes, anUpdate...)
	s, p := rolls(n, idle("n2"))
	window("22:00", time.Hour)(p, &s)
	g := answers(t, Input{Snapshot: s}, "file:/etc/x", "n1").Groups[0]
	if g.Outcome != Goes {
		t.Errorf("a request for now, outside of the window: %s, held %s", g.Outcome, g.Held)
	}
	for _, c := range g.Changes {
		if want := c.Source == v1alpha1.SourceRequest; (c.Request != nil) != want || want && !c.Request.Now {
			t.Errorf("%s has the request %+v", c.Change, c.Request)
		}
	}
}

// Nodes with the same answer are one group. The plan is held if a node is, also in its turn.
func TestGroups(t *testing.T) {
	s, _ := rolls(idle("n1"), idle("n2"), wanting("n3"))
	f := answers(t, Input{Snapshot: s}, "", "n1", "n2", "n3")
	if len(f.Groups) != 2 || f.Groups[0].Outcome != Goes || len(f.Groups[1].Nodes) != 2 || f.Held {
		t.Errorf("got %+v", f)
	}
	paused := turning("n1", time.Minute)
	paused.Paused = &v1alpha1.Intent{Reason: "disk"}
	s, _ = rolls(paused, idle("n2"))
	if f := answers(t, Input{Snapshot: s}, "", "n1"); !f.Held || f.Groups[0].Outcome != InTurn || f.Groups[0].Held == "" {
		t.Errorf("a turn that is held: %+v", f)
	}
	s, _ = rolls(turning("n1", time.Minute), idle("n2"))
	if f := answers(t, Input{Snapshot: s}, "", "n1"); f.Held || f.Groups[0].Outcome != InTurn || f.Groups[0].Held != "" {
		t.Errorf("a turn that is not held: %+v", f)
	}
}

// The drain is by the terms of the turn's record, else by those of the policy if it is valid.
func TestDrainTerms(t *testing.T) {
	blockAll := []v1alpha1.PodSelector{{}}
	ours := turning("n1", time.Minute)
	ours.Grant.Terms.Block = blockAll
	noRecord := turning("n1", time.Minute)
	noRecord.Grant = nil
	oldRecord := wanting("n1")
	oldRecord.Grant = &v1alpha1.Grant{NodeUID: oldRecord.UID}
	for _, tc := range []struct {
		name   string
		node   turn.Node
		change func(*policy.Policy, *rollout.Snapshot)
		blocks bool // or evicts
	}{
		{"no turn", wanting("n1"), func(*policy.Policy, *rollout.Snapshot) {}, false},
		{"no turn, and the policy blocks", wanting("n1"), func(p *policy.Policy, _ *rollout.Snapshot) { p.Terms.Block = blockAll }, true},
		{"no turn, but an old record", oldRecord, func(p *policy.Policy, _ *rollout.Snapshot) { p.Terms.Block = blockAll }, true},
		{"an invalid policy", wanting("n1"), func(p *policy.Policy, _ *rollout.Snapshot) { p.Terms.Block, p.Problems = blockAll, invalid }, false},
		{"no policy", wanting("n1"), func(_ *policy.Policy, s *rollout.Snapshot) { s.Policies = nil }, false},
		{"its turn's", ours, func(*policy.Policy, *rollout.Snapshot) {}, true},
		{"a turn without a record", noRecord, func(p *policy.Policy, _ *rollout.Snapshot) { p.Terms.Block = blockAll }, true},
	} {
		s, p := rolls(tc.node, idle("n2"))
		tc.change(p, &s)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}}
		n := Ask(Input{Snapshot: s, Names: []string{"n1"}}).Answer(Pods{OnNode: map[string][]*corev1.Pod{"n1": {pod}}}).Groups[0].Nodes[0]
		if (len(n.Block) == 1) != tc.blocks || (len(n.Evict) == 1) == tc.blocks {
			t.Errorf("%s: blocks %v, evicts %v", tc.name, n.Block, n.Evict)
		}
	}
}

// Pods that block hold a node that nothing else holds, until the time that the policy gives them
// is over and the host says so.
func TestBlockLimit(t *testing.T) {
	const hour = time.Hour
	blocked := func(since time.Duration, off bool) turn.Node {
		n := wanting("n1")
		n.Host.BlockedSince, n.Host.BlockOff = noon.Add(-since), off
		return n
	}
	limit := func(timeout time.Duration, then v1alpha1.OnBlockTimeout) func(*v1alpha1.Terms) {
		return func(t *v1alpha1.Terms) { t.BlockTimeout.Duration, t.OnBlockTimeout = timeout, then }
	}
	at := func(d time.Duration) *time.Time { return new(noon.Add(d)) }
	in2h, hold, evict := metav1.Duration{Duration: 2 * hour}, v1alpha1.OnBlockTimeoutHold, v1alpha1.OnBlockTimeoutEvict
	for _, tc := range []struct {
		name string
		node turn.Node
		edit func(*v1alpha1.Terms)
		want *BlockLimit
	}{
		{"no limit", wanting("n1"), func(*v1alpha1.Terms) {}, &BlockLimit{Then: hold}},
		{"no limit, and it has begun", blocked(hour, false), func(*v1alpha1.Terms) {}, &BlockLimit{Since: at(-hour), Then: hold}},
		{"it has not begun", wanting("n1"), limit(2*hour, evict), &BlockLimit{Timeout: in2h, Then: evict}},
		{"it has begun", blocked(hour, false), limit(2*hour, evict), &BlockLimit{Since: at(-hour), Timeout: in2h, Ends: at(hour), Then: evict}},
		{"it is over, but the host does not say so", blocked(3*hour, false), limit(2*hour, evict), &BlockLimit{Since: at(-3 * hour), Timeout: in2h, Ends: at(-hour), Then: evict}},
		{"it is over", blocked(3*hour, true), limit(2*hour, evict), &BlockLimit{Since: at(-3 * hour), Timeout: in2h, Ends: at(-hour), Then: evict, Off: true}},
		{"the host says so, but the policy does not", blocked(3*hour, true), limit(2*hour, ""), &BlockLimit{Since: at(-3 * hour), Timeout: in2h, Ends: at(-hour), Then: hold}},
		{"the host says so too early", blocked(hour, true), limit(2*hour, evict), &BlockLimit{Since: at(-hour), Timeout: in2h, Ends: at(hour), Then: evict}},
		{"the host's clock is ahead", blocked(-hour, false), limit(2*hour, evict), &BlockLimit{Timeout: in2h, Then: evict}},
	} {
		s, p := rolls(tc.node, idle("n2"))
		p.Terms.EmptyDir = v1alpha1.PodBlock
		tc.edit(&p.Terms)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}}}
		f := Ask(Input{Snapshot: s, Names: []string{"n1"}}).Answer(Pods{OnNode: map[string][]*corev1.Pod{"n1": {Strip(pod)}}})
		g := &f.Groups[0]
		if n := &g.Nodes[0]; !reflect.DeepEqual(n.BlockLimit, tc.want) || len(n.Block) != 1 {
			t.Errorf("%s: %+v, expected %+v", tc.name, n.BlockLimit, tc.want)
		}
		if held := g.Held == v1alpha1.ReasonDrainBlocked; held == tc.want.Off || f.Held != held || (g.Outcome == Goes) == held {
			t.Errorf("%s: %s %s", tc.name, g.Outcome, g.Held)
		}
	}
	n := turning("n1", time.Minute)
	n.Grant.Terms.EmptyDir, n.Grant.Terms.Unmanaged, n.Grant.BlockOff = v1alpha1.PodBlock, v1alpha1.PodBlock, true
	s, _ := rolls(n, idle("n2"))
	f := Ask(Input{Snapshot: s, Names: []string{"n1"}}).Answer(Pods{OnNode: map[string][]*corev1.Pod{"n1": {{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}}}}})
	if got := &f.Groups[0].Nodes[0]; len(got.Evict) != 1 || got.BlockLimit != nil {
		t.Errorf("a turn in which Block is off: %+v", got)
	}
}
