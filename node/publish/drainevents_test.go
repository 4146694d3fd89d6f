package publish

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/local"
)

func TestDrainEvents(t *testing.T) {
	start := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	budget := v1alpha1.Blocker{Kind: v1alpha1.BlockerBudget, Name: "shop/web", Pod: "shop/web-0", Since: metav1.NewTime(start),
		Message: "The disruption budget web needs 3 healthy pods and has 3 currently"}
	later := v1alpha1.Blocker{Kind: v1alpha1.BlockerPod, Name: "shop/x", Pod: "shop/x", Since: metav1.NewTime(start.Add(time.Minute))}
	hook := v1alpha1.Blocker{Kind: v1alpha1.BlockerHook, Name: "backup", Since: metav1.NewTime(start)}
	var e drainEvents
	for i, c := range []struct {
		at       time.Duration
		blockers []v1alpha1.Blocker
		reason   string
		note     string
	}{
		{time.Hour, []v1alpha1.Blocker{hook}, "", ""}, // a hook is not the drain
		{9 * time.Minute, []v1alpha1.Blocker{budget, later}, "", ""},
		{10 * time.Minute, []v1alpha1.Blocker{budget, later}, "DrainDelayed", "turn t1: PodDisruptionBudget shop/web has blocked pod shop/web-0 since " +
			"2026-11-22T10:00:00Z: The disruption budget web needs 3 healthy pods and has 3 currently; and 1 more"},
		{20 * time.Minute, []v1alpha1.Blocker{budget}, "", ""}, // once
		{21 * time.Minute, []v1alpha1.Blocker{later}, "", ""},
		{22 * time.Minute, nil, "", ""},
		{23 * time.Minute, nil, "DrainUnblocked", "nothing blocks the drain any more; the node is draining"},
		{23*time.Minute + time.Second, nil, "", ""},
		{24 * time.Minute, []v1alpha1.Blocker{budget}, "DrainDelayed", "turn t1: PodDisruptionBudget shop/web has blocked pod shop/web-0 since " +
			"2026-11-22T10:00:00Z: The disruption budget web needs 3 healthy pods and has 3 currently"},
	} {
		s := local.Host{Turn: "t1", State: v1alpha1.StateDraining, Drain: &v1alpha1.DrainStatus{Total: 2}, Blockers: c.blockers}
		if reason, note := e.next(&s, start.Add(c.at)); reason != c.reason || note != c.note {
			t.Errorf("step %d: %s %q, want %s %q", i, reason, note, c.reason, c.note)
		}
	}

	// Before a turn, a pod that the drain must not evict holds the grant. That is a veto, and no drain is delayed.
	e = drainEvents{}
	s := local.Host{State: v1alpha1.StateIdle, Blockers: []v1alpha1.Blocker{later}}
	if reason, note := e.next(&s, start.Add(time.Hour)); reason != "" {
		t.Errorf("before a turn: %s %q", reason, note)
	}

	// Another process has got the start time of the blocker: the Event is due at once, and it is the same one.
	e = drainEvents{}
	s = local.Host{Turn: "t1", State: v1alpha1.StateDraining, Drain: &v1alpha1.DrainStatus{Total: 2}, Blockers: []v1alpha1.Blocker{budget}}
	if reason, _ := e.next(&s, start.Add(11*time.Minute)); reason != "DrainDelayed" || !e.since.Equal(start) {
		t.Errorf("after a restart: %s about %v, expected DrainDelayed about %v", reason, e.since, start)
	}
}

// TestDrainEventsOfAPause checks that a drain that is paused, or starts again, does not count as unblocked.
func TestDrainEventsOfAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := v1alpha1.Blocker{Kind: v1alpha1.BlockerBudget, Name: "shop/web", Pod: "shop/web-0", Since: metav1.Now()}
		runs := &v1alpha1.DrainStatus{Total: 1, Remaining: 1}
		var e drainEvents
		for i, c := range []struct {
			after    time.Duration
			state    v1alpha1.State
			drain    *v1alpha1.DrainStatus
			blockers []v1alpha1.Blocker
			want     string
		}{
			{0, v1alpha1.StateDraining, runs, []v1alpha1.Blocker{budget}, ""},
			{10 * time.Minute, v1alpha1.StateDraining, runs, []v1alpha1.Blocker{budget}, v1alpha1.EventDrainDelayed},
			{time.Hour, v1alpha1.StateDraining, nil, nil, ""},    // paused
			{time.Second, v1alpha1.StateDraining, runs, nil, ""}, // starts again
			{time.Second, v1alpha1.StateDraining, runs, nil, ""}, // evicts
			{time.Second, v1alpha1.StateDraining, runs, []v1alpha1.Blocker{budget}, ""},
			{time.Hour, v1alpha1.StateDraining, runs, nil, ""},                                  // the blocker is gone
			{30 * time.Second, v1alpha1.StateDraining, runs, nil, ""},                           // still gone
			{31 * time.Second, v1alpha1.StateDraining, runs, nil, v1alpha1.EventDrainUnblocked}, // gone for long enough
			{time.Second, v1alpha1.StateDraining, runs, []v1alpha1.Blocker{budget}, v1alpha1.EventDrainDelayed},
			{time.Second, v1alpha1.StateBeforeUncordon, nil, nil, v1alpha1.EventDrainUnblocked}, // the turn continues or is backed out
		} {
			time.Sleep(c.after)
			s := local.Host{Turn: "t1", State: c.state, Drain: c.drain, Blockers: c.blockers}
			if reason, _ := e.next(&s, time.Now()); reason != c.want {
				t.Errorf("step %d: %q, want %q", i, reason, c.want)
			}
		}
	})
}

// TestDrainEventsHaveKeys checks that each blockade of a drain is an Event of its own, and that two processes that report the
// same one write one Event.
func TestDrainEventsHaveKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		report := func(w *Events, since time.Time) string {
			w.Report(&local.Host{Turn: "t1", State: v1alpha1.StateDraining, Drain: &v1alpha1.DrainStatus{Total: 1},
				Blockers: []v1alpha1.Blocker{{Kind: v1alpha1.BlockerBudget, Name: "shop/web", Pod: "shop/web-0", Since: metav1.NewTime(since)}}})
			return (<-w.queue).key
		}
		process := func() *Events { return newEvents(slog.New(slog.DiscardHandler), "n1", nil) }
		first := time.Now()
		time.Sleep(time.Hour)
		second := time.Now()
		time.Sleep(time.Hour)
		if a, b := report(process(), first), report(process(), second); a == b {
			t.Errorf("two blockades have the key %q", a)
		}
		if a, b := report(process(), first), report(process(), first); a != b {
			t.Errorf("one blockade has the keys %q and %q", a, b)
		}
	})
}
