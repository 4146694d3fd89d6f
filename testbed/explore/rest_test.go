package explore

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of docs/safety.md")

// TestRests checks that a turn does wait for each cause in Rests: a cause for which none waits would let a defect pass.
func TestRests(t *testing.T) {
	found := map[string]int{}
	for _, c := range []Config{
		{Hooks: true, Wait: true},
		{Faults: 1, Kinds: kindsOf(latePod, sicken, pause, stop, guard)},
		{Faults: 1, Kinds: kindsOf(takeOver), Hooks: true, MaxStates: 6000},
		{Faults: 1, Kinds: kindsOf(blockPod), Blocks: BlocksHold, Wait: true, MaxStates: 6000},
		{Plan: ByClient},
	} {
		c.Nodes, c.Budget, c.Stale = 2, 1, 1
		r := Explore(c, 1)
		t.Log(r)
		if r.Violation != nil {
			t.Errorf("broken property: %v", r.Violation)
		}
		for cause, turns := range r.Held {
			found[cause] += turns
		}
	}
	for _, rest := range Rests() {
		if found[rest.Cause] == 0 {
			t.Errorf("no turn waits because %s", rest.Cause)
		}
	}
}

// TestSafetyPage compares the table in docs/safety.md with Rests, or writes it with -update.
func TestSafetyPage(t *testing.T) {
	const path = "../../docs/safety.md"
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- rendered from code: waits. Do not edit: make docs -->\n", "<!-- end of waits -->\n"
	before, rest, begins := strings.Cut(string(have), begin)
	_, after, ends := strings.Cut(rest, end)
	want := before + begin + "\n" + restTable() + "\n" + end + after
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

func restTable() string {
	var b strings.Builder
	b.WriteString("| a turn waits because | it ends when | held | states |\n| --- | --- | --- | --- |\n")
	for _, r := range Rests() {
		states := []string{}
		for _, s := range r.States {
			states = append(states, string(s))
		}
		if r.States == nil {
			states = []string{"any"}
		}
		held := []string{}
		for _, reason := range r.Held {
			held = append(held, "`"+string(reason)+"`")
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.Cause, r.End, strings.Join(held, ", "), strings.Join(states, ", "))
	}
	return b.String()
}
