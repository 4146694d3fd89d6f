package rollout_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/policy"
)

// told is a policy's status in lines: the counts, then each condition.
func told(s v1alpha1.DisruptionPolicyStatus) string {
	var b strings.Builder
	for _, c := range s.Conditions {
		b.WriteString(c.Type + "=" + string(c.Status) + " " + c.Reason + ": " + c.Message + "\n")
	}
	return b.String()
}

// TestStatus has what is told of the policy web, which decides about n1 alone
// where the words say so, and about n1 and n2 else.
func TestStatus(t *testing.T) {
	const valid, within = "Valid=True Valid: the policy can be understood\n", "Halted=False WithinMaxFailed: 0 failed, 0 allowed\n"
	for _, tc := range []struct{ words, want string }{
		{"idle wants=nothing", valid + "Progressing=False UpToDate: no node wants anything\n" + within},
		{"idle", valid + "Progressing=True InTurn: 0 of 1 nodes that want something are in a turn, 0 unavailable, 1 allowed\n" + within},
		{"draining", valid + "Progressing=True InTurn: 1 of 1 nodes that want something are in a turn, 1 unavailable, 1 allowed\n" + within},
		{"draining ack=draining/committed marked drain=Wait since=2h", valid +
			"Progressing=False Overdue: 1 held: waits for the host to drain\n" + within},
		{"idle n2.cordoned", valid + "Progressing=False Budget: 1 wait: 1 unavailable, 1 allowed: n2 is cordoned by another owner\n" + within},
		{"idle n2.ended=30s", valid + "Progressing=True Settling: 1 wait until the nodes have settled after the last turn\n" + within},
		{"idle n2.failed", valid + "Progressing=False Halted: 1 held: 1 failed, 0 allowed\n" +
			"Halted=True Halted: 1 failed, 0 allowed; nothing is granted until `lockkeeper retry NODE` has cleared 1 of them\n"},
		{"idle policy=web;paused=true", valid + "Progressing=False Paused: 1 held: policy web is paused\n" + within},
		{"idle policy=web;observe=true", valid + "Progressing=False WouldGrant: 1 held: policy web only observes\n" + within},
		{"idle policy=web;window=22:00+4h", valid + "Progressing=False Window: 1 held: no window is open; the next opens at 22:00:00 UTC\n" + within},
		{"idle policy=web;window=11:00+70m", valid +
			"Progressing=False Window: 1 held: the window closes at 12:10:00 UTC, and a turn takes 15m0s; the next opens at 2026-01-02 11:00:00 UTC\n" + within},
		{"idle policy=web;window=11:00+70m;expected=2h", valid +
			"Progressing=False Window: 1 held: the window closes at 12:10:00 UTC, and a turn takes 2h0m0s; none that is long enough opens within eight days\n" + within},
		{"idle policy=web;gate=replicas", valid + "Progressing=False GateClosed: 1 held: gate replicas is closed: its query has not been answered yet\n" + within},
		{"idle policy=web;gate=replicas gate=web/replicas:closed", valid + "Progressing=False GateClosed: 1 held: gate replicas is closed: 3 replicas are missing\n" + within},
		{"idle stopped", valid + "Progressing=False Stopped: 1 held: " + v1alpha1.ReasonStopped.Doc().Means + "\n" + within},
		{"idle policy=web;invalid=true", `Valid=False InvalidPolicy: spec.rollout.windows[0].start: "25:00", expected a time of the day, 00:00 to 23:59` + "\n" +
			`Progressing=False InvalidPolicy: 1 held: policy web: spec.rollout.windows[0].start: "25:00", expected a time of the day, 00:00 to 23:59` + "\n" + within},
		{"idle policy=db;select=pool:db n2.label=pool:db label=pool:db", valid + "Progressing=False NoNodes: the policy decides about no managed node\n" + within},
		{"idle policy=db;select=pool:db policy=web;rules-only=true", valid + "Progressing=False RulesOnly: the policy adds rules and decides no rollout\n" + within},
		// With several policies, whose words it is.
		{"idle n2.cordoned policy=db;select=pool:db;gate=a", valid + "Progressing=False Budget: 1 wait: 1 unavailable, 1 allowed: n2 is cordoned by another owner\n" + within},
		{"idle n2.failed policy=db;select=pool:db;gate=a", valid + "Progressing=False Halted: 1 held: policy web: 1 failed, 0 allowed\n" +
			"Halted=True Halted: 1 failed, 0 allowed; nothing is granted until `lockkeeper retry NODE` has cleared 1 of them\n"},
	} {
		words := strings.Fields(tc.words)
		s := situation(t, append([]string{words[0], "policy=built-in;gone", "policy=web"}, words[1:]...))
		if g := s.Nodes[0].Grant; g != nil {
			g.Policy = "web"
		}
		for _, f := range rollout.Decide(s).Figures.Policies {
			if got := told(rollout.Status(&f, v1alpha1.DisruptionPolicyStatus{}, atNoon)); f.Name == "web" && got != tc.want {
				t.Errorf("%s:\n%s\nexpected:\n%s", tc.words, got, tc.want)
			}
		}
	}
}

// TestWaiting: a node waits for the gates of its policy if it wants something and is in no turn.
func TestWaiting(t *testing.T) {
	for words, want := range map[string]int{"idle": 1, "idle wants=nothing": 0, "draining": 0, "draining wants=nothing": 0} {
		words := strings.Fields(words)
		s := situation(t, append([]string{words[0], "policy=built-in;gone", "policy=web"}, words[1:]...))
		s.Nodes = s.Nodes[:1]
		for _, f := range rollout.Decide(s).Figures.Policies {
			if f.Name == "web" && f.Waiting != want {
				t.Errorf("%s: %d wait, expected %d", words, f.Waiting, want)
			}
		}
	}
}

// TestStatusOfAnInvalidPolicy names what is wrong, but not without end.
func TestStatusOfAnInvalidPolicy(t *testing.T) {
	f := rollout.PolicyFigures{Name: "web"}
	for range 12 {
		f.Problems = append(f.Problems, policy.Problem{Field: "spec.x", Text: "no"})
	}
	got := rollout.Status(&f, v1alpha1.DisruptionPolicyStatus{}, atNoon).Conditions[0].Message
	if want := strings.Repeat("spec.x: no; ", 10) + "and 2 more"; got != want {
		t.Errorf("%q, expected %q", got, want)
	}
}

// TestStatusSaysHowManyToClear: one retry is not enough if more than one node too many has failed.
func TestStatusSaysHowManyToClear(t *testing.T) {
	f := rollout.PolicyFigures{Name: "web", Failed: 4, MaxFailed: 1, Halted: true}
	got := rollout.Status(&f, v1alpha1.DisruptionPolicyStatus{}, atNoon).Conditions[2].Message
	if want := "4 failed, 1 allowed; nothing is granted until `lockkeeper retry NODE` has cleared 3 of them"; got != want {
		t.Errorf("%q, expected %q", got, want)
	}
}

// TestStatusNamesMostNodes: the reason that holds most nodes is the status, and of two that hold as many, the one that comes first.
func TestStatusNamesMostNodes(t *testing.T) {
	for _, c := range []struct {
		budget, window int
		want           v1alpha1.Reason
	}{{2, 1, v1alpha1.ReasonBudget}, {1, 2, v1alpha1.ReasonWindow}, {1, 1, v1alpha1.ReasonBudget}} {
		f := rollout.PolicyFigures{Name: "web", Selected: 3, Wanting: 3, Held: map[v1alpha1.Reason]int{v1alpha1.ReasonBudget: c.budget, v1alpha1.ReasonWindow: c.window}}
		if got := rollout.Status(&f, v1alpha1.DisruptionPolicyStatus{}, atNoon).Conditions[1].Reason; got != string(c.want) {
			t.Errorf("%d and %d: %s, expected %s", c.budget, c.window, got, c.want)
		}
	}
	// To an older host, the policy may be invalid alone.
	f := rollout.PolicyFigures{Name: "web", Selected: 3, Wanting: 3, Held: map[v1alpha1.Reason]int{v1alpha1.ReasonWindow: 2, v1alpha1.ReasonInvalidPolicy: 1}}
	if got := rollout.Status(&f, v1alpha1.DisruptionPolicyStatus{}, atNoon).Conditions[1].Reason; got != string(v1alpha1.ReasonWindow) {
		t.Errorf("one old host: %s, expected %s", got, v1alpha1.ReasonWindow)
	}
}

// TestStatusAtItsLimits: ten problems are all named, and a message of exactly 4 KiB is not cut.
func TestStatusAtItsLimits(t *testing.T) {
	f := rollout.PolicyFigures{Name: "web", Problems: slices.Repeat([]policy.Problem{{Field: "a", Text: "b"}}, 10)}
	if got := rollout.Status(&f, v1alpha1.DisruptionPolicyStatus{}, atNoon).Conditions[0].Message; strings.Contains(got, "more") {
		t.Errorf("ten problems: %q", got)
	}
	for length, cut := range map[int]bool{4096: false, 4097: true} {
		f.Problems = []policy.Problem{{Field: "a", Text: strings.Repeat("b", length-len("a: "))}}
		if got := rollout.Status(&f, v1alpha1.DisruptionPolicyStatus{}, atNoon).Conditions[0].Message; strings.HasSuffix(got, "…") != cut || len(got) > 4096 {
			t.Errorf("%d bytes: a message of %d bytes, expected it to be cut: %t", length, len(got), cut)
		}
	}
}

// TestStatusOfALongPause has a message that the API takes, whatever someone writes.
func TestStatusOfALongPause(t *testing.T) {
	f := rollout.PolicyFigures{Name: "web", Selected: 1, Wanting: 1, Held: map[v1alpha1.Reason]int{v1alpha1.ReasonPaused: 1},
		Details: map[v1alpha1.Reason]string{v1alpha1.ReasonPaused: strings.Repeat("é", 40_000)}}
	for _, c := range rollout.Status(&f, v1alpha1.DisruptionPolicyStatus{}, atNoon).Conditions {
		if len(c.Message) > 4096 || !utf8.ValidString(c.Message) || c.Type == v1alpha1.ConditionProgressing && !strings.HasSuffix(c.Message, "é…") {
			t.Errorf("%s: %d bytes, ends with %q", c.Type, len(c.Message), c.Message[max(0, len(c.Message)-10):])
		}
	}
}

// TestStatusKeepsItsTimes: a condition keeps the time of its last change of
// status, whatever its reason.
func TestStatusKeepsItsTimes(t *testing.T) {
	f := rollout.PolicyFigures{Name: "web", Generation: 3, Selected: 2, UpToDate: 1, Wanting: 1, InTurn: 1, Unavailable: 1, Failed: 0, Allowed: 1, Moving: 1}
	first := rollout.Status(&f, v1alpha1.DisruptionPolicyStatus{}, atNoon)
	want := v1alpha1.PolicyNodes{Selected: 2, UpToDate: 1, Wanting: 1, InTurn: 1, Unavailable: 1, Allowed: 1}
	if first.Nodes != want || first.ObservedGeneration != 3 {
		t.Errorf("%+v, expected generation 3 and %+v", first, want)
	}
	f.InTurn, f.Moving, f.Settling, f.Held = 0, 0, atNoon.Add(time.Minute), map[v1alpha1.Reason]int{v1alpha1.ReasonBudget: 1}
	second := rollout.Status(&f, first, atNoon.Add(time.Minute))
	f.Settling = time.Time{}
	third := rollout.Status(&f, second, atNoon.Add(2*time.Minute))
	for i, c := range []struct {
		status v1alpha1.DisruptionPolicyStatus
		reason string
		at     time.Time
	}{{first, "InTurn", atNoon}, {second, "Settling", atNoon}, {third, "Budget", atNoon.Add(2 * time.Minute)}} {
		for _, p := range c.status.Conditions {
			at := atNoon
			if p.Type == v1alpha1.ConditionProgressing {
				at = c.at
				if p.Reason != c.reason {
					t.Errorf("%d: %s, expected %s", i, p.Reason, c.reason)
				}
			}
			if !p.LastTransitionTime.Equal(&metav1.Time{Time: at}) || p.ObservedGeneration != 3 {
				t.Errorf("%d: %s since %v of generation %d, expected %v and 3", i, p.Type, p.LastTransitionTime, p.ObservedGeneration, at)
			}
		}
	}
	if again := rollout.Status(&f, third, atNoon.Add(time.Hour)); !reflect.DeepEqual(again, third) {
		t.Errorf("nothing has happened, and %+v became %+v", third, again)
	}
}

// TestEffectiveRules are the rules of all policies that select a node, each
// with the number of managed nodes on which it holds.
func TestEffectiveRules(t *testing.T) {
	s := situation(t, strings.Fields("idle label=pool:web policy=web;select=pool:web policy=team;priority=-10;rules-only=true policy=late;priority=-20;rules-only=true"))
	web, all := s.Policies.Named("web"), s.Policies.Named(builtIn)
	restart := v1alpha1.Action{Type: v1alpha1.ActionRestart, Unit: "nginx.service"}
	web.Rules = []v1alpha1.Rule{
		{Source: v1alpha1.SourceFile, Path: "/etc/nginx", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionDaemonReload}, restart}},
		{Source: v1alpha1.SourceOSUpdate, HoldBack: "4081.*", Drain: v1alpha1.DrainNever, Actions: []v1alpha1.Action{{Type: v1alpha1.ActionReboot}}},
	}
	all.Rules = []v1alpha1.Rule{
		{Source: v1alpha1.SourceRequest, Actions: []v1alpha1.Action{{Type: v1alpha1.ActionReboot}}},
		{Source: v1alpha1.SourceOSUpdate, Actions: []v1alpha1.Action{{Type: v1alpha1.ActionReboot}}},
	}
	// The team's rules rank by its priority, -10: above those of late, below those of the others. A policy that adds rules
	// shows where its own are in force.
	none := []v1alpha1.Action{{Type: v1alpha1.ActionNone}}
	s.Policies.Named("team").Rules = []v1alpha1.Rule{
		{Source: v1alpha1.SourceOSUpdate, Actions: none},
		{Source: v1alpha1.SourceFile, Path: "/etc/nginx", Actions: none},
		{Source: v1alpha1.SourceFile, Path: "/etc/team", Actions: []v1alpha1.Action{restart}},
	}
	s.Policies.Named("late").Rules = []v1alpha1.Rule{{Source: v1alpha1.SourceFile, Path: "/etc/team", Actions: none}}
	teams := v1alpha1.EffectiveRule{Key: "File /etc/team", Policy: "team", Actions: []string{"Restart nginx.service"}, Nodes: 1}
	want := map[string][]v1alpha1.EffectiveRule{
		"team": {
			{Key: "File /etc/nginx", Policy: "team", Actions: []string{"None"}, Nodes: 1}, // on n2
			{Key: "File /etc/team", Policy: "team", Actions: []string{"Restart nginx.service"}, Nodes: 2},
		},
		"web": {
			{Key: "File /etc/nginx", Policy: "web", Actions: []string{"DaemonReload", "Restart nginx.service"}, Nodes: 1},
			teams,
			{Key: "OSUpdate", Policy: "web", Actions: []string{"Reboot without Drain", "holds back 4081.*"}, Nodes: 1},
			{Key: "Request", Policy: builtIn, Actions: []string{"Reboot"}, Nodes: 1},
		},
		builtIn: {
			{Key: "File /etc/nginx", Policy: "team", Actions: []string{"None"}, Nodes: 1},
			teams,
			{Key: "OSUpdate", Policy: builtIn, Actions: []string{"Reboot"}, Nodes: 1},
			{Key: "Request", Policy: builtIn, Actions: []string{"Reboot"}, Nodes: 1},
		},
	}
	for _, f := range rollout.Decide(s).Figures.Policies {
		if got := rollout.Status(&f, v1alpha1.DisruptionPolicyStatus{}, atNoon).EffectiveRules; !reflect.DeepEqual(got, want[f.Name]) {
			t.Errorf("%s: %+v, expected %+v", f.Name, got, want[f.Name])
		}
	}
}
