package virtual

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// numbered returns a plan with n faults that differ in their time.
func numbered(n int) Plan {
	p := Plan{Seed: 7, Length: time.Hour}
	for i := range n {
		p.Faults = append(p.Faults, Fault{At: Trigger{After: time.Duration(i+1) * time.Second}, Kind: kindKill, On: "n1"})
	}
	return p
}

// has reports whether the plan has the faults at those seconds.
func has(p Plan, seconds ...int) bool {
	for _, s := range seconds {
		if !slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.At.After == time.Duration(s)*time.Second }) {
			return false
		}
	}
	return true
}

// TestReduce finds the three of 80 faults that together break a rule, although other faults break another one.
func TestReduce(t *testing.T) {
	p := numbered(80)
	p.Faults[40].Times = 5
	got, why, runs := Reduce(p, func(p Plan) (bool, string) {
		switch {
		case has(p, 3, 41, 77):
			return true, "Budget: two nodes"
		case len(p.Faults) < 20:
			return true, "Progress: nothing moves"
		}
		return false, ""
	}, Reduction{})
	if len(got.Faults) != 3 || !has(got, 3, 41, 77) || why != "Budget: two nodes" {
		t.Errorf("after %d runs, %q with\n%v, expected three faults", runs, why, got)
	}
	if got.Faults[1].Times != 0 || got.Seed != 7 || got.Length != time.Hour {
		t.Errorf("the reduced plan is\n%v", got)
	}
	if runs > 200 {
		t.Errorf("%d runs", runs)
	}
}

// TestReduceRepeats: a plan that fails only each third time is tried as often as it takes.
func TestReduceRepeats(t *testing.T) {
	n := 0
	fails := func(p Plan) (bool, string) {
		n++
		return has(p, 3, 6) && n%3 == 0, "Budget: two nodes"
	}
	if got, _, _ := Reduce(numbered(8), fails, Reduction{Repeats: 3}); len(got.Faults) != 2 || !has(got, 3, 6) {
		t.Errorf("the reduced plan is\n%v, expected two faults", got)
	}
	if got, why, runs := Reduce(numbered(8), func(Plan) (bool, string) { return false, "" }, Reduction{Repeats: 3}); why != "" || runs != 3 || len(got.Faults) != 8 {
		t.Errorf("a plan that passes is reduced in %d runs to\n%v%s", runs, got, why)
	}
}

// TestReduceIsBounded: the search ends after a number of runs, and after a time, with what it has.
func TestReduceIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := func(p Plan) (bool, string) {
			time.Sleep(time.Second)
			return has(p, 3, 41, 77), "Budget: two nodes"
		}
		for _, o := range []Reduction{{Tries: 10}, {Within: 10 * time.Second}} {
			start := time.Now()
			got, why, runs := Reduce(numbered(80), fails, o)
			if runs > 10 || time.Since(start) > 10*time.Second || !has(got, 3, 41, 77) || len(got.Faults) == 80 || why == "" {
				t.Errorf("%+v: %d runs in %v, %d faults, %q", o, runs, time.Since(start), len(got.Faults), why)
			}
		}
	})
}

// TestReproduce: of a plan that does not fail each time, a reader gets the trace of a run that failed, and reads which run that is.
func TestReproduce(t *testing.T) {
	const again = "The plan was run again, with a log, and run "
	for name, x := range map[string]struct {
		why func(n int, p Plan, logged bool) (rule string) // of the run number n, from 1
		has []string
		not string
	}{
		"never again": {
			func(int, Plan, bool) string { return "" },
			[]string{"it did not fail again in 2 runs", "everything of the run that failed", "note of run 0\n"}, "log",
		},
		"each time": {
			func(int, Plan, bool) string { return "Budget" },
			[]string{"took 3 runs, of which 3 failed with the rule Budget", "0 faults, of 2, which failed:\nBudget: run 3\n", again + "1 of at most 3 failed as well:\nBudget: run 4\n", "note of run 4\n", "log of run 4"},
			"note of run 3",
		},
		"not in the first run with a log": {
			func(n int, _ Plan, _ bool) string { return map[bool]string{true: "Budget"}[n != 4] },
			[]string{again + "2 of at most 3 failed as well:\nBudget: run 5\n", "note of run 5\n", "log of run 5"}, "run 4",
		},
		"with another rule": { // run 1 has both faults, run 2 the first one, and the others none
			func(_ int, p Plan, logged bool) string {
				return map[bool]string{true: "Budget", false: "Progress"}[has(p, 1) && !logged]
			},
			[]string{"of which 2 failed with the rule Budget", "1 faults, of 2, which failed:\nBudget: run 2\n", "The plan was run 3 times again, with a log, and no run failed with the rule", "note of run 2\n"},
			"log of run",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := 0
			result := func(rule string) Result {
				r := Result{trace: newTrace()}
				if rule != "" {
					r.Why = fmt.Sprintf("%s: run %d", rule, n)
				}
				r.trace.note("n1", "note of run %d", n)
				return r
			}
			first := result("Budget")
			got := reproduce(numbered(2), &first, []string{"n1"}, func(p Plan, logged bool) Result {
				n++
				r := result(x.why(n, p, logged))
				if logged {
					r.log = []string{fmt.Sprintf("log of run %d", n)}
				}
				return r
			})
			for _, want := range x.has {
				if !strings.Contains(got, want) {
					t.Errorf("it has no %q:\n%s", want, got)
				}
			}
			if strings.Contains(got, x.not) {
				t.Errorf("it has %q:\n%s", x.not, got)
			}
		})
	}
}

// TestEssentialTrace: of a trace, a reader gets the faults, the writes about the nodes in question and to the Lease, and the last requests
// before the violation, and nothing after it.
func TestEssentialTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newTrace()
		send := func(process string, by role, method, path, body string) {
			log.request(describe(process, by, newRequest(t.Context(), t, method, path, body), []byte(body)))
			time.Sleep(time.Second)
		}
		send("n1", roleHost, "GET", "/api/v1/nodes/n1", "")
		send("n1", roleHost, "PATCH", "/api/v1/nodes/n1", patchOfState)
		send("n2", roleHost, "PATCH", "/api/v1/nodes/n2", patchOfState)
		send("n2", roleCoordinator, "PATCH", "/api/v1/nodes/n1", patchOfState)
		send("n2", roleCoordinator, "PUT", leasePath, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","spec":{"holderIdentity":"h"}}`)
		log.note("n3", "fault: kill")
		send("n3", roleHost, "GET", "/api/v1/nodes/n3", "")
		at := time.Now().Add(-time.Millisecond)
		send("n1", roleHost, "PATCH", "/api/v1/nodes/n1", patchOfState)
		got := log.format(log.essential([]string{"n1"}, at, 1))
		want := strings.Join([]string{
			"          1s n1   host patch nodes n1 {state=draining} -> (no answer yet)",
			"          3s n2   coordinator patch nodes n1 {state=draining} -> (no answer yet)",
			"          4s n2   coordinator update leases lockkeeper/lockkeeper {holder=h} -> (no answer yet)",
			"          5s n3   fault: kill",
			"          5s n3   host get nodes n3 -> (no answer yet)", "",
		}, "\n")
		if got != want {
			t.Errorf("the trace is\n%s, expected\n%s", got, want)
		}
		if all := strings.Count(log.String(), "\n"); all != 8 {
			t.Errorf("the whole trace has %d lines, expected 8", all)
		}
	})
}
