package explore

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// moment is a part of a turn, or of the time between two.
type moment struct {
	name  string
	state v1alpha1.State
	// committed is whether the host has committed to let its client reboot, may whether the client was told, and backedOut
	// whether the coordinator has backed the turn out.
	committed, may, backedOut bool
	// An admin does by before, in the state from, and ends it by undo, if there are such.
	from     v1alpha1.State
	by, undo kind
}

// taker takes a step of the client's host, and reports whether it was possible.
type taker func(k kind, arg int8) bool

// what a FleetLock client does.
var clientActs = []struct {
	name string
	in   world
	act  func(take taker) bool // reports whether it was possible
}{
	{"asks again", fairWorld, asksAgain},
	{"withdraws its request", fairWorld, func(take taker) bool {
		if take(steady, 0) {
			take(cancel, 0)
			return true
		}
		return asksAgain(take) && take(steady, 0) && take(cancel, 0)
	}},
	// If the host reboots for another reason, the client's update is lost.
	{"reboots without permission", fairWorld, func(take taker) bool { return take(crash, 1) || take(crash, 0) }},
	{"does not reboot", clientStays, func(taker) bool { return true }},
}

// asksAgain has the client ask, for another update if it has none.
func asksAgain(take taker) bool {
	take(restage, 0)
	take(hangUp, 0)
	return take(ask, 0) || take(askAgain, 0)
}

// The outcomes. Written by hand. What follows "; then" is what happens after that: once the admin has undone what they did, or in
// the next turn.
const (
	goesOn    = "the turn continues: `Done`"
	noTurn    = "no turn"
	backedOut = "the turn is backed out: `Cancelled`, `WantGone`"
	anyBoot   = "the boot counts: `Done`, although the update is lost"
	lostBoot  = "the update is lost: `Failed`, `NotUpdated`"
	slotKept  = "`Overdue`, and the slot is kept, until a person reboots the host"
	afterward = "the turn ends: `Done`"
	nextTurn  = "the turn ends: `Done`; then the next one: `Done`"
	takesTurn = "a turn, later: `Done`"
	waitsFor  = "no turn until an admin undoes that; then one: `Done`"
	endsSo    = "the turn ends as it was backed out, for example `BackedOut`, `Uncordoned`"
	endsSoTwo = endsSo + "; then the next one: `Done`"
	lateEnd   = "the turn continues; if the boot brings no other version: `Failed`, `NotUpdated`"
	notYet    = "-" // it has no permission yet, or has rebooted
	asAbove   = "as above"
	frozen    = "the turn waits: `Paused`; then " + asAbove
	takenOut  = "the turn is backed out: `Cancelled`, `Unmanaged`, or `Cancelled`, `Detached`"
	letGo     = "the node is released at once, without an outcome"
)

var clientOutcomes = []struct {
	moment
	outcomes [4]string
}{
	{moment{name: "idle, waits for its turn", state: v1alpha1.StateIdle}, [4]string{takesTurn, noTurn, noTurn, notYet}},
	{moment{name: "paused", state: v1alpha1.StatePaused, from: v1alpha1.StateIdle, by: pause, undo: resume}, [4]string{waitsFor, noTurn, noTurn, notYet}},
	{moment{name: "absent: it has `managed=false`", state: v1alpha1.StateAbsent, from: v1alpha1.StateIdle, by: unmanage, undo: manage}, [4]string{waitsFor, noTurn, noTurn, notYet}},
	{moment{name: "absent: it is detached", state: v1alpha1.StateAbsent, from: v1alpha1.StateIdle, by: detach, undo: attach}, [4]string{waitsFor, noTurn, noTurn, notYet}},
	{moment{name: "before-drain", state: v1alpha1.StateBeforeDrain}, [4]string{goesOn, backedOut, backedOut, notYet}},
	{moment{name: "draining", state: v1alpha1.StateDraining}, [4]string{goesOn, backedOut, backedOut, notYet}},
	{moment{name: "before-reboot", state: v1alpha1.StateBeforeReboot}, [4]string{goesOn, backedOut, backedOut, notYet}},
	{moment{name: "rebooting, before the commit", state: v1alpha1.StateRebooting}, [4]string{goesOn, backedOut, anyBoot, notYet}},
	{moment{name: "rebooting, after the commit, and before the answer", state: v1alpha1.StateRebooting, committed: true}, [4]string{goesOn, slotKept, lostBoot, slotKept}},
	{moment{name: "rebooting, after the answer", state: v1alpha1.StateRebooting, committed: true, may: true}, [4]string{goesOn, lateEnd, lostBoot, slotKept}},
	{moment{name: "before-uncordon, after the boot", state: v1alpha1.StateBeforeUncordon}, [4]string{nextTurn, afterward, afterward, notYet}},
	{moment{name: "before-uncordon, the turn is backed out", state: v1alpha1.StateBeforeUncordon, backedOut: true, from: v1alpha1.StateDraining, by: uncordon}, [4]string{endsSoTwo, endsSo, endsSo, notYet}},
	{moment{name: "uncordoning, after the boot", state: v1alpha1.StateUncordoning}, [4]string{nextTurn, afterward, afterward, notYet}},
	{moment{name: "uncordoning, the turn is backed out", state: v1alpha1.StateUncordoning, backedOut: true, from: v1alpha1.StateDraining, by: uncordon}, [4]string{endsSoTwo, endsSo, endsSo, notYet}},
}

// canEnd reports whether the coordinator may still back the turn of the moment out.
func (m *moment) canEnd() bool {
	return m.state.InTurn() && !m.committed && m.state != v1alpha1.StateBeforeUncordon && m.state != v1alpha1.StateUncordoning
}

// What an admin does during a turn, just before the client acts. Written by hand.
var intentOutcomes = []struct {
	name     string
	by       []kind
	undo     kind
	of       func(*moment) bool
	outcomes [4]string
}{
	{"in a turn, and the node is then paused", []kind{pause}, resume, func(m *moment) bool { return m.state.InTurn() }, [4]string{frozen, frozen, frozen, frozen}},
	{"before-drain to before-reboot, and the node is then taken out (`managed=false`, or detached)", []kind{unmanage, detach}, 0,
		func(m *moment) bool { return m.canEnd() && m.state != v1alpha1.StateRebooting }, [4]string{takenOut, takenOut, takenOut, notYet}},
	{"rebooting, before the commit, and the node is then taken out", []kind{unmanage, detach}, 0,
		func(m *moment) bool { return m.canEnd() && m.state == v1alpha1.StateRebooting }, [4]string{takenOut, takenOut, asAbove, notYet}},
	{"later in the turn, and the node is then taken out", []kind{unmanage, detach}, 0,
		func(m *moment) bool { return m.state.InTurn() && !m.canEnd() }, [4]string{asAbove, asAbove, asAbove, asAbove}},
	{"in a turn, before the commit, and the node is then detached with force", []kind{forceDetach}, 0, (*moment).canEnd, [4]string{letGo, letGo, letGo, notYet}},
}

// TestClientOutcomes has what happens if a host's FleetLock client asks again, withdraws its request, or reboots without
// permission, in each part of a turn, and if it has permission and does not reboot.
func TestClientOutcomes(t *testing.T) {
	p := newProgress(newModel(Config{Nodes: 2, Budget: 1, Faults: 1, Kinds: allKinds | ofClients, Plan: ByClient, Hooks: true, Stale: 1}))
	missing := slices.DeleteFunc(v1alpha1.States(), func(s v1alpha1.State) bool { return s == v1alpha1.StateApplying }) // a client's turn always reboots
	for _, row := range clientOutcomes {
		missing = slices.DeleteFunc(missing, func(s v1alpha1.State) bool { return s == row.state })
		s, node, err := p.reach(&row.moment)
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		for act, outcome := range row.outcomes {
			if outcome == notYet {
				continue
			}
			p.checkOutcome(t, row.name, s, node, act, 0, row.undo, outcome)
			outcome, _, _ := strings.Cut(outcome, "; then") // the intent may prevent the next turn
			for _, intent := range intentOutcomes {
				if !intent.of(&row.moment) {
					continue
				}
				want := strings.Replace(intent.outcomes[act], asAbove, outcome, 1)
				for _, by := range intent.by {
					p.checkOutcome(t, row.name+", "+kindNames[by], s, node, act, by, intent.undo, want)
				}
			}
		}
	}
	if len(missing) > 0 {
		t.Errorf("no outcomes in %v", missing)
	}
}

// checkOutcome has an admin do by, if it is not 0, then has the node's client act, and runs on. It compares how the node's turn
// ends with the outcome that is wanted, and after undo, if it is not 0, with what is wanted then.
func (p *progress) checkOutcome(t *testing.T, name string, s state, node, act int, by, undo kind, outcome string) {
	t.Helper()
	c := &clientActs[act]
	take := func(k kind, arg int8) bool { return p.take(&s, node, k, arg) }
	if by != 0 && !take(by, 0) || !c.act(take) {
		t.Errorf("%s, the client %s: it cannot", name, c.name)
	}
	for i, want := range strings.Split(outcome, "; then") {
		if i > 0 && undo != 0 && !take(undo, 0) {
			t.Errorf("%s, the client %s: no admin can undo that", name, c.name)
		}
		if got, err := p.turnEnds(c.in, &s, node); err != nil || !strings.Contains(want, got) {
			t.Errorf("%s, the client %s: %s, %v, expected %s", name, c.name, got, err, want)
		}
	}
}

// take takes a step of the node. It reports whether that was possible.
func (p *progress) take(s *state, node int, k kind, arg int8) (done bool) {
	was := *s
	was.faults = 1
	p.next(&was, func(e *event, to *state) {
		if !done && e.action.kind == k && e.node == node && e.action.arg == arg {
			done, *s = true, p.tidy(*to)
		}
	})
	s.faults = 0
	return done
}

// reach runs one of two nodes to the moment. An idle node is the one that waits for the other.
func (p *progress) reach(at *moment) (s state, node int, err error) {
	p.world = fairWorld
	s, by := p.begin(), at.by
	for range maxRun {
		s.faults = 0
		for i := range 2 {
			n := &s.n[i]
			o := &p.objects[n.api]
			if o.st() == v1alpha1.StateIdle && i == 0 {
				continue
			}
			if by != 0 && o.st() == at.from && p.take(&s, i, by, 0) {
				by = 0
				break
			}
			if by == 0 && o.st() == at.state && p.permits(n) == at.committed && n.may == at.may && (o.grant.result != 0) == at.backedOut && !n.down && n.proc {
				return s, i, nil
			}
		}
		next, _, ok := p.fairStep(fairWorld, &s, false)
		if !ok {
			break
		}
		s = p.tidy(next)
	}
	return s, 0, fmt.Errorf("no node gets there")
}

// turnEnds runs the state on until the turn of the node is over, or nothing changes.
func (p *progress) turnEnds(w world, s *state, node int) (string, error) {
	p.world = w
	began := p.objects[s.n[node].api].st().InTurn()
	seen := map[state]bool{}
	for range maxRun {
		next, _, ok := p.fairStep(w, s, seen[*s])
		seen[*s] = true
		if !ok {
			next = *s
			p.ages(&next.n[node])
			if next == *s {
				break
			}
			seen = map[state]bool{}
		}
		was := p.objects[s.n[node].api]
		*s = p.tidy(next)
		is := p.objects[s.n[node].api]
		began = began || is.st().InTurn()
		if was.st().InTurn() && is.st() == v1alpha1.StateAbsent {
			return letGo, nil
		}
		if was.st().InTurn() && is.st() == v1alpha1.StateIdle {
			text := "`" + string(results[is.last.result]) + "`"
			if r := reasons[is.last.reason]; r != v1alpha1.ReasonNone {
				text += ", `" + string(r) + "`"
			}
			return text, nil
		}
	}
	if !began {
		return noTurn, nil
	}
	if _, text := p.rest(w, s, false); text != "" {
		return "", fmt.Errorf("%s", text)
	}
	snap, _, _ := p.snapshot(s)
	return "`" + string(p.Bug.decide(snap).Verdicts[node].Held) + "`", nil
}

// TestClientPage compares the table in docs/fedora-coreos.md with the outcomes, or writes it with -update.
func TestClientPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("| the node's state | Zincati")
	for i, act := range clientActs {
		if i > 0 {
			b.WriteString(" | it")
		}
		b.WriteString(" " + act.name)
	}
	b.WriteString(" |\n| --- | --- | --- | --- | --- |\n")
	for _, row := range clientOutcomes {
		fmt.Fprintf(&b, "| %s | %s |\n", row.name, strings.Join(row.outcomes[:], " | "))
	}
	for _, row := range intentOutcomes {
		fmt.Fprintf(&b, "| %s | %s |\n", row.name, strings.Join(row.outcomes[:], " | "))
	}
	comparePage(t, "../../docs/fedora-coreos.md", "clients", b.String())
}

// comparePage compares a table in a page, which is between comments with its name, or writes it with -update.
func comparePage(t *testing.T, path, name, table string) {
	t.Helper()
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- rendered from code: "+name+". Do not edit: make docs -->\n", "<!-- end of "+name+" -->\n"
	before, rest, begins := strings.Cut(string(have), begin)
	_, after, ends := strings.Cut(rest, end)
	want := before + begin + "\n" + table + "\n" + end + after
	switch {
	case !begins || !ends:
		t.Errorf("%s has no place for the table: %s", path, begin)
	case *update:
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	case string(have) != want:
		t.Errorf("%s is not what the code says; run: make docs", path)
	}
}
