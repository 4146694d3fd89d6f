package page

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Span formats a duration in at most two units: "2m5s", "3d4h".
func Span(d time.Duration) string {
	d = d.Abs()
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d/time.Second))
	case d < time.Hour:
		return two(d, time.Minute, "m", time.Second, "s")
	case d < 24*time.Hour:
		return two(d, time.Hour, "h", time.Minute, "m")
	}
	return two(d, 24*time.Hour, "d", time.Hour, "h")
}

func two(d, big time.Duration, b string, small time.Duration, s string) string {
	rest := (d % big) / small
	if rest == 0 {
		return fmt.Sprintf("%d%s", d/big, b)
	}
	return fmt.Sprintf("%d%s%d%s", d/big, b, rest, s)
}

// About formats an estimated duration, rounded up to what an estimate can promise: "35m", "2h30m".
func About(d time.Duration) string {
	step := time.Minute
	for _, s := range []struct{ from, step time.Duration }{
		{10 * time.Minute, 5 * time.Minute}, {time.Hour, 30 * time.Minute}, {6 * time.Hour, time.Hour}, {48 * time.Hour, 12 * time.Hour}, {7 * 24 * time.Hour, 24 * time.Hour},
	} {
		if d > s.from {
			step = s.step
		}
	}
	return Span(max(step, (d+step-1)/step*step))
}

// Clock formats a time of day in UTC, with the date if it is not today.
func Clock(now, t time.Time) string {
	t = t.UTC()
	if t.Format(time.DateOnly) == now.UTC().Format(time.DateOnly) {
		return t.Format("15:04:05Z")
	}
	return t.Format("2006-01-02 15:04:05Z")
}

// Ago formats a time relative to now and absolute: "2m5s ago (13:02:05Z)", "in 40s (…)".
func Ago(now, t time.Time) string {
	if t.IsZero() {
		return "at an unknown time"
	}
	if t.After(now) {
		return "in " + Span(t.Sub(now)) + " (" + Clock(now, t) + ")"
	}
	return Span(now.Sub(t)) + " ago (" + Clock(now, t) + ")"
}

// Since formats how long something has lasted: "2m5s (13:02:05Z)".
func Since(now time.Time, t *time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	return Span(max(0, now.Sub(*t))) + " (" + Clock(now, *t) + ")"
}

// ParseDuration parses a duration as users write it: one of Go's ("36h"), or whole days of 24 hours ("90d"), at most
// 65,535 of them.
func ParseDuration(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	return time.ParseDuration(text)
}
