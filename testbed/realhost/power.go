package realhost

import (
	"context"
	"fmt"
)

// Next configures the next boot, whatever causes it. It replaces an earlier configuration.
func (h *Host) Next(next NextBoot) { h.update(func() { h.next = next }) }

// Crash cuts the power at once and returns when nothing of the boot runs any more. The host boots again as after a
// power cut and as next configures: it boots the staged version.
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

// Reboot asks logind for a reboot, like an admin's `systemctl reboot`, and returns when logind has accepted the call.
func (h *Host) Reboot(ctx context.Context) error {
	return h.callLogind(ctx, "Reboot", false)
}

// PowerOff asks logind to power the host off. The host stays down until [Host.PowerOn]. PowerOff returns when logind
// has accepted the call.
func (h *Host) PowerOff(ctx context.Context) error {
	return h.callLogind(ctx, "PowerOff", false)
}

// PowerOn boots a host that is down. It does nothing if the host runs.
func (h *Host) PowerOn() {
	h.update(func() { h.power, h.next.StayDown = true, false })
}

// WaitDown waits until the host is down and stays down.
func (h *Host) WaitDown(ctx context.Context) error {
	if err := h.wait(ctx, func() bool { return h.boot == nil && !h.power }); err != nil {
		return fmt.Errorf("waiting for %s to be down: %w", h.opts.Name, err)
	}
	return nil
}

// WaitBoots waits until the host has booted n times in total, including the first boot, and is up. It fails at once if
// the host cannot boot.
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
