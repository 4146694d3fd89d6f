package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// intent returns the intent of a command.
func intent(t *testing.T, command string) *Intent {
	t.Helper()
	command, now := strings.CutSuffix(command, " --now")
	for i := range Intents {
		switch {
		case Intents[i].Command != command:
		case now:
			return Intents[i].Now
		default:
			return &Intents[i]
		}
	}
	t.Fatalf("no command %s", command)
	return nil
}

// do runs a command without a question and returns what it prints to standard output and to
// standard error.
func do(t *testing.T, s *Source, command string, o Options) (out, errOut string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	o.Intent, o.Out, o.Err = intent(t, command), &stdout, &stderr
	if o.Confirm == nil {
		o.Confirm = func([]string) error { return nil }
	}
	err = s.Apply(t.Context(), o)
	return stdout.String(), stderr.String(), err
}

func conflict(name string) error {
	return apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, name, errors.New("another version"))
}

// TestIntents runs each command on one node. The outputs are written by hand; `to` is the value
// of the key afterwards, "-" if it is not set.
func TestIntents(t *testing.T) {
	const until = "2126-11-23T10:00:00Z"
	paused := annotation(v1alpha1.AnnotationPaused, `{"reason":"disks","by":"bob"}`)
	draining := inTurn(v1alpha1.StateDraining, "13:00:00", "seen")
	failed := last(v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultFailed, Reason: v1alpha1.ReasonNotUpdated, End: at("12:00:00")})
	for _, tc := range []struct {
		name, command string
		node          func(*corev1.Node)
		options       Options
		out, to       string
	}{
		{"pause", "pause", nil, Options{}, `n1: paused; it gets no turn.
The same with kubectl: kubectl annotate node n1 --overwrite 'lockkeeper.dev/paused={"by":"ann"}'
To undo: lockkeeper resume n1
`, `{"by":"ann"}`},
		{"pause in a turn", "pause", draining, Options{Reason: "it's odd"}, `n1: paused in draining; its turn goes no further and keeps its slot.
The same with kubectl: kubectl annotate node n1 --overwrite 'lockkeeper.dev/paused={"reason":"it'\''s odd","by":"ann"}'
To undo: lockkeeper resume n1
`, `{"reason":"it's odd","by":"ann"}`},
		{"pause again", "pause", paused, Options{}, "n1: already paused by \"bob\": \"disks\", nothing changed.\n", `{"reason":"disks","by":"bob"}`},
		{"pause again for the same reason", "pause", paused, Options{Reason: "disks"}, "n1: already paused by \"bob\": \"disks\", nothing changed.\n", `{"reason":"disks","by":"bob"}`},
		{"pause again for another reason", "pause", paused, Options{Reason: "fans"}, `n1: paused; it gets no turn. It replaces "{\"reason\":\"disks\",\"by\":\"bob\"}".
The same with kubectl: kubectl annotate node n1 --overwrite 'lockkeeper.dev/paused={"reason":"fans","by":"ann"}'
To undo: kubectl annotate node n1 --overwrite 'lockkeeper.dev/paused={"reason":"disks","by":"bob"}'
`, `{"reason":"fans","by":"ann"}`},
		{"resume", "resume", paused, Options{}, `n1: resumed.
The same with kubectl: kubectl annotate node n1 lockkeeper.dev/paused-
To undo: kubectl annotate node n1 --overwrite 'lockkeeper.dev/paused={"reason":"disks","by":"bob"}'
`, "-"},
		{"resume what another program wrote", "resume", annotation(v1alpha1.AnnotationPaused, "a\x1b[2J\nb'"), Options{}, `n1: resumed.
The same with kubectl: kubectl annotate node n1 lockkeeper.dev/paused-
To undo: kubectl annotate node n1 --overwrite $'lockkeeper.dev/paused=a\033[2J\012b\''
`, "-"},
		{"resume a node that is not paused", "resume", nil, Options{}, "n1: not paused, nothing changed.\n", "-"},
		{"detach", "detach", nil, Options{Reason: "sold"}, `n1: detached; lockkeeper releases it.
The same with kubectl: kubectl annotate node n1 --overwrite 'lockkeeper.dev/detached={"reason":"sold","by":"ann"}'
To undo: lockkeeper attach n1
`, `{"reason":"sold","by":"ann"}`},
		{"detach in a turn", "detach", draining, Options{}, `n1: detached; its turn in draining is backed out, or finished if a reboot or an apply is committed, and then lockkeeper releases it.
The same with kubectl: kubectl annotate node n1 --overwrite 'lockkeeper.dev/detached={"by":"ann"}'
To undo: lockkeeper attach n1
`, `{"by":"ann"}`},
		{"detach with force", "detach", all(draining, paused), Options{Force: true},
			`n1: detached with force; lockkeeper releases it at once and leaves its cordon, unless a reboot or an apply is committed.
The same with kubectl: kubectl annotate node n1 --overwrite 'lockkeeper.dev/detached={"by":"ann","force":true}'
To undo: lockkeeper attach n1
`, `{"by":"ann","force":true}`},
		{"detach a paused node", "detach", paused, Options{}, `n1: detached, but paused; lockkeeper releases it when the pause ends.
The same with kubectl: kubectl annotate node n1 --overwrite 'lockkeeper.dev/detached={"by":"ann"}'
To undo: lockkeeper attach n1
`, `{"by":"ann"}`},
		{"detach with force what is detached without", "detach", annotation(v1alpha1.AnnotationDetached, "sold"), Options{Force: true},
			`n1: detached with force; lockkeeper releases it at once and leaves its cordon, unless a reboot or an apply is committed. It replaces "sold".
The same with kubectl: kubectl annotate node n1 --overwrite 'lockkeeper.dev/detached={"by":"ann","force":true}'
To undo: kubectl annotate node n1 --overwrite lockkeeper.dev/detached=sold
`, `{"by":"ann","force":true}`},
		{"attach", "attach", annotation(v1alpha1.AnnotationDetached, ""), Options{}, `n1: attached; lockkeeper starts over from what it finds there.
The same with kubectl: kubectl annotate node n1 lockkeeper.dev/detached-
To undo: kubectl annotate node n1 --overwrite lockkeeper.dev/detached=
`, "-"},
		{"manage", "manage", nil, Options{}, `n1: managed, whatever managed_by_default in its host's file says.
The same with kubectl: kubectl label node n1 --overwrite lockkeeper.dev/managed=true
To undo: kubectl label node n1 lockkeeper.dev/managed-
`, "true"},
		{"unmanage in a turn", "unmanage", all(draining, label(v1alpha1.LabelManaged, "true")), Options{},
			`n1: no longer managed; its turn in draining is backed out, or finished if a reboot or an apply is committed, and then lockkeeper releases it.
The same with kubectl: kubectl label node n1 --overwrite lockkeeper.dev/managed=false
To undo: kubectl label node n1 --overwrite lockkeeper.dev/managed=true
`, "false"},
		{"unmanage again", "unmanage", label(v1alpha1.LabelManaged, "false"), Options{}, "n1: already labeled lockkeeper.dev/managed=false, nothing changed.\n", "false"},
		{"request", "request", nil, Options{Reason: "leak"}, `n1: a reboot is requested; it takes a turn like any other change.
The same with kubectl: kubectl annotate node n1 --overwrite 'lockkeeper.dev/request={"action":"reboot","reason":"leak","by":"ann"}'
To undo: kubectl annotate node n1 lockkeeper.dev/request-
`, `{"action":"reboot","reason":"leak","by":"ann"}`},
		{"request again", "request", annotation(v1alpha1.AnnotationRequest, "reboot"), Options{}, "n1: a reboot is already requested, nothing changed.\n", "reboot"},
		{"request now", "request --now", annotation(v1alpha1.AnnotationRequest, "reboot"), Options{},
			`n1: a reboot is requested; its turn does not wait for windows, blackouts, gates or settle.
The same with kubectl: kubectl annotate node n1 --overwrite 'lockkeeper.dev/request-now={"action":"reboot","by":"ann"}'
To undo: kubectl annotate node n1 lockkeeper.dev/request-now-
`, `{"action":"reboot","by":"ann"}`},
		{"request what is requested now", "request", annotation(v1alpha1.AnnotationRequestNow, "reboot"), Options{}, "n1: a reboot is already requested, nothing changed.\n", "-"},
		{"retry", "retry", failed, Options{}, `n1: turn t0, which ended as Failed (NotUpdated), is cleared; the node may get another turn.
The same with kubectl: kubectl annotate node n1 --overwrite lockkeeper.dev/retry=t0
To undo: kubectl annotate node n1 lockkeeper.dev/retry-
`, "t0"},
		{"retry again", "retry", all(failed, annotation(v1alpha1.AnnotationRetry, "t0")), Options{}, "n1: turn t0 is already cleared, nothing changed.\n", "t0"},
		{"with an end", "pause", nil, Options{Until: until, Printer: Printer{Kubectl: " --context prod", Own: " --context prod"}}, `n1: paused; it gets no turn, until 2126-11-23T10:00:00Z.
The same with kubectl: kubectl --context prod annotate node n1 --overwrite 'lockkeeper.dev/paused={"by":"ann","until":"2126-11-23T10:00:00Z"}'
To undo: lockkeeper resume --context prod n1
`, `{"by":"ann","until":"2126-11-23T10:00:00Z"}`},
		{"dry run", "pause", paused, Options{DryRun: true, Reason: "fans"}, `Dry run, nothing is changed. Without --dry-run:
n1: paused; it gets no turn. It replaces "{\"reason\":\"disks\",\"by\":\"bob\"}".
The same with kubectl: kubectl annotate node n1 --overwrite 'lockkeeper.dev/paused={"reason":"fans","by":"ann"}'
`, `{"reason":"disks","by":"bob"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode("n1", all())
			if tc.node != nil {
				tc.node(n)
			}
			s, client, _ := faulty(t, nil, n)
			s.Skew = func() (time.Duration, bool) { return 100 * 365 * 24 * time.Hour, true } // the year of until
			client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
				if dry := a.(clienttesting.PatchActionImpl).PatchOptions.DryRun; len(dry) > 0 != tc.options.DryRun {
					t.Errorf("dry run %q", dry)
				}
				return tc.options.DryRun, n, nil // the fake would store it
			})
			tc.options.Names = []string{"n1"}
			out, errOut, err := do(t, s, tc.command, tc.options)
			if out != tc.out || errOut != "" || err != nil {
				t.Errorf("printed\n%s%s%v\nexpected\n%s", out, errOut, err, tc.out)
			}
			got, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			i := intent(t, tc.command)
			keys := got.Annotations
			if i.Label {
				keys = got.Labels
			}
			value, set := keys[i.Key]
			if !set {
				value = "-"
			}
			if value != tc.to {
				t.Errorf("the node has %s, expected %s", value, tc.to)
			}
			if problems := v1alpha1.ReadKeys(got.Labels, got.Annotations).Problems; len(problems) > 0 {
				t.Errorf("its keys cannot be read: %v", problems)
			}
		})
	}
}

// three returns the nodes n1 to n3. n2 is paused, and n3 has the label pool=web.
func three() []runtime.Object {
	return []runtime.Object{newNode("n3", web), newNode("n1"), newNode("n2", annotation(v1alpha1.AnnotationPaused, "mine"))}
}

// TestSeveralNodes: the user is asked before anything is written, and nodes that change in the same
// way share the commands.
func TestSeveralNodes(t *testing.T) {
	s, client, writes := faulty(t, nil, three()...)
	everything, err := labels.Parse("pool!=db")
	if err != nil {
		t.Fatal(err)
	}
	asked := ""
	confirm := func(names []string) error {
		asked = strings.Join(names, " ")
		if *writes != 0 {
			t.Error("something was written before the user confirmed it")
		}
		return nil
	}
	const unreasoned = "pause of 3 nodes requires --reason; nothing was changed"
	if _, _, err := do(t, s, "pause", Options{Selector: everything}); err == nil || err.Error() != unreasoned {
		t.Errorf("%v, expected %s", err, unreasoned)
	}
	no := errors.New("no")
	if out, _, err := do(t, s, "pause", Options{Selector: everything, Reason: "disks", Confirm: func([]string) error { return no }}); err != no || out != "" || *writes != 0 {
		t.Errorf("refused, it printed %q, %v, and made %d writes", out, err, *writes)
	}
	out, errOut, err := do(t, s, "pause", Options{Selector: everything, Reason: "disks", Confirm: confirm})
	const want = `n1: paused; it gets no turn.
n2: paused; it gets no turn. It replaces "mine".
n3: paused; it gets no turn.
The same with kubectl: kubectl annotate node n1 n2 n3 --overwrite 'lockkeeper.dev/paused={"reason":"disks","by":"ann"}'
To undo: lockkeeper resume n1 n3
To undo: kubectl annotate node n2 --overwrite lockkeeper.dev/paused=mine
`
	if out != want || errOut != "" || err != nil || asked != "n1 n2 n3" {
		t.Errorf("asked about %q, printed\n%s%s%v\nexpected\n%s", asked, out, errOut, err, want)
	}
	// One node needs no confirmation, and a name that is given twice is one node.
	if out, _, err := do(t, s, "resume", Options{Names: []string{"n1", "n1"}, Confirm: func([]string) error { return no }}); err != nil || strings.Count(out, "n1: ") != 1 {
		t.Errorf("one node: %q, %v", out, err)
	}
	// A name that does not exist leaves the others as they are.
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { // the fake ignores the name
		return true, &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}}, nil
	})
	before := *writes
	if _, _, err := do(t, s, "resume", Options{Names: []string{"n2", "n4"}}); err == nil || err.Error() != `node "n4" not found` || *writes != before {
		t.Errorf("a node that does not exist: %v, %d writes", err, *writes-before)
	}
}

// TestPolicySelects: --policy selects the nodes that the policy decides, not all that it selects.
func TestPolicySelects(t *testing.T) {
	web := &v1alpha1.DisruptionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	web.Spec.Priority = policy.Default().Priority + 1
	web.Spec.NodeSelector.MatchLabels = map[string]string{"pool": "web"}
	set := policy.NewSet(policy.Default(), policy.Compile(web, time.LoadLocation))
	for _, tc := range []struct{ policy, want string }{
		{"web", "lockkeeper attach n3"},
		{policy.Default().Name, "lockkeeper attach n1 n2"},
	} {
		s, _, _ := faulty(t, nil, three()...)
		s.WatchPolicies = func(func()) PolicyView { return policyView{Policies: set} }
		out, _, err := do(t, s, "detach", Options{Policy: tc.policy, Reason: "sold"})
		if !strings.HasSuffix(out, "\nTo undo: "+tc.want+"\n") || err != nil {
			t.Errorf("%s: %s%v", tc.policy, out, err)
		}
		if _, _, err := do(t, s, "detach", Options{Policy: "wbe"}); err == nil || err.Error() != `policy "wbe" not found` {
			t.Errorf("no such policy: %v", err)
		}
	}
}

// TestPartialFailure: a node that cannot be changed is named, and the others are changed. Without an
// answer the rest is not tried.
func TestPartialFailure(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	forbidden := apierrors.NewForbidden(nodes, "n1", errors.New(`User "pat" cannot patch resource "nodes"`))
	s, _, writes := faulty(t, []error{forbidden}, three()...)
	out, errOut, err := do(t, s, "unmanage", Options{Names: []string{"n1", "n2", "n3"}})
	const said = "lockkeeper: n1 was not changed: writing node n1: nodes \"n1\" is forbidden: User \"pat\" cannot patch resource \"nodes\"; " +
		"`lockkeeper unmanage` requires permission to get and patch nodes, and the verb manage on nodes.lockkeeper.dev\n"
	if !strings.HasPrefix(out, "n2: no longer managed; lockkeeper releases it; its pause no longer applies.\nn3: no") || errOut != said || fmt.Sprint(err) != "unmanage failed on 1 of 3 nodes" || *writes != 3 {
		t.Errorf("printed\n%s%s%v, %d writes", out, errOut, err, *writes)
	}
	s, _, writes = faulty(t, []error{nil, context.DeadlineExceeded}, three()...)
	out, errOut, err = do(t, s, "unmanage", Options{Names: []string{"n1", "n2", "n3"}})
	const unknown = "lockkeeper: n2: writing node n2: context deadline exceeded; the outcome of the write is unknown, it is safe to run the command again\n" +
		"lockkeeper: 1 more node was not tried\n"
	if !strings.HasPrefix(out, "n1: no longer managed; ") || strings.Contains(out, "n3") || errOut != unknown || fmt.Sprint(err) != "unmanage failed on 2 of 3 nodes" || *writes != 2 {
		t.Errorf("printed\n%s%s%v, %d writes", out, errOut, err, *writes)
	}
}

// TestConflicts: a Node that changed since it was read is read and decided again.
func TestConflicts(t *testing.T) {
	failed := func() *corev1.Node {
		n := newNode("n1", last(v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultFailed, Reason: v1alpha1.ReasonNotUpdated, End: at("12:00:00")}))
		return n
	}
	s, client, writes := faulty(t, []error{conflict("n1"), conflict("n1")}, failed())
	if out, _, err := do(t, s, "retry", Options{Names: []string{"n1"}}); err != nil || !strings.HasPrefix(out, "n1: turn t0") || *writes != 3 {
		t.Errorf("two conflicts: %q, %v, %d writes", out, err, *writes)
	}
	// Every write carries the version that was read before it.
	version := "7"
	for _, a := range client.Actions() {
		if p, ok := a.(clienttesting.PatchAction); ok {
			if !strings.Contains(string(p.GetPatch()), fmt.Sprintf(`"resourceVersion":%q`, version)) {
				t.Errorf("a patch without the precondition %s: %s", version, p.GetPatch())
			}
			version += "x"
		}
	}
	s, _, writes = faulty(t, []error{conflict("n1"), conflict("n1"), conflict("n1"), conflict("n1"), conflict("n1"), conflict("n1")}, failed())
	if _, _, err := do(t, s, "retry", Options{Names: []string{"n1"}}); !apierrors.IsConflict(err) || *writes != retries {
		t.Errorf("indefinitely in conflict: %v after %d writes", err, *writes)
	}
}

// TestUser: the caller's name is recorded on one line and bounded, and a server that does not say it
// costs a warning.
func TestUser(t *testing.T) {
	for _, tc := range []struct {
		name, user string
		err        error
		out, warns string
	}{
		{"long", "oidc:" + strings.Repeat("x", 200) + "\n", nil, `{"by":"oidc:` + strings.Repeat("x", 120) + `…"}`, ""},
		{"empty", "", nil, `{}`, "lockkeeper: the API server does not say who you are, so your name is not recorded: its answer has no user name\n"},
		{"refused", "", errors.New("not served"), `{}`, "lockkeeper: the API server does not say who you are, so your name is not recorded: not served\n"},
	} {
		s, client, _ := faulty(t, nil, newNode("n1"))
		client.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: tc.user}}}, tc.err
		})
		out, errOut, err := do(t, s, "pause", Options{Names: []string{"n1"}})
		if !strings.Contains(out, "'lockkeeper.dev/paused="+tc.out+"'") || errOut != tc.warns || err != nil {
			t.Errorf("%s: %s%s%v", tc.name, out, errOut, err)
		}
	}
}

func TestParseUntil(t *testing.T) {
	now := at("12:00:00")
	for text, want := range map[string]string{
		"2h": "2026-11-21T14:00:00Z", "1m": "2026-11-21T12:01:00Z", "8760h": "2027-11-21T12:00:00Z", "7d": "2026-11-28T12:00:00Z", "365d": "2027-11-21T12:00:00Z",
		"2026-11-21T15:00:00.7+01:00": "2026-11-21T14:00:00Z",
		"":                            "", "2": "", "59s": "", "-2h": "", "8761h": "", "2026-11-21T12:00:30Z": "", "2026-11-21": "", "2028-01-01T00:00:00Z": "", "0d": "", "366d": "", "-1d": "", "1.5d": "", "d": "", "65536d": "",
	} {
		end, err := ParseUntil(text, now)
		if got := end.Format(time.RFC3339); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q: %s, %v, expected %q", text, got, err, want)
		}
	}
	const want = `"1w", expected a time such as 2026-11-21T14:00:00Z or a duration such as 2h or 7d, from 1m to 365d ahead`
	if _, err := ParseUntil("1w", now); err.Error() != want {
		t.Errorf("%v", err)
	}
}

// TestQuote has a shell read what Quote returns.
func TestQuote(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	for _, text := range []string{"", "a", "lockkeeper.dev/paused-", "a b", "it's", `{"a":"b\n"}`, "$HOME `id` !!", "a\x1b[2J\n'\\7", "ä ö", "\u202eevil", "\xff"} {
		quoted := Quote(text)
		if strings.ContainsFunc(quoted, func(r rune) bool { return r < ' ' || r == '\u202e' }) {
			t.Errorf("%q: hidden characters in %q", text, quoted)
		}
		out, err := exec.CommandContext(t.Context(), bash, "-c", "printf %s "+quoted).Output()
		if err != nil || string(out) != text {
			t.Errorf("%q: a shell reads %s as %q, %v", text, quoted, out, err)
		}
	}
}
