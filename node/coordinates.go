package node

import (
	"errors"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/updateengine"
)

// sayCoordinates keeps the update engine's coordinator.conf truthful: it says that lockkeeper coordinates this host's
// reboots while it does, and what it is at. It is called when the loop has come to rest, before the effect.
func (h *Host) sayCoordinates(o *step.Observation, d step.Decision) {
	state := coordinates(o, d)
	var err error
	if state == "" {
		err = h.coordinatorFile.Clear()
	} else {
		engine := h.Engine != nil && h.Engine.Latest().Presence == updateengine.Present
		err = h.coordinatorFile.Write(state, engine)
	}
	if err != nil && !h.uncoordinated {
		if errors.Is(err, updateengine.ErrCoordinated) {
			h.log.Warn("somebody else says that it coordinates this host's reboots", "file", updateengine.CoordinatorPath, "err", err)
		} else {
			h.log.Warn("who coordinates this host's reboots is not said to the update engine's other users", "file", updateengine.CoordinatorPath, "err", err)
		}
	}
	h.uncoordinated = err != nil
}

// coordinates is what the file is to say, "" for nothing: the host is not in lockkeeper's care, or only observes.
func coordinates(o *step.Observation, d step.Decision) updateengine.CoordinatorState {
	n := &o.Node
	managed := o.ManagedByDefault
	if n.Managed != nil {
		managed = *n.Managed
	}
	switch {
	case o.Veto == v1alpha1.ReasonObserve || n.UID == "":
		return ""
	case d.Do == step.DoReboot || n.Ours() && n.State == v1alpha1.StateRebooting && n.Committed() && n.Grant.BootID == o.Self.BootID:
		return updateengine.CoordinatorRebooting
	case (!managed || n.Detached != nil) && !n.InTurn():
		return ""
	case n.Paused != nil || o.Veto == v1alpha1.ReasonHostPaused:
		return updateengine.CoordinatorDisabled
	case o.Sources.Wants == v1alpha1.WantsReboot:
		return updateengine.CoordinatorRebootPlanned
	}
	return updateengine.CoordinatorRunning
}

// leaveCoordinates is the end of the process. A reboot that is on its way stays said: the file goes with the boot.
func (h *Host) leaveCoordinates() {
	if h.coordinatorFile.State() == updateengine.CoordinatorRebooting {
		return
	}
	if err := h.coordinatorFile.Clear(); err != nil {
		h.log.Warn("the update engine's other users may go on reading that lockkeeper coordinates this host's reboots", "file", updateengine.CoordinatorPath, "err", err)
	}
}
