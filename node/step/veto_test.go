package step

import (
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

func in(t *testing.T, zone string) *time.Location {
	t.Helper()
	l, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestVetoes has one case for each veto, and for each pair that follows another in
// precedence.
func TestVetoes(t *testing.T) {
	heldBack, unreadable := Sources{Veto: v1alpha1.ReasonHeldBack, VetoDetail: "held"}, Sources{Veto: v1alpha1.ReasonSourceUnreadable, VetoDetail: "unread"}
	drains := Sources{Drains: true}
	early := Vetoes{Uptime: time.Minute, MinUptime: 2 * time.Minute}
	for name, c := range map[string]struct {
		host    Vetoes
		sources Sources
		want    v1alpha1.Reason
		detail  string
	}{
		"none":                             {},
		"up for long":                      {host: Vetoes{Uptime: 2 * time.Minute, MinUptime: 2 * time.Minute}},
		"observe":                          {host: Vetoes{Observe: true}, want: "Observe"},
		"paused":                           {host: Vetoes{Paused: "disk"}, want: "HostPaused", detail: "disk"},
		"a version held back":              {sources: heldBack, want: "HeldBack", detail: "held"},
		"another manager":                  {host: Vetoes{Managers: []string{"a", "b"}}, want: "OtherManager", detail: "a; b"},
		"a closed window":                  {host: Vetoes{Window: "until noon"}, want: "Window", detail: "until noon"},
		"just booted":                      {host: early, want: "MinUptime", detail: "until 2m0s after the boot"},
		"a source that cannot be read":     {sources: unreadable, want: "SourceUnreadable", detail: "unread"},
		"observe before paused":            {host: Vetoes{Observe: true, Paused: "disk"}, want: "Observe"},
		"observe before held back":         {host: Vetoes{Observe: true}, sources: heldBack, want: "Observe"},
		"paused before held back":          {host: Vetoes{Paused: "disk"}, sources: heldBack, want: "HostPaused", detail: "disk"},
		"held back before another manager": {host: Vetoes{Managers: []string{"a"}}, sources: heldBack, want: "HeldBack", detail: "held"},
		"held back before a closed window": {host: Vetoes{Window: "until noon"}, sources: heldBack, want: "HeldBack", detail: "held"},
		"held back before min_uptime":      {host: early, sources: heldBack, want: "HeldBack", detail: "held"},
		"another manager before a window":  {host: Vetoes{Managers: []string{"a"}, Window: "until noon"}, want: "OtherManager", detail: "a"},
		"a window before min_uptime":       {host: Vetoes{Window: "until noon", MinUptime: time.Hour}, want: "Window", detail: "until noon"},
		"min_uptime before a source":       {host: early, sources: unreadable, want: "MinUptime", detail: "until 2m0s after the boot"},
		"a window before a source":         {host: Vetoes{Window: "until noon"}, sources: unreadable, want: "Window", detail: "until noon"},
		"another manager before a source":  {host: Vetoes{Managers: []string{"a"}}, sources: unreadable, want: "OtherManager", detail: "a"},
		"pods that cannot be listed":       {host: Vetoes{Unread: "no pods"}, want: "SourceUnreadable", detail: "no pods"},
		"a source before pods":             {host: Vetoes{Unread: "no pods"}, sources: unreadable, want: "SourceUnreadable", detail: "unread"},
		"another manager before pods":      {host: Vetoes{Managers: []string{"a"}, Unread: "no pods"}, want: "OtherManager", detail: "a"},
		"pods that block the drain":        {host: Vetoes{Blocked: "a/b"}, sources: drains, want: "DrainBlocked", detail: "a/b"},
		"and no drain":                     {host: Vetoes{Blocked: "a/b"}},
		"all else before pods that block":  {host: Vetoes{Blocked: "a/b", Uptime: 1, MinUptime: 2}, sources: drains, want: "MinUptime", detail: "until 2ns after the boot"},
		"a source before pods that block":  {host: Vetoes{Blocked: "a/b"}, sources: Sources{Drains: true, Veto: "InvalidRecord", VetoDetail: "long"}, want: "InvalidRecord", detail: "long"},
		"no list before pods that block":   {host: Vetoes{Blocked: "a/b", Unread: "no pods"}, sources: drains, want: "SourceUnreadable", detail: "no pods"},
		"paused before a source":           {host: Vetoes{Paused: "disk"}, sources: unreadable, want: "HostPaused", detail: "disk"},
	} {
		if got, detail := c.host.First(&c.sources); got != c.want || detail != c.detail {
			t.Errorf("%s: %q (%s), expected %q (%s)", name, got, detail, c.want, c.detail)
		}
	}
}

func TestWindowsAt(t *testing.T) {
	saturday := policy.Window{Days: [7]bool{time.Saturday: true}, Hour: 2, Duration: 4 * time.Hour, Zone: in(t, "Europe/Berlin")}
	sunday := policy.Window{Days: [7]bool{time.Sunday: true}, Hour: 22, Minute: 30, Duration: 4 * time.Hour, Zone: in(t, "America/New_York")}
	both := []policy.Window{saturday, sunday}
	at := func(text string) time.Time {
		when, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
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
		got := WindowsAt(c.windows, at(c.now), c.committed)
		var change time.Time
		if c.change != "" {
			change = at(c.change)
		}
		if got.Closed != c.closed || !got.Change.Equal(change) {
			t.Errorf("%s: %q, other at %v; expected %q, %v", c.name, got.Closed, got.Change, c.closed, change)
		}
	}
}

func TestTimeLeftOfWindows(t *testing.T) {
	now := time.Unix(1800000000, 0)
	for change, want := range map[time.Time]time.Duration{{}: 0, now: 0, now.Add(time.Hour): time.Hour} {
		if got := (Windows{Change: change}).Left(now); got != want {
			t.Errorf("%v: %v, expected %v", change, got, want)
		}
	}
}
