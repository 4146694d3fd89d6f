package realhost

import (
	"context"
	"fmt"
)

// How a port of a bridge is: packets vanish in one that is disabled, as behind a broken switch; the host sees no cable pulled.
const (
	portDisabled   = "0"
	portForwarding = "3"
)

// CutNetwork cuts the host off from everything, until RestoreNetwork: its packets vanish. It holds over reboots.
func (h *Host) CutNetwork(ctx context.Context) error {
	h.update(func() { h.cut = true })
	return h.setPort(ctx, portDisabled)
}

// RestoreNetwork ends what CutNetwork began.
func (h *Host) RestoreNetwork(ctx context.Context) error {
	h.update(func() { h.cut = false })
	return h.setPort(ctx, portForwarding)
}

// applyCut cuts a host that has just been switched on, and whose link is new.
func (h *Host) applyCut() error {
	h.mu.Lock()
	cut := h.cut
	h.mu.Unlock()
	if !cut {
		return nil
	}
	return h.setPort(h.life, portDisabled)
}

func (h *Host) setPort(ctx context.Context, state string) error {
	if h.current() == nil && state == portForwarding {
		return nil // there is no link; the next one begins like that
	}
	if err := tell(ctx, "bridge", "link", "set", "dev", "vb-"+h.machine, "state", state); err != nil {
		return fmt.Errorf("setting the network of %s: %w", h.opts.Name, err)
	}
	return nil
}
