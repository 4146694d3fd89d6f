package simhost

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// boot is the time from power-on to power-off of a host.
type boot struct {
	id     string
	began  time.Time
	uptime time.Duration   // the uptime at its start
	ctx    context.Context // ends when the power is lost
	cut    context.CancelFunc

	mu      sync.Mutex
	bus     *bus // RestartBus replaces it
	claimed bool // a caller is taking it down
	over    bool // no more tasks may start
	tasks   sync.WaitGroup
}

func (b *boot) age() time.Duration { return b.uptime + time.Since(b.began) }

// theBus returns the current bus.
func (b *boot) theBus() *bus {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bus
}

// task runs f in a goroutine unless the boot is over. f must return when b.ctx ends.
func (b *boot) task(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		b.tasks.Go(f)
	}
}

// claim reports whether the caller is the first to claim the boot. That caller must take the boot down.
func (b *boot) claim() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := !b.claimed
	b.claimed = true
	return first
}

// NextBoot configures the host's next boot. The zero value boots what was staged.
type NextBoot struct {
	// Rollback makes the host boot its previous version, like a fallback of the boot loader. The staged version is
	// lost.
	Rollback bool
	// Version makes the host boot this version, even if another one was staged.
	Version string
	// StayDown keeps the host down until [Host.PowerOn].
	StayDown bool
	// WithoutLockkeeper, WithoutKubelet and WithoutEngine leave that part down.
	WithoutLockkeeper, WithoutKubelet, WithoutEngine bool
}

// SetNextBoot configures the next boot. The boot after that is an ordinary one again.
func (h *Host) SetNextBoot(n NextBoot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next = n
}

// CrashOptions configure how a host boots after a crash.
type CrashOptions struct {
	// ComesUpUpdated makes the host boot the staged version. Otherwise the host boots its old version, and the staged
	// version is lost. In both cases the engine reports IDLE in the new boot.
	ComesUpUpdated bool
	// StayDown keeps the host down until [Host.PowerOn].
	StayDown bool
	// WithoutLockkeeper leaves lockkeeper down in the next boot.
	WithoutLockkeeper bool
}

// Crash cuts the power without notice: lockkeeper is killed, and the bus and the kubelet are gone. The Node keeps its
// conditions until the controller manager's grace period is over. Crash also cuts a running shutdown short. It returns
// when the host has booted again or, with StayDown, when the host is down.
func (h *Host) Crash(o CrashOptions) error {
	h.mu.Lock()
	b, boots := h.boot, h.boots
	if b != nil && !h.closing {
		h.next = NextBoot{Rollback: !o.ComesUpUpdated, StayDown: o.StayDown, WithoutLockkeeper: o.WithoutLockkeeper}
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
		h.task(h.cycle)
	}
	return h.waitState(h.life, func() bool {
		return h.boot == nil && h.next.StayDown || h.boots > boots
	})
}

// shutDown continues a reboot after the delay inhibitors are released: it asks the services to exit, and then turns the
// power off.
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
	h.cycle()
}

// cycle takes a claimed boot down and starts the next one.
func (h *Host) cycle() {
	h.power.Lock()
	h.powerOffLocked()
	h.power.Unlock()
	h.mu.Lock()
	stay := h.next.StayDown
	h.mu.Unlock()
	if stay || !pause(h.life, h.opts.DownTime) {
		return
	}
	if err := h.powerOn(); err != nil {
		h.logf("booting: %v", err)
	}
}

// CallReboot calls logind's Reboot as another program on the host does, for example `systemctl reboot`.
func (h *Host) CallReboot(ctx context.Context) error {
	b := h.current()
	if b == nil {
		return fmt.Errorf("rebooting %s: %w", h.opts.Name, errDown)
	}
	conn, err := b.theBus().connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Object(loginName, loginPath).CallWithContext(ctx, loginName+".Manager.Reboot", 0, false).Err
}

// PowerOn boots a host that is down. It does nothing if the host runs.
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

// powerOn starts a boot unless one runs.
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

// startParts starts the parts of a host. The caller must hold power.
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

// powerOffLocked cuts the power: it kills everything that still runs. The caller must hold power.
func (h *Host) powerOffLocked() {
	h.mu.Lock()
	b, service, kubelet := h.boot, h.service, h.kubelet
	h.service = nil
	h.mu.Unlock()
	if b == nil {
		return
	}
	b.claim() // while the host closes, no other caller takes the boot down
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

// waitState waits until cond returns true, the host is closed or ctx ends. It calls cond with mu held.
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

// WaitBoots waits until the host has booted n times in total, including the first boot, and is up.
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
