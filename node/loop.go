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
	"lockkeeper.dev/lockkeeper/systemd"
)

const (
	// readAgain is the pause before a host that waits at a check, or drains, reads the Lease
	// again, plus or minus 5 percent. It is a little longer than maxReadAge, so that the
	// previous read is too old by then.
	readAgain = maxReadAge + time.Second
	// idleRound is the longest time between two rounds. It bounds how late the host notices
	// what no watch reports: min_uptime is reached, or a session's delay is over.
	idleRound = 30 * time.Second
	// busyRound replaces idleRound in rebooting, where the host waits for logind and for its
	// health.
	busyRound = 2 * time.Second
	// failPause is the shortest pause after a failure.
	failPause = time.Second
	// maxSteps bounds how many reads and writes follow each other without a pause. Three are
	// usual. A bug that causes more must not flood the API server.
	maxSteps = 12
	// writesAtOnce and writeEvery bound the host's writes to its Node: that many at once, and
	// then one in that time. A turn takes about ten. Without the bound, two processes that each
	// find the other's record in their Node, as those of two hosts with one identity do, would
	// write as fast as the API server answers.
	writesAtOnce = 60
	writeEvery   = 2 * time.Second
)

// loop runs rounds until ctx ends, or the host's Node is another one.
func (h *Host) loop(ctx context.Context) error {
	defer h.hooks.Wait()
	defer h.apply.Wait()
	defer h.clearCoordinator()
	defer h.callOffAtEnd()
	defer h.drain.Stop()
	for {
		h.beat.Alive()
		if err := h.checkName(ctx); err != nil {
			return err
		}
		d, err := h.round(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var next time.Duration
		if err != nil {
			next = h.failed(err)
			// A loop that fails runs at most one round a second, however often it is kicked.
			// Five thousand hosts may fail at the same time.
			if err := timing.Wait(ctx, nil, min(next, failPause)); err != nil {
				return err
			}
			next -= min(next, failPause)
		} else {
			next = h.succeeded(d)
		}
		wait := next - next/20 + rand.N(next/10+1)
		if next == idleRound { // with the host's polls
			wait = systemd.Aligned(idleRound)
		}
		if err := timing.Wait(ctx, h.kick, wait); err != nil {
			return err
		}
	}
}

// succeeded records that the round that has decided d did not fail, and returns the pause after it.
func (h *Host) succeeded(d step.Decision) time.Duration {
	h.failures = 0
	if h.apiTrouble() == nil && h.view.Listed() {
		h.logTroubleOver()
	}
	n := h.facts()
	var window time.Duration
	if n != nil && n.InTurn() {
		// Outside of a turn the host does not wake for its window. Thousands of hosts
		// may share a window, and each host writes when the window opens.
		window = h.windows.Left(h.windowTime())
	}
	next := pace(d.Again, n != nil && n.State == v1alpha1.StateRebooting, h.currentSettings().MinUptime-h.self.uptime(), window, h.delayLeft)
	if soon := h.announced.Next(time.Now()); soon > 0 {
		next = min(next, soon)
	}
	return next
}

// pace returns the pause after a round without a failure. again is true if the host has to read
// the Lease again, and busy if it is in rebooting. ends are the times until something ends that
// no watch reports: min_uptime, a window or the time between two, the load balancers' delay. pace
// ignores those that are not positive.
func pace(again, busy bool, ends ...time.Duration) time.Duration {
	next := idleRound
	if again {
		next = readAgain
	}
	if busy {
		next = min(next, busyRound)
	}
	for _, left := range ends {
		if left > 0 {
			next = min(next, left+time.Second)
		}
	}
	return next
}

// facts returns what the newest known version of the Node holds, or nil if there is none. The caller
// must not change what the result points to.
func (h *Host) facts() *turn.Node {
	obj := h.view.Get(h.name)
	if obj == nil {
		return nil
	}
	if obj != h.parsed { // an idle host sees the same version again and again
		h.parsed, h.parsedFacts = obj, turn.FromNode(obj)
	}
	n := h.parsedFacts
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
		h.stopOthers(ctx, o.Node.State, d.Do)
		h.reportDecision(o, d, h.apiTrouble())
		var err error
		switch {
		case ctx.Err() != nil:
			return d, ctx.Err()
		case d.Read != step.ReadNothing:
			if err = h.read(ctx, d.Read); err != nil {
				// Without the read, the host does not know whether the drain may continue.
				h.drain.Stop()
			}
		case d.Write != nil && !h.writes.Allow():
			err = hostError{fmt.Errorf("%d writes to the Node without a pause; does another process, or another host with the same identity, write to it?", writesAtOnce)}
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
	h.drain.Stop() // none of these steps has said whether it may continue
	return step.Decision{}, hostError{fmt.Errorf("%d reads and writes in a row did not lead to a decision; this is probably a bug in lockkeeper", maxSteps)}
}

// failed reports a failure and returns the pause before the next attempt.
func (h *Host) failed(err error) time.Duration {
	h.failures++
	delay := min(time.Second<<min(h.failures-1, 4), readAgain)
	h.logTrouble(h.explain(err), "again_in", delay)
	h.trouble(err)
	return delay
}
