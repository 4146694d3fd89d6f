package report

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/local"
)

// follow shows a printer five moments of one story, and then that the API
// server goes away and comes back.
func follow(t *testing.T, p *Printer) {
	t.Helper()
	w := rolling(t)
	show := func(seconds int, away error) {
		t.Helper()
		r := w.report()
		r.Time = now.Add(time.Duration(seconds) * time.Second)
		if err := p.Show(r, away); err != nil {
			t.Fatal(err)
		}
	}
	show(0, nil)
	show(5, nil) // nothing but time
	inTurn(v1alpha1.StateBeforeReboot, "13:04:15", "seen")(w.nodes[3])
	show(10, nil)
	w.lease.Annotations[v1alpha1.AnnotationStop] = "wait"
	show(15, nil)
	delete(w.lease.Annotations, v1alpha1.AnnotationStop)
	w.lease.Spec.HolderIdentity = new("n2_zzz")
	w.nodes = w.nodes[1:] // n4 is deleted
	show(20, nil)
	show(25, errors.New("connection refused"))
	show(30, errors.New("connection refused"))
	show(35, nil)
}

func TestFollowPrintsWhatChanged(t *testing.T) {
	var b strings.Builder
	p := &Printer{W: &b}
	follow(t, p)
	golden(t, "follow.txt", b.String())
	if p.Exit() != ExitRolling {
		t.Errorf("exit status %d", p.Exit())
	}
}

func TestFollowOneNode(t *testing.T) {
	var b strings.Builder
	p := &Printer{W: &b, Form: Form{Node: "n5"}}
	follow(t, p)
	golden(t, "follow-node.txt", b.String())
	if p.Exit() != ExitHeld {
		t.Errorf("exit status %d", p.Exit())
	}
}

// screen is a terminal as far as a Printer uses one.
type screen struct {
	t                   *testing.T
	columns, rows, x, y int
	cells               [][]rune
}

func newScreen(t *testing.T, columns, rows int) *screen {
	s := &screen{t: t, columns: columns, rows: rows}
	for range rows {
		s.cells = append(s.cells, slices.Repeat([]rune{' '}, columns))
	}
	return s
}

// Write does what a terminal does. It fails the test where text leaves the screen.
func (s *screen) Write(b []byte) (int, error) {
	for text := string(b); text != ""; {
		switch {
		case strings.HasPrefix(text, "\x1b[H"):
			s.x, s.y, text = 0, 0, text[3:]
		case strings.HasPrefix(text, "\x1b[K"):
			s.clear(s.y, min(s.x, s.columns-1))
			text = text[3:]
		case strings.HasPrefix(text, "\x1b[31m"), strings.HasPrefix(text, "\x1b[0m"):
			text = text[strings.IndexByte(text, 'm')+1:]
		case strings.HasPrefix(text, "\x1b[J"):
			for y := s.y; y < s.rows; y++ {
				s.clear(y, map[bool]int{true: s.x}[y == s.y])
			}
			text = text[3:]
		case text[0] == '\n':
			s.x, s.y, text = 0, s.y+1, text[1:]
			if s.y >= s.rows {
				s.t.Fatalf("the text has scrolled:\n%s", s)
			}
		default:
			r, size := utf8.DecodeRuneInString(text)
			if text = text[size:]; s.x+page.Columns(string(r)) > s.columns {
				s.t.Fatalf("line %d is longer than %d columns:\n%s", s.y, s.columns, s)
			}
			if n := page.Columns(string(r)); n > 0 {
				s.cells[s.y][s.x] = r
				s.x += n
			}
		}
	}
	return len(b), nil
}

func (s *screen) clear(y, from int) {
	for x := from; x < s.columns; x++ {
		s.cells[y][x] = ' '
	}
}

func (s *screen) String() string {
	var b strings.Builder
	for _, line := range s.cells {
		b.WriteString(strings.TrimRight(string(line), " ") + "\n")
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// What is on the terminal is the last text and nothing of those before it, and no
// part of it was ever blank meanwhile.
func TestFollowOnATerminalRedrawsInPlace(t *testing.T) {
	w := rolling(t)
	s := newScreen(t, 80, 40)
	p := &Printer{W: s, Size: func() (int, int) { return s.columns, s.rows }, Form: Form{Color: true}}
	show := func(away error) {
		t.Helper()
		r := w.report()
		if err := p.Show(r, away); err != nil {
			t.Fatal(err)
		}
		var want strings.Builder
		if err := r.writeText(&want, Form{Width: 80}); err != nil {
			t.Fatal(err)
		}
		text := want.String()
		if away != nil {
			text += "\nThe API server cannot be reached; showing the last state: connection refused\n"
		}
		if s.String() != text {
			t.Errorf("the screen is\n%s\nexpected\n%s", s, text)
		}
	}
	for y := range s.rows {
		copy(s.cells[y], []rune("what the shell left"))
	}
	show(nil)
	show(errors.New("connection refused"))
	w.lease.Annotations[v1alpha1.AnnotationStop] = "wait"
	show(nil)
	w.nodes = w.nodes[2:3]
	show(nil) // it is shorter
	var b strings.Builder
	p.W = &b
	r := w.report()
	if err := p.Show(r, nil); err != nil {
		t.Fatal(err)
	}
	if cleared := strings.Index(b.String(), clearBelow); strings.Contains(b.String(), "\x1b[2J") || cleared != b.Len()-len(clearBelow) {
		t.Errorf("the screen is cleared before it is written:\n%q", b.String())
	}
}

// A terminal that is too small shows the beginning, and says what is missing.
func TestFollowOnASmallTerminal(t *testing.T) {
	w := rolling(t)
	s := newScreen(t, 40, 8)
	p := &Printer{W: s, Size: func() (int, int) { return s.columns, s.rows }}
	if err := p.Show(w.report(), nil); err != nil {
		t.Fatal(err)
	}
	golden(t, "small.txt", s.String())
	s.columns, s.rows, s.cells = 20, 4, newScreen(t, 20, 4).cells
	if err := p.Show(w.report(), nil); err != nil {
		t.Fatal(err)
	}
}

func TestFollowJSONIsALineForEachChange(t *testing.T) {
	var b strings.Builder
	follow(t, &Printer{W: &b, Form: Form{Output: JSON}})
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	var states []Status
	for _, l := range lines {
		var r Report
		if err := json.Unmarshal([]byte(l), &r); err != nil {
			t.Fatal(err)
		}
		states = append(states, r.Status)
	}
	want := []Status{Rolling, Rolling, Stopped, Rolling}
	if len(states) != len(want) {
		t.Fatalf("%v, expected %v", states, want)
	}
	for i := range want {
		if states[i] != want[i] {
			t.Errorf("line %d: %s, expected %s", i, states[i], want[i])
		}
	}
}

func TestFollowedNodeIsDeleted(t *testing.T) {
	size := func() (int, int) { return 80, 24 }
	for _, p := range []*Printer{{Form: Form{Node: "n5", Output: JSON}}, {Form: Form{Node: "n5"}, Size: size}} {
		w := newWorld(t)
		p.W = &strings.Builder{}
		if err := p.Show(w.report(), nil); err == nil || err.Error() != `node "n5" not found` {
			t.Errorf("%+v: %v", p.Form, err)
		}
	}
}

func TestHostView(t *testing.T) {
	s := local.Status{
		Time: at("13:03:00"), PID: 41, Version: "v1.0.0", Line: "waits for its turn: NoCoordinator",
		Host: local.Host{
			Node: "n1", BootID: "b1", State: v1alpha1.StateAbsent, Wants: v1alpha1.WantsReboot, Changes: osUpdate,
			Waits: v1alpha1.ReasonNoCoordinator, Detail: "no coordinator has taken this node in", Since: at("12:00:00"),
			API: &local.Failure{Error: "connection refused", Since: at("13:01:00")},
		},
		Coordinator: local.Coordinator{Role: v1alpha1.RoleHost, Why: "no coordinator's kubeconfig at /etc/lockkeeper/coordinator.kubeconfig"},
	}
	exposed := local.Status{Time: now, PID: 1, Version: "v1.0.0", Host: local.Host{BootID: "b1"}, Line: "coordinates; idle", Coordinator: local.Coordinator{
		Role: v1alpha1.RoleLeader, Credential: &local.Credential{File: "/etc/c", Expires: new(now.Add(72 * time.Hour)), Exposed: []string{"one finding", "another"}}}}
	for _, tc := range []struct {
		golden  string
		running bool
		status  local.Status
		exit    int
	}{
		{"host.txt", true, s, ExitHeld},
		{"host-exposed.txt", true, exposed, ExitHeld},
		{"host-dead.txt", false, s, ExitError},
		{"host-young.txt", true, local.Status{Time: now, PID: 1, Version: "v1.0.0", Host: local.Host{BootID: "b1"}, Line: "starts"}, ExitHeld},
	} {
		h := BuildHost(now, tc.status, tc.running, kube.ErrNoKubeconfig.Error())
		var b strings.Builder
		exit, err := h.Print(&b, Form{})
		if err != nil || exit != tc.exit {
			t.Errorf("%s: exit status %d, expected %d (%v)", tc.golden, exit, tc.exit, err)
		}
		golden(t, tc.golden, b.String())
	}
	h := BuildHost(now, s, true, "why")
	var b strings.Builder
	if exit, err := h.Print(&b, Form{Output: JSON}); exit != ExitHeld || err != nil {
		t.Error(exit, err)
	}
	var back map[string]any
	if err := json.Unmarshal([]byte(b.String()), &back); err != nil || back["view"] != "host" || back["running"] != true || back["status"] != "Held" ||
		back["host"].(map[string]any)["node"] != "n1" {
		t.Errorf("%v\n%s", err, b.String())
	}
}

func TestHostStatus(t *testing.T) {
	for _, tc := range []struct {
		s    local.Host
		want Status
	}{
		{local.Host{State: v1alpha1.StateIdle, Wants: v1alpha1.WantsNothing}, UpToDate},
		{local.Host{State: v1alpha1.StatePaused, Wants: v1alpha1.WantsNothing, Waits: v1alpha1.ReasonPaused}, UpToDate},
		{local.Host{State: v1alpha1.StatePaused, Wants: v1alpha1.WantsReboot, Waits: v1alpha1.ReasonPaused}, Held},
		{local.Host{State: v1alpha1.StateIdle, Wants: v1alpha1.WantsReboot, Waits: v1alpha1.ReasonBudget}, Rolling},
		{local.Host{State: v1alpha1.StateIdle, Wants: v1alpha1.WantsReboot, Waits: v1alpha1.ReasonWindow}, Held},
		{local.Host{State: v1alpha1.StateDraining, Wants: v1alpha1.WantsReboot}, Rolling},
		{local.Host{State: v1alpha1.StateUncordoning, Wants: v1alpha1.WantsNothing}, Rolling},
		{local.Host{State: v1alpha1.StateDraining, Wants: v1alpha1.WantsReboot, Waits: v1alpha1.ReasonStopped}, Stopped},
		{local.Host{State: v1alpha1.StateIdle}, Held}, // what it wants is not known
	} {
		if got := hostStatus(&local.Status{Host: tc.s}); got != tc.want {
			t.Errorf("%+v: %s, expected %s", tc.s, got, tc.want)
		}
	}
}
