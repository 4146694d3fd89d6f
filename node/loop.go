package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
)

const (
	// readAgain is how long a host that waits at a check, or drains, lets
	// pass before it looks at the Lease again, give or take a twentieth; a
	// little more than a look is good for, so that it does look.
	readAgain = maxReadAge + time.Second
	// idleRound is how often the loop goes round although nothing changed,
	// for what no watch shows: an uptime that has come, a session's delay.
	idleRound = 30 * time.Second
	// busyRound is the same while the host waits in rebooting, for logind and
	// for its health.
	busyRound = 2 * time.Second
	// failPause is how long the loop rests after a failure, whatever happens.
	failPause = time.Second
	// maxSteps bounds how many reads and writes follow each other without a
	// pause. Three are usual; more is a bug, which must not flood the API.
	maxSteps = 12
)

// loop goes round until ctx ends.
func (h *Host) loop(ctx context.Context) error {
	defer h.hooks.wait()
	defer h.apply.wait()
	defer h.clearCoordinator()
	defer h.callOffAtEnd()
	defer h.drain.stop()
	for {
		h.beat.Alive()
		d, err := h.round(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		next := idleRound
		if err != nil {
			next = h.failed(err)
			// However often it is kicked, a loop that fails goes round once a
			// second at most: five thousand hosts may fail at the same time.
			if err := wait(ctx, nil, min(next, failPause)); err != nil {
				return err
			}
			next -= min(next, failPause)
		} else {
			h.failures = 0
			if h.apiTrouble() == nil && h.view.Listed() {
				h.logTroubleOver()
			}
			n := h.facts()
			var window time.Duration
			if n != nil && n.InTurn() {
				// Out of a turn the next round is soon enough: thousands of hosts
				// may have the same windows, and each writes that they have opened.
				window = h.windows.Left(time.Now())
			}
			next = pace(d.Again, n != nil && n.State == v1alpha1.StateRebooting, h.minUptime()-h.self.uptime(), window)
			if soon := h.announced.Next(time.Now()); soon > 0 {
				next = min(next, soon)
			}
		}
		if err := wait(ctx, h.kick, next-next/20+rand.N(next/10+1)); err != nil {
			return err
		}
	}
}

// pace is how long the loop rests when nothing failed: again, if there is to be
// another look; busy, in rebooting; settling and window are how long it is to
// min_uptime, and until a window opens or closes.
func pace(again, busy bool, settling, window time.Duration) time.Duration {
	next := idleRound
	if again {
		next = readAgain
	}
	if busy {
		next = min(next, busyRound)
	}
	for _, left := range []time.Duration{settling, window} {
		if left > 0 {
			next = min(next, left+time.Second)
		}
	}
	return next
}

func (h *Host) minUptime() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.settings.MinUptime
}

func (h *Host) facts() *turn.Node {
	obj := h.view.Get(h.name)
	if obj == nil {
		return nil
	}
	n := turn.FromNode(obj)
	return &n
}

// round takes steps until there is nothing to do but wait.
func (h *Host) round(ctx context.Context) (step.Decision, error) {
	if !h.view.Listed() {
		d := step.Decision{Waits: v1alpha1.ReasonNotReady, Detail: "the API server, for a first look at its Node"}
		h.tell(step.Observation{Self: h.self.host(h.Version)}, d, h.apiTrouble())
		return d, nil
	}
	for range maxSteps {
		h.beat.Alive()
		o := h.observe(ctx)
		d := step.Step(o)
		if d.Do != step.DoDrain {
			h.drain.stop()
		}
		if d.Do != step.DoHooks {
			h.hooks.leave()
		}
		h.tell(o, d, h.apiTrouble())
		var err error
		switch {
		case ctx.Err() != nil:
			return d, ctx.Err()
		case d.Read != step.ReadNothing:
			if err = h.read(ctx, d.Read); err != nil {
				// Nobody knows whether the eviction may go on.
				h.drain.stop()
			}
		case d.Write != nil:
			err = h.write(ctx, &o.Node, d.Write)
		default:
			h.announce(&o, d)
			h.writeCoordinator(&o, d)
			return d, h.do(ctx, &o, d.Do)
		}
		if err != nil {
			return d, err
		}
	}
	return step.Decision{}, hostError{fmt.Errorf("%d steps without coming to rest", maxSteps)}
}

// failed says what went wrong and how long to wait before the next try.
func (h *Host) failed(err error) time.Duration {
	h.failures++
	delay := min(time.Second<<min(h.failures-1, 4), readAgain)
	h.logTrouble(h.explain(err), "again_in", delay)
	h.trouble(v1alpha1.ReasonNone, err)
	return delay
}

// write sends one patch, once. Whatever the answer, the next decision uses the
// Node from a quorum read. The precondition lets at most one of two writes to the
// same version land, so write does not repeat a write with an unknown outcome.
// Repeating it without another read could land a commit under a stop that was set
// meanwhile.
func (h *Host) write(ctx context.Context, n *turn.Node, w *step.Write) error {
	if w.Ack.Report == v1alpha1.ReportCommitted && !h.fresh.valid() {
		return nil // it took too long to come here: everything is read again
	}
	p := kube.Patch{
		Node: n.Name, ResourceVersion: n.ResourceVersion, Labels: w.Labels, Annotations: w.Annotations,
		Unschedulable: w.Unschedulable, Manager: kube.FieldManager("host"),
	}
	obj, outcome, err := kube.Write(ctx, h.client, p)
	switch outcome {
	case kube.Written:
		h.view.Overlay(obj)
		h.fresh.wrote(n.ResourceVersion, obj.ResourceVersion)
		h.logWrite(n, w)
		return nil
	case kube.Conflict:
		h.fresh = nil
		h.view.Overlay(obj)
		return nil
	case kube.Gone:
		h.fresh = nil
		h.view.Forget(h.name, p.ResourceVersion)
		return nil
	case kube.Unknown:
		// The host cannot read the emergency stop until the API server answers again.
		h.drain.stop()
	}
	h.fresh = nil
	return err
}

// do starts the effect of a decision, if it does not run.
func (h *Host) do(ctx context.Context, o *step.Observation, effect step.Effect) error {
	switch effect {
	case step.DoDrain:
		h.startDrain(ctx, stageOf(&o.Node), step.EvictionBy(o.Node.Grant, o.Own), o.Drain.Running)
	case step.DoReboot:
		return h.reboot(ctx, &o.Node)
	case step.DoHooks:
		if o.Hooks.Running && !o.Hooks.Late {
			return nil
		}
		if !h.fresh.valid() {
			h.wake() // it took too long to come here: everything is read again
			return nil
		}
		h.mu.Lock()
		settings := h.settings
		h.mu.Unlock()
		h.hooks.start(ctx, stageOf(&o.Node), o.Node.Retry, settings, h.fresh.until())
	case step.DoApply:
		if o.Apply.Running {
			return nil
		}
		if !h.fresh.valid() {
			h.wake() // it took too long to come here: everything is read again
			return nil
		}
		e, _ := h.errand(o)
		h.apply.start(ctx, stageOf(&o.Node), e, h.fresh.until())
	}
	return nil
}
