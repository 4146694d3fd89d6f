package drain

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// evictor sends one eviction and waits for the answer. It sends nothing once
// ctx has ended.
type evictor interface {
	evict(ctx context.Context, f facts) answer
}

// loop carries out the schedule. It knows no API: a snapshot gives the pods, and the evictor
// takes the evictions.
type loop struct {
	changed  <-chan struct{} // holds a token when pods returns something else
	pods     func() snapshot
	evictor  evictor
	schedule *schedule
	reporter reporter
	logger   *slog.Logger
}

type result struct {
	pod        Pod
	controller types.UID
	answer     answer
}

// answerGrace is how long the drain waits for answers to evictions under way after its context
// has ended. The API server takes a disruption from the pod's budget before it deletes the
// pod: a request that is cut off in between leaves the budget short of that disruption for two
// minutes.
const answerGrace = 2 * time.Second

// run returns nil when no pod is left, else ctx's error. No eviction begins after ctx has
// ended, and none is under way when run returns.
func (l *loop) run(ctx context.Context) error {
	evictions, abandon := context.WithCancel(context.WithoutCancel(ctx))
	over := make(chan struct{}) // results is no longer received from
	var wg sync.WaitGroup
	defer func() {
		close(over)
		defer abandon()
		defer time.AfterFunc(answerGrace, abandon).Stop()
		wg.Wait()
	}()

	results := make(chan result)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		now := time.Now()
		done := l.schedule.done()
		for !done {
			pod, ok := l.schedule.next(now)
			if !ok {
				break
			}
			f := l.schedule.pods[pod.UID].facts
			r := result{pod: pod, controller: f.controller}
			wg.Go(func() {
				if ctx.Err() != nil {
					return
				}
				r.answer = l.evictor.evict(evictions, f)
				select {
				case results <- r:
				case <-over:
				}
			})
		}
		var due time.Time
		if l.schedule.synced || l.schedule.err != nil {
			due = l.reporter.offer(now, l.schedule.progress(now), done)
		}
		if done {
			l.logger.Info("node is drained", "evicted", l.schedule.evicted)
			return nil
		}
		l.sleep(timer, now, due)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-l.changed:
			l.schedule.observe(time.Now(), l.pods())
		case r := <-results:
			l.log(r)
			l.schedule.answered(time.Now(), r.pod.UID, r.controller, r.answer)
		}
	}
}

// sleep sets the timer to the earlier of due and the schedule's next moment.
func (l *loop) sleep(timer *time.Timer, now, due time.Time) {
	wake := l.schedule.wake(now)
	if wake.IsZero() || (!due.IsZero() && due.Before(wake)) {
		wake = due
	}
	if wake.IsZero() {
		timer.Stop() // nothing changes before a pod or an answer does
		return
	}
	timer.Reset(max(0, wake.Sub(now)))
}

// log writes a line for each eviction that was accepted, and for each new blocker; a
// repetition is logged at debug level.
func (l *loop) log(r result) {
	pod := slog.String("pod", r.pod.String())
	switch e := l.schedule.pods[r.pod.UID]; {
	case r.answer.overruled != "":
		l.logger.Warn("deleted a pod that the API server refused to evict", pod, "message", r.answer.overruled)
	case r.answer.kind == accepted:
		l.logger.Info("evicted", pod)
	case r.answer.kind == gone:
		l.logger.Debug("pod to evict is gone", pod, "message", r.answer.message)
	case e == nil || e.blocker == nil || e.blocker.Reason != r.answer.reason:
		l.logger.Warn("pod cannot be evicted yet", pod, "reason", r.answer.reason, "message", r.answer.message)
	default:
		l.logger.Debug("pod still cannot be evicted", pod, "reason", r.answer.reason, "message", r.answer.message)
	}
}
