package rollout_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/packaging/render/intents"
)

// intentPlaces holds the commands that bring n1 to each place of [intents.Matrix]. n1 wants a
// reboot or, in applying, a restart after a drain.
var intentPlaces = map[string]string{
	"absent":                     "kill n1",
	"idle":                       "run until rest; update n1 4.2; run until n1 state=idle wants=reboot",
	"paused":                     "run until rest; pause n1 because; update n1 4.2; run until n1 state=paused held=Paused wants=reboot",
	"before-drain":               "run until rest; update n1 4.2; run until n1 state=before-drain ack=before-drain/seen",
	"draining, not cordoned yet": "run until rest; update n1 4.2; confirm; run until n1 state=draining",
	"draining":                   "run until rest; update n1 4.2; confirm; block n1; run until n1 state=draining evicts=yes",
	"before-reboot":              "run until rest; update n1 4.2; confirm; run until n1 state=before-reboot",
	"rebooting":                  "run until rest; update n1 4.2; confirm; run until n1 state=rebooting",
	"rebooting, committed":       "run until rest; update n1 4.2; confirm; run until n1 ack=rebooting/committed",
	"rebooting, under way":       "run until rest; update n1 4.2; confirm; run until n1 down=yes",
	"rebooting, in the new boot": "run until rest; update n1 4.2; confirm; sick n1; run until n1 state=rebooting boots=2",
	"applying":                   "run until rest; file n1; confirm; run until n1 state=applying",
	"applying, committed":        "run until rest; file n1; confirm; run until n1 ack=applying/committed",
	"applying, under way":        "run until rest; file n1; confirm; run until n1 applies=yes",
	"before-uncordon":            "run until rest; update n1 4.2; confirm; run until n1 state=before-uncordon",
	"uncordoning":                "run until rest; update n1 4.2; confirm; run until n1 state=uncordoning",
}

// committed are the places in which nothing backs the turn out.
var committed = []string{"rebooting, committed", "rebooting, under way", "rebooting, in the new boot", "applying, committed", "applying, under way"}

// An intentCase is one cell in a model cluster: n1 is in the place, and nothing is set yet.
type intentCase struct {
	*cluster
	t      *testing.T
	cell   intents.Cell
	intent string
	turn   string // n1's in the place
	turns  int    // begun up to the place
	// keepsLast: the record of the last turn stays on a node that is released.
	keepsLast bool
}

func newIntentCase(t *testing.T, intent string, cell intents.Cell) *intentCase {
	t.Helper()
	c := &intentCase{cluster: newCluster(), t: t, cell: cell, intent: intent}
	c.do("policy settle=0s draining=6m before-drain=a,6m,Abort before-reboot=b,6m,Abort before-uncordon=c,6m", "node n1", "node n2")
	p := c.policies[builtIn]
	p.Terms.Rebooting.Duration, p.Terms.Applying.Duration = 6*time.Minute, 6*time.Minute
	c.policies[builtIn] = p
	script, known := intentPlaces[cell.Place]
	if !known {
		t.Fatalf("no way to %s", cell.Place)
	}
	for command := range strings.SplitSeq(script, "; ") {
		if c.confirms = c.confirms || command == "confirm"; command != "confirm" {
			c.do(command)
		}
	}
	if cell.Place == "absent" {
		c.do("update n1 4.2")
	}
	n := c.fact("n1")
	if state, _, _ := strings.Cut(cell.Place, ","); n.State.String() != state {
		t.Fatalf("n1 is in %s", n.State)
	}
	c.turn, c.turns = n.Turn, c.cluster.turns
	return c
}

// do carries out commands, as the scripts have them.
func (c *intentCase) do(commands ...string) {
	c.t.Helper()
	for _, command := range commands {
		if err := c.command(strings.Fields(command)); err != nil {
			c.t.Fatalf("%s: %v\n%s", command, err, strings.Join(c.log, "\n"))
		}
	}
	for _, b := range c.broken {
		c.t.Errorf("promise broken: %s", b)
	}
	c.broken = nil
}

// set sets intents. until is when they end, or zero.
func (c *intentCase) set(until time.Time, all ...string) {
	c.t.Helper()
	payload := `{"reason":"theirs"`
	if !until.IsZero() {
		payload += `,"until":"` + until.Format(time.RFC3339) + `"`
	}
	for _, intent := range all {
		switch intent {
		case intents.Unmanaged:
			c.do("managed n1 false")
		case intents.Paused:
			c.do("pause n1 " + payload + "}")
		case intents.Detached:
			c.do("detach n1 " + payload + "}")
		case intents.Forced:
			c.do("detach n1 " + payload + `,"force":true}`)
		}
	}
}

func (c *intentCase) clear(all ...string) {
	c.t.Helper()
	for _, intent := range all {
		c.do(map[string]string{intents.Unmanaged: "managed n1 absent", intents.Paused: "resume n1",
			intents.Detached: "attach n1", intents.Forced: "attach n1"}[intent])
	}
}

// proceed removes everything but the intents that keeps n1 in its place.
func (c *intentCase) proceed() {
	c.t.Helper()
	c.confirms = true
	c.do("unblock n1", "well n1", "start n1")
}

// expectAt compares where n1 is, or what is done, with what a person wrote.
func (c *intentCase) expectAt(what, got, want string) {
	c.t.Helper()
	if got != want {
		c.t.Errorf("%s in %q: %s: %q, expected %q\n%s", c.intent, c.cell.Place, what, got, want, strings.Join(c.log, "\n"))
	}
}

// coordinatorDoes describes what the coordinator writes next to n1.
func (c *intentCase) coordinatorDoes() string {
	n := c.fact("n1")
	for _, v := range rollout.Decide(c.snapshot(c.lease.Holder)).Verdicts {
		m := v.Move
		switch {
		case v.Node != "n1":
		case m == nil && v.Held == "" && n.Held != "":
			return "removes held"
		case m == nil && v.Held != n.Held:
			return "held=" + string(v.Held)
		case m == nil:
			return "nothing"
		case m.LetGo:
			return "releases the node"
		case m.Expired:
			return "removes the intent"
		case m.From != m.To:
			return "state=" + m.To.String()
		case m.Reason == v1alpha1.ReasonHandover && m.Grant.PausedSince != nil:
			return "takes over and stops the clock"
		case m.Reason == v1alpha1.ReasonHandover:
			return "takes over"
		case m.Grant != nil && m.Grant.PausedSince != nil && n.Grant.PausedSince == nil:
			return "stops the clock"
		case m.Grant != nil && m.Grant.PausedSince == nil && n.Grant.PausedSince != nil:
			return "starts the clock"
		default:
			return fmt.Sprintf("%+v", *m)
		}
	}
	return "no verdict"
}

// hostDoes describes what n1's host does next, after it has read what it asks for.
func (c *intentCase) hostDoes() string {
	h := c.hosts["n1"]
	o := c.observe(h)
	d := step.Step(o)
	for range 3 {
		switch d.Read {
		case step.ReadEviction:
			o.Fresh = &step.FreshRead{Lease: c.lease}
		case step.ReadCommit:
			o.Fresh = &step.FreshRead{Lease: c.lease, Commit: true}
		}
		d = step.Step(o)
	}
	if w := d.Write; w != nil {
		if _, joins := w.Annotations[v1alpha1.AnnotationHost]; joins && o.Node.RawHost == "" {
			return "publishes"
		}
		switch {
		case w.Unschedulable != nil && *w.Unschedulable:
			return "cordons"
		case w.Unschedulable != nil:
			return "uncordons"
		case w.Ack.Report == v1alpha1.ReportCommitted:
			return "commits"
		case w.Ack.Report == v1alpha1.ReportRefused:
			return "refuses: " + string(w.Ack.Reason)
		case w.Ack.Report != "":
			return "reports " + string(w.Ack.Report)
		}
	}
	if does := map[step.Effect]string{step.DoDrain: "evicts", step.DoReboot: "reboots", step.DoApply: "applies", step.DoHooks: "runs hook units"}[d.Do]; does != "" {
		return does
	}
	if d.Waits != "" {
		return "waits: " + string(d.Waits)
	}
	return "nothing"
}

// rests lets d pass, and describes where n1 is then.
func (c *intentCase) rests(d time.Duration) string {
	c.t.Helper()
	c.do("advance " + d.String())
	n := c.fact("n1")
	if n.State == v1alpha1.StateAbsent && !c.lease.Stopped && (len(n.Turn)+len(n.Wants)+len(n.RawHost) > 0 || n.Grant != nil || n.Mark || n.Last != nil && !c.keepsLast || n.Ack != v1alpha1.Ack{}) {
		c.t.Errorf("%s in %q: n1 is absent, and has %+v", c.intent, c.cell.Place, n.Keys)
	}
	return nodeAt(&n)
}

// nodeAt describes where a node is, as [intents.Cell] does.
func nodeAt(n *turn.Node) string {
	at := n.State.String()
	if n.Unschedulable {
		at += ", cordoned"
	}
	if n.Held != "" {
		at += ", held=" + string(n.Held)
	}
	return at
}

// ends lets everything come to an end, and describes where n1 arrives and by which turn. before is
// how many turns there were when the intent was removed.
func (c *intentCase) ends(before int) string {
	c.t.Helper()
	at := c.rests(aWhile)
	n := c.fact("n1")
	if n.State != v1alpha1.StateIdle {
		return at
	}
	if n.Wants != v1alpha1.WantsNothing {
		c.t.Errorf("%s in %q: at the end n1 wants %s", c.intent, c.cell.Place, n.Wants)
	}
	switch {
	case n.Last != nil && n.Last.Turn == c.turn && n.Last.Result == v1alpha1.ResultDone && c.cluster.turns == c.turns:
		return at + ", the same turn"
	case n.Last != nil && n.Last.Result == v1alpha1.ResultDone && c.cluster.turns == before+1:
		return at + ", a new turn"
	case n.Last == nil && c.cluster.turns == before:
		return at + ", no turn"
	}
	return fmt.Sprintf("%s, %d turns, last %+v", at, c.cluster.turns-before, n.Last)
}

// aWhile is how long n1 rests with an intent. It is longer than every timeout of the turn, so that a
// pause that did not stop the clock would end the turn, or show held=Overdue.
const aWhile = 15 * time.Minute

// TestIntents compares the matrix with what rollout.Decide and step.Step do, in a model cluster.
func TestIntents(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds; make test runs it without -race")
	}
	for _, m := range intents.Matrix {
		places := map[string]bool{}
		for _, cell := range m.Cells {
			places[cell.Place] = true
			t.Run(m.Intent+"/"+cell.Place, func(t *testing.T) {
				c := newIntentCase(t, m.Intent, cell)
				c.set(time.Time{}, m.Intent)
				c.expectAt("the coordinator", c.coordinatorDoes(), cell.Coordinator)
				c.expectAt("the host", c.hostDoes(), cell.Host)
				c.proceed()
				c.expectAt("rests", c.rests(aWhile), cell.Rest)
				before := c.cluster.turns
				c.clear(m.Intent)
				c.expectAt("the coordinator, removed", c.coordinatorDoes(), cell.CoordinatorCleared)
				c.expectAt("the host, removed", c.hostDoes(), cell.HostCleared)
				c.expectAt("arrives", c.ends(before), cell.End)

				c = newIntentCase(t, m.Intent, cell)
				c.do("dies n1")
				c.set(time.Time{}, m.Intent)
				c.confirms = true
				c.expectAt("rests if the machine is dead", c.rests(aWhile), cell.Dead)

				// Force releases it, unless a reboot or apply is committed.
				n := c.fact("n1")
				if !n.InTurn() {
					return
				}
				want := "absent, held=Detached"
				if n.Unschedulable {
					want = "absent, cordoned, held=Detached"
				}
				if slices.Contains(committed, cell.Place) {
					want = cell.Dead
				}
				c.set(time.Time{}, intents.Forced)
				c.expectAt("rests if it is then detached with force", c.rests(aWhile), want)
			})
		}
		if len(places) != len(intentPlaces) || len(m.Cells) != len(places) {
			t.Errorf("%s has %d cells for %d places, expected one for each of %d", m.Intent, len(m.Cells), len(places), len(intentPlaces))
		}
	}
}

// TestIntentRules checks the rules that docs/intents.md states for every cell.
func TestIntentRules(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds; make test runs it without -race")
	}
	for _, m := range intents.Matrix {
		for _, cell := range m.Cells {
			t.Run(m.Intent+"/"+cell.Place, func(t *testing.T) {
				// The time of until passes.
				if m.Intent != intents.Unmanaged {
					c := newIntentCase(t, m.Intent, cell)
					until := c.now.Add(aWhile)
					c.set(until, m.Intent)
					c.proceed()
					c.expectAt("rests before until", c.rests(aWhile-time.Minute), cell.Rest)
					before := c.cluster.turns
					c.now = until.Add(2*time.Second - time.Millisecond)
					if got := c.coordinatorDoes(); got == "removes the intent" {
						t.Error("the intent is removed before until")
					}
					c.now = until.Add(2 * time.Second)
					c.expectAt("the coordinator, at until", c.coordinatorDoes(), "removes the intent")
					c.expectAt("arrives after until", c.ends(before), cell.End)
				}

				// The host's file says it, instead of the label. The record of the last turn stays.
				if m.Intent == intents.Unmanaged {
					c := newIntentCase(t, m.Intent, cell)
					c.keepsLast = true
					c.do("default n1 false")
					c.proceed()
					c.expectAt("rests by the host's file", c.rests(aWhile), cell.Rest)
					c.do("managed n1 true")
					end := strings.NewReplacer(", a new turn", "", ", no turn", "").Replace(cell.End)
					c.expectAt("arrives by the label, against the host's file", c.rests(aWhile), end)
					if n := c.fact("n1"); n.State == v1alpha1.StateIdle && n.Wants != v1alpha1.WantsNothing {
						t.Errorf("at the end n1 wants %s", n.Wants)
					}
				}

				// The leader changes.
				c := newIntentCase(t, m.Intent, cell)
				c.set(time.Time{}, m.Intent)
				c.do("leader b")
				first := cell.Coordinator
				switch {
				case first == "nothing" && cell.Place == "applying":
					first = "state=before-uncordon"
				case first == "nothing" && c.turn != "":
					first = "takes over"
				case first == "stops the clock":
					first = "takes over and stops the clock"
				}
				c.expectAt("another leader", c.coordinatorDoes(), first)
				c.proceed()
				c.expectAt("rests under another leader", c.rests(aWhile), cell.Rest)
				before := c.cluster.turns
				c.clear(m.Intent)
				c.do("leader c")
				c.expectAt("arrives under another leader", c.ends(before), cell.End)

				// The emergency stop is set.
				c = newIntentCase(t, m.Intent, cell)
				c.set(time.Time{}, m.Intent)
				c.do("stop")
				c.proceed()
				stopped, _, _ := strings.Cut(c.rests(aWhile), ",")
				place, _, _ := strings.Cut(cell.Place, ",")
				c.expectAt("rests under the stop", stopped, place)
				c.do("go")
				c.expectAt("rests after the stop", c.rests(aWhile), cell.Rest)
			})
		}
	}
}

// TestTwoIntents checks the rules that docs/intents.md states for two intents on one node.
func TestTwoIntents(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds; make test runs it without -race")
	}
	find := func(intent, place string) intents.Cell {
		for _, m := range intents.Matrix {
			if i := slices.IndexFunc(m.Cells, func(c intents.Cell) bool { return c.Place == place }); m.Intent == intent && i >= 0 {
				return m.Cells[i]
			}
		}
		t.Fatalf("no cell %s in %s", intent, place)
		return intents.Cell{}
	}
	for place := range intentPlaces {
		for _, two := range []struct{ first, second, acts string }{
			{intents.Unmanaged, intents.Paused, intents.Unmanaged},
			{intents.Unmanaged, intents.Detached, intents.Unmanaged},
			{intents.Unmanaged, intents.Forced, intents.Forced},
			{intents.Paused, intents.Detached, intents.Paused},
			{intents.Paused, intents.Forced, intents.Forced},
		} {
			t.Run(two.first+" and "+two.second+"/"+place, func(t *testing.T) {
				acts := two.acts
				switch {
				case place == "absent" && two.second != intents.Paused:
					acts = two.second // lockkeeper does not have the node: it stays absent
				case two.first == intents.Paused && slices.Contains(committed, place):
					acts = intents.Paused
				}
				c := newIntentCase(t, two.first+" and "+two.second, find(acts, place))
				c.set(time.Time{}, two.first, two.second)
				c.expectAt("the coordinator", c.coordinatorDoes(), c.cell.Coordinator)
				c.proceed()
				c.expectAt("rests", c.rests(aWhile), c.cell.Rest)
				if two.first != intents.Paused || place == "absent" || place == "paused" {
					return
				}
				// When the pause ends, the node is detached.
				c.clear(intents.Paused)
				c.expectAt("rests after the pause", c.rests(aWhile), find(two.second, place).Rest)
			})
		}
	}
}
