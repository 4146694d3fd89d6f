package realhost

import (
	"context"
	"fmt"
)

// Next says how the next boot differs, whatever it comes from. What was said before is forgotten.
func (h *Host) Next(next NextBoot) { h.update(func() { h.next = next }) }

// Crash takes the power away at once and returns when nothing of the boot runs any more. The host comes up again as after a
// power cut, as next says: what was staged is booted.
func (h *Host) Crash(ctx context.Context, next NextBoot) error {
	b := h.current()
	if b == nil {
		return fmt.Errorf("crashing %s: %w", h.opts.Name, errDown)
	}
	h.emit(Crashed, b.id, "")
	h.update(func() { h.crashing, h.next = true, next })
	b.kill()
	if err := h.wait(ctx, func() bool { return h.boot != b }); err != nil {
		return fmt.Errorf("crashing %s: %w", h.opts.Name, err)
	}
	return nil
}

// Reboot asks logind for a reboot, as an admin's `systemctl reboot` does, and returns when logind has taken the order.
func (h *Host) Reboot(ctx context.Context) error {
	return h.callLogind(ctx, "Reboot", false)
}

// PowerOff asks logind to switch the host off; it stays down until [Host.PowerOn]. It returns when logind has taken the order.
func (h *Host) PowerOff(ctx context.Context) error {
	return h.callLogind(ctx, "PowerOff", false)
}

// PowerOn boots a host that is down. On one that runs it is not an error.
func (h *Host) PowerOn() {
	h.update(func() { h.power, h.next.StayDown = true, false })
}

// WaitDown waits until the host is down and stays so.
func (h *Host) WaitDown(ctx context.Context) error {
	if err := h.wait(ctx, func() bool { return h.boot == nil && !h.power }); err != nil {
		return fmt.Errorf("waiting for %s to be down: %w", h.opts.Name, err)
	}
	return nil
}

// WaitBoots waits until the host has been booted n times in all, the first boot included, and is up. It fails at once when the
// host could not be booted.
func (h *Host) WaitBoots(ctx context.Context, n int) error {
	var failed error
	err := h.wait(ctx, func() bool {
		failed = h.failed
		return failed != nil || h.boot != nil && h.boots >= n
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("waiting for boot %d of %s: %w", n, h.opts.Name, err)
	}
	return nil
}
