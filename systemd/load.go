package systemd

import "context"

// Gone reports whether a unit is gone for good, by systemd's own word: masked, or without any file, and not running
// any more. One that was only stopped, or that failed, may come back and is not gone. The error matches ErrAbsent where
// systemd is not on the bus: then nobody can tell.
func (u Units) Gone(ctx context.Context, unit string) (bool, error) {
	p, err := u.properties(ctx, unit)
	if err != nil {
		return false, err
	}
	return (p.load == "masked" || p.load == "not-found") && (p.active == "inactive" || p.active == "failed"), nil
}

// Runs reports whether a unit is at work, or about to be: active, reloading, activating (which a service that is to be
// restarted is too) or deactivating. One that is not there does not run. The error matches ErrAbsent where systemd is
// not on the bus.
func (u Units) Runs(ctx context.Context, unit string) (bool, error) {
	p, err := u.properties(ctx, unit)
	if err != nil {
		return false, err
	}
	switch p.active {
	case "inactive", "failed":
		return false, nil
	}
	return true, nil
}
