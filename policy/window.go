package policy

import (
	"strconv"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Window is a time in each week, in a time zone.
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
	if w.Duration < 10*time.Minute || w.Duration > day {
		c.wrong("duration", "%v, expected 10m to 24h", w.Duration)
	}
	zone, err := zones(spec.TimeZone)
	if err != nil || spec.TimeZone == "" || spec.TimeZone == "Local" {
		c.wrong("timeZone", "%q, expected a name of the IANA time zone database, such as Europe/Berlin or UTC", spec.TimeZone)
	}
	w.Zone = zone
	return w, c.problems
}
