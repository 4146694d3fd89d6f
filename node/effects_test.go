package node

import (
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// ended is an eviction that has come to its end.
func ended(s stage, at time.Time) drainRun {
	done := make(chan struct{})
	close(done)
	return drainRun{stage: s, cancel: func() {}, done: done, at: at}
}

// An eviction of few pods ends between the look at it and the decision that it
// go on. Beginning it again would end as fast, and so on.
func TestEvictionThatEndedMeanwhileIsNotBegunAgain(t *testing.T) {
	s := stage{"t1", v1alpha1.StateDraining}
	h := &Host{kick: make(chan struct{}, 1)}
	h.drain = ended(s, time.Now())
	h.startDrain(t.Context(), s, step.Eviction{}, true) // without a drainer, beginning one panics
	if !h.drain.completed(s) {
		t.Error("that the node is drained was forgotten")
	}
}

// An eviction that runs is begun again when it is to be another one, in either direction. One that has ended is begun again only
// for what it left undone.
func TestEvictionThatServes(t *testing.T) {
	s, other := stage{"t1", v1alpha1.StateDraining}, stage{"t2", v1alpha1.StateDraining}
	plain, force := step.Eviction{}, step.Eviction{Force: true}
	skip := step.Eviction{Skip: [][]v1alpha1.PodSelector{{{Namespace: "logs"}}}}
	running := func(e step.Eviction) drainRun {
		return drainRun{stage: s, eviction: e, cancel: func() {}, done: make(chan struct{})}
	}
	over := func(e step.Eviction) drainRun {
		r := ended(s, time.Now())
		r.eviction = e
		return r
	}
	for _, c := range []struct {
		name   string
		run    drainRun
		stage  stage
		e      step.Eviction
		seen   bool
		serves bool
	}{
		{"none yet", drainRun{}, s, plain, false, false},
		{"it runs", running(plain), s, plain, true, true},
		{"it began since", running(skip), s, skip, false, true},
		{"it is to force", running(plain), s, force, true, false},
		{"it is not to force any more", running(force), s, plain, true, false},
		{"it is not to skip any more", running(skip), s, plain, true, false},
		{"another turn's", running(plain), other, plain, false, false},
		{"it has ended since", over(plain), s, plain, true, true},
		{"it had ended before", over(plain), s, plain, false, false},
		{"it has ended, and is to force", over(plain), s, force, true, false},
		{"it has ended, and is not to force", over(force), s, plain, true, true},
	} {
		if got := c.run.serves(c.stage, c.e, c.seen); got != c.serves {
			t.Errorf("%s: %t, expected %t", c.name, got, c.serves)
		}
	}
}

// A look that counted pods is void once they have been evicted; one that
// counted none, or was made after the eviction, is not.
func TestLookIsVoidAfterTheEviction(t *testing.T) {
	s := stage{"t1", v1alpha1.StateRebooting}
	began := time.Now()
	n := &turn.Node{ResourceVersion: "7"}
	for _, c := range []struct {
		name      string
		evictable int
		ended     time.Time
		valid     bool
	}{
		{"pods were there, and evicted since", 2, began.Add(time.Millisecond), false},
		{"pods came after the eviction", 2, began.Add(-time.Millisecond), true},
		{"no pods", 0, began.Add(time.Millisecond), true},
	} {
		h := &Host{drain: ended(s, c.ended)}
		h.fresh = &freshRead{FreshRead: step.FreshRead{Commit: true, Evictable: c.evictable}, began: began, rv: "7"}
		if got := h.validRead(n) != nil; got != c.valid {
			t.Errorf("%s: valid %t, expected %t", c.name, got, c.valid)
		}
	}
}
