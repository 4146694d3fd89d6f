package effect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/drain"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/systemd"
)

// Drain evicts the node's pods. Start and Stop are for the loop's goroutine.
type Drain struct {
	runner
	client drain.Client
	node   string
	log    *slog.Logger
	// deleted is called for each pod that a forced drain deleted, with the refusal to evict it.
	deleted func(turn string, pod corev1.ObjectReference, refusal string)
	// flush returns when the Events about these pods are written, or when its context ends.
	flush func(context.Context)

	eviction step.Eviction  // of the last run
	progress drain.Progress // of the last run; mu guards it
}

// NewDrain returns a Drain of the node of that name. wake must not block. deleted is called, from
// several goroutines, for each pod that was deleted because a turn's drain is forced and the API
// server refused to evict the pod; it must not block. flush is called at the end of a drain that
// has deleted pods, for at most flushFor: a reboot loses what is not written by then.
func NewDrain(client drain.Client, node string, log *slog.Logger, wake func(),
	deleted func(turn string, pod corev1.ObjectReference, refusal string), flush func(context.Context)) *Drain {
	return &Drain{runner: runner{wake: wake}, client: client, node: node, log: log, deleted: deleted, flush: flush}
}

// flushFor is how long the end of a drain may wait until the Events about the pods that it has
// deleted are written. Nearly all have been written before, while the pods ended.
const flushFor = 2 * time.Second

// Start starts the eviction of a stage unless it runs. ran says whether it ran when the
// caller decided: an eviction that has ended since does not begin again, because the next
// decision depends on its result.
//
// An eviction that runs begins again if it is to force, block or skip differently.
func (d *Drain) Start(ctx context.Context, s Stage, e step.Eviction, ran bool) {
	if d.serves(s, e, ran) {
		return
	}
	d.Stop()
	d.mu.Lock()
	d.eviction, d.progress = e, drain.Progress{}
	d.mu.Unlock()
	systemd.LogEvent(d.log, slog.LevelInfo, v1alpha1.MessageEvicting, "evicting the node's pods", "turn", s.Turn, "state", s.State.String())
	if e.Force {
		d.log.Warn("the drain is overdue, and its policy says Force: pods that the API server refuses to evict are deleted", "turn", s.Turn)
	}
	d.begin(ctx, s, "", func(ctx context.Context) error {
		drainer := d.drainer(e)
		var deleted atomic.Bool
		drainer.Deleted = func(p drain.Pod, refusal string) {
			deleted.Store(true)
			d.deleted(s.Turn, corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}, refusal)
		}
		err := drainer.Run(ctx, func(p drain.Progress) {
			d.mu.Lock()
			d.progress = p
			d.mu.Unlock()
			d.wake()
		})
		if err != nil && !errors.Is(err, context.Canceled) {
			d.log.Warn("the eviction of the node's pods ended early", "turn", s.Turn, "err", err)
		}
		if err == nil && deleted.Load() {
			ctx, cancel := context.WithTimeout(ctx, flushFor)
			defer cancel()
			d.flush(ctx)
		}
		return err
	})
}

// serves reports whether the last run is what the stage needs.
func (d *Drain) serves(s Stage, e step.Eviction, ran bool) bool {
	if d.work(s).Running {
		return reflect.DeepEqual(e, d.eviction)
	}
	return ran && (d.eviction.Force || !e.Force)
}

// Stop ends the eviction, waits for its end and forgets it. After that, none is sent.
func (d *Drain) Stop() {
	d.leave(Stage{})
	d.Wait()
	d.mu.Lock()
	d.last, d.eviction = nil, step.Eviction{}
	d.mu.Unlock()
}

// Work returns the progress of a stage's eviction.
func (d *Drain) Work(s Stage) step.Drain {
	w := d.work(s)
	return step.Drain{Running: w.Running, Complete: w.Done, Detail: drainDetail(d.Progress())}
}

// Progress returns how far the last eviction is.
func (d *Drain) Progress() drain.Progress {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.progress
}

// EndedSince reports whether the last eviction ended after t.
func (d *Drain) EndedSince(t time.Time) bool { return d.ended().After(t) }

// Remaining asks the API server which pods the eviction would still evict or wait for.
func (d *Drain) Remaining(ctx context.Context, e step.Eviction) ([]drain.Left, error) {
	return d.drainer(e).Remaining(ctx)
}

func (d *Drain) drainer(e step.Eviction) *drain.Drainer {
	return &drain.Drainer{Client: d.client, Node: d.node, Log: d.log, Policy: drain.Selecting(e.Rules...), Force: e.Force}
}

// drainDetail describes a drain's progress to a person: how many pods are left, and what
// blocks the one that has been blocked longest.
func drainDetail(p drain.Progress) string {
	text := fmt.Sprintf("%d pods to go, %d evicted", p.Evictable, p.Evicted)
	if len(p.Blockers) > 0 {
		b := p.Blockers[0]
		text += fmt.Sprintf("; %s blocked since %s UTC: %s: %s", b.Pod, b.Since.UTC().Format(time.TimeOnly), b.Reason, b.Message)
	}
	if p.Err != nil {
		text += fmt.Sprintf("; %v", p.Err)
	}
	return text
}
