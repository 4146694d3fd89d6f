package step

import (
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const (
	// announcedFor is how long after it was due an announced reboot may still come: the
	// reads of the commit, or a new leader, take seconds. After that the delay begins again.
	announcedFor = time.Minute
	// maxLead is the longest time before the reboot at which users are warned once more.
	maxLead = time.Minute
)

// SessionDelay returns how long the users of the host get in a turn: what the host's file says, but
// no more than half of the time that the turn has for its reboot. A turn that has not begun to
// reboot by the end of that time is backed out, so a longer delay would back out every turn.
//
// own are the terms of the host's own policy, which may be nil. The longer of the two times counts:
// with a stolen coordinator's credential, an attacker can write a grant that leaves no time, and the
// users would get no warning.
func SessionDelay(delay time.Duration, g *v1alpha1.Grant, own *v1alpha1.Terms) time.Duration {
	if g == nil {
		return delay
	}
	limit := g.Terms.Rebooting.Duration
	if own != nil {
		limit = max(limit, own.Rebooting.Duration)
	}
	return min(delay, max(limit, 0)/2)
}

// Announcement is a reboot that logged-in users were warned of. It belongs to one process:
// the next one announces the reboot again, and waits for the whole delay. The zero value
// announces nothing.
type Announcement struct {
	Turn string // whose reboot, or ""
	Due  time.Time

	lead   time.Duration   // how long before Due users are warned once more
	last   bool            // that they were
	warned map[string]bool // session IDs
}

// Left returns how long it is until the announced reboot of the turn; ok is false if none
// is announced that may still come.
func (a *Announcement) Left(turnID string, now time.Time) (left time.Duration, ok bool) {
	if a.Turn == "" || a.Turn != turnID {
		return 0, false
	}
	left = a.Due.Sub(now)
	return left, left > -announcedFor
}

// Next returns how long it is until users have to be warned, or the delay is over; 0 if
// nothing is announced.
func (a *Announcement) Next(now time.Time) time.Duration {
	if a.Turn == "" {
		return 0
	}
	left := a.Due.Sub(now)
	if !a.last && left > a.lead {
		left -= a.lead
	}
	return max(0, left)
}

// Waits returns for how long the reboot of the turn has to wait for open sessions, 0 if it
// does not. delay is how long users get.
func (a *Announcement) Waits(turnID string, open int, delay time.Duration, now time.Time) time.Duration {
	if open == 0 {
		return 0
	}
	if left, ok := a.Left(turnID, now); ok {
		return max(0, left)
	}
	return delay
}

// Warning is what to write to logged-in users. The zero value is nothing.
type Warning struct {
	// Sessions are the IDs of the sessions to write to.
	Sessions []string
	// CallOff is why the announced reboot does not come now. If it is "", the users are
	// warned of the reboot.
	CallOff string
}

// Update decides which users are warned, when the host waits and the decision is d. open
// are the IDs of the sessions that are open, if the reboot waits for them.
//
// The delay begins with the first warning, when nothing else blocks the reboot, so that the
// time in the warning is right. Each session is warned once, and all once more shortly
// before the reboot. If something else comes first, those that were warned are told so.
func (a *Announcement) Update(o *Observation, d *Decision, open []string, delay time.Duration, now time.Time) Warning {
	n := &o.Node
	left, announced := a.Left(n.Turn, now)
	if n.State == v1alpha1.StateRebooting && d.Waits == v1alpha1.ReasonSessions && len(open) > 0 {
		if !announced {
			*a = Announcement{Turn: n.Turn, Due: now.Add(delay), lead: min(delay/4, maxLead), warned: map[string]bool{}}
			left = delay
		}
		again := !a.last && left <= a.lead
		a.last = a.last || again
		var w Warning
		for _, id := range open {
			if again || !a.warned[id] {
				w.Sessions = append(w.Sessions, id)
			}
			a.warned[id] = true
		}
		return w
	}
	if n.State == v1alpha1.StateRebooting && o.Permits() {
		return Warning{} // the reboot may come at any time, so it is not called off
	}
	if a.Turn == "" || announced && n.State == v1alpha1.StateRebooting && (d.Waits == "" || left <= 0) {
		return Warning{} // no user was warned, or the reboot comes as announced
	}
	why := "the node is now in " + n.State.String()
	if d.Waits != "" {
		why = string(d.Waits)
	}
	if d.Detail != "" {
		why += " (" + d.Detail + ")"
	}
	return a.CallOff(why)
}

// CallOff ends the announcement. why is for the users.
func (a *Announcement) CallOff(why string) Warning {
	w := Warning{CallOff: why}
	for id := range a.warned {
		w.Sessions = append(w.Sessions, id)
	}
	*a = Announcement{}
	return w
}
