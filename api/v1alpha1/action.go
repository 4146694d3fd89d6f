package v1alpha1

// String returns the action as "Reboot" or "Restart containerd.service".
func (a Action) String() string {
	if a.Unit != "" {
		return string(a.Type) + " " + a.Unit
	}
	return string(a.Type)
}
