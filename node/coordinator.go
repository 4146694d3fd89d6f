package node

import (
	"errors"

	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/updateengine"
)

// writeCoordinator writes the update engine's coordinator.conf: whether lockkeeper
// coordinates this host's reboots, and its state. It is called when the host has nothing to
// read or write, before the effect.
func (h *Host) writeCoordinator(o *step.Observation, d step.Decision) {
	state := step.Coordinator(o, &d)
	var err error
	if state == step.CoordinatorNone {
		err = h.coordinatorFile.Clear()
	} else {
		engine := h.Engine != nil && h.Engine.Latest().Presence == updateengine.Present
		err = h.coordinatorFile.Write(string(state), engine)
	}
	if err != nil && !h.coordinatorFailed {
		text := "cannot write that lockkeeper coordinates this host's reboots; other programs that read the file do not know it"
		if errors.Is(err, updateengine.ErrCoordinated) {
			text = "another program coordinates this host's reboots"
		}
		h.log.Warn(text, "file", updateengine.CoordinatorPath, "err", err)
	}
	h.coordinatorFailed = err != nil
}

// clearCoordinator clears the coordinator file when the process ends. It keeps the file if the
// host reboots, because the file does not outlive the boot.
func (h *Host) clearCoordinator() {
	if h.coordinatorFile.State() == string(step.CoordinatorRebooting) {
		return
	}
	if err := h.coordinatorFile.Clear(); err != nil {
		h.log.Warn("cannot clear the coordinator file; it still says that lockkeeper coordinates this host's reboots", "file", updateengine.CoordinatorPath, "err", err)
	}
}
