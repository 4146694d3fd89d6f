package node

import (
	"log/slog"
	"net/http"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/effect"
	"lockkeeper.dev/lockkeeper/node/fleetlock"
	"lockkeeper.dev/lockkeeper/node/hostfs"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/systemd"
)

// FleetLock returns what answers the FleetLock client on this host, or nil if the options name no
// address for it.
func (h *Host) FleetLock() http.Handler {
	if h.fleetLock == nil {
		return nil
	}
	return h.fleetLock
}

// zincatiID returns the ID by which the FleetLock client identifies itself, or "" if it cannot be
// found out. Then every request is refused.
func (h *Host) zincatiID() string {
	if h.FleetLockID != "" {
		return h.FleetLockID
	}
	id, err := func() (string, error) {
		r, err := hostfs.New(h.Root)
		if err != nil {
			return "", err
		}
		defer r.Close()
		text, err := r.Read("/etc/machine-id")
		if err != nil {
			return "", err
		}
		return fleetlock.AppID(text)
	}()
	if err != nil {
		h.Log.Error("cannot derive the FleetLock client's ID from /etc/machine-id; its requests are refused", "err", err)
	}
	return id
}

// readPermission completes r with what the FleetLock client asks for.
func (h *Host) readPermission(r *step.Reports) {
	if h.fleetLock == nil {
		r.Permission.Known = true
		return
	}
	r.Permission = step.Permission(h.fleetLock.State())
}

// permit lets the FleetLock client reboot this host. An answer after by is not sent.
func (h *Host) permit(s effect.Stage, by time.Time) {
	if h.fleetLock != nil && h.fleetLock.Permit(by) {
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageRebootPermitted, "the FleetLock client may reboot this host", "turn", s.Turn, "state", s.State.String(), "boot", h.self.bootID)
	}
}
