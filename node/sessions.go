package node

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/systemd"
)

// waitForSessions returns the reason Sessions while users are logged in and their delay is not
// over.
func (h *Host) waitForSessions(ctx context.Context, turnID string, delay time.Duration) (v1alpha1.Reason, string) {
	if delay == 0 {
		return "", ""
	}
	open, err := h.Logind.Sessions(ctx)
	if err != nil {
		return v1alpha1.ReasonSessions, fmt.Sprintf("logind does not say who is logged in: %v", err)
	}
	h.sessions = open
	left := h.announced.Waits(turnID, len(open), delay, time.Now())
	if left == 0 {
		return "", ""
	}
	return v1alpha1.ReasonSessions, fmt.Sprintf("%s logged in; %v left", users(open), left.Round(time.Second))
}

// users names at most five users and their terminals.
func users(sessions []systemd.Session) string {
	return listUpTo(5, sessions, func(s systemd.Session) string {
		if s.TTY == "" {
			return s.User
		}
		return s.User + " on " + s.TTY
	}, ", ")
}

// announce warns logged-in users of the reboot, or calls it off, according to the decision. It
// is called when the host has nothing to read or write.
func (h *Host) announce(o *step.Observation, d step.Decision) {
	delay := step.SessionDelay(h.currentSettings().SessionDelay, o.Node.Grant, o.Own)
	ids := make([]string, 0, len(h.sessions))
	for _, s := range h.sessions {
		ids = append(ids, s.ID)
	}
	h.warn(h.announced.Update(o, &d, ids, delay, time.Now()), o.Sources.Changes)
}

// sessionsTimeout bounds the query for the sessions when a reboot is called off.
const sessionsTimeout = 3 * time.Second

// warn writes a warning to the terminals of the warning's sessions. changes are the changes
// that the host reboots for.
func (h *Host) warn(w step.Warning, changes []v1alpha1.Change) {
	if len(w.Sessions) == 0 {
		return
	}
	open := h.sessions
	if len(open) == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), sessionsTimeout)
		defer cancel()
		open, _ = h.Logind.Sessions(ctx) // a user who is not found here gets the next warning
	}
	open = slices.DeleteFunc(slices.Clone(open), func(s systemd.Session) bool { return !slices.Contains(w.Sessions, s.ID) })
	if len(open) == 0 {
		return
	}
	dev := filepath.Join(h.Root, "dev")
	if w.CallOff != "" {
		text := fmt.Sprintf("lockkeeper on %s: the reboot that was announced does not come now: %s.\nBefore another one you are warned again.\n", h.name, w.CallOff)
		reached, err := systemd.Wall(dev, open, text)
		h.log.Info("called off the announced reboot on the terminals of logged-in users", "users", users(open), "terminals", reached, "why", w.CallOff)
		if err != nil {
			h.log.Warn("could not write to all logged-in users that the announced reboot is called off", "err", err)
		}
		return
	}
	names := make([]string, 0, len(changes))
	for _, c := range changes {
		names = append(names, c.String())
	}
	left := time.Until(h.announced.Due).Round(time.Second)
	text := fmt.Sprintf(`lockkeeper on %[1]s: THIS HOST REBOOTS in %[2]v, at %[3]s,
for %[4]s. It is this node's turn, and it waits only for users who are
logged in: when you log out, it reboots at once. To stop it, say why, with
  lockkeeper pause %[1]s --reason 'WHY'
or, for as long as this command runs on the host, with
  systemd-inhibit --what=shutdown --mode=block --why='WHY' sleep infinity
`, h.name, left, h.announced.Due.Format("15:04:05 MST"), strings.Join(names, ", "))
	reached, err := systemd.Wall(dev, open, text)
	h.log.Info("warned logged-in users of the reboot", "turn", h.announced.Turn, "users", users(open), "terminals", reached, "in", left)
	if err != nil {
		h.log.Warn("could not warn all logged-in users of the reboot; it waits for the whole delay anyway", "err", err)
	}
}

// callOffAtEnd calls off an announced reboot when the process ends. The next process announces
// the reboot again.
func (h *Host) callOffAtEnd() {
	if left, announced := h.announced.Left(h.announced.Turn, time.Now()); announced && left > 0 {
		h.warn(h.announced.CallOff("lockkeeper was stopped"), nil)
	}
}
