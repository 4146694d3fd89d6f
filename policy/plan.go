package policy

import "lockkeeper.dev/lockkeeper/api/v1alpha1"

// Plan says what the changes cost taken together: the strongest want, and
// whether the node has to be drained for it.
func Plan(changes []v1alpha1.Change) (wants v1alpha1.Wants, drains bool) {
	if len(changes) == 0 {
		return v1alpha1.WantsNothing, false
	}
	return v1alpha1.WantsReboot, true
}
