package policy

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// blackoutsOf reads "2026-12-20 2027-01-03 Europe/Berlin; 2026-12-24T18:00 2026-12-24T20:00 UTC".
func blackoutsOf(t *testing.T, text string) (all []Blackout) {
	for spec := range strings.SplitSeq(text, ";") {
		f := strings.Fields(spec)
		if len(f) == 0 {
			continue
		}
		b, problems := parseBlackout(&v1alpha1.Blackout{Start: f[0], End: f[1], TimeZone: f[2]}, time.LoadLocation)
		if len(problems) > 0 {
			t.Fatalf("%s: %v", spec, problems)
		}
		all = append(all, b)
	}
	return all
}

// TestBlackoutEnds has its instants worked out by hand.
func TestBlackoutEnds(t *testing.T) {
	for text, want := range map[string]string{
		"2026-12-20 2027-01-03 Europe/Berlin":             "2026-12-19T23:00:00Z 2027-01-03T23:00:00Z",
		"2026-12-24 2026-12-24 UTC":                       "2026-12-24T00:00:00Z 2026-12-25T00:00:00Z",
		"2028-02-28 2028-02-29 UTC":                       "2028-02-28T00:00:00Z 2028-03-01T00:00:00Z",
		"2026-12-31 2026-12-31 Asia/Kathmandu":            "2026-12-30T18:15:00Z 2026-12-31T18:15:00Z",
		"2026-12-24T18:00 2026-12-25 America/New_York":    "2026-12-24T23:00:00Z 2026-12-26T05:00:00Z",
		"2026-12-24 2026-12-24T06:30 UTC":                 "2026-12-24T00:00:00Z 2026-12-24T06:30:00Z",
		"2026-03-29 2026-03-29 Europe/Berlin":             "2026-03-28T23:00:00Z 2026-03-29T22:00:00Z", // 23 hours
		"2026-10-25 2026-10-25 Europe/Berlin":             "2026-10-24T22:00:00Z 2026-10-25T23:00:00Z", // 25 hours
		"2026-03-29T02:30 2026-03-29T04:00 Europe/Berlin": "2026-03-29T01:00:00Z 2026-03-29T02:00:00Z", // 02:30 is skipped: it is 03:00
		"2026-03-29T01:00 2026-03-29T02:30 Europe/Berlin": "2026-03-29T00:00:00Z 2026-03-29T01:00:00Z",
		"2026-10-25T02:30 2026-10-25T02:45 Europe/Berlin": "2026-10-25T00:30:00Z 2026-10-25T01:45:00Z", // from the first to the second
		"2026-10-25T01:00 2026-10-25T02:00 Europe/Berlin": "2026-10-24T23:00:00Z 2026-10-25T01:00:00Z",
		"2026-10-25T01:00 2026-10-25T03:00 Europe/Berlin": "2026-10-24T23:00:00Z 2026-10-25T02:00:00Z",
		// 00:00 of 1 November is there twice, at 04:00 and 05:00 UTC.
		"2026-10-31 2026-10-31 America/Havana": "2026-10-31T04:00:00Z 2026-11-01T05:00:00Z",
		"2026-11-01 2026-11-01 America/Havana": "2026-11-01T04:00:00Z 2026-11-02T05:00:00Z",
		// 24 April begins at 01:00.
		"2026-04-24 2026-04-24 Africa/Cairo": "2026-04-23T22:00:00Z 2026-04-24T21:00:00Z",
		// 30 December 2011 was left out.
		"2011-12-30 2011-12-31 Pacific/Apia": "2011-12-30T10:00:00Z 2011-12-31T10:00:00Z",
	} {
		b := blackoutsOf(t, text)[0]
		if got := b.From.UTC().Format(time.RFC3339) + " " + b.To.UTC().Format(time.RFC3339); got != want {
			t.Errorf("%s: %s, expected %s", text, got, want)
		}
	}
}

// TestBlackoutProblems: what is wrong with a blackout is said of its field, with its value.
func TestBlackoutProblems(t *testing.T) {
	good := v1alpha1.Blackout{Start: "2026-12-20", End: "2027-01-03", TimeZone: "Europe/Berlin", Reason: "the holidays"}
	for name, c := range map[string]struct {
		edit func(*v1alpha1.Blackout)
		want string
	}{
		"good":                   {func(*v1alpha1.Blackout) {}, ""},
		"no reason":              {func(b *v1alpha1.Blackout) { b.Reason = "" }, ""},
		"one day":                {func(b *v1alpha1.Blackout) { b.End = b.Start }, ""},
		"one minute":             {func(b *v1alpha1.Blackout) { b.Start, b.End = "2026-12-20T10:00", "2026-12-20T10:01" }, ""},
		"the last minute":        {func(b *v1alpha1.Blackout) { b.Start, b.End = "2026-12-20T23:59", "2026-12-20" }, ""},
		"skipped by the clock":   {func(b *v1alpha1.Blackout) { b.Start, b.End = "2026-03-29T02:10", "2026-03-29T02:50" }, ""},
		"leap day":               {func(b *v1alpha1.Blackout) { b.Start, b.End = "2028-02-29", "2028-02-29T00:01" }, ""},
		"no leap day":            {func(b *v1alpha1.Blackout) { b.Start = "2026-02-29" }, `start: "2026-02-29", expected a day such as 2026-12-24`},
		"31 November":            {func(b *v1alpha1.Blackout) { b.Start = "2026-11-31" }, `start: "2026-11-31", expected a day`},
		"no start":               {func(b *v1alpha1.Blackout) { b.Start = "" }, `start: "", expected a day`},
		"another century":        {func(b *v1alpha1.Blackout) { b.End = "2126-12-24" }, `end: "2126-12-24", expected a day`},
		"hour 24":                {func(b *v1alpha1.Blackout) { b.End = "2026-12-24T24:00" }, `end: "2026-12-24T24:00", expected a day`},
		"with seconds":           {func(b *v1alpha1.Blackout) { b.End = "2026-12-24T18:00:00Z" }, `end: "2026-12-24T18:00:00Z", expected a day`},
		"with a space":           {func(b *v1alpha1.Blackout) { b.End = "2026-12-24 18:00" }, `end: "2026-12-24 18:00", expected a day`},
		"two lines":              {func(b *v1alpha1.Blackout) { b.End = "2026-12-24\n2026-12-24" }, `end: "2026-12-24 2026-12-24", expected a day`},
		"the end before":         {func(b *v1alpha1.Blackout) { b.End = "2026-12-19" }, `end: "2026-12-19" is not after start, "2026-12-20"`},
		"the end at the start":   {func(b *v1alpha1.Blackout) { b.End = "2026-12-20T00:00" }, `end: "2026-12-20T00:00" is not after start`},
		"the end before by 1m":   {func(b *v1alpha1.Blackout) { b.Start, b.End = "2026-12-20T10:01", "2026-12-20T10:00" }, `end: "2026-12-20T10:00" is not after start`},
		"no zone":                {func(b *v1alpha1.Blackout) { b.TimeZone = "" }, `timeZone: "", expected a name of the IANA time zone database`},
		"the machine's zone":     {func(b *v1alpha1.Blackout) { b.TimeZone = "Local" }, `timeZone: "Local"`},
		"its file's name":        {func(b *v1alpha1.Blackout) { b.TimeZone = "localtime" }, `timeZone: "localtime"`},
		"a zone on Mars":         {func(b *v1alpha1.Blackout) { b.TimeZone = "Mars/Olympus" }, `timeZone: "Mars/Olympus"`},
		"200 characters":         {func(b *v1alpha1.Blackout) { b.Reason = strings.Repeat("ä", 200) }, ""},
		"201 characters":         {func(b *v1alpha1.Blackout) { b.Reason = strings.Repeat("a", 201) }, "reason: 201 characters, expected at most 200"},
		"a reason of two lines":  {func(b *v1alpha1.Blackout) { b.Reason = "a\nb" }, `reason: "a\nb", expected one line`},
		"a reason with a color":  {func(b *v1alpha1.Blackout) { b.Reason = "\x1b[31m" }, `reason: "\x1b[31m", expected one line`},
		"a reason turned around": {func(b *v1alpha1.Blackout) { b.Reason = "\u202e" }, `reason: "\u202e", expected one line`},
	} {
		s, b := v1alpha1.DefaultPolicySpec(), good
		c.edit(&b)
		s.Rollout.Blackouts = []v1alpha1.Blackout{good, b}
		p := compile(s)
		if c.want == "" {
			if len(p.Problems) > 0 || len(p.Blackouts) != 2 {
				t.Errorf("%s: %v", name, p.Problems)
			}
			continue
		}
		if len(p.Problems) != 1 || !strings.HasPrefix(p.Problems[0].String(), "spec.rollout.blackouts[1]."+c.want) {
			t.Errorf("%s: %v, expected %s", name, p.Problems, c.want)
		}
	}
	s := v1alpha1.DefaultPolicySpec()
	unnamed := good
	unnamed.Reason = ""
	s.Rollout.Blackouts = []v1alpha1.Blackout{good, unnamed}
	if p := compile(s); p.Blackouts[0].Name != `blackout "the holidays"` || p.Blackouts[1].Name != "blackout from 2026-12-20" {
		t.Errorf("the blackouts' names are %q and %q", p.Blackouts[0].Name, p.Blackouts[1].Name)
	}
	s.Rollout.Blackouts = nil
	for range 50 {
		s.Rollout.Blackouts = append(s.Rollout.Blackouts, good)
	}
	if p := compile(s); len(p.Problems) > 0 || len(p.Blackouts) != 50 {
		t.Errorf("50 blackouts: %v", p.Problems)
	}
	s.Rollout.Blackouts = append(s.Rollout.Blackouts, good)
	if p := compile(s); len(p.Problems) != 1 || p.Problems[0].String() != "spec.rollout.blackouts: 51 blackouts, expected at most 50: remove those that are over" {
		t.Errorf("51 blackouts: %v", p.Problems)
	}
}

// TestOpenUntilWithBlackouts has its days worked out by hand. The times are UTC's. 2 May 2026 is a Saturday.
func TestOpenUntilWithBlackouts(t *testing.T) {
	for _, c := range []struct{ windows, blackouts, now, need, want string }{
		{"", "2026-05-02 2026-05-02 UTC", "2026-05-01T20:00:00Z", "4h", "open until May 2 00:00:00"},
		{"", "2026-05-02 2026-05-02 UTC", "2026-05-01T20:00:01Z", "4h", "closed until May 2 00:00:00 next May 3 00:00:00"},
		{"", "2026-05-02 2026-05-02 UTC", "2026-05-02T00:00:00Z", "0", "closed next May 3 00:00:00"},
		{"", "2026-05-02 2026-05-02 UTC", "2026-05-02T23:59:59Z", "0", "closed next May 3 00:00:00"},
		{"", "2026-05-02 2026-05-02 UTC", "2026-05-03T00:00:00Z", "4h", "open"},
		{"", "2026-05-02 2026-05-02 UTC", "2026-04-20T00:00:00Z", "4h", "open"}, // it begins in more than eight days
		// Longer than the foresight.
		{"", "2026-05-02 2026-08-31 UTC", "2026-05-03T00:00:00Z", "4h", "closed next Sep 1 00:00:00"},
		{"Sat 02:00 4h UTC", "2026-05-02 2026-08-31 UTC", "2026-05-02T03:00:00Z", "1h", "closed next Sep 5 02:00:00"},
		// Two that touch, one that overlaps, and a gap of an hour.
		{"", "2026-05-02 2026-05-02 UTC; 2026-05-03 2026-05-03 UTC", "2026-05-02T12:00:00Z", "0", "closed next May 4 00:00:00"},
		{"", "2026-05-02 2026-05-05 UTC; 2026-05-03 2026-05-10 UTC", "2026-05-02T12:00:00Z", "0", "closed next May 11 00:00:00"},
		{"", "2026-05-02 2026-05-02 UTC; 2026-05-03T01:00 2026-05-20 UTC", "2026-05-02T12:00:00Z", "1h", "closed next May 3 00:00:00"},
		{"", "2026-05-02 2026-05-02 UTC; 2026-05-03T01:00 2026-05-20 UTC", "2026-05-02T12:00:00Z", "61m", "closed next May 21 00:00:00"},
		// A window that a blackout cuts.
		{"Sat 02:00 4h UTC", "2026-05-02T03:00 2026-05-02T05:00 UTC", "2026-05-02T02:00:00Z", "1h", "open until May 2 03:00:00"},
		{"Sat 02:00 4h UTC", "2026-05-02T03:00 2026-05-02T05:00 UTC", "2026-05-02T02:30:00Z", "1h", "closed until May 2 03:00:00 next May 2 05:00:00"},
		{"Sat 02:00 4h UTC", "2026-05-02T03:00 2026-05-02T05:00 UTC", "2026-05-02T02:30:00Z", "2h", "closed until May 2 03:00:00 next May 9 02:00:00"},
		{"Sat 02:00 4h UTC", "2026-05-02T01:00 2026-05-02T07:00 UTC", "2026-05-02T00:30:00Z", "0", "closed next May 9 02:00:00"},
		// Over a change of the clock.
		{"", "2026-10-25 2026-10-25 Europe/Berlin", "2026-10-25T22:30:00Z", "0", "closed next Oct 25 23:00:00"},
		{"Sun 23:00 2h Europe/Berlin", "2026-10-25 2026-10-25 Europe/Berlin", "2026-10-25T22:30:00Z", "0", "closed next Oct 25 23:00:00"},
		// The zone skipped all of it.
		{"", "2011-12-30 2011-12-30 Pacific/Apia", "2011-12-30T10:00:00Z", "0", "open"},
		{"", "2011-12-30 2011-12-30 Pacific/Apia; 2012-01-02 2012-01-02 UTC", "2012-01-02T10:00:00Z", "0", "closed next Jan 3 00:00:00"},
		{"Fri,Sat 01:00 24h Pacific/Apia", "2011-12-30 2011-12-30 Pacific/Apia", "2011-12-30T15:00:00Z", "24h", "closed until Dec 31 11:00:00 next Jan 5 11:00:00"},
		{"* 00:00 24h UTC", "2026-03-29T02:10 2026-03-29T02:50 Europe/Berlin", "2026-03-29T00:30:00Z", "24h", "open"},
		// The windows are those of the zone, whatever the blackout's.
		{"* 00:00 24h UTC", "2026-05-02 2026-05-02 Pacific/Auckland", "2026-05-01T11:59:59Z", "0", "open until May 1 12:00:00"},
	} {
		now, err := time.Parse(time.RFC3339, c.now)
		if err != nil {
			t.Fatal(err)
		}
		need, err := time.ParseDuration(c.need)
		if err != nil {
			t.Fatal(err)
		}
		calendar := Calendar{windowsOf(t, c.windows), blackoutsOf(t, c.blackouts)}
		if got := verdict(calendar.OpenUntil(now, need)); got != c.want {
			t.Errorf("%q without %q at %s for %s: %s, expected %s", c.windows, c.blackouts, c.now, c.need, got, c.want)
		}
	}
}

// TestCalendarMinuteByMinute compares with a search that asks about each minute.
func TestCalendarMinuteByMinute(t *testing.T) {
	begin := time.Date(2026, 10, 19, 0, 0, 0, 0, time.UTC) // the Monday before a change of the clock
	seeds := uint64(10)
	if os.Getenv("LOCKKEEPER_SOAK") != "" {
		seeds *= 30
	}
	for seed := range seeds {
		d := rand.New(rand.NewPCG(seed, 4))
		at := func() time.Time { return begin.Add(time.Duration(d.IntN(30*24*60)) * time.Minute) }
		c := Calendar{Windows: windowsOf(t, []string{"", "Sat 02:00 4h Europe/Berlin", "* 22:00 8h Europe/Berlin", "Mon,Thu 00:00 24h UTC", "* 00:00 24h UTC"}[d.IntN(5)])}
		for range d.IntN(5) {
			from := at()
			c.Blackouts = append(c.Blackouts, Blackout{From: from, To: from.Add(time.Duration(d.IntN(20*24*60)) * time.Minute)})
		}
		open := make([]bool, 75*24*60)
		for m := range open {
			minute := begin.Add(time.Duration(m) * time.Minute)
			open[m] = c.Blackout(minute) == nil && slices.ContainsFunc(recurring(c.Windows, minute), func(o opening) bool {
				return !o.from.After(minute) && o.to.After(minute)
			}) || len(c.Windows) == 0 && c.Blackout(minute) == nil
		}
		fits := func(m, need int) bool {
			for i := m; i < m+max(need, 1); i++ {
				if !open[i] {
					return false
				}
			}
			return true
		}
		for range 20 {
			m, need := d.IntN(20*24*60), []int{0, 15, 60, 240}[d.IntN(4)]
			now := begin.Add(time.Duration(m) * time.Minute)
			is, _, next := c.OpenUntil(now, time.Duration(need)*time.Minute)
			if is != fits(m, need) {
				t.Fatalf("seed %d: %v without %v at %s for %dm: open %t", seed, c.Windows, c.Blackouts, now, need, is)
			}
			for want := m + 1; !is; want++ {
				if !open[want-1] && fits(want, need) {
					if minute := begin.Add(time.Duration(want) * time.Minute); !next.Equal(minute) {
						t.Fatalf("seed %d: %v without %v at %s for %dm: next %s, expected %s", seed, c.Windows, c.Blackouts, now, need, next, minute)
					}
					break
				}
			}
		}
	}
}
