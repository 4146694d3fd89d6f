package migrate

import (
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

const (
	day            = 24 * time.Hour
	week           = 7 * day
	shortestWindow = 10 * time.Minute // of a policy and of a host's file
)

// daySet is a set of days by time.Weekday.
type daySet [7]bool

var everyDay = daySet{true, true, true, true, true, true, true}

// dayNames are the days by time.Weekday.
var dayNames = [7]v1alpha1.Day{
	v1alpha1.Sunday, v1alpha1.Monday, v1alpha1.Tuesday, v1alpha1.Wednesday, v1alpha1.Thursday, v1alpha1.Friday, v1alpha1.Saturday,
}

// names returns the days from Monday on, and none for every day.
func (s daySet) names() (days []v1alpha1.Day) {
	if s == everyDay {
		return nil
	}
	for i := range 7 {
		if d := (i + 1) % 7; s[d] {
			days = append(days, dayNames[d])
		}
	}
	return days
}

// window makes a window that opens on the days at this time of the day.
func window(days daySet, start, length time.Duration, zone string) v1alpha1.Window {
	return v1alpha1.Window{
		Days: days.names(), Start: fmt.Sprintf("%02d:%02d", int(start.Hours()), int(start.Minutes())%60),
		Duration: metav1.Duration{Duration: length}, TimeZone: zone,
	}
}

// kuredWindows returns the windows of kured's schedule: the part of each of the days from
// start to end. If start is after end, kured takes the night's two ends on each of the days,
// and not the night that follows the day: internal/timewindow/timewindow.go in
// kubereboot/kured checks the day of the present time, and nothing else. None means always.
// note says what was left out.
func kuredWindows(days daySet, start, end time.Duration, zone string) (ws []v1alpha1.Window, note string, err error) {
	switch {
	case days == daySet{}:
		return nil, "", errors.New("no day is left on which kured reboots")
	case start < end:
		if days == everyDay && end-start == day {
			return nil, "", nil
		}
		ws = []v1alpha1.Window{window(days, start, end-start, zone)}
	case start == end:
		return nil, "", errors.New("kured's window lasts one second, and a window lasts 10m at least")
	case days == everyDay:
		ws = []v1alpha1.Window{window(days, start, day-start+end, zone)}
	default:
		ws = []v1alpha1.Window{window(days, start, day-start, zone)}
		if end > 0 {
			ws = append(ws, window(days, 0, end, zone))
		}
		note = "each of the days has both ends of the night, as with kured"
	}
	kept := ws[:0]
	for _, w := range ws {
		if w.Duration.Duration < shortestWindow {
			note = fmt.Sprintf("the %s from %s on are left out: a window lasts 10m at least", v1alpha1.ShortDuration(w.Duration.Duration), w.Start)
			continue
		}
		kept = append(kept, w)
	}
	if len(kept) == 0 {
		return nil, "", errors.New("the window is shorter than 10m, the shortest that lockkeeper has")
	}
	return kept, note, nil
}

// kuredTime parses a time of the day as kured does, in internal/timewindow/timewindow.go of
// kubereboot/kured. The last second is part of kured's window. Seconds are rounded, so that
// the window becomes shorter.
func kuredTime(s string, isEnd bool) (time.Duration, error) {
	for _, layout := range []string{"15:04", "15:04:05", "03:04pm", "15", "03pm", "3pm"} {
		t, err := time.Parse(layout, s)
		if err != nil {
			continue
		}
		at := time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute
		seconds := time.Duration(t.Second()) * time.Second
		switch {
		case isEnd && seconds == 59*time.Second, !isEnd && seconds > 0:
			at += time.Minute
		}
		return at, nil
	}
	return 0, errors.New("it is not a time that kured accepts, such as 22:00 or 10pm")
}

// kuredDays parses kured's days, as pkg/timewindow/days.go in kubereboot/kured does.
func kuredDays(values []string) (days daySet, err error) {
	for _, value := range values {
		for name := range strings.SplitSeq(value, ",") {
			d, ok := weekday(strings.TrimSpace(name))
			if !ok {
				return days, fmt.Errorf("%s is not a day that kured accepts", quote(name))
			}
			days[d] = true
		}
	}
	return days, nil
}

// weekday parses 0 to 6, or the first two letters, three letters or the whole of a day's name.
func weekday(name string) (time.Weekday, bool) {
	for d := time.Sunday; d <= time.Saturday; d++ {
		full := strings.ToLower(d.String())
		switch strings.ToLower(name) {
		case full, full[:3], full[:2], fmt.Sprint(int(d)):
			return d, true
		}
	}
	return 0, false
}

// periodic is a window of FLUO's or locksmith's.
type periodic struct {
	weekly        bool
	day           time.Weekday
	start, length time.Duration
}

// parsePeriodic parses a window as pkg/operator/periodic.go in
// flatcar/flatcar-linux-update-operator and pkg/timeutil/periodic.go in coreos/locksmith do.
// They accept "14:00" and "Thu 23:00" as start, and a Go duration as length.
func parsePeriodic(start, length string) (p periodic, err error) {
	fields := strings.Fields(start)
	if len(fields) == 2 {
		ok := false
		if p.day, ok = weekday(fields[0]); !ok || len(fields[0]) != 3 {
			return p, fmt.Errorf("%s is not a day such as Thu", quote(fields[0]))
		}
		p.weekly, fields = true, fields[1:]
	}
	var hour, minute int
	if len(fields) != 1 {
		return p, fmt.Errorf("%s is not a start such as 14:00 or Thu 23:00", quote(start))
	}
	if _, err := fmt.Sscanf(fields[0], "%d:%d", &hour, &minute); err != nil || hour < 0 || hour > 23 || minute < 0 || minute > 59 {
		return p, fmt.Errorf("%s is not a time of the day, 00:00 to 23:59", quote(fields[0]))
	}
	p.start = time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute
	if p.length, err = time.ParseDuration(length); err != nil || p.length < 0 {
		return p, fmt.Errorf("%s is not a duration such as 1h30m", quote(length))
	}
	p.length = p.length.Truncate(time.Second)
	return p, nil
}

// period is how often the window opens.
func (p periodic) period() time.Duration {
	if p.weekly {
		return week
	}
	return day
}

// windows returns the windows, which may last 24 hours each: a longer one is split into
// equal parts that touch, and count as one.
func (p periodic) windows(zone string) ([]v1alpha1.Window, error) {
	if p.length < shortestWindow {
		return nil, fmt.Errorf("the window lasts %s, and the shortest that lockkeeper has is 10m", v1alpha1.ShortDuration(p.length))
	}
	parts := (p.length + day - 1) / day
	step := (p.length/parts + time.Minute - 1).Truncate(time.Minute)
	var ws []v1alpha1.Window
	for begin := time.Duration(0); begin < p.length; begin += step {
		at, days := p.start+begin, everyDay
		if p.weekly {
			days = daySet{}
			days[(int(p.day)+int(at/day))%7] = true
		}
		ws = append(ws, window(days, at%day, min(step, p.length-begin), zone))
	}
	return ws, nil
}

// checkWindows returns an error if lockkeeper would not accept a window.
func checkWindows(ws []v1alpha1.Window, zones policy.Zones) error {
	for _, w := range ws {
		if _, problems := policy.ParseWindow(w, zones); len(problems) > 0 {
			return errors.New("lockkeeper does not accept its " + refused(problems[0]))
		}
	}
	return nil
}

// refused says which field has a problem and what is expected, without the value.
func refused(p policy.Problem) string {
	_, expected, _ := strings.Cut(p.Text, ", expected ")
	return p.Field + ", expected " + cut(expected, maxText)
}
