package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/local"
)

// conditionStore is a Node that records every write of its conditions.
type conditionStore struct {
	mu      sync.Mutex
	node    *corev1.Node
	outcome kube.Outcome    // the outcome of the next writes
	writes  []time.Duration // since the start
	start   time.Time
}

func (s *conditionStore) get() *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

func (s *conditionStore) write(ctx context.Context, p kube.Patch) (kube.Outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes = append(s.writes, time.Since(s.start))
	if ctx.Err() != nil {
		return kube.Unknown, ctx.Err()
	}
	if s.outcome != kube.Written {
		return s.outcome, errors.New(s.outcome.String())
	}
	n := s.node.DeepCopy()
	n.Status.Conditions = nil
	for _, c := range s.node.Status.Conditions {
		kept := true
		for _, kind := range p.DropConditions {
			kept = kept && kind != c.Type
		}
		for _, set := range p.Conditions {
			kept = kept && set.Type != c.Type
		}
		if kept {
			n.Status.Conditions = append(n.Status.Conditions, c)
		}
	}
	n.Status.Conditions = append(n.Status.Conditions, p.Conditions...)
	s.node = n
	return kube.Written, nil
}

// then sets the outcome of the next writes, and resets the recorded writes.
func (s *conditionStore) then(o kube.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outcome, s.writes, s.start = o, nil, time.Now()
}

// has checks the types of the conditions on the Node, and the times of the writes since the last call of then.
func (s *conditionStore) has(t *testing.T, want, writes string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var types []string
	for _, c := range s.node.Status.Conditions {
		types = append(types, string(c.Type))
	}
	if got := strings.Join(types, " "); got != want || fmt.Sprint(s.writes) != writes {
		t.Errorf("%q, written at %v; expected %q at %s", got, s.writes, want, writes)
	}
}

func writingConditions(t *testing.T, s *conditionStore) (c *Conditions, stop func()) {
	t.Helper()
	if s.node == nil {
		s.node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", ResourceVersion: "1"}}
	}
	c = NewConditions(slog.New(slog.DiscardHandler), s.get, s.write)
	s.then(kube.Written)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx) })
	return c, func() { cancel(); wg.Wait() }
}

// pending is a host that wants a reboot; the result of at is a host in a turn.
var pending = local.Host{Node: "n1", UID: "u", State: v1alpha1.StateIdle, Wants: v1alpha1.WantsReboot}

func at(state v1alpha1.State) local.Host {
	return local.Host{Node: "n1", UID: "u", State: state, Turn: "t1", Cordoned: true, Course: &local.Course{Wants: v1alpha1.WantsReboot, Drains: true}}
}

// TestConditionsAreWrittenOnce checks that a difference is written once, a second after it appeared, together with
// later differences within that second.
func TestConditionsAreWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &conditionStore{}
		c, stop := writingConditions(t, s)
		defer stop()
		for range 3600 {
			c.Report(pending, true)
			elapse(time.Second)
		}
		s.has(t, "MaintenancePlanned", "[1s]")
		s.then(kube.Written)
		c.Report(at(v1alpha1.StateBeforeDrain), true)
		elapse(600 * time.Millisecond)
		c.Report(at(v1alpha1.StateDraining), true)
		elapse(time.Hour)
		s.has(t, "MaintenanceInProgress DrainInProgress", "[1s]")
		// A difference that disappears before its write is not written.
		s.then(kube.Written)
		c.Report(at(v1alpha1.StateRebooting), true)
		elapse(500 * time.Millisecond)
		c.Report(at(v1alpha1.StateDraining), true)
		elapse(time.Hour)
		s.has(t, "MaintenanceInProgress DrainInProgress", "[]")
		// Another Node object has the same name, so the reports do not apply to it.
		s.mu.Lock()
		s.node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "another", ResourceVersion: "9"}}
		s.mu.Unlock()
		c.Report(at(v1alpha1.StateDraining), true)
		elapse(time.Hour)
		s.has(t, "", "[]")
	})
}

// TestConditionsOff checks that nothing is written if the setting is off, except the removal of existing conditions,
// once.
func TestConditionsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &conditionStore{}
		c, stop := writingConditions(t, s)
		defer stop()
		for _, h := range []local.Host{{}, pending, at(v1alpha1.StateDraining), at(v1alpha1.StateRebooting), pending} {
			c.Report(h, false)
			elapse(time.Minute)
		}
		s.has(t, "", "[]")
		c.Report(at(v1alpha1.StateDraining), true)
		elapse(time.Minute)
		s.then(kube.Written)
		for range 100 {
			c.Report(at(v1alpha1.StateDraining), false)
			elapse(time.Second)
		}
		s.has(t, "", "[1s]")
	})
}

// TestConditionsOfAReleasedNode checks that a released node loses all conditions in one write.
func TestConditionsOfAReleasedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &conditionStore{}
		c, stop := writingConditions(t, s)
		defer stop()
		c.Report(at(v1alpha1.StateDraining), true)
		elapse(time.Minute)
		s.then(kube.Written)
		for range 100 {
			c.Report(local.Host{Node: "n1", UID: "u", Wants: v1alpha1.WantsReboot, Withdrawn: true}, true)
			elapse(time.Minute)
		}
		s.has(t, "", "[1s]")
	})
}

// TestConditionsAgain checks that refused and conflicting writes are repeated within limits. While no request succeeds,
// none is sent.
func TestConditionsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &conditionStore{}
		c, stop := writingConditions(t, s)
		defer stop()
		for outcome, most := range map[kube.Outcome]int{kube.Refused: 350, kube.Unknown: 350, kube.Conflict: 2920, kube.Gone: 2920} {
			s.then(outcome)
			c.Report(pending, true)
			elapse(24 * time.Hour)
			if n := len(s.writes); n < 250 || n > most {
				t.Errorf("%s: %d writes in a day, expected at most %d", outcome, n, most)
			}
		}
		// A conflict is not a failure: the write is repeated after the usual pause.
		s.then(kube.Written)
		elapse(24 * time.Hour)
		s.then(kube.Conflict)
		c.Report(at(v1alpha1.StateDraining), true)
		elapse(3500 * time.Millisecond)
		s.has(t, "MaintenancePlanned", "[1s 2s 3s]")
		s.then(kube.Written)
		c.Report(pending, true)
		elapse(time.Hour)

		s.then(kube.Written)
		away := at(v1alpha1.StateDraining)
		away.API = &local.Failure{Error: "connection refused"}
		for range 1000 {
			c.Report(away, true)
			elapse(time.Second)
		}
		s.has(t, "MaintenancePlanned", "[]")
		c.Report(at(v1alpha1.StateDraining), true)
		elapse(time.Minute)
		if s.mu.Lock(); len(s.writes) != 1 || s.writes[0] > 1011*time.Second {
			t.Errorf("written at %v, expected within 10 s after the API server is back", s.writes)
		}
		s.mu.Unlock()
	})
}

// TestConditionsAtTheEnd checks that a difference at the end of the process is written then: a host may reboot within
// the second.
func TestConditionsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &conditionStore{}
		c, stop := writingConditions(t, s)
		c.Report(at(v1alpha1.StateDraining), true)
		elapse(time.Minute)
		s.then(kube.Written)
		c.Report(at(v1alpha1.StateRebooting), true)
		stop()
		s.has(t, "MaintenanceInProgress Drained", "[0s]")

		// A conflict is retried, for a limited time.
		c, stop = writingConditions(t, s)
		s.then(kube.Conflict)
		c.Report(at(v1alpha1.StateDraining), true)
		stop()
		s.has(t, "MaintenanceInProgress Drained", "[0s 0s 0s]")
	})
}
