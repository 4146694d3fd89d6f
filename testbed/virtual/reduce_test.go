package virtual

import (
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
