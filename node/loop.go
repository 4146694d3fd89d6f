package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/timing"
	"lockkeeper.dev/lockkeeper/node/turn"
)

const (
	// readAgain is how long a host that waits at a check, or drains, waits before it reads the
	// Lease again, plus or minus a twentieth. It is a little more than maxReadAge, so that
	// the read before is too old by then.
	readAgain = maxReadAge + time.Second
	// idleRound is the longest time between two rounds, for what no watch shows: an uptime that
	// is reached, a session's delay.
	idleRound = 30 * time.Second
	// busyRound is the same in rebooting, where the host waits for logind and for its health.
	busyRound = 2 * time.Second
	// failPause is the shortest pause after a failure.
	failPause = time.Second
	// maxSteps bounds how many reads and writes follow each other without a pause. Three are
	// usual; more is a bug, which must not flood the API server.
	maxSteps = 12
)

// loop makes rounds until ctx ends.
func (h *Host) loop(ctx context.Context) error {
	defer h.hooks.Wait()
	defer h.apply.Wait()
	defer h.clearCoordinator()
	defer h.callOffAtEnd()
	defer h.drain.Stop()
	for {
		h.beat.Alive()
		d, err := h.round(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		next := idleRound
		if err != nil {
			next = h.failed(err)
			// A loop that fails makes at most one round a second, however often it is
			// kicked: five thousand hosts may fail at the same time.
			if err := timing.Wait(ctx, nil, min(next, failPause)); err != nil {
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
				// Outside of a turn, the next round is soon enough. Thousands of hosts may have
				// the same windows, and each writes when its window opens.
				window = h.windows.Left(time.Now())
			}
			next = pace(d.Again, n != nil && n.State == v1alpha1.StateRebooting, h.currentSettings().MinUptime-h.self.uptime(), window)
			if soon := h.announced.Next(time.Now()); soon > 0 {
				next = min(next, soon)
			}
		}
		if err := timing.Wait(ctx, h.kick, next-next/20+rand.N(next/10+1)); err != nil {
			return err
		}
	}
}

// pace returns the pause after a round without a failure. again says that the host has to read
// again, busy that it is in rebooting. settling is the time until min_uptime, window the time
// until a window opens or closes; neither counts unless positive.
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

func (h *Host) facts() *turn.Node {
	obj := h.view.Get(h.name)
	if obj == nil {
		return nil
	}
	n := turn.FromNode(obj)
	return &n
}

// round takes steps until the host has to wait.
func (h *Host) round(ctx context.Context) (step.Decision, error) {
	if !h.view.Listed() {
		d := step.Decision{Waits: v1alpha1.ReasonNotReady, Detail: "the API server, to read its Node"}
		h.reportDecision(step.Observation{Self: h.self.host(h.Version)}, d, h.apiTrouble())
		return d, nil
	}
	for range maxSteps {
		h.beat.Alive()
		o := h.observe(ctx)
		d := step.Step(o)
		h.stopOthers(ctx, d.Do)
		h.reportDecision(o, d, h.apiTrouble())
		var err error
		switch {
		case ctx.Err() != nil:
			return d, ctx.Err()
		case d.Read != step.ReadNothing:
			if err = h.read(ctx, d.Read); err != nil {
				// Nobody knows whether the eviction may continue.
				h.drain.Stop()
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
	return step.Decision{}, hostError{fmt.Errorf("%d steps without a pause", maxSteps)}
}

// failed reports a failure and returns the pause before the next attempt.
func (h *Host) failed(err error) time.Duration {
	h.failures++
	delay := min(time.Second<<min(h.failures-1, 4), readAgain)
	h.logTrouble(h.explain(err), "again_in", delay)
	h.trouble(v1alpha1.ReasonNone, err)
	return delay
}
