package node

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/drain"
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
	h.startDrain(t.Context(), s, nil, true) // without a drainer, beginning one panics
	if !h.drain.completed(s) {
		t.Error("that the node is drained was forgotten")
	}
}

// What a grant's terms say of single pods: what blocks comes before what skips.
func TestPodPolicy(t *testing.T) {
	selects := func(namespace, app string) []v1alpha1.PodSelector {
		s := v1alpha1.PodSelector{Namespace: namespace}
		if app != "" {
			s.Selector.MatchLabels = map[string]string{"app": app}
		}
		return []v1alpha1.PodSelector{s}
	}
	evict := drain.Verdict{Class: drain.Evict, Reason: drain.Managed}
	for name, c := range map[string]struct {
		terms v1alpha1.Terms
		want  drain.Verdict
	}{
		"others are skipped":    {v1alpha1.Terms{Skip: selects("", "web")}, evict},
		"skipped by label":      {v1alpha1.Terms{Skip: selects("", "db")}, drain.Verdict{Class: drain.Leave, Reason: skippedByPolicy}},
		"skipped by namespace":  {v1alpha1.Terms{Skip: selects("shop", "")}, drain.Verdict{Class: drain.Leave, Reason: skippedByPolicy}},
		"in another namespace":  {v1alpha1.Terms{Skip: selects("bank", "db")}, evict},
		"blocked":               {v1alpha1.Terms{Block: selects("shop", "db")}, drain.Verdict{Class: drain.Block, Reason: blockedByPolicy}},
		"in both":               {v1alpha1.Terms{Skip: selects("", "db"), Block: selects("", "db")}, drain.Verdict{Class: drain.Block, Reason: blockedByPolicy}},
		"the second of several": {v1alpha1.Terms{Skip: append(selects("", "web"), selects("", "db")...)}, drain.Verdict{Class: drain.Leave, Reason: skippedByPolicy}},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Labels: map[string]string{"app": "db"}}}
		if got := podPolicy(&c.terms)(pod, evict); got != c.want {
			t.Errorf("%s: %v, expected %v", name, got, c.want)
		}
	}
	if podPolicy(&v1alpha1.Terms{}) != nil {
		t.Error("terms that say nothing have a say")
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
		h.look = &look{Look: turn.Look{Commit: true, Evictable: c.evictable}, began: began, rv: "7"}
		if got := h.validLook(n) != nil; got != c.valid {
			t.Errorf("%s: valid %t, expected %t", c.name, got, c.valid)
		}
	}
}
