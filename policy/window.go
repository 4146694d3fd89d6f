package policy

import (
	"slices"
	"strconv"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Window is a time in each week, in a time zone. It opens at Hour:Minute of the
// wall clock: if that time is left out that night, as soon as the clock is past
// it; if it comes twice, at the first. A day that its zone left out, crossing the
// date line, has no window. From then on it is open for Duration of real time,
// whatever the clock does: 10m to 24h.
type Window struct {
	Days         [7]bool // by time.Weekday, on which it opens
	Hour, Minute int
	Duration     time.Duration
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

// ParseWindow reads a window; what is wrong with it is told by the names of its
// fields.
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
	zone, err := zones(spec.TimeZone)
	if err != nil || spec.TimeZone == "" || spec.TimeZone == "Local" {
		c.wrong("timeZone", "%q, expected a name of the IANA time zone database, such as Europe/Berlin or UTC", spec.TimeZone)
	}
	w.Zone = zone
	return w, c.problems
}

// foresight is how far ahead windows are looked for: a week, the hour by which a
// night can be longer, and room for what begins at its end.
const foresight = 8 * day

// OpenUntil says whether something that takes need, 0 to 24h, may begin now.
// Windows that overlap or touch are one: open reports whether one is open now that
// stays open for need or longer. until is when the one that is open now closes,
// be it long enough or not; zero if none is open, or none that closes within eight
// days. If open is false, next is when one opens that is long enough; zero if none
// does within eight days. No windows is always open.
func OpenUntil(ws []Window, now time.Time, need time.Duration) (open bool, until, next time.Time) {
	if len(ws) == 0 {
		return true, time.Time{}, time.Time{}
	}
	far := now.Add(foresight)
	for _, o := range openings(ws, now) {
		switch {
		case !o.to.After(now):
		case o.from.After(far):
			return false, until, time.Time{}
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
	return false, until, time.Time{}
}

// opening is a time in which windows are open, without its last instant.
type opening struct{ from, to time.Time }

// openings are the times in which one of the windows or more is open, in order
// and apart from each other: all that are of use at now and in its foresight.
func openings(ws []Window, now time.Time) []opening {
	var all []opening
	// What is open now opened no more than a day ago. What opens at the end of the
	// foresight is followed for two days more, which is enough for every need. No
	// zone is a whole day from UTC.
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

// opens returns when the window opens on a date, which is given as UTC's midnight.
func (w *Window) opens(date time.Time) (at time.Time, ok bool) {
	if !w.Days[date.Weekday()] {
		return at, false
	}
	if y, m, d := reached(date, w.Zone).Date(); date != time.Date(y, m, d, 0, 0, 0, 0, time.UTC) {
		return at, false // the zone has no such day
	}
	return reached(date.Add(time.Duration(w.Hour)*time.Hour+time.Duration(w.Minute)*time.Minute), w.Zone), true
}

// reached returns the first instant at which the zone's clock shows the wall time,
// given as if it were UTC's, or a later one. time.Date would do, but does not say
// which of two it takes, nor what it makes of one that is left out.
func reached(wall time.Time, zone *time.Location) time.Time {
	// Before this no clock shows the wall time yet.
	at := wall.Add(-day).In(zone)
	for {
		_, offset := at.Zone()
		_, change := at.ZoneBounds()
		shown := wall.Add(-time.Duration(offset) * time.Second)
		switch {
		case !shown.After(at):
			return at // left out by the change to this offset
		case change.IsZero() || shown.Before(change):
			return shown.In(zone)
		}
		at = change.In(zone)
	}
}
