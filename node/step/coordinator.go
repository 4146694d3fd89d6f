package step

import "lockkeeper.dev/lockkeeper/api/v1alpha1"

// CoordinatorState is the STATE in the update engine's coordinator.conf, by which a host's
// other programs see that lockkeeper coordinates its reboots. The values are locksmith's.
type CoordinatorState string

// The states of lockkeeper. Without a state, lockkeeper does not coordinate the host.
const (
	CoordinatorNone CoordinatorState = ""
	// CoordinatorDisabled: it runs and, because an admin wants that, reboots nothing.
	CoordinatorDisabled CoordinatorState = "disabled"
	// CoordinatorRunning: nothing asks for a reboot.
	CoordinatorRunning CoordinatorState = "running"
	// CoordinatorRebootPlanned: it will reboot the host when it may.
	CoordinatorRebootPlanned CoordinatorState = "reboot-planned"
	// CoordinatorRebooting: it has called the reboot.
	CoordinatorRebooting CoordinatorState = "rebooting"
)

// Coordinator returns what coordinator.conf says when the host carries out d. A host that
// only observes, or is not managed, coordinates nothing.
func Coordinator(o *Observation, d *Decision) CoordinatorState {
	n := &o.Node
	switch {
	case o.Veto == v1alpha1.ReasonObserve || n.UID == "":
		return CoordinatorNone
	case d.Do == DoReboot || n.Ours() && n.State == v1alpha1.StateRebooting && n.Committed() && n.Grant.BootID == o.Self.BootID:
		return CoordinatorRebooting
	case o.withdrawn() != "" && !n.InTurn():
		return CoordinatorNone
	case n.Paused != nil || o.Veto == v1alpha1.ReasonHostPaused:
		return CoordinatorDisabled
	case o.Sources.Wants == v1alpha1.WantsReboot:
		return CoordinatorRebootPlanned
	}
	return CoordinatorRunning
}
