package report

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

func TestGoals(t *testing.T) {
	stopped := func(w *world) { w.lease.Annotations[v1alpha1.AnnotationStop] = "why" }
	for _, tc := range []struct {
		name  string
		make  func(*world)
		fleet string // what is reached
		node  string // what node a has reached
	}{
		{"nothing to do", func(w *world) { w.add("a") }, "up-to-date idle", "up-to-date idle"},
		{"nothing to do, and a stop", func(w *world) { w.add("a"); stopped(w) }, "up-to-date idle held", "up-to-date idle"},
		{"it wants a reboot", func(w *world) { w.add("a", wantsReboot) }, "idle", "idle"},
		{"it wants a reboot, and a stop", func(w *world) { w.add("a", wantsReboot); stopped(w) }, "idle held", "idle held"},
		{"it is in its turn", func(w *world) { w.add("a", inTurn(v1alpha1.StateDraining, "13:02:00", "committed"), cordoned) }, "", ""},
		{"it is in its turn, and a stop", func(w *world) {
			w.add("a", inTurn(v1alpha1.StateDraining, "13:02:00", "committed"), cordoned)
			stopped(w)
		}, "held", "held"},
		{"another is in its turn", func(w *world) {
			w.add("a")
			w.add("b", inTurn(v1alpha1.StateDraining, "13:02:00", "committed"), cordoned)
		}, "", "up-to-date idle"},
		{"another failed", func(w *world) {
			w.add("a")
			w.add("b", wantsReboot, label(v1alpha1.LabelHeld, "Failed"),
				last(v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultFailed, Reason: v1alpha1.ReasonNotUpdated, Changes: osUpdate, End: at("12:00:00")}))
		}, "idle held", "up-to-date idle"},
		{"the host is silent", func(w *world) { w.add("a", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "x" }) }, "idle held", "idle held"},
		{"it wants a reboot and is paused", func(w *world) {
			w.add("a", wantsReboot, label(v1alpha1.LabelState, "paused"), annotation(v1alpha1.AnnotationPaused, ""))
		}, "idle held", "idle held"},
		{"lockkeeper was never there", func(w *world) { w.add("a", unmanaged) }, "idle held", "idle"},
		{"it is to be left alone", func(w *world) { w.add("a", unmanaged, annotation(v1alpha1.AnnotationDetached, "")) }, "up-to-date idle", "up-to-date idle"},
	} {
		w := newWorld(t)
		tc.make(w)
		r := w.report()
		var fleet, node []string
		for _, g := range []Goal{GoalUpToDate, GoalIdle, GoalHeld} {
			if g.reached(&r, nil) {
				fleet = append(fleet, string(g))
			}
			if g.reached(&r, r.Find("a")) {
				node = append(node, string(g))
			}
		}
		if got := strings.Join(fleet, " "); got != tc.fleet {
			t.Errorf("%s: the fleet is %q, expected %q", tc.name, got, tc.fleet)
		}
		if got := strings.Join(node, " "); got != tc.node {
			t.Errorf("%s: the node is %q, expected %q", tc.name, got, tc.node)
		}
	}
}

// A wait says what has changed, once, and does not believe what was seen before the
// API server went away.
func TestWaitSaysWhatItWaitsFor(t *testing.T) {
	w := newWorld(t)
	n := w.add("n1", inTurn(v1alpha1.StateDraining, "13:02:00", "committed"), cordoned)
	w.add("n2")
	var said []string
	wait := Waiter{Goal: GoalIdle, Say: func(line string) { said = append(said, line) }}
	one := Waiter{Goal: GoalIdle, Node: "n1", Say: func(string) {}}
	down := errors.New("connection refused\n")
	for i, step := range []struct {
		change func()
		away   error
		want   error
	}{
		{func() {}, nil, nil},
		{func() {}, nil, nil},
		{func() { w.lease.Annotations[v1alpha1.AnnotationStop] = "" }, nil, nil},
		{func() { *n = *w.add("n1", wantsReboot); w.nodes = w.nodes[:2] }, down, nil},
		{func() {}, down, nil},
		{func() {}, nil, ErrReached},
	} {
		step.change()
		for _, waiting := range []*Waiter{&wait, &one} {
			if err := waiting.Show(w.report(), step.away); err != step.want {
				t.Errorf("step %d, node %q: %v, expected %v", i, waiting.Node, err, step.want)
			}
		}
	}
	want := []string{
		"13:04:05Z  Rolling: 1 of 2 managed nodes up to date, 1 in a turn. About 10m left at an expected 15m per turn.",
		"13:04:05Z  Stopped: 1 of 2 managed nodes up to date, 1 in a turn. End unknown: the emergency stop is set.",
		`13:04:05Z  API server cannot be reached: connection refused\n`,
		"13:04:05Z  API server reachable again",
		"13:04:05Z  Stopped: 1 of 2 managed nodes up to date, 1 wants a reboot. End unknown: the emergency stop is set.",
	}
	if !slices.Equal(said, want) {
		t.Errorf("it said\n%s\nexpected\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
	}
	gone := Waiter{Goal: GoalIdle, Node: "n9", Say: func(string) {}}
	if err := gone.Show(w.report(), nil); err == nil || err.Error() != `node "n9" not found` {
		t.Error(err)
	}
}

// TestWaitOutlastsAChangeOfCoordinators: the reboot of the coordinator's own host blanks the Lease for about a second. That ends no
// wait for held, neither for the fleet nor for a node; a minute without a coordinator does, and a stop at once.
func TestWaitOutlastsAChangeOfCoordinators(t *testing.T) {
	draining := inTurn(v1alpha1.StateDraining, "13:02:00", "committed")
	for _, node := range []string{"", "n1"} {
		led, freed, stopped := newWorld(t), newWorld(t), newWorld(t)
		for _, w := range []*world{led, freed, stopped} {
			w.add("n1", draining, cordoned)
		}
		freed.lease.Spec.HolderIdentity = new("")
		stopped.lease.Spec.HolderIdentity = new("")
		stopped.lease.Annotations[v1alpha1.AnnotationStop] = "why"
		wait := Waiter{Goal: GoalHeld, Node: node, Say: func(string) {}}
		for i, step := range []struct {
			after time.Duration
			w     *world
			want  error
		}{
			{0, led, nil},
			{time.Second, freed, nil},
			{2 * time.Second, led, nil},
			{time.Minute, freed, nil},
			{2*time.Minute - time.Second, freed, nil},
			{2 * time.Minute, freed, ErrReached},
			{2 * time.Minute, led, nil},
			{3 * time.Minute, stopped, ErrReached},
		} {
			r := step.w.report()
			r.Time = r.Time.Add(step.after)
			if err := wait.Show(r, nil); err != step.want {
				t.Errorf("node %q, step %d: %v, expected %v", node, i, err, step.want)
			}
		}
	}
}
