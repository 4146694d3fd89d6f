package realhost

import (
	"context"
	"fmt"
)

// These are the states of a port of a bridge. A disabled port drops packets, like a broken switch, and the host sees no
// link change.
const (
	portDisabled   = "0"
	portForwarding = "3"
)

// CutNetwork drops all packets of the host until RestoreNetwork. The cut persists over reboots.
func (h *Host) CutNetwork(ctx context.Context) error {
	h.update(func() { h.cut = true })
	return h.setPort(ctx, portDisabled)
}

// RestoreNetwork ends the effect of CutNetwork.
func (h *Host) RestoreNetwork(ctx context.Context) error {
	h.update(func() { h.cut = false })
	return h.setPort(ctx, portForwarding)
}

// applyCut cuts a host that has just been powered on and has a new link.
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
		return nil // there is no link; the next link starts with this state
	}
	if err := tell(ctx, "bridge", "link", "set", "dev", "vb-"+h.machine, "state", state); err != nil {
		return fmt.Errorf("setting the network of %s: %w", h.opts.Name, err)
	}
	return nil
}
