package policy

import (
	"fmt"
	"regexp"
	"strconv"
	"time"
	"unicode/utf8"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Blackout is a period in which nothing may begin. It includes the instant From and
// excludes the instant To. It is empty if the zone's clock skips all of it.
type Blackout struct {
	From, To time.Time
	// Name is for people: the reason, or when it begins.
	Name string
}

// Blackout returns the blackout that holds at now, or nil. If several do, it is the one that
// ends last.
func (c Calendar) Blackout(now time.Time) (holds *Blackout) {
	for i := range c.Blackouts {
		b := &c.Blackouts[i]
		if !b.From.After(now) && b.To.After(now) && (holds == nil || b.To.After(holds.To)) {
			holds = b
		}
	}
	return holds
}

// form of a day or a time in a blackout. The schema has the same expression.
var blackoutTime = regexp.MustCompile(`^20[0-9][0-9]-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))(T([01][0-9]|2[0-3]):[0-5][0-9])?$|^20([02468][048]|[13579][26])-02-29(T([01][0-9]|2[0-3]):[0-5][0-9])?$`)

// unprintable matches what the reason of a blackout must not contain.
var unprintable = regexp.MustCompile(`[\p{C}\x{2028}\x{2029}]`)

func (c *compiler) blackouts(specs []v1alpha1.Blackout) []Blackout {
	const list = "spec.rollout.blackouts"
	if len(specs) > v1alpha1.MaxBlackouts {
		c.wrong(list, "%d blackouts, expected at most %d: remove those that are over", len(specs), v1alpha1.MaxBlackouts)
		return nil
	}
	var all []Blackout
	for i := range specs {
		field := list + "[" + strconv.Itoa(i) + "]"
		b, problems := parseBlackout(&specs[i], c.zones)
		for _, p := range problems {
			c.problems = append(c.problems, Problem{field + "." + p.Field, p.Text})
		}
		if len(problems) == 0 {
			all = append(all, b)
		}
	}
	return all
}

// parseBlackout parses a blackout. The problems name the fields relative to it.
func parseBlackout(spec *v1alpha1.Blackout, zones Zones) (Blackout, []Problem) {
	c := compiler{}
	from, to := c.wallTime("start", spec.Start), c.wallTime("end", spec.End)
	if len(spec.End) == len(time.DateOnly) {
		to = to.Add(day) // the blackout includes its last day
	}
	if len(c.problems) == 0 && !from.Before(to) {
		c.wrong("end", "%q is not after start, %q, expected the last day of the blackout, or a later time", spec.End, spec.Start)
	}
	zone := c.zone(spec.TimeZone, zones)
	if n := utf8.RuneCountInString(spec.Reason); n > v1alpha1.MaxBlackoutReason {
		c.wrong("reason", "%d characters, expected at most %d", n, v1alpha1.MaxBlackoutReason)
	} else if unprintable.MatchString(spec.Reason) {
		c.wrong("reason", "%q, expected one line of printable characters", spec.Reason)
	}
	if len(c.problems) > 0 {
		return Blackout{}, c.problems
	}
	b := Blackout{From: reached(from, zone), To: left(to, zone), Name: fmt.Sprintf("blackout %q", spec.Reason)}
	if spec.Reason == "" {
		b.Name = "blackout from " + spec.Start
	}
	return b, nil
}

// wallTime reads a day or a time of a blackout. It returns the wall time as a time in UTC.
func (c *compiler) wallTime(field, text string) time.Time {
	if !blackoutTime.MatchString(text) {
		c.wrong(field, "%q, expected a day such as 2026-12-24, or a time such as 2026-12-24T18:00, of the years 2000 to 2099", v1alpha1.OneLine(text, 40))
		return time.Time{}
	}
	layout := "2006-01-02T15:04"[:len(text)]
	t, err := time.Parse(layout, text)
	if err != nil { // the expression knows the calendar, so this is a bug
		c.wrong(field, "%q: %v", text, err)
	}
	return t
}

// left returns the last instant at which the zone's clock reaches the wall time. That is the
// same as [reached], unless the clock is set back over the wall time.
func left(wall time.Time, zone *time.Location) time.Time {
	at := reached(wall, zone)
	for last := at; ; {
		_, change := last.ZoneBounds()
		if change.IsZero() || change.After(at.Add(day)) { // no zone is set back by more than a day
			return at
		}
		last = change.In(zone)
		_, offset := last.Zone()
		if shown := wall.Add(-time.Duration(offset) * time.Second); !shown.Before(change) {
			_, next := last.ZoneBounds()
			if next.IsZero() || shown.Before(next) {
				at = shown.In(zone)
			}
		}
	}
}
