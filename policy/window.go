package policy

import (
	"slices"
	"strconv"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Window is a period that recurs every week. It opens at Hour:Minute of the zone's wall
// clock. If the clock skips that time, the window opens right after the skip. If the time
// occurs twice, the window opens at the first. On a date that the zone skipped to cross
// the date line, it does not open. It then stays open for Duration of real time, even if
// the clock changes meanwhile.
type Window struct {
	Days         [7]bool // the days on which it opens, by time.Weekday
	Hour, Minute int
	Duration     time.Duration // 10m to 24h
	Zone         *time.Location
}

var weekdays = map[v1alpha1.Day]time.Weekday{
	v1alpha1.Sunday: time.Sunday, v1alpha1.Monday: time.Monday, v1alpha1.Tuesday: time.Tuesday, v1alpha1.Wednesday: time.Wednesday,
	v1alpha1.Thursday: time.Thursday, v1alpha1.Friday: time.Friday, v1alpha1.Saturday: time.Saturday,
}

func (c *compiler) windows(specs []v1alpha1.Window) []Window {
	var all []Window
	for i, spec := range specs {
		field := "spec.rollout.windows[" + strconv.Itoa(i) + "]"
		w, problems := ParseWindow(spec, c.zones)
		for _, p := range problems {
			c.problems = append(c.problems, Problem{field + "." + p.Field, p.Text})
		}
		if len(problems) == 0 {
			all = append(all, w)
		}
	}
	return all
}

// ParseWindow parses a window. The problems name the fields relative to the window.
func ParseWindow(spec v1alpha1.Window, zones Zones) (Window, []Problem) {
	c := compiler{}
	w := Window{Duration: spec.Duration.Duration}
	for i, d := range spec.Days {
		weekday, ok := weekdays[d]
		if !ok {
			c.wrong("days["+strconv.Itoa(i)+"]", "%q, expected Mon, Tue, Wed, Thu, Fri, Sat or Sun", d)
		}
		w.Days[weekday] = true
	}
	if len(spec.Days) == 0 {
		w.Days = [7]bool{true, true, true, true, true, true, true}
	}
	if t, err := time.Parse("15:04", spec.Start); err != nil || len(spec.Start) != len("15:04") {
		c.wrong("start", "%q, expected a time of the day, 00:00 to 23:59", spec.Start)
	} else {
		w.Hour, w.Minute = t.Hour(), t.Minute()
	}
	if w.Duration < shortestWindow || w.Duration > day {
		c.wrong("duration", "%v, expected 10m to 24h", w.Duration)
	}
	w.Zone = c.zone(spec.TimeZone, zones)
	return w, c.problems
}

// zone returns the time zone of a window or a blackout. Local, and the two links that distributions have among the files of the
// database, mean another zone on each host, so a policy would mean something else to each of them, and to the next leader.
func (c *compiler) zone(name string, zones Zones) *time.Location {
	zone, err := zones(name)
	if err != nil || slices.Contains([]string{"", "Local", "localtime", "posixrules"}, name) {
		c.wrong("timeZone", "%q, expected a name of the IANA time zone database, such as Europe/Berlin or UTC", name)
	}
	return zone
}

// Calendar is when something may begin: in the windows, and not in the blackouts. Without
// windows, it may begin at any time outside of the blackouts.
type Calendar struct {
	Windows   []Window
	Blackouts []Blackout
}

// foresight is how far ahead OpenUntil searches: a week, and a day more for clock changes
// and for windows that open at the end of the week.
const foresight = 8 * day

// OpenUntil reports whether something that takes need, 0 to 24h, may begin now. Windows
// that overlap or touch count as one. A blackout closes them.
//
//   - open reports whether a window is open now and stays open for at least need. It is
//     true if the calendar is empty.
//   - until is when the window that is open now closes, even if need does not fit into
//     it. It is zero if no window is open, or if it does not close within eight days.
//   - next is when, if open is false, the next window opens that need fits into. It is
//     zero if none opens within eight days of now, or of the end of a blackout.
func (c Calendar) OpenUntil(now time.Time, need time.Duration) (open bool, until, next time.Time) {
	if len(c.Windows) == 0 && len(c.Blackouts) == 0 {
		return true, time.Time{}, time.Time{}
	}
	far := now.Add(foresight)
	for _, o := range c.openings(now) {
		switch {
		case !o.to.After(now):
		case o.from.After(far):
			return false, until, c.afterBlackouts(now, need)
		case o.from.After(now):
			if o.to.Sub(o.from) >= need {
				return false, until, o.from
			}
		case o.to.After(far):
			return true, time.Time{}, time.Time{}
		case o.to.Sub(now) >= need:
			return true, o.to, time.Time{}
		default:
			until = o.to
		}
	}
	return false, until, c.afterBlackouts(now, need)
}

// afterBlackouts returns when the next window opens that need fits into, if none does within
// the foresight. Windows recur every week, so only blackouts can close them for longer, and
// the next one opens within the foresight after one of these has ended.
func (c Calendar) afterBlackouts(now time.Time, need time.Duration) (next time.Time) {
	var ends []time.Time
	for _, b := range c.Blackouts {
		if b.To.After(now) {
			ends = append(ends, b.To)
		}
	}
	slices.SortFunc(ends, time.Time.Compare)
	for _, end := range ends {
		far := end.Add(foresight)
		for _, o := range c.openings(end) {
			if !o.from.Before(end) && !o.from.After(far) && o.to.Sub(o.from) >= need {
				return o.from
			}
		}
	}
	return time.Time{}
}

// opening is a period in which at least one window is open, and no blackout holds. It
// excludes the instant to.
type opening struct{ from, to time.Time }

// Beginning and end of an opening that no window limits.
var (
	always = time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC)
	never  = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// openings returns the periods in which at least one window is open, sorted and merged,
// without the blackouts. It covers now and the time until the end of the foresight.
func (c Calendar) openings(now time.Time) []opening {
	all := []opening{{always, never}}
	if len(c.Windows) > 0 {
		all = recurring(c.Windows, now)
	}
	for _, b := range c.Blackouts {
		if !b.From.Before(b.To) {
			continue
		}
		var left []opening
		for _, o := range all {
			for _, part := range []opening{{o.from, earlier(o.to, b.From)}, {later(o.from, b.To), o.to}} {
				if part.from.Before(part.to) {
					left = append(left, part)
				}
			}
		}
		all = left
	}
	return all
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// recurring returns the periods in which at least one window is open, sorted and merged. It
// covers now and the time until the end of the foresight.
func recurring(ws []Window, now time.Time) []opening {
	var all []opening
	// A window that is open now opened at most a day ago. No zone is a whole day from UTC,
	// so two days back suffice. Three days after the foresight cover every need of a
	// window that opens at its end.
	year, month, date := now.UTC().Date()
	for d := date - 2; d <= date+11; d++ {
		midnight := time.Date(year, month, d, 0, 0, 0, 0, time.UTC)
		for i := range ws {
			if from, ok := ws[i].opens(midnight); ok {
				all = append(all, opening{from, from.Add(ws[i].Duration)})
			}
		}
	}
	slices.SortFunc(all, func(a, b opening) int { return a.from.Compare(b.from) })
	merged := all[:0]
	for _, o := range all {
		if n := len(merged); n > 0 && !o.from.After(merged[n-1].to) {
			if o.to.After(merged[n-1].to) {
				merged[n-1].to = o.to
			}
			continue
		}
		merged = append(merged, o)
	}
	return merged
}

// opens returns when the window opens on a date, which is given as midnight in UTC. ok is
// false if it does not open on that date.
func (w *Window) opens(date time.Time) (at time.Time, ok bool) {
	if !w.Days[date.Weekday()] {
		return at, false
	}
	if y, m, d := reached(date, w.Zone).Date(); date != time.Date(y, m, d, 0, 0, 0, 0, time.UTC) {
		return at, false // the zone skipped this date
	}
	return reached(date.Add(time.Duration(w.Hour)*time.Hour+time.Duration(w.Minute)*time.Minute), w.Zone), true
}

// reached returns the first instant at which the zone's clock shows the wall time or a
// later one. The wall time is given as a time in UTC. time.Date does not specify its
// result for a time that occurs twice or is skipped.
func reached(wall time.Time, zone *time.Location) time.Time {
	// A day before, no zone's clock shows the wall time yet.
	at := wall.Add(-day).In(zone)
	for {
		_, offset := at.Zone()
		_, change := at.ZoneBounds()
		shown := wall.Add(-time.Duration(offset) * time.Second)
		switch {
		case !shown.After(at):
			return at // the change to this offset skips the wall time
		case change.IsZero() || shown.Before(change):
			return shown.In(zone)
		}
		at = change.In(zone)
	}
}
