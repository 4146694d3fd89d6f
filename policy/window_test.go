package policy

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the tests' nights are those of the tz database, wherever they run

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// windowsOf reads "Sat,Sun 02:30 1h Europe/Berlin; * 00:00 24h UTC".
func windowsOf(t *testing.T, text string) (ws []Window) {
	for spec := range strings.SplitSeq(text, ";") {
		f := strings.Fields(spec)
		if len(f) == 0 {
			continue
		}
		d, err := time.ParseDuration(f[2])
		if err != nil {
			t.Fatal(err)
		}
		s := v1alpha1.Window{Start: f[1], Duration: metav1.Duration{Duration: d}, TimeZone: f[3]}
		if f[0] != "*" {
			for name := range strings.SplitSeq(f[0], ",") {
				s.Days = append(s.Days, v1alpha1.Day(name))
			}
		}
		w, problems := ParseWindow(s, time.LoadLocation)
		if len(problems) > 0 {
			t.Fatalf("%s: %v", spec, problems)
		}
		ws = append(ws, w)
	}
	return ws
}

// verdict writes an answer as the tables have it, in UTC.
func verdict(open bool, until, next time.Time) string {
	s := map[bool]string{true: "open", false: "closed"}[open]
	if !until.IsZero() {
		s += " until " + until.UTC().Format("Jan 2 15:04:05")
	}
	if !next.IsZero() {
		s += " next " + next.UTC().Format("Jan 2 15:04:05")
	}
	return strings.ReplaceAll(s, ":00,", ",")
}

// TestOpenUntil has its nights worked out by hand. The times are UTC's.
func TestOpenUntil(t *testing.T) {
	const (
		// 2026: 29 March 02:00 is 03:00 at 01:00 UTC; 25 October 03:00 is 02:00 at
		// 01:00 UTC.
		berlin = "Europe/Berlin"
		// 2026: 8 March 02:00 is 03:00 at 07:00 UTC; 1 November 02:00 is 01:00 at
		// 06:00 UTC.
		newYork = "America/New_York"
		// Half an hour. 2026: 5 April 02:00 is 01:30 at 15:00 UTC on the 4th; 4
		// October 02:00 is 02:30 at 15:30 UTC on the 3rd.
		lordHowe = "Australia/Lord_Howe"
		// 29 March 2026, 01:00 UTC: Saturday 23:00 is Sunday 00:00.
		nuuk = "America/Nuuk"
		// 24 April 2026: 00:00 is 01:00 at 22:00 UTC on the 23rd.
		cairo = "Africa/Cairo"
		// Left out Friday, 30 December 2011, at 10:00 UTC of that day.
		apia = "Pacific/Apia"
		// Had 30 September 1969 twice: at 13:00 UTC of that day it began anew,
		// at 01:00.
		kwajalein = "Pacific/Kwajalein"
	)
	for _, c := range []struct{ windows, now, need, want string }{
		{"", "2026-05-02T12:00:00Z", "24h", "open"},

		// A plain week. 2 May 2026 is a Saturday.
		{"Sat 02:00 4h UTC", "2026-05-02T01:59:59Z", "0", "closed next May 2 02:00:00"},
		{"Sat 02:00 4h UTC", "2026-05-02T02:00:00Z", "4h", "open until May 2 06:00:00"},
		{"Sat 02:00 4h UTC", "2026-05-02T02:00:01Z", "4h", "closed until May 2 06:00:00 next May 9 02:00:00"},
		{"Sat 02:00 4h UTC", "2026-05-02T05:45:00Z", "15m", "open until May 2 06:00:00"},
		{"Sat 02:00 4h UTC", "2026-05-02T05:59:59Z", "0", "open until May 2 06:00:00"},
		{"Sat 02:00 4h UTC", "2026-05-02T06:00:00Z", "0", "closed next May 9 02:00:00"},
		{"Sat 02:00 4h UTC", "2026-05-02T03:00:00Z", "4h1m", "closed until May 2 06:00:00"},
		{"Sat,Mon 02:00 4h UTC", "2026-05-02T07:00:00Z", "0", "closed next May 4 02:00:00"},
		{"* 02:00 4h UTC", "2026-05-02T07:00:00Z", "0", "closed next May 3 02:00:00"},
		// Not the first that opens, but the first with enough room.
		{"Sun 02:00 1h UTC; Mon 02:00 3h UTC", "2026-05-02T07:00:00Z", "2h", "closed next May 4 02:00:00"},

		// It crosses midnight, and is Saturday's all the same.
		{"Sat 23:00 4h UTC", "2026-05-03T01:00:00Z", "2h", "open until May 3 03:00:00"},
		{"Sat 23:00 4h UTC", "2026-05-02T01:00:00Z", "0", "closed next May 2 23:00:00"},
		{"Sat 23:00 4h UTC", "2026-05-03T23:30:00Z", "0", "closed next May 9 23:00:00"},
		{"Sat 15:00 24h Pacific/Honolulu", "2026-05-04T00:30:00Z", "30m", "open until May 4 01:00:00"},
		{"Sat 15:00 24h Pacific/Kiritimati", "2026-05-02T00:30:00Z", "0", "closed next May 2 01:00:00"},
		{"Thu 22:00 6h " + newYork, "2027-01-01T04:00:00Z", "5h", "open until Jan 1 09:00:00"},
		{"Tue 23:00 2h UTC", "2028-03-01T00:30:00Z", "30m", "open until Mar 1 01:00:00"},
		{"Wed 00:00 2h UTC", "2028-02-29T23:59:00Z", "0", "closed next Mar 1 00:00:00"},
		{"Tue 00:00 2h UTC", "2028-02-28T23:59:00Z", "0", "closed next Feb 29 00:00:00"},
		{"Sun 23:00 2h UTC", "2027-03-01T00:30:00Z", "30m", "open until Mar 1 01:00:00"},

		// Windows that overlap or touch are one.
		{"Mon 22:00 2h UTC; Tue 00:00 2h UTC", "2026-05-04T23:30:00Z", "2h30m", "open until May 5 02:00:00"},
		{"Mon 22:00 2h UTC; Tue 00:00 2h UTC", "2026-05-04T23:30:00Z", "2h31m", "closed until May 5 02:00:00 next May 11 22:00:00"},
		{"Mon 22:00 2h UTC; Tue 00:01 2h UTC", "2026-05-04T23:30:00Z", "1h", "closed until May 5 00:00:00 next May 5 00:01:00"},
		{"Mon 09:00 1h Asia/Tokyo; Mon 00:30 1h UTC", "2026-05-04T00:10:00Z", "1h20m", "open until May 4 01:30:00"},
		{"Mon 20:00 8h UTC; Mon 21:00 1h UTC", "2026-05-04T21:30:00Z", "6h30m", "open until May 5 04:00:00"},
		{"Mon,Tue,Wed,Thu,Fri 00:00 24h UTC", "2026-05-06T12:00:00Z", "24h", "open until May 9 00:00:00"},
		{"Mon,Tue,Wed,Thu,Fri 00:00 24h UTC", "2026-05-09T12:00:00Z", "24h", "closed next May 11 00:00:00"},
		{"* 00:00 24h UTC", "2026-05-06T12:00:00Z", "24h", "open"},
		{"* 12:00 24h Asia/Kathmandu", "2026-05-06T12:00:00Z", "24h", "open"},

		// The night on which the clock goes forward.
		{"Sun 02:30 1h " + berlin, "2026-03-29T00:59:59Z", "0", "closed next Mar 29 01:00:00"},
		{"Sun 02:30 1h " + berlin, "2026-03-29T01:00:00Z", "1h", "open until Mar 29 02:00:00"},
		{"Sun 02:30 1h " + berlin, "2026-03-29T01:30:01Z", "30m", "closed until Mar 29 02:00:00 next Apr 5 00:30:00"},
		{"Sun 02:00 1h " + berlin, "2026-03-29T00:30:00Z", "0", "closed next Mar 29 01:00:00"},
		{"Sun 01:30 1h " + berlin, "2026-03-29T01:15:00Z", "15m", "open until Mar 29 01:30:00"},
		{"Sun 03:00 1h " + berlin, "2026-03-29T00:30:00Z", "0", "closed next Mar 29 01:00:00"},
		{"Sun 02:15 1h " + berlin + "; Sun 03:00 30m " + berlin, "2026-03-29T01:00:00Z", "1h", "open until Mar 29 02:00:00"},
		{"Sat 22:00 8h " + berlin, "2026-03-29T04:30:00Z", "30m", "open until Mar 29 05:00:00"},
		{"* 00:00 24h " + berlin, "2026-03-28T12:00:00Z", "24h", "open"},
		{"Sun 02:30 1h " + newYork, "2026-03-08T06:59:00Z", "0", "closed next Mar 8 07:00:00"},
		{"Sun 02:30 1h " + newYork, "2026-03-08T07:30:00Z", "30m", "open until Mar 8 08:00:00"},
		{"Sun 02:15 1h " + lordHowe, "2026-10-03T15:20:00Z", "0", "closed next Oct 3 15:30:00"},
		{"Sun 02:15 1h " + lordHowe, "2026-10-03T15:30:00Z", "1h", "open until Oct 3 16:30:00"},
		{"Sun 02:15 1h " + lordHowe, "2026-10-03T16:30:00Z", "0", "closed next Oct 10 15:15:00"},
		{"Sat 23:30 1h " + nuuk, "2026-03-29T00:30:00Z", "0", "closed next Mar 29 01:00:00"},
		{"Sat 23:30 1h " + nuuk, "2026-03-29T01:30:00Z", "30m", "open until Mar 29 02:00:00"},
		{"Fri 00:30 1h " + cairo, "2026-04-23T21:45:00Z", "0", "closed next Apr 23 22:00:00"},
		{"Fri 00:30 1h " + cairo, "2026-04-23T22:45:00Z", "15m", "open until Apr 23 23:00:00"},

		// The night on which it goes back.
		{"Sun 02:30 1h " + berlin, "2026-10-25T00:29:59Z", "0", "closed next Oct 25 00:30:00"},
		{"Sun 02:30 1h " + berlin, "2026-10-25T01:15:00Z", "15m", "open until Oct 25 01:30:00"},
		{"Sun 02:30 1h " + berlin, "2026-10-25T01:31:00Z", "0", "closed next Nov 1 01:30:00"},
		{"Sun 02:00 1h " + berlin, "2026-10-25T01:00:00Z", "0", "closed next Nov 1 01:00:00"},
		{"Sun 03:00 1h " + berlin, "2026-10-25T01:00:00Z", "0", "closed next Oct 25 02:00:00"},
		{"Sat 22:00 8h " + berlin, "2026-10-25T03:30:00Z", "30m", "open until Oct 25 04:00:00"},
		// 24 hours of a day that has 25.
		{"* 00:00 24h " + berlin, "2026-10-25T12:00:00Z", "10h", "open until Oct 25 22:00:00"},
		{"* 00:00 24h " + berlin, "2026-10-25T22:30:00Z", "0", "closed next Oct 25 23:00:00"},
		{"* 00:00 24h " + berlin, "2026-10-18T12:00:00Z", "24h", "open until Oct 25 22:00:00"},
		{"Sun 01:30 1h " + newYork, "2026-11-01T06:15:00Z", "15m", "open until Nov 1 06:30:00"},
		{"Sun 01:30 1h " + newYork, "2026-11-01T06:45:00Z", "0", "closed next Nov 8 06:30:00"},
		{"Sun 01:45 1h " + lordHowe, "2026-04-04T15:20:00Z", "25m", "open until Apr 4 15:45:00"},
		{"Sun 01:45 1h " + lordHowe, "2026-04-04T15:50:00Z", "0", "closed next Apr 11 15:15:00"},

		// The date line.
		{"Fri 02:00 4h " + apia, "2011-12-30T12:00:00Z", "0", "closed next Jan 5 12:00:00"},
		{"Fri 02:00 4h " + apia, "2011-12-26T12:00:00Z", "0", "closed"}, // until 5 January
		{"Thu 23:00 4h " + apia, "2011-12-30T12:00:00Z", "1h", "open until Dec 30 13:00:00"},
		{"Sat 00:00 1h " + apia, "2011-12-30T09:00:00Z", "0", "closed next Dec 30 10:00:00"},
		{"* 02:00 1h " + apia, "2011-12-29T14:00:00Z", "0", "closed next Dec 30 12:00:00"},
		{"* 02:00 1h " + kwajalein, "1969-09-29T15:30:00Z", "30m", "open until Sep 29 16:00:00"},
		{"* 02:00 1h " + kwajalein, "1969-09-29T17:00:00Z", "0", "closed next Oct 1 14:00:00"},
	} {
		now, err := time.Parse(time.RFC3339, c.now)
		if err != nil {
			t.Fatal(err)
		}
		need, err := time.ParseDuration(c.need)
		if err != nil {
			t.Fatal(err)
		}
		if got := verdict(Calendar{Windows: windowsOf(t, c.windows)}.OpenUntil(now, need)); got != c.want {
			t.Errorf("%q at %s for %s: %s, expected %s", c.windows, c.now, c.need, got, c.want)
		}
	}
}

// TestOpenUntilAgainstAClock compares with somebody who watches the clocks on the
// wall, minute by minute, over nights on which they jump.
func TestOpenUntilAgainstAClock(t *testing.T) {
	nights := []struct{ zone, at string }{
		{"UTC", "2026-02-28"}, {"Europe/Berlin", "2026-03-29"}, {"Europe/Berlin", "2026-10-25"}, {"America/New_York", "2026-03-08"},
		{"America/New_York", "2026-11-01"}, {"Australia/Lord_Howe", "2026-04-05"}, {"Australia/Lord_Howe", "2026-10-04"},
		{"America/Nuuk", "2026-03-29"}, {"America/Nuuk", "2026-10-25"}, {"Africa/Cairo", "2026-04-24"}, {"Africa/Cairo", "2026-10-30"},
		{"America/Havana", "2026-11-01"}, {"Antarctica/Troll", "2026-03-29"}, {"America/St_Johns", "2010-11-07"}, {"America/Sao_Paulo", "2018-02-18"},
		{"Pacific/Apia", "2011-12-30"}, {"Pacific/Kiritimati", "1994-12-31"}, {"Pacific/Kwajalein", "1993-08-21"}, {"Pacific/Kwajalein", "1969-09-30"},
		{"Asia/Kathmandu", "2028-02-29"},
	}
	days := strings.Fields("Mon Tue Wed Thu Fri Sat Sun")
	for seed := range uint64(60) {
		d := dice{rand.New(rand.NewPCG(seed, 8))}
		night := nights[int(seed)%len(nights)]
		var specs []string
		for range 1 + d.IntN(3) {
			on := "*"
			if d.IntN(3) > 0 {
				on = pick(d, days...) + "," + pick(d, days...)
			}
			zone := night.zone
			if d.IntN(4) == 0 {
				zone = pick(d, nights...).zone
			}
			start := fmt.Sprintf("%02d:%02d", pick(d, 0, 0, 1, 2, 2, 3, 22, 23, d.IntN(24)), pick(d, 0, 15, 30, 45, d.IntN(60)))
			specs = append(specs, fmt.Sprintf("%s %s %s %s", on, start, pick(d, "10m", "1h", "2h30m", "8h", "24h"), zone))
		}
		text := strings.Join(specs, "; ")
		ws := windowsOf(t, text)
		begin, err := time.Parse(time.DateOnly, night.at)
		if err != nil {
			t.Fatal(err)
		}
		begin = begin.AddDate(0, 0, -5)
		clock := watchClocks(ws, begin, 19*day)
		for range 40 {
			// Two days on either side of the jump, by the second; the watch began
			// long enough before, and goes on for long enough after.
			now := begin.Add(3*day + time.Duration(d.IntN(int(4*day/time.Second)))*time.Second)
			if d.IntN(3) == 0 {
				now = now.Truncate(time.Minute)
			}
			need := pick(d, 0, 10*time.Minute, time.Hour, 3*time.Hour, 24*time.Hour)
			open, until, next := Calendar{Windows: ws}.OpenUntil(now, need)
			if got, want := verdict(open, until, next), clock.ask(now, need); got != want {
				t.Fatalf("seed %d: %q at %s for %v: %s, expected %s", seed, text, now.Format(time.RFC3339), need, got, want)
			}
		}
	}
}

// watched are the minutes in which a window was open.
type watched struct {
	begin time.Time
	open  []bool
}

// watchClocks stands before the clocks on the wall and opens each window once for
// each date that they show: as soon as the clock is not before its time.
func watchClocks(ws []Window, begin time.Time, long time.Duration) watched {
	s := watched{begin, make([]bool, long/time.Minute)}
	for _, w := range ws {
		due := map[int]int{} // the minute that the clock has to show, by date
		seen := map[int]bool{}
		for minute := range s.open {
			clock := begin.Add(time.Duration(minute) * time.Minute).In(w.Zone)
			_, offset := clock.Zone()
			shows := minute + offset/60 + 2*24*60 // counted from two days before the watch began
			date := shows / (24 * 60)
			if !seen[date] && minute > 0 && w.Days[clock.Weekday()] {
				due[date] = date*24*60 + w.Hour*60 + w.Minute
			}
			seen[date] = true
			for date, time := range due {
				if shows >= time {
					delete(due, date)
					for m := minute; m < min(len(s.open), minute+int(w.Duration.Minutes())); m++ {
						s.open[m] = true
					}
				}
			}
		}
	}
	return s
}

// ask says what OpenUntil has to say.
func (s watched) ask(now time.Time, need time.Duration) string {
	at := func(minute int) time.Time { return s.begin.Add(time.Duration(minute) * time.Minute) }
	end := func(minute int) int {
		for minute < len(s.open) && s.open[minute] {
			minute++
		}
		return minute
	}
	far := now.Add(8 * day)
	minute := int(now.Sub(s.begin) / time.Minute)
	var until time.Time
	if s.open[minute] {
		minute = end(minute)
		until = at(minute)
		if until.After(far) {
			return "open"
		}
		if until.Sub(now) >= need {
			return verdict(true, until, time.Time{})
		}
	}
	for ; !at(minute).After(far); minute++ {
		if s.open[minute] {
			if at(end(minute)).Sub(at(minute)) >= need {
				return verdict(false, until, at(minute))
			}
			minute = end(minute)
		}
	}
	return verdict(false, until, time.Time{})
}

func BenchmarkOpenUntil(b *testing.B) {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		b.Fatal(err)
	}
	night := Window{Days: [7]bool{true, false, false, true, false, false, true}, Hour: 2, Duration: 4 * time.Hour, Zone: zone}
	now := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)
	for b.Loop() {
		Calendar{Windows: []Window{night}}.OpenUntil(now, 15*time.Minute)
	}
}
