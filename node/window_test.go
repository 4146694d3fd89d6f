package node

import (
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/policy"
)

func in(t *testing.T, zone string) *time.Location {
	t.Helper()
	l, err := time.LoadLocation(zone)
	must(t, err)
	return l
}

func TestWindowsAt(t *testing.T) {
	saturday := policy.Window{Days: [7]bool{time.Saturday: true}, Hour: 2, Duration: 4 * time.Hour, Zone: in(t, "Europe/Berlin")}
	sunday := policy.Window{Days: [7]bool{time.Sunday: true}, Hour: 22, Minute: 30, Duration: 4 * time.Hour, Zone: in(t, "America/New_York")}
	both := []policy.Window{saturday, sunday}
	at := func(text string) time.Time {
		when, err := time.Parse(time.RFC3339, text)
		must(t, err)
		return when
	}
	for _, c := range []struct {
		name      string
		windows   []policy.Window
		now       string
		committed bool
		closed    string
		change    string // "" is never
	}{
		{name: "none is always", now: "2026-11-21T12:00:00Z"},
		{name: "before it, on the same day", windows: both, now: "2026-11-21T00:59:59Z",
			closed: "until a window of this host opens, on Sat 2026-11-21 at 02:00 (Europe/Berlin)", change: "2026-11-21T01:00:00Z"},
		{name: "as it opens", windows: both, now: "2026-11-21T01:00:00Z", change: "2026-11-21T04:59:00Z"},
		{name: "a minute before its end", windows: both, now: "2026-11-21T04:59:00Z", change: "2026-11-21T04:59:00Z"},
		{name: "in the last minute", windows: both, now: "2026-11-21T04:59:01Z",
			closed: "until a window of this host opens, on Sun 2026-11-22 at 22:30 (America/New_York)", change: "2026-11-23T03:30:00Z"},
		{name: "in the last minute, committed", windows: both, now: "2026-11-21T04:59:59Z", committed: true, change: "2026-11-21T05:00:00Z"},
		{name: "closed, committed", windows: both, now: "2026-11-21T05:00:01Z", committed: true,
			closed: "until a window of this host opens, on Sun 2026-11-22 at 22:30 (America/New_York)", change: "2026-11-23T03:30:00Z"},
		{name: "the other zone's day has not come", windows: []policy.Window{sunday}, now: "2026-11-22T23:00:00Z",
			closed: "until a window of this host opens, on Sun 2026-11-22 at 22:30 (America/New_York)", change: "2026-11-23T03:30:00Z"},
		{name: "a week ahead", windows: []policy.Window{saturday}, now: "2026-11-21T05:00:00Z",
			closed: "until a window of this host opens, on Sat 2026-11-28 at 02:00 (Europe/Berlin)", change: "2026-11-28T01:00:00Z"},
		{name: "all week", windows: []policy.Window{{Days: [7]bool{true, true, true, true, true, true, true}, Hour: 2, Duration: 24 * time.Hour, Zone: time.UTC}}, now: "2026-11-21T05:00:00Z"},
		{name: "the hour that clocks skip", windows: []policy.Window{{Days: [7]bool{time.Sunday: true}, Hour: 2, Minute: 30, Duration: time.Hour, Zone: in(t, "Europe/Berlin")}},
			now: "2026-03-29T00:30:00Z", closed: "until a window of this host opens, on Sun 2026-03-29 at 03:00 (Europe/Berlin)", change: "2026-03-29T01:00:00Z"},
	} {
		got := windowsAt(c.windows, at(c.now), c.committed)
		var change time.Time
		if c.change != "" {
			change = at(c.change)
		}
		if got.closed != c.closed || !got.change.Equal(change) {
			t.Errorf("%s: %q, other at %v; expected %q, %v", c.name, got.closed, got.change, c.closed, change)
		}
	}
}

func TestTimeLeftOfWindows(t *testing.T) {
	now := time.Unix(1800000000, 0)
	for change, want := range map[time.Time]time.Duration{{}: 0, now: 0, now.Add(time.Hour): time.Hour} {
		if got := (openness{change: change}).left(now); got != want {
			t.Errorf("%v: %v, expected %v", change, got, want)
		}
	}
}

// The windows of the host's file are its veto, in the order of what is told first; a reload takes in others.
func TestWindowsAreTheHostsVeto(t *testing.T) {
	h, _ := newTestHost(t, v1alpha1.StateIdle)
	h.policies = kube.WatchPolicies(nil, policy.Compile, h.wake)
	// Closed: it opened half a day ago, for ten minutes, and opens daily.
	now := time.Now().UTC()
	opened := now.Add(-12 * time.Hour)
	closed := policy.Window{Days: [7]bool{true, true, true, true, true, true, true}, Hour: opened.Hour(), Minute: opened.Minute(), Duration: 10 * time.Minute, Zone: time.UTC}
	open := policy.Window{Days: closed.Days, Hour: now.Hour(), Duration: 24 * time.Hour, Zone: time.UTC}
	for _, c := range []struct {
		name     string
		settings Settings
		veto     v1alpha1.Reason
		detail   string
	}{
		{"no windows", Settings{}, "", ""},
		{"closed", Settings{Windows: []policy.Window{closed}}, v1alpha1.ReasonWindow, "until a window of this host opens, on "},
		{"closed, and the host has just booted", Settings{Windows: []policy.Window{closed}, MinUptime: 1 << 62}, v1alpha1.ReasonWindow, "until a window of this host opens, on "},
		{"closed, and paused", Settings{Windows: []policy.Window{closed}, Paused: "disk"}, v1alpha1.ReasonHostPaused, "disk"},
		{"one of two is open", Settings{Windows: []policy.Window{closed, open}}, "", ""},
		{"closed again", Settings{Windows: []policy.Window{closed}}, v1alpha1.ReasonWindow, "until a window of this host opens, on "},
	} {
		h.Reload(c.settings)
		o := h.observe(t.Context())
		if o.Veto != c.veto || !strings.HasPrefix(o.VetoDetail, c.detail) || c.detail == "" && o.VetoDetail != "" {
			t.Errorf("%s: %q (%s), expected %q (%s)", c.name, o.Veto, o.VetoDetail, c.veto, c.detail)
		}
	}
}
