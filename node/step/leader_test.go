package step

import (
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestLeaderCheck: a host reports that no instance leads when two checks have found that,
// and then checks less and less often.
func TestLeaderCheck(t *testing.T) {
	const none = v1alpha1.ReasonNoCoordinator
	now := time.Unix(1800000000, 0)
	for _, held := range []v1alpha1.Reason{"", v1alpha1.ReasonBudget} {
		o := observe(t, []string{"idle"})
		o.Node.Held = held
		patience := 10 * time.Minute
		if held != "" {
			patience = time.Hour
		}
		var c LeaderCheck
		if c.Due(&o, 0, now) {
			t.Error("due at once")
		}
		for i, check := range []struct {
			found   v1alpha1.Reason
			reports v1alpha1.Reason
			next    time.Duration // until the next check; 0 is the host's patience
		}{
			{"", "", 0},
			{none, "", 15 * time.Second}, // a handover may be under way
			{"", "", 0},
			{none, "", 15 * time.Second},
			{none, none, 2 * time.Minute},
			{none, none, 4 * time.Minute},
			{v1alpha1.ReasonForbidden, v1alpha1.ReasonForbidden, 8 * time.Minute},
			{none, none, min(15*time.Minute, patience)},
			{none, none, min(15*time.Minute, patience)},
			{"", "", 0},
			{none, "", 15 * time.Second},
		} {
			next := check.next
			if next == 0 {
				next = patience
			}
			c.Checked(check.found, "why", now)
			reason, detail := c.NoLeader()
			if reason != check.reports || (detail == "why") != (reason != "") {
				t.Errorf("held %q, check %d: reports %q (%s), expected %q", held, i, reason, detail, check.reports)
			}
			if c.Due(&o, 0, now.Add(next-time.Second)) || !c.Due(&o, 0, now.Add(next)) {
				t.Errorf("held %q, check %d: expected the next after %v", held, i, next)
			}
			now = now.Add(next)
		}
	}
}

// TestLeaderCheckBeginsAgain: whatever changes on the Node, or in what the host wants,
// begins the wait again, and takes back what was reported.
func TestLeaderCheckBeginsAgain(t *testing.T) {
	now := time.Unix(1800000000, 0)
	for name, change := range map[string]func(*Observation){
		"":                          func(*Observation) {},
		"another state":             func(o *Observation) { o.Node.State = v1alpha1.StatePaused },
		"a turn":                    func(o *Observation) { o.Node.State = v1alpha1.StateDraining },
		"held for another reason":   func(o *Observation) { o.Node.Held = v1alpha1.ReasonWindow },
		"wants something else":      func(o *Observation) { o.Sources.Wants = v1alpha1.WantsApply },
		"wants nothing":             func(o *Observation) { o.Sources.Wants = v1alpha1.WantsNothing },
		"sources that are not read": func(o *Observation) { o.Sources.Complete = false },
		"no Node":                   func(o *Observation) { o.Node.UID = "" },
	} {
		o := observe(t, []string{"idle"})
		var c LeaderCheck
		c.Due(&o, 0, now)
		c.Checked("NoCoordinator", "why", now)
		c.Checked("NoCoordinator", "why", now)
		change(&o)
		due := c.Due(&o, time.Minute, now.Add(time.Hour))
		if reason, _ := c.NoLeader(); due != (name == "") || (reason != "") != (name == "") {
			t.Errorf("%s: due %t, reports %q", name, due, reason)
		}
	}
}

func TestLeaseUnheld(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	lease := func(change func(*Lease)) Lease {
		l := Lease{Exists: true, Holder: "n1_1", Renewed: now.Add(-time.Minute), Duration: 30 * time.Second}
		change(&l)
		return l
	}
	for name, c := range map[string]struct {
		lease  Lease
		detail string // "" if an instance holds it
	}{
		"held":          {lease(func(*Lease) {}), ""},
		"expired":       {lease(func(l *Lease) { l.Renewed = l.Renewed.Add(-time.Second) }), "no instance has renewed the Lease ns/l since 2026-11-23 11:58:59 UTC"},
		"a long one":    {lease(func(l *Lease) { l.Renewed, l.Duration = now.Add(-5*time.Minute), 5*time.Minute }), ""},
		"no holder":     {lease(func(l *Lease) { l.Holder = "" }), "no instance holds the Lease ns/l"},
		"never renewed": {lease(func(l *Lease) { l.Renewed = time.Time{} }), "no instance holds the Lease ns/l"},
		"no Lease":      {Lease{}, "there is no Lease ns/l; to create it: lockkeeper init"},
		"from ahead":    {lease(func(l *Lease) { l.Renewed = now.Add(time.Hour) }), ""},
	} {
		want := v1alpha1.ReasonNoCoordinator
		if c.detail == "" {
			want = ""
		}
		if reason, detail := c.lease.Unheld("ns/l", now); reason != want || detail != c.detail {
			t.Errorf("%s: %q (%s), expected %q (%s)", name, reason, detail, want, c.detail)
		}
	}
}
