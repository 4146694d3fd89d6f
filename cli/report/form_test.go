package report

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

func TestFormats(t *testing.T) {
	for _, tc := range []struct {
		name string
		form Form
		want string
	}{
		{"a table", Form{Output: Table},
			"NODE  STATE     WANTS   HELD        SINCE             TURN  WHY\n" +
				"n1    draining  reboot  -           2m5s (13:02:00Z)  t-n1  waits for the host to drain\n" +
				"n5    idle      reboot  HostSilent  -                 -     no report from its present boot\n" +
				"n2    idle      reboot  Budget      -                 -     1 unavailable, 1 allowed: n1 is in its turn\n"},
		{"a table on a terminal", Form{Output: Table, Width: 80, NoHeaders: true},
			"n1  draining  reboot  -           2m5s  waits for the host to drain\n" +
				"n5  idle      reboot  HostSilent  -     no report from its present boot\n" +
				"n2  idle      reboot  Budget      -     1 unavailable, 1 allowed: n1 is in its\n" +
				"                                        turn\n"},
		{"a wide table without its header", Form{Output: Wide, NoHeaders: true},
			"n1  draining  reboot  -           2m5s (13:02:00Z)  t-n1  built-in  3975.2.0  v1.0.0  waits for the host to drain\n" +
				"n5  idle      reboot  HostSilent  -                 -     built-in  3975.2.0  v1.0.0  no report from its present boot\n" +
				"n2  idle      reboot  Budget      -                 -     built-in  3975.2.0  v1.0.0  1 unavailable, 1 allowed: n1 is in its turn\n"},
		{"a wide table of one node", Form{Output: Wide, Node: "n3"},
			"NODE  STATE  WANTS    HELD  SINCE  TURN  POLICY    OS        LOCKKEEPER  WHY\n" +
				"n3    idle   nothing  -     -      -     built-in  3975.2.0  v1.0.0\n"},
		{"names", Form{Output: Name}, "node/n1\nnode/n5\nnode/n2\n"},
		{"all names", Form{Output: Name, All: true}, "node/n1\nnode/n5\nnode/n2\nnode/n3\nnode/n4\n"},
		{"one name", Form{Output: Name, Node: "n3"}, "node/n3\n"},
	} {
		if got, _ := rolling(t).text(tc.form); got != tc.want {
			t.Errorf("%s: got\n%s\nexpected\n%s", tc.name, got, tc.want)
		}
	}
}

// TestColor: only what needs attention is red, and only if the form permits colors.
func TestColor(t *testing.T) {
	const red, reset = "\x1b[31m", "\x1b[0m"
	stopped := func(t *testing.T) *world {
		w := rolling(t)
		w.lease.Annotations[v1alpha1.AnnotationStop] = "a long reason that does not fit into the line"
		return w
	}
	for _, tc := range []struct {
		name  string
		world func(*testing.T) *world
		form  Form
		red   []string
	}{
		{"a node that is silent", rolling, Form{Width: 80}, []string{"HostSilent"}},
		{"a node that waits for its turn", rolling, Form{Width: 80, Node: "n2"}, nil},
		{"the node that is silent", rolling, Form{Width: 80, Node: "n5"}, []string{"n5: idle, wants reboot, held: HostSilent"}},
		{"a stop", stopped, Form{Width: 80, Node: "n2"}, []string{
			"EMERGENCY STOP: a long reason that does not fit into the line. No turn begins or",
			"  advances. `lockkeeper resume --cluster` ends the stop."}},
		{"data", stopped, Form{Output: JSON}, nil},
	} {
		plain, _ := tc.world(t).text(tc.form)
		tc.form.Color = true
		colored, _ := tc.world(t).text(tc.form)
		var got []string
		for _, part := range strings.Split(colored, red)[1:] {
			text, _, _ := strings.Cut(part, reset)
			got = append(got, text)
		}
		if !slices.Equal(got, tc.red) {
			t.Errorf("%s: red are %q, expected %q", tc.name, got, tc.red)
		}
		if strings.NewReplacer(red, "", reset, "").Replace(colored) != plain || strings.Contains(plain, red) {
			t.Errorf("%s: got\n%s\nwithout color\n%s", tc.name, colored, plain)
		}
	}
}

// TestYAML: YAML has the same content as JSON.
func TestYAML(t *testing.T) {
	fromYAML, _ := rolling(t).text(Form{Output: YAML})
	fromJSON, _ := rolling(t).text(Form{Output: JSON})
	a, err := yaml.YAMLToJSON([]byte(fromYAML))
	if err != nil {
		t.Fatal(err)
	}
	b, err := yaml.YAMLToJSON([]byte(fromJSON)) // JSON is YAML
	if err != nil {
		t.Fatal(err)
	}
	if string(a) != string(b) || !strings.Contains(fromYAML, "\nstatus: Rolling\n") {
		t.Errorf("YAML:\n%s\nJSON:\n%s", a, b)
	}
	var w strings.Builder
	follow(t, &Printer{W: &w, Form: Form{Output: YAML}})
	if n := strings.Count("\n"+w.String(), "\n---\n"); n != 4 {
		t.Errorf("%d documents while following, expected 4", n)
	}
}

// TestSelector: with a selector the report, and a wait, are about the nodes that it matches.
func TestSelector(t *testing.T) {
	w := rolling(t) // n1 is in a turn, n2 waits for it, n3 is up to date, n4 is not managed, n5 is silent
	for i, pool := range []string{"db", "web", "web", "web", "db"} {
		w.nodes[i].Labels["pool"] = pool // in the order n4, n2, n3, n1, n5
	}
	for _, tc := range []struct {
		selector, summary string
		nodes             string
		status            Status
		goals             string
	}{
		{"pool=web", "Rolling: 1 of 3 managed nodes that match pool=web up to date, 1 in a turn, 1 wants a reboot.", "n1 n2 n3", Rolling, ""},
		{"pool=db", "Held: 0 of 1 managed nodes that match pool=db up to date, 1 wants a reboot. 1 not managed.", "n5 n4", Held, "idle held"},
	} {
		in := w.input()
		var err error
		if in.Selector, err = labels.Parse(tc.selector); err != nil {
			t.Fatal(err)
		}
		r := Build(in)
		var nodes, goals []string
		for i := range r.Nodes {
			nodes = append(nodes, r.Nodes[i].Name)
		}
		for _, g := range []Goal{GoalUpToDate, GoalIdle, GoalHeld} {
			if g.reached(&r, nil) {
				goals = append(goals, string(g))
			}
		}
		if r.Summary != tc.summary || strings.Join(nodes, " ") != tc.nodes || r.Status != tc.status || strings.Join(goals, " ") != tc.goals || r.End != nil {
			t.Errorf("%s: %s, nodes %q, status %s, goals %q, end %v", tc.selector, r.Summary, nodes, r.Status, goals, r.End)
		}
		if r.Figures.Unavailable != 1 || len(r.Slots) != 1 || len(r.Policies) != 1 {
			t.Errorf("%s: budgets are not the fleet's: %+v", tc.selector, r.Figures)
		}
	}
	w.lease.Annotations[v1alpha1.AnnotationStop] = "why"
	in := w.input()
	in.Selector = labels.SelectorFromSet(labels.Set{"pool": "web"})
	if r := Build(in); r.Status != Stopped {
		t.Errorf("while stopped: %s", r.Status)
	}
}

func TestPlanTable(t *testing.T) {
	w := newWorld(t)
	w.add("n1", wantsReboot)
	w.add("n2")
	w.add("n3", unmanaged)
	f := w.foreseen("", shop())
	for _, tc := range []struct {
		form Form
		want string
	}{
		{Form{Output: Table},
			"NODE  OUTCOME     HELD  WANTS    POLICY    AHEAD  BEGINS-IN  WHY\n" +
				"n1    Goes        -     reboot   built-in  0      0s\n" +
				"n2    Nothing     -     nothing  built-in  -      -\n" +
				"n3    NotManaged  -     nothing  built-in  -      -          lockkeeper has never reported from this node\n"},
		{Form{Output: Table, NoHeaders: true},
			"n1  Goes        -  reboot   built-in  0  0s\n" +
				"n2  Nothing     -  nothing  built-in  -  -\n" +
				"n3  NotManaged  -  nothing  built-in  -  -   lockkeeper has never reported from this node\n"},
	} {
		var b strings.Builder
		if _, err := PrintPlan(&b, &f, tc.form); err != nil || b.String() != tc.want {
			t.Errorf("%+v: %v, got\n%s\nexpected\n%s", tc.form, err, &b, tc.want)
		}
	}
}
