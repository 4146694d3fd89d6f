package node

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/systemd"
)

// announcement is the reboot that users who are logged in were told of. It is this process's alone: one that is started
// anew in the delay announces anew, and waits for the whole delay.
type announcement struct {
	turn string // whose reboot; "" while nothing is announced
	due  time.Time
	lead time.Duration   // how long before due they are told once more
	last bool            // that they have been
	told map[string]bool // sessions, by id

	open []systemd.Session // as last seen, announced or not
}

const (
	// announcedFor is how long after it was due an announced reboot may still come: the reads of the commit, or a new
	// leader, take seconds. Whatever takes longer begins the delay anew.
	announcedFor = time.Minute
	// maxLead is the longest time before the reboot at which users are told once more.
	maxLead = time.Minute
)

// left is how long it is until the announced reboot of this turn, and whether there is one to be believed.
func (a *announcement) left(turnID string) (time.Duration, bool) {
	if a.turn == "" || a.turn != turnID {
		return 0, false
	}
	left := time.Until(a.due)
	return left, left > -announcedFor
}

// next is how long it is until users have to be told, or the delay is over; 0 if nothing is announced.
func (a *announcement) next() time.Duration {
	if a.turn == "" {
		return 0
	}
	left := time.Until(a.due)
	if !a.last && left > a.lead {
		left -= a.lead
	}
	return max(0, left)
}

// waitForSessions says whether people are logged in who have not had their delay yet.
func (h *Host) waitForSessions(ctx context.Context, turnID string, delay time.Duration) (v1alpha1.Reason, string) {
	if delay == 0 {
		return "", ""
	}
	open, err := h.Logind.Sessions(ctx)
	if err != nil {
		return v1alpha1.ReasonSessions, fmt.Sprintf("logind does not say who is logged in: %v", err)
	}
	if len(open) == 0 {
		return "", ""
	}
	h.announced.open = open
	left, announced := h.announced.left(turnID)
	switch {
	case !announced:
		left = delay
	case left <= 0:
		return "", "" // they have had their time
	}
	return v1alpha1.ReasonSessions, fmt.Sprintf("%s logged in; %v left", who(open), left.Round(time.Second))
}

// who names the people and where they are, at most five of them.
func who(sessions []systemd.Session) string {
	var names []string
	for i, s := range sessions {
		if i == 5 {
			names = append(names, fmt.Sprintf("%d more", len(sessions)-i))
			break
		}
		name := s.User
		if s.TTY != "" {
			name += " on " + s.TTY
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// announce tells the people who are logged in what the decision, at which the host has come to rest, means for them. The
// delay begins here, with the first warning: not before everything else that a reboot waits for is out of the way, so
// that the time that is named is the truth. If something comes between, they are told so.
func (h *Host) announce(o *step.Observation, d step.Decision) {
	a, n := &h.announced, &o.Node
	left, announced := a.left(n.Turn)
	if n.State == v1alpha1.StateRebooting && d.Waits == v1alpha1.ReasonSessions && len(a.open) > 0 {
		if !announced {
			delay := h.sessionDelay()
			*a = announcement{turn: n.Turn, due: time.Now().Add(delay), lead: min(delay/4, maxLead), told: map[string]bool{}, open: a.open}
			left = delay
		}
		h.warn(o, left)
		return
	}
	if a.turn == "" || announced && n.State == v1alpha1.StateRebooting && (d.Waits == "" || left <= 0) {
		return // nobody was told, or what they were told is about to come true
	}
	why := "the node is " + n.State.String() + " now"
	if d.Waits != "" {
		why = string(d.Waits)
	}
	if d.Detail != "" {
		why += " (" + d.Detail + ")"
	}
	h.callOff(why)
}

func (h *Host) sessionDelay() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.settings.SessionDelay
}

// warn warns whoever has not been warned, and everybody once more shortly before the reboot.
func (h *Host) warn(o *step.Observation, left time.Duration) {
	a := &h.announced
	again := !a.last && left <= a.lead
	var to []systemd.Session
	for _, s := range a.open {
		if again || !a.told[s.ID] {
			to = append(to, s)
		}
		a.told[s.ID] = true
	}
	a.last = a.last || again
	if len(to) == 0 {
		return
	}
	names := make([]string, 0, len(o.Sources.Changes))
	for _, c := range o.Sources.Changes {
		names = append(names, c.String())
	}
	text := fmt.Sprintf(`lockkeeper on %[1]s: THIS HOST REBOOTS in %[2]v, at %[3]s,
for %[4]s. It is this node's turn, and it waits only for who is logged in:
log out and it reboots at once. Who has to stop it says why, either with
  kubectl annotate node %[1]s lockkeeper.dev/paused='WHY'
or, for as long as this runs on the host, with
  systemd-inhibit --what=shutdown --mode=block --why='WHY' sleep infinity
`, h.name, left.Round(time.Second), a.due.Format("15:04:05 MST"), strings.Join(names, ", "))
	reached, err := systemd.Wall(h.dev(), to, text)
	h.log.Info("warned who is logged in of the reboot", "turn", a.turn, "users", who(to), "terminals", reached,
		"in", left.Round(time.Second))
	if err != nil {
		h.log.Warn("not everybody who is logged in could be warned of the reboot; they have their delay all the same", "err", err)
	}
}

// callOff tells who was warned of a reboot that it does not come now.
func (h *Host) callOff(why string) {
	a := &h.announced
	var to []systemd.Session
	open := a.open
	if len(open) == 0 && a.turn != "" {
		// They were not looked at this time: something else came first.
		ctx, cancel := context.WithTimeout(context.Background(), callOffTimeout)
		defer cancel()
		open, _ = h.Logind.Sessions(ctx) // whoever cannot be found is told by the next warning
	}
	for _, s := range open {
		if a.told[s.ID] {
			to = append(to, s)
		}
	}
	*a = announcement{open: a.open}
	if len(to) == 0 {
		return
	}
	text := fmt.Sprintf("lockkeeper on %s: the reboot that was announced does not come now: %s.\nBefore another one you are warned again.\n", h.name, why)
	reached, err := systemd.Wall(h.dev(), to, text)
	h.log.Info("told who is logged in that the reboot does not come now", "users", who(to), "terminals", reached, "why", why)
	if err != nil {
		h.log.Warn("not everybody who is logged in could be told that the reboot does not come now", "err", err)
	}
}

// callOffTimeout bounds the question who is to be told.
const callOffTimeout = 3 * time.Second

// leave is the end of the process: what it announced is not its successor's.
func (h *Host) leave() {
	if left, announced := h.announced.left(h.announced.turn); announced && left > 0 {
		h.callOff("lockkeeper was stopped")
	}
}

func (h *Host) dev() string { return filepath.Join(h.Root, "dev") }
