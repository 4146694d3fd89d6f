package coordinator

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/object"
)

const (
	// statusPause is the least between two writes of a policy's status for the
	// sake of its counts: every node in a turn changes them many times.
	statusPause = 10 * time.Second
	// wordPause is the same where a condition has changed.
	wordPause = time.Second
	// statusRetry is how long a status is left alone that could not be written.
	statusRetry = 30 * time.Second
)

// statuses keeps the policies' statuses, in one term. It works beside the
// leader's loop, which waits for none of it: nobody decides by a status.
type statuses struct {
	client   *object.Client
	policies *object.Policies
	log      *slog.Logger
	kick     chan struct{}

	mu   sync.Mutex
	want map[string]v1alpha1.DisruptionPolicyStatus // by policy, without times
}

func newStatuses(client *object.Client, policies *object.Policies, log *slog.Logger) *statuses {
	return &statuses{client: client, policies: policies, log: log, kick: make(chan struct{}, 1)}
}

// are takes in what the statuses ought to be.
func (s *statuses) are(want map[string]v1alpha1.DisruptionPolicyStatus) {
	s.mu.Lock()
	s.want = want
	s.mu.Unlock()
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// run writes what has changed until ctx ends.
func (s *statuses) run(ctx context.Context) {
	next := map[string]time.Time{} // the earliest time of the next write, by policy
	failing := false
	for {
		soonest := time.Hour
		s.mu.Lock()
		want := s.want
		s.mu.Unlock()
		for name, status := range want {
			obj := s.policies.Get(name)
			if obj == nil || obj.Generation != status.ObservedGeneration {
				continue // the leader's next round says what becomes of it
			}
			status = timed(status, obj.Status, time.Now())
			if equality.Semantic.DeepEqual(status, obj.Status) {
				continue
			}
			if sameWords(status, obj.Status) {
				if left := time.Until(next[name]); left > 0 {
					soonest = min(soonest, left)
					continue
				}
			} else if left := time.Until(next[name].Add(wordPause - statusPause)); left > 0 {
				soonest = min(soonest, left)
				continue
			}
			next[name] = time.Now().Add(statusPause)
			err := s.policies.WriteStatus(ctx, obj, status)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				next[name] = time.Now().Add(statusRetry)
				if !failing {
					s.log.Warn("a policy's status cannot be written; nobody decides by it", "policy", name, "err", err, "again_in", statusRetry)
				}
			}
			failing = err != nil
			soonest = min(soonest, max(time.Until(next[name]), wordPause))
		}
		t := time.NewTimer(soonest)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-s.kick:
		case <-t.C:
		}
		t.Stop()
	}
}

// timed gives the conditions of a status their times: that of the last change,
// which is now for one that is not as it was.
func timed(want, was v1alpha1.DisruptionPolicyStatus, now time.Time) v1alpha1.DisruptionPolicyStatus {
	conditions := want.Conditions
	want.Conditions = slices.Clone(was.Conditions)
	for _, c := range conditions {
		c.LastTransitionTime = metav1.NewTime(now.UTC().Truncate(time.Second))
		c.ObservedGeneration = want.ObservedGeneration
		meta.SetStatusCondition(&want.Conditions, c)
	}
	want.Conditions = slices.DeleteFunc(want.Conditions, func(c metav1.Condition) bool {
		return !slices.ContainsFunc(conditions, func(k metav1.Condition) bool { return k.Type == c.Type })
	})
	return want
}

// sameWords reports whether two statuses differ in no condition but its
// message.
func sameWords(a, b v1alpha1.DisruptionPolicyStatus) bool {
	return slices.EqualFunc(a.Conditions, b.Conditions, func(x, y metav1.Condition) bool {
		return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason
	})
}
