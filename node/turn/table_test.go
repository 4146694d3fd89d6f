package turn

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// plans are the courses that a turn can take, in the order of a cell of
// [matrix] that names four states.
var plans = []Plan{
	{Drains: true, Reboots: true},
	{Drains: true},
	{Reboots: true},
	{},
}

// matrix is the whole of the table, written by hand from DESIGN section 3: what
// follows each state on each event.
//
//	.     the event does not happen in this state
//	=     it may come, and the node stays
//	xy    the state that follows, by the short names in [short]
//	a|b|c|d  it depends on the plan: drain and reboot, drain, reboot, neither
//
// A hook stage is named here even if there is nothing to wait for in it.
const matrix = `
event            absent  idle         paused  before-drain  draining     before-reboot  rebooting  applying     before-uncordon  uncordoning
adopted          id      .            .       .             .            .              .          .            .                .
marked           bu      bu           bu      .             .            .              .          .            .                .
granted          .       bd|bd|br|ap  .       .             .            .              .          .            .                .
paused           =       pa           =       .             .            .              .          .            .                .
resumed          .       .            id      .             .            .              .          .            .                .
released         =       ab           ab      .             .            .              .          .            .                .
let_go           =       ab           ab      ab            ab           ab             ab         ab           ab               ab
done             .       .            .       dr            br|ap|br|ap  rb             bu         bu|bu|id|id  un               id
want_vanished    .       .            .       bu            bu           bu             bu         =            =                =
refused          .       .            .       bu            bu           bu             bu         bu           =                =
failed           .       .            .       bu            bu           bu             =          =            =                =
failed,_healthy  .       .            .       bu            bu           bu             bu         bu           =                =
overdue,_Abort   .       .            .       bu            bu           bu             bu         bu           .                .
overdue,_Wait    .       .            .       =             =            =              =          =            =                =
taken_back       .       .            .       bu            bu           bu             bu         bu           id               id
retry            .       .            .       .             .            .              bu         bu           .                .
replaced         .       .            .       ab            ab           ab             ab         ab           ab               ab
`

var short = map[string]v1alpha1.State{
	"ab": v1alpha1.StateAbsent,
	"id": v1alpha1.StateIdle,
	"pa": v1alpha1.StatePaused,
	"bd": v1alpha1.StateBeforeDrain,
	"dr": v1alpha1.StateDraining,
	"br": v1alpha1.StateBeforeReboot,
	"rb": v1alpha1.StateRebooting,
	"ap": v1alpha1.StateApplying,
	"bu": v1alpha1.StateBeforeUncordon,
	"un": v1alpha1.StateUncordoning,
}

// cells returns the matrix as cells by state and event, and fails unless it
// names every state and every event once.
func cells(t *testing.T) map[v1alpha1.State]map[Event]string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(matrix), "\n")
	var states []v1alpha1.State
	out := map[v1alpha1.State]map[Event]string{}
	for _, name := range strings.Fields(lines[0])[1:] {
		s := v1alpha1.State(name)
		if name == "absent" {
			s = v1alpha1.StateAbsent
		}
		states = append(states, s)
		out[s] = map[Event]string{}
	}
	if !slices.Equal(states, v1alpha1.States()) {
		t.Fatalf("the matrix has the states %v, the api %v", states, v1alpha1.States())
	}
	var events []Event
	for _, line := range lines[1:] {
		f := strings.Fields(line)
		if len(f) != len(states)+1 {
			t.Fatalf("%d cells in %q, expected %d", len(f)-1, line, len(states))
		}
		on := Event(strings.ReplaceAll(f[0], "_", " "))
		events = append(events, on)
		for i, s := range states {
			out[s][on] = f[i+1]
		}
	}
	if !slices.Equal(events, Events()) {
		t.Fatalf("the matrix has the events %v, the code %v", events, Events())
	}
	return out
}

// TestTable proves that for every state, event and plan there is exactly one
// way on, an explicit stay, or the event is declared impossible.
func TestTable(t *testing.T) {
	for state, row := range cells(t) {
		have, ok := Find(state)
		if !ok {
			t.Errorf("%s: no row", state)
			continue
		}
		for on, cell := range row {
			for i, plan := range plans {
				t.Run(fmt.Sprintf("%s/%s/drains=%t,reboots=%t", state, on, plan.Drains, plan.Reboots), func(t *testing.T) {
					testCell(t, have, on, plan, i, cell)
				})
			}
		}
	}
	if len(Table()) != len(v1alpha1.States()) {
		t.Errorf("%d rows for %d states", len(Table()), len(v1alpha1.States()))
	}
}

func testCell(t *testing.T, row Row, on Event, plan Plan, nth int, cell string) {
	var to []v1alpha1.State
	for _, e := range row.Edges {
		if e.On == on && e.If.holds(plan) {
			to = append(to, e.To)
		}
	}
	why, stays := row.Stays[on]
	if len(to) > 1 || len(to) == 1 && stays {
		t.Fatalf("ambiguous: goes on to %v, stays: %t", to, stays)
	}
	got, ok := Next(row.State, on, plan, func(v1alpha1.State) bool { return true })
	switch cell {
	case ".":
		if len(to) > 0 || stays || ok {
			t.Fatalf("goes on to %v, stays: %t; expected: does not happen", to, stays)
		}
	case "=":
		if !stays || why == "" || ok || got != row.State {
			t.Fatalf("goes on to %v, stays: %t (%q); expected an explicit stay with a reason", to, stays, why)
		}
	default:
		parts := strings.Split(cell, "|")
		want, known := short[parts[min(nth, len(parts)-1)]]
		if !known || len(parts) != 1 && len(parts) != len(plans) {
			t.Fatalf("the matrix is wrong: %q", cell)
		}
		if len(to) != 1 || !ok || got != want {
			t.Fatalf("goes on to %v (Next: %s, %t), expected %s", to, got, ok, want)
		}
	}
}

// TestReachableStates proves that every state can be come to from absent, and
// left for idle and for absent.
func TestReachableStates(t *testing.T) {
	closure := func(from v1alpha1.State) map[v1alpha1.State]bool {
		seen := map[v1alpha1.State]bool{from: true}
		queue := []v1alpha1.State{from}
		for len(queue) > 0 {
			row, _ := Find(queue[0])
			queue = queue[1:]
			for _, e := range row.Edges {
				if !seen[e.To] {
					seen[e.To] = true
					queue = append(queue, e.To)
				}
			}
		}
		return seen
	}
	from := closure(v1alpha1.StateAbsent)
	for _, s := range v1alpha1.States() {
		if !from[s] {
			t.Errorf("%s cannot be reached from absent", s)
		}
		if out := closure(s); !out[v1alpha1.StateIdle] || !out[v1alpha1.StateAbsent] {
			t.Errorf("%s has no exit to idle and to absent", s)
		}
	}
	// The ordinary way back has to exist too, without anybody's force.
	for _, s := range v1alpha1.States() {
		if !s.InTurn() {
			continue
		}
		at := s
		for range 6 {
			next, ok := Next(at, Progressed, Plan{Drains: true, Reboots: true}, nothing)
			if !ok {
				t.Errorf("%s: done does not lead back to idle, it ends in %s", s, at)
				break
			}
			if at = next; at == v1alpha1.StateIdle {
				break
			}
		}
		if at != v1alpha1.StateIdle {
			t.Errorf("%s: done leads to %s, expected idle", s, at)
		}
	}
}

func nothing(v1alpha1.State) bool { return false }

// hookSettings are all combinations of stages with something to wait for.
func hookSettings() []map[v1alpha1.State]bool {
	var all []map[v1alpha1.State]bool
	for bits := range 8 {
		all = append(all, map[v1alpha1.State]bool{
			v1alpha1.StateBeforeDrain:    bits&1 != 0,
			v1alpha1.StateBeforeReboot:   bits&2 != 0,
			v1alpha1.StateBeforeUncordon: bits&4 != 0,
		})
	}
	return all
}

// TestNextAndReachable holds Next against Reachable over all events, plans and
// hooks: what the coordinator may write is what the referee lets pass, and no
// more than that.
func TestNextAndReachable(t *testing.T) {
	possible := map[[2]v1alpha1.State]bool{}
	for _, from := range v1alpha1.States() {
		for _, on := range Events() {
			for _, plan := range plans {
				for _, hooks := range hookSettings() {
					to, ok := Next(from, on, plan, func(s v1alpha1.State) bool { return hooks[s] })
					if !ok {
						if to != from {
							t.Errorf("%s on %s: stays, but in %s", from, on, to)
						}
						continue
					}
					possible[[2]v1alpha1.State{from, to}] = true
					if to.HookStage() && !hooks[to] {
						t.Errorf("%s on %s enters %s with nothing to wait for", from, on, to)
					}
					if on == TakenBack && to == v1alpha1.StateUncordoning {
						t.Errorf("%s taken back goes to uncordoning: its silent host never cordoned", from)
					}
				}
			}
		}
	}
	for _, from := range v1alpha1.States() {
		for _, to := range v1alpha1.States() {
			if got, want := Reachable(from, to), possible[[2]v1alpha1.State{from, to}]; got != want {
				t.Errorf("Reachable(%s, %s) = %t, by Next it is %t", from, to, got, want)
			}
		}
	}
}

// TestPassThrough walks the ways on by hand where hook stages have nothing to
// wait for.
func TestPassThrough(t *testing.T) {
	both := Plan{Drains: true, Reboots: true}
	for _, c := range []struct {
		from  v1alpha1.State
		on    Event
		plan  Plan
		hooks string // the stages with something to wait for
		want  v1alpha1.State
	}{
		{v1alpha1.StateIdle, Granted, both, "", v1alpha1.StateDraining},
		{v1alpha1.StateIdle, Granted, both, "before-drain", v1alpha1.StateBeforeDrain},
		{v1alpha1.StateIdle, Granted, Plan{Reboots: true}, "", v1alpha1.StateRebooting},
		{v1alpha1.StateIdle, Granted, Plan{Reboots: true}, "before-drain", v1alpha1.StateRebooting},
		{v1alpha1.StateIdle, Granted, Plan{}, "", v1alpha1.StateApplying},
		{v1alpha1.StateIdle, Granted, Plan{Drains: true}, "", v1alpha1.StateDraining},
		{v1alpha1.StateDraining, Progressed, both, "", v1alpha1.StateRebooting},
		{v1alpha1.StateDraining, Progressed, both, "before-reboot", v1alpha1.StateBeforeReboot},
		{v1alpha1.StateDraining, Progressed, Plan{Drains: true}, "before-reboot", v1alpha1.StateApplying},
		{v1alpha1.StateDraining, Vanished, both, "", v1alpha1.StateUncordoning},
		{v1alpha1.StateDraining, Vanished, both, "before-uncordon", v1alpha1.StateBeforeUncordon},
		{v1alpha1.StateDraining, TakenBack, both, "", v1alpha1.StateIdle},
		{v1alpha1.StateDraining, TakenBack, both, "before-uncordon", v1alpha1.StateBeforeUncordon},
		{v1alpha1.StateBeforeDrain, TakenBack, both, "before-drain", v1alpha1.StateIdle},
		{v1alpha1.StateRebooting, Progressed, both, "", v1alpha1.StateUncordoning},
		{v1alpha1.StateApplying, Progressed, Plan{}, "before-uncordon", v1alpha1.StateIdle},
		{v1alpha1.StateAbsent, Marked, Plan{}, "", v1alpha1.StateUncordoning},
		{v1alpha1.StateAbsent, Marked, Plan{}, "before-uncordon", v1alpha1.StateBeforeUncordon},
	} {
		got, ok := Next(c.from, c.on, c.plan, func(s v1alpha1.State) bool { return string(s) == c.hooks })
		if !ok || got != c.want {
			t.Errorf("%s on %s, hooks in %q: %s (%t), expected %s", c.from, c.on, c.hooks, got, ok, c.want)
		}
	}
}

func TestUnknownState(t *testing.T) {
	if _, ok := Find("descaling"); ok {
		t.Error("a row for a state that is not known")
	}
	if to, ok := Next("descaling", Progressed, Plan{}, nothing); ok {
		t.Errorf("an unknown state goes on to %s", to)
	}
	if Reachable("descaling", v1alpha1.StateIdle) || Reachable(v1alpha1.StateIdle, "descaling") {
		t.Error("an unknown state is reachable, or has a way on")
	}
	if Condition("if the moon is full").holds(Plan{}) {
		t.Error("an unknown condition holds")
	}
}
