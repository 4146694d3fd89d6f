package node

import (
	"time"

	"lockkeeper.dev/lockkeeper/policy"
)

// lastMinute is how much of a window has to be left for a commit. The act
// follows a commit within seconds (see maxReadAge), and is looked at once more
// before it: were the window closed by then, the host would have committed to a
// reboot that it may not call for days, and that nobody can take back.
const lastMinute = time.Minute

// openness is what the host's own windows say at one moment.
type openness struct {
	closed string    // why nothing is to be committed, for people; "" is open
	change time.Time // when that will be otherwise; zero is never
}

// windowsAt asks the windows. committed is whether the host has committed
// already to what it would do.
func windowsAt(windows []policy.Window, now time.Time, committed bool) openness {
	if len(windows) == 0 {
		return openness{}
	}
	need := lastMinute
	if committed {
		need = 0
	}
	if open, until, _ := policy.OpenUntil(windows, now, need); open {
		if until.IsZero() {
			return openness{} // one opens when the other closes, all week
		}
		return openness{change: until.Add(-need)}
	}
	// One by one, because people are told the zone of the one that opens.
	var opens time.Time
	var zone *time.Location
	for i := range windows {
		_, _, next := policy.OpenUntil(windows[i:i+1], now, need)
		if !next.IsZero() && (opens.IsZero() || next.Before(opens)) {
			opens, zone = next, windows[i].Zone
		}
	}
	if opens.IsZero() {
		return openness{closed: "none of this host's windows opens in the next days"}
	}
	text := "until a window of this host opens, on " + opens.In(zone).Format("Mon 2006-01-02 at 15:04") + " (" + zone.String() + ")"
	return openness{closed: text, change: opens}
}

// left is how long it is until that will be otherwise, not above 0 if never.
func (o openness) left(now time.Time) time.Duration {
	if o.change.IsZero() {
		return 0
	}
	return o.change.Sub(now)
}
