package page

import (
	"strings"
	"testing"
	"time"
)

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"plain, \u00e4 \u4e16":              "plain, \u00e4 \u4e16",
		"\x1b[2J\a\r\n\t":                   `\x1b[2J\a\r\n\t`,
		"\u009b31m\u202egnp\u200d":          `\u009b31m\u202egnp\u200d`,
		"\U000e0041":                        `\U000e0041`,
		"a\xff\xc3(\xe4\xb8":                `a\xff\xc3(\xe4\xb8`,
		"\ufffd":                            "\ufffd",
		"\u0301x":                           `\u0301x`, // it would change the character before the text
		"e" + strings.Repeat("\u0301", 6):   "e" + strings.Repeat("\u0301", 4) + `\u0301\u0301`,
		"back\\slash":                       "back\\slash",
		strings.Repeat("x", maxText) + "yz": strings.Repeat("x", maxText) + "…",
	} {
		got := Visible(in)
		if got != want {
			t.Errorf("%.40q: %.200q, expected %.200q", in, got, want)
		}
		if again := Visible(got); len(got) < maxText && again != got {
			t.Errorf("%.40q: it becomes %q when it is made visible again", in, again)
		}
	}
}

func TestColumns(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "abc": 3, "\u00e4": 1, "a\u0308": 1, "\u4e16\u754c": 4, "\uff21": 2, "\uac00": 2, "\U0001f525": 2, "…": 1, "\u20e3": 0,
	} {
		if got := Columns(text); got != want {
			t.Errorf("%q: %d columns, expected %d", text, got, want)
		}
	}
	for _, tc := range []struct{ got, want string }{
		{Clip("\u4e16\u754c", 4), "\u4e16\u754c"}, {Clip("\u4e16\u754c", 3), "\u4e16…"}, {Clip("\u4e16\u754c\u4e16", 4), "\u4e16…"},
		{Clip("a\u0308bc", 2), "a\u0308…"}, {Clip("abc", 1), "…"},
		{clipMiddle("worker-10-0-0-17.example", 12), "worker…ample"}, {clipMiddle("abcdef", 4), "abc…"}, {clipMiddle("abc", 3), "abc"},
		{strings.Join(wrap("one two three", 7), "|"), "one two|three"},
		{strings.Join(wrap("one two three", 5), "|"), "one|two|three"},
		{strings.Join(wrap("abcdefgh ij", 3), "|"), "abc|def|gh|ij"},
		{strings.Join(wrap("\u4e16\u754c\u4e16", 3), "|"), "\u4e16|\u754c|\u4e16"},
		{strings.Join(wrap("", 3), "|"), ""},
	} {
		if tc.got != tc.want {
			t.Errorf("%q, expected %q", tc.got, tc.want)
		}
	}
}

func TestAbout(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "1m", time.Second: "1m", time.Minute: "1m", 61 * time.Second: "2m", 10 * time.Minute: "10m", 601 * time.Second: "15m",
		55*time.Minute + 1: "1h", 61 * time.Minute: "1h30m", 5 * time.Hour: "5h", 6*time.Hour + 1: "7h", 49 * time.Hour: "2d12h", 200 * time.Hour: "9d",
	} {
		if got := About(d); got != want {
			t.Errorf("%v: %s, expected %s", d, got, want)
		}
	}
}

func TestWhen(t *testing.T) {
	for _, tc := range []struct {
		d    time.Duration
		want string
	}{
		{0, "0s"}, {59999 * time.Millisecond, "59s"}, {time.Minute, "1m"}, {61 * time.Second, "1m1s"}, {time.Hour, "1h"},
		{time.Hour + 59*time.Minute + 59*time.Second, "1h59m"}, {24 * time.Hour, "1d"}, {400*24*time.Hour + 5*time.Hour, "400d5h"}, {-time.Minute, "1m"},
	} {
		if got := Span(tc.d); got != tc.want {
			t.Errorf("%v: %s, expected %s", tc.d, got, tc.want)
		}
	}
	for _, tc := range []struct{ got, want string }{
		{Ago(now, at("13:02:00")), "2m5s ago (13:02:00Z)"},
		{Ago(now, at("13:04:45")), "in 40s (13:04:45Z)"},
		{Ago(now, at("13:04:05").AddDate(0, 0, -2)), "2d ago (2026-11-19 13:04:05Z)"},
		{Ago(now, time.Time{}), "at an unknown time"},
		{Since(now, nil), "-"},
		{Since(now, new(now.Add(time.Second))), "0s (13:04:06Z)"}, // another's clock
	} {
		if tc.got != tc.want {
			t.Errorf("%s, expected %s", tc.got, tc.want)
		}
	}
}

var now = time.Date(2026, 11, 21, 13, 4, 5, 0, time.UTC)

func at(clock string) time.Time {
	t, err := time.Parse("15:04:05", clock)
	if err != nil {
		panic(err)
	}
	return time.Date(2026, 11, 21, t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

func TestColors(t *testing.T) {
	for color, want := range map[bool]string{
		false: "an alert that does not fit\n  into the line\nA    B\nred  red\nx    y\n",
		true:  "\x1b[31man alert that does not fit\x1b[0m\n\x1b[31m  into the line\x1b[0m\nA    B\n\x1b[31mred\x1b[0m  red\nx    y\n",
	} {
		p := New(28)
		p.Color, p.Attention = color, map[string]bool{"red": true, "A": true}
		p.Alert("an alert that does not fit into the line")
		p.Table("", []string{"A", "B"}, [][]string{{"red", "red"}, {"x", "y"}})
		if got := p.String(); got != want {
			t.Errorf("color %t: %q, expected %q", color, got, want)
		}
		for line := range strings.Lines(p.String()) {
			if n := Columns(strings.TrimSuffix(line, "\n")); n > 28 {
				t.Errorf("color %t: %d columns in %q", color, n, line)
			}
		}
	}
}
