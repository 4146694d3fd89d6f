package simhost

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A boot is one life of a host, from power to power.
type boot struct {
	id     string
	began  time.Time
	uptime time.Duration   // when it began
	ctx    context.Context // ends when the power goes
	cut    context.CancelFunc

	mu      sync.Mutex
	bus     *bus // replaced by RestartBus
	claimed bool // someone takes it down
	over    bool // no more tasks
	tasks   sync.WaitGroup
}

func (b *boot) age() time.Duration { return b.uptime + time.Since(b.began) }

// theBus is the present one.
func (b *boot) theBus() *bus {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bus
}

// task runs f, which must end with b.ctx, while the boot lasts.
func (b *boot) task(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		b.tasks.Go(f)
	}
}

// claim gives the right and the duty to take the boot down to the first who asks.
func (b *boot) claim() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := !b.claimed
	b.claimed = true
	return first
}

// NextBoot says what the host's next boot is to be like. The zero value is a boot of what was staged.
type NextBoot struct {
	// Rollback: it comes up with the version that it had, as after a boot loader's fallback. What was staged is lost.
	Rollback bool
	// Version: it comes up with this one, whatever was staged.
	Version string
	// StayDown: it does not come up before [Host.PowerOn].
	StayDown bool
	// DownTime instead of the one in the options.
	DownTime time.Duration
	// WithoutLockkeeper, WithoutKubelet, WithoutEngine: that one does not come up with it.
	WithoutLockkeeper, WithoutKubelet, WithoutEngine bool
}

// SetNextBoot says what the next boot is to be like; the boot after it is an ordinary one again.
func (h *Host) SetNextBoot(n NextBoot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next = n
}

// CrashOptions say how a host comes up again after a crash.
type CrashOptions struct {
	// ComesUpUpdated: it boots what was staged. Otherwise it comes up as it was, and what was staged is lost. In both cases
	// the new boot's engine says IDLE.
	ComesUpUpdated bool
	// StayDown: it does not come up before [Host.PowerOn].
	StayDown bool
	// DownTime instead of the one in the options.
	DownTime time.Duration
}

// Crash takes the power away without a word to anybody: lockkeeper is killed, the bus and the kubelet are gone. Its Node goes
// on looking as it did until the controller manager's grace period is over. Crash returns when the host has booted again,
// or, if it is to stay down, when it is down. A shutdown that was under way is cut short by it.
func (h *Host) Crash(o CrashOptions) error {
	h.mu.Lock()
	b, boots := h.boot, h.boots
	if b != nil && !h.closing {
		h.next = NextBoot{Rollback: !o.ComesUpUpdated, StayDown: o.StayDown, DownTime: o.DownTime}
	}
	closing := h.closing
	h.mu.Unlock()
	switch {
	case closing:
		return errClosed
	case b == nil:
		return fmt.Errorf("crashing %s: %w", h.opts.Name, errDown)
	}
	first := b.claim()
	h.emit(Crashed, b.id, "")
	b.cut()
	if first {
		h.task(func() { h.cycle(b) })
	}
	return h.waitState(h.life, func() bool {
		return h.boot == nil && h.next.StayDown || h.boots > boots
	})
}

// shutDown is what follows logind's order once the delay inhibitors are through: services are asked to end, then the power
// goes.
func (h *Host) shutDown(b *boot) {
	if !b.claim() {
		return // a crash was faster
	}
	h.mu.Lock()
	service := h.service
	h.mu.Unlock()
	if service != nil && service.boot == b {
		service.stop(h.opts.StopTimeout, b.ctx.Done())
	}
	h.cycle(b)
}

// cycle takes a claimed boot down and brings up the next one.
func (h *Host) cycle(b *boot) {
	h.power.Lock()
	h.powerOffLocked()
	h.power.Unlock()
	h.mu.Lock()
	next := h.next
	h.mu.Unlock()
	if next.StayDown {
		return
	}
	wait := h.opts.DownTime
	if next.DownTime > 0 {
		wait = next.DownTime
	}
	if !pause(h.life, wait) {
		return
	}
	if err := h.powerOn(); err != nil {
		h.logf("booting: %v", err)
	}
}

// PowerOn boots a host that stayed down. On one that runs it is not an error.
func (h *Host) PowerOn() error {
	h.mu.Lock()
	closing := h.closing
	h.next.StayDown = false
	h.mu.Unlock()
	if closing {
		return errClosed
	}
	return h.powerOn()
}

// powerOn begins a boot, unless one runs.
func (h *Host) powerOn() error {
	h.power.Lock()
	defer h.power.Unlock()
	h.mu.Lock()
	if h.boot != nil {
		h.mu.Unlock()
		return nil
	}
	next := h.next
	h.next = NextBoot{}
	version := h.version
	switch {
	case next.Version != "":
		version = next.Version
	case h.staged != "" && !next.Rollback:
		version = h.staged
	}
	b := &boot{id: newBootID(), began: time.Now(), uptime: h.opts.Uptime}
	if h.boots == 0 {
		b.uptime = h.opts.BootedAgo
		next.WithoutLockkeeper, next.WithoutEngine = h.opts.WithoutLockkeeper, h.opts.WithoutEngine
	}
	h.mu.Unlock()

	if err := h.life.Err(); err != nil {
		return errClosed
	}
	if err := h.writeBootFiles(b.id, version); err != nil {
		return err
	}
	h.emit(Booted, b.id, version)
	var err error
	if b.bus, err = startBus(h.life, h.dir); err != nil {
		return err
	}
	b.ctx, b.cut = context.WithCancel(context.Background())
	h.update(func() {
		h.boot, h.version, h.staged = b, version, ""
		h.boots++
	})
	if err := h.startParts(b, next); err != nil {
		h.powerOffLocked()
		return err
	}
	return nil
}

// startParts starts what runs on a host. power is held.
func (h *Host) startParts(b *boot, next NextBoot) error {
	if err := h.units.start(b); err != nil {
		return err
	}
	if err := h.logind.start(b); err != nil {
		return err
	}
	if !next.WithoutEngine {
		if err := h.engine.Start(); err != nil {
			return err
		}
	}
	if !next.WithoutKubelet {
		if err := h.startKubeletLocked(b); err != nil {
			return err
		}
	}
	if next.WithoutLockkeeper {
		return nil
	}
	return h.startLockkeeperLocked(b)
}

// powerOffLocked takes the power away: whatever still runs is killed. power is held.
func (h *Host) powerOffLocked() {
	h.mu.Lock()
	b, service, kubelet := h.boot, h.service, h.kubelet
	h.service = nil
	h.mu.Unlock()
	if b == nil {
		return
	}
	b.claim() // a host that is being closed has no one else to
	if service != nil {
		service.stop(0, nil)
	}
	b.cut()
	b.theBus().stop(0)
	h.engine.Stop()
	h.logind.Stop()
	h.logind.hangUp()
	h.units.stop()
	h.stopKubeletLocked()
	b.mu.Lock()
	b.over = true
	b.mu.Unlock()
	b.tasks.Wait()
	if kubelet != nil && h.life.Err() == nil {
		h.holdPods(h.life)
	}
	h.emit(ShutdownDone, b.id, "")
	h.update(func() { h.boot = nil })
}

// waitState waits until cond, which is called with mu held, is true, or the host is closed, or ctx ends.
func (h *Host) waitState(ctx context.Context, cond func() bool) error {
	for {
		h.mu.Lock()
		ok, changed := cond(), h.changed
		h.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-h.life.Done():
			return errClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// WaitBoots waits until the host has been booted n times in all, the first boot included, and is up.
func (h *Host) WaitBoots(ctx context.Context, n int) error {
	err := h.waitState(ctx, func() bool { return h.boot != nil && h.boots >= n })
	if err != nil {
		return fmt.Errorf("waiting for boot %d of %s: %w", n, h.opts.Name, err)
	}
	return nil
}

// WaitDown waits until the host is down.
func (h *Host) WaitDown(ctx context.Context) error {
	if err := h.waitState(ctx, func() bool { return h.boot == nil }); err != nil {
		return fmt.Errorf("waiting for %s to be down: %w", h.opts.Name, err)
	}
	return nil
}
