package report

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
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

func TestFollowOnATerminalDrawsAllAnew(t *testing.T) {
	var b strings.Builder
	follow(t, &Printer{W: &b, Form: Form{Terminal: true}})
	screens := strings.Split(b.String(), "\x1b[H\x1b[2J")
	if len(screens) != 9 { // one for each moment, after the empty text before the first
		t.Fatalf("%d screens", len(screens)-1)
	}
	for i, s := range screens[1:] {
		if !strings.Contains(s, "managed nodes up to date") {
			t.Errorf("screen %d has no summary:\n%s", i, s)
		}
		if away := strings.Contains(s, "The API server is away; this is what was last seen of it: connection refused"); away != (i == 5 || i == 6) {
			t.Errorf("screen %d says away: %v", i, away)
		}
	}
}

func TestFollowJSONIsALineForEachChange(t *testing.T) {
	var b strings.Builder
	follow(t, &Printer{W: &b, Form: Form{JSON: true}})
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
	for _, f := range []Form{{Node: "n5", JSON: true}, {Node: "n5", Terminal: true}} {
		w := newWorld(t)
		p := &Printer{W: &strings.Builder{}, Form: f}
		if err := p.Show(w.report(), nil); err == nil || err.Error() != `there is no node "n5"` {
			t.Errorf("%+v: %v", f, err)
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
		h := BuildHost(now, tc.status, tc.running, ErrNoKubeconfig.Error())
		var b strings.Builder
		exit, err := h.Print(&b, Form{})
		if err != nil || exit != tc.exit {
			t.Errorf("%s: exit status %d, expected %d (%v)", tc.golden, exit, tc.exit, err)
		}
		golden(t, tc.golden, b.String())
	}
	h := BuildHost(now, s, true, "why")
	var b strings.Builder
	if exit, err := h.Print(&b, Form{JSON: true}); exit != ExitHeld || err != nil {
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
