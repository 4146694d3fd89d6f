package v1alpha1

import (
	"strings"
	"testing"
)

func TestEventDocs(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range EventDocs() {
		if seen[d.Reason] {
			t.Errorf("%s has two rows", d.Reason)
		}
		seen[d.Reason] = true
		if d.Means == "" || d.Do == "" || d.Action == "" || !Reason(d.Reason).Valid() {
			t.Errorf("%+v says too little", d)
		}
		if got, ok := EventOf(d.Reason); !ok || got != d {
			t.Errorf("%s is not found", d.Reason)
		}
		if r := Reason(d.Reason).Doc(); r.Means != "" && r.Means != d.Means {
			t.Errorf("%s means two things: %q and %q", d.Reason, d.Means, r.Means)
		}
	}
	for _, result := range []Result{ResultDone, ResultCancelled, ResultBackedOut, ResultFailed} {
		if !seen[string(result)] {
			t.Errorf("a turn that ended %s has no Event", result)
		}
	}
	for _, r := range []Reason{ReasonNone, ReasonBudget, ReasonWindow, ReasonHandover} {
		if _, ok := EventOf(string(r)); ok {
			t.Errorf("%q has an Event and needs nobody", r)
		}
	}
}

// TestCancelled: the Event names each reason for which a coordinator cancels a turn that has nothing to do with the changes or an admin.
func TestCancelled(t *testing.T) {
	d, _ := EventOf(string(ResultCancelled))
	for _, r := range []Reason{ReasonWindow, ReasonHeldBack, ReasonCanary, ReasonOverBudget} {
		if !strings.Contains(d.Means, "`"+string(r)+"`") {
			t.Errorf("a turn is cancelled for %s too: %s", r, d.Means)
		}
	}
}
