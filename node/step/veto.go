package step

import (
	"fmt"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// Vetoes are what this host has against any commit, whatever the cluster's policies say.
type Vetoes struct {
	// Observe is set if the host only observes, by its file.
	Observe bool
	// Paused is the pause in the host's file, or "".
	Paused string
	// Managers are the other reboot managers that are active on the host, for people. Unread
	// is why it is unknown whether there is one, or "".
	Managers []string
	Unread   string
	// Window is why the host's windows are closed, or "".
	Window string
	// Blocked names the pods that the policy's drain must not evict, or is "". They are a veto
	// until a turn begins, and only if the plan drains. In a turn, [FreshRead] has them.
	Blocked string
	// Uptime is how long the host is up. Nothing is committed before MinUptime.
	Uptime, MinUptime time.Duration
}

// First returns the veto that the host publishes, and its detail for people, of all that
// are there; "" if there is none. s is what the sources report.
//
// An admin's intent comes first. A version that is held back comes before what ends by
// itself, because it ends a turn and the others only let it wait. A source that cannot be
// read comes late: its blocker is in the status anyway. Pods that block the drain come last:
// they may be gone when the others are.
func (v *Vetoes) First(s *Sources) (v1alpha1.Reason, string) {
	switch {
	case v.Observe:
		return v1alpha1.ReasonObserve, ""
	case v.Paused != "":
		return v1alpha1.ReasonHostPaused, v.Paused
	case s.Veto == v1alpha1.ReasonHeldBack:
		return s.Veto, s.VetoDetail
	case len(v.Managers) > 0:
		return v1alpha1.ReasonOtherManager, strings.Join(v.Managers, "; ")
	case v.Window != "":
		return v1alpha1.ReasonWindow, v.Window
	case v.Uptime < v.MinUptime:
		return v1alpha1.ReasonMinUptime, fmt.Sprintf("until %v after the boot", v.MinUptime)
	}
	switch {
	case s.Veto != "":
		return s.Veto, s.VetoDetail
	case v.Unread != "":
		return v1alpha1.ReasonSourceUnreadable, v.Unread
	case v.Blocked != "" && s.Drains:
		return v1alpha1.ReasonDrainBlocked, v.Blocked
	}
	return "", ""
}

// lastMinute is how much of a window must be left for a commit. The disruption follows the
// commit within seconds and checks the windows once more. If the window closed in between,
// the host would have committed to a reboot that it may not call for days, and that no one
// can back out.
const lastMinute = time.Minute

// Windows is what the host's own windows allow at one moment.
type Windows struct {
	// Closed is why nothing may be committed, for people; "" if a window is open.
	Closed string
	// Change is when a window opens or closes next; zero if none does.
	Change time.Time
}

// WindowsAt returns what the windows allow at now. committed reports whether the host has
// committed already to what it would do. No windows allow everything.
func WindowsAt(windows []policy.Window, now time.Time, committed bool) Windows {
	if len(windows) == 0 {
		return Windows{}
	}
	need := lastMinute
	if committed {
		need = 0
	}
	own := policy.Calendar{Windows: windows}
	if open, until, _ := own.OpenUntil(now, need); open {
		if until.IsZero() {
			return Windows{} // one opens when the other closes, all week
		}
		return Windows{Change: until.Add(-need)}
	}
	// Ask one by one, to name the zone of the window that opens first.
	var opens time.Time
	var zone *time.Location
	for i := range windows {
		_, _, next := policy.Calendar{Windows: windows[i : i+1]}.OpenUntil(now, need)
		if !next.IsZero() && (opens.IsZero() || next.Before(opens)) {
			opens, zone = next, windows[i].Zone
		}
	}
	if opens.IsZero() {
		return Windows{Closed: "none of this host's windows opens in the next days"}
	}
	text := "until a window of this host opens, on " + opens.In(zone).Format("Mon 2006-01-02 at 15:04") + " (" + zone.String() + ")"
	return Windows{Closed: text, Change: opens}
}

// Left returns how long it is until a window opens or closes, and 0 or less if none does.
func (w Windows) Left(now time.Time) time.Duration {
	if w.Change.IsZero() {
		return 0
	}
	return w.Change.Sub(now)
}
