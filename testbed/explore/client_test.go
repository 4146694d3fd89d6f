package explore

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// moment is a part of a turn.
type moment struct {
	name  string
	state v1alpha1.State
	// committed is whether the host has committed to let its client reboot, and may whether the client was told.
	committed, may bool
}

// what a FleetLock client does.
var clientActs = []struct {
	name string
	act  []kind // in this order; a kind that is not possible is left out, except the last one of them that is
	arg  int8
	in   world
}{
	{"asks again", []kind{hangUp, ask, askAgain}, 0, fairWorld},
	{"withdraws its request", []kind{steady, cancel}, 0, fairWorld},
	// If the host reboots for another reason, the client's update is lost.
	{"reboots without permission", []kind{crash}, 1, fairWorld},
	{"does not reboot", nil, 0, clientStays},
}

// The outcomes. Written by hand.
const (
	goesOn    = "the turn continues: `Done`"
	noTurn    = "no turn"
	backedOut = "the turn is backed out: `Cancelled`, `WantGone`"
	anyBoot   = "the boot counts: `Done`, although the update is lost"
	lostBoot  = "the update is lost: `Failed`, `NotUpdated`"
	slotKept  = "`Overdue`, and the slot is kept, until a person reboots the host"
	afterward = "the turn ends: `Done`"
	takesTurn = "a turn, later: `Done`"
	lateEnd   = "the turn continues; if the boot brings no other version: `Failed`, `NotUpdated`"
	notYet    = "-" // it has no permission yet, or has rebooted
)

var clientOutcomes = []struct {
	moment
	outcomes [4]string
}{
	{moment{name: "idle, waits for its turn", state: v1alpha1.StateIdle}, [4]string{takesTurn, noTurn, noTurn, notYet}},
	{moment{name: "before-drain", state: v1alpha1.StateBeforeDrain}, [4]string{goesOn, backedOut, backedOut, notYet}},
	{moment{name: "draining", state: v1alpha1.StateDraining}, [4]string{goesOn, backedOut, backedOut, notYet}},
	{moment{name: "before-reboot", state: v1alpha1.StateBeforeReboot}, [4]string{goesOn, backedOut, backedOut, notYet}},
	{moment{name: "rebooting, before the commit", state: v1alpha1.StateRebooting}, [4]string{goesOn, backedOut, anyBoot, notYet}},
	{moment{name: "rebooting, after the commit, and before the answer", state: v1alpha1.StateRebooting, committed: true}, [4]string{goesOn, slotKept, lostBoot, slotKept}},
	{moment{name: "rebooting, after the answer", state: v1alpha1.StateRebooting, committed: true, may: true}, [4]string{goesOn, lateEnd, lostBoot, slotKept}},
	{moment{name: "before-uncordon, after the boot", state: v1alpha1.StateBeforeUncordon}, [4]string{afterward, afterward, afterward, notYet}},
	{moment{name: "uncordoning", state: v1alpha1.StateUncordoning}, [4]string{afterward, afterward, afterward, notYet}},
}

// TestClientOutcomes has what happens if a host's FleetLock client asks again, withdraws its request, or reboots without
// permission, in each part of a turn, and if it has permission and does not reboot.
func TestClientOutcomes(t *testing.T) {
	for _, row := range clientOutcomes {
		for i, act := range clientActs {
			if row.outcomes[i] == notYet {
				continue
			}
			got, err := clientOutcome(row.moment, act.act, act.arg, act.in)
			if err != nil {
				t.Errorf("%s, the client %s: %v", row.name, act.name, err)
			} else if !strings.Contains(row.outcomes[i], got) {
				t.Errorf("%s, the client %s: %s, expected %s", row.name, act.name, got, row.outcomes[i])
			}
		}
	}
}

// clientOutcome runs one of two nodes to the moment, has its client act, and runs on in the world. It returns how the node's turn
// ends, "Overdue" if it does not, or "no turn".
func clientOutcome(at moment, acts []kind, arg int8, in world) (string, error) {
	p := newProgress(newModel(Config{Nodes: 2, Budget: 1, Faults: 1, Kinds: allKinds | ofClients, Plan: ByClient, Hooks: true, Stale: 1}))
	is := func(s *state, i int) bool {
		o := &p.objects[s.n[i].api]
		return o.st() == at.state && p.permits(&s.n[i]) == at.committed && s.n[i].may == at.may && !s.n[i].down && s.n[i].proc
	}
	s, node := p.begin(), -1
	for steps := 0; node < 0; steps++ {
		s.faults = 0
		next, _, ok := p.fairStep(fairWorld, &s, false)
		if !ok || steps > maxRun {
			return "", fmt.Errorf("no node gets there")
		}
		s = p.tidy(next)
		for i := range 2 {
			if is(&s, i) && (at.state != v1alpha1.StateIdle || i == 1) {
				node = i
			}
		}
	}
	s.faults = 9
	acted := len(acts) == 0 || at.state == v1alpha1.StateBeforeUncordon || at.state == v1alpha1.StateUncordoning // in the new boot
	for _, kind := range acts {
		done := false
		was := s
		p.next(&was, func(e *event, to *state) {
			if !done && e.action.kind == kind && e.node == node && e.action.arg == arg {
				done, s = true, p.tidy(*to)
			}
		})
		acted = acted || done
	}
	if !acted {
		return "", fmt.Errorf("no step does that")
	}
	return p.turnEnds(in, s, node)
}

// turnEnds runs the state on until the turn of the node is over, or nothing changes.
func (p *progress) turnEnds(w world, s state, node int) (string, error) {
	p.world = w
	s.faults = 0
	began := p.objects[s.n[node].api].st().InTurn()
	seen := map[state]bool{}
	for range maxRun {
		next, _, ok := p.fairStep(w, &s, seen[s])
		seen[s] = true
		if !ok {
			next = s
			p.ages(&next.n[node])
			if next == s {
				break
			}
			seen = map[state]bool{}
		}
		was := p.objects[s.n[node].api]
		s = p.tidy(next)
		is := p.objects[s.n[node].api]
		began = began || is.st().InTurn()
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
	waits, text := p.rest(w, &s, false)
	if waits >= 0 {
		return "", fmt.Errorf("%s", text)
	}
	return "`Overdue`", nil
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
