package coordinator

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/policy"
)

const (
	// countPause is the shortest pause between two writes of a policy's status if only
	// counts have changed. Every node in a turn changes them many times.
	countPause = 10 * time.Second
	// conditionPause is the pause if a condition has changed.
	conditionPause = time.Second
	// textPause is the pause if only a message has changed. The query of a closed gate
	// may return another value each time.
	textPause = 10 * time.Minute
	// statusRetry is the pause after a write that failed.
	statusRetry = 30 * time.Second
)

// statuses writes the policies' statuses during one term. It runs in its own goroutine, so
// that the leader's loop does not wait for it. No decision depends on a status.
type statuses struct {
	policies *kube.Policies[policy.Policy]
	log      *slog.Logger
	kick     chan struct{}

	mu      sync.Mutex
	figures []rollout.PolicyFigures
}

func newStatuses(policies *kube.Policies[policy.Policy], log *slog.Logger) *statuses {
	return &statuses{policies: policies, log: log, kick: make(chan struct{}, 1)}
}

// set replaces the figures from which the statuses are computed.
func (s *statuses) set(figures []rollout.PolicyFigures) {
	s.mu.Lock()
	s.figures = figures
	s.mu.Unlock()
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// run writes the statuses that have changed, until ctx ends.
func (s *statuses) run(ctx context.Context) {
	wrote, retry := map[string]time.Time{}, map[string]time.Time{} // by policy: the last write, and when one that failed may be repeated
	failing := false
	for {
		soonest := time.Hour
		s.mu.Lock()
		figures := s.figures
		s.mu.Unlock()
		for i := range figures {
			f := &figures[i]
			name := f.Name
			obj := s.policies.Get(name)
			if obj == nil || obj.Generation != f.Generation {
				continue // the leader's next round decides about it
			}
			status := rollout.Status(f, obj.Status, time.Now())
			if equality.Semantic.DeepEqual(status, obj.Status) {
				continue
			}
			due := retry[name]
			if at, written := wrote[name]; written && at.Add(pauseBefore(status, obj.Status)).After(due) {
				due = at.Add(pauseBefore(status, obj.Status))
			}
			if left := time.Until(due); left > 0 {
				soonest = min(soonest, left)
				continue
			}
			wrote[name] = time.Now()
			err := s.policies.WriteStatus(ctx, obj, status)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				retry[name] = time.Now().Add(statusRetry)
				if !failing {
					s.log.Warn("a policy's status cannot be written; no decision depends on it", "policy", name, "err", err, "again_in", statusRetry)
				}
			}
			failing = err != nil
			soonest = min(soonest, countPause) // by then the watch shows the write
		}
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
		case <-time.After(soonest):
		}
	}
}

// pauseBefore returns how long to wait after the last write before next replaces was.
func pauseBefore(next, was v1alpha1.DisruptionPolicyStatus) time.Duration {
	same := slices.EqualFunc(next.Conditions, was.Conditions, func(x, y metav1.Condition) bool {
		return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason
	})
	next.Conditions, was.Conditions = nil, nil
	switch {
	case !same:
		return conditionPause
	case !equality.Semantic.DeepEqual(next, was):
		return countPause
	}
	return textPause
}
