package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/policy"
)

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

// Every mistake in one of several windows is told with the line in that window.
func TestWindowMistakes(t *testing.T) {
	const good = "start = \"02:00\"\nduration = \"4h\"\n"
	for _, tc := range []struct{ name, text, want string }{
		{"a day that is none", "[[window]]\n" + good + "days = [\"Sat\", \"Sonntag\"]\n",
			"lockkeeper.toml:4: window.days: \"Sonntag\", expected Mon, Tue, Wed, Thu, Fri, Sat or Sun"},
		{"a day twice", "[[window]]\n" + good + "days = [\"Sat\", \"Sat\"]\n",
			"lockkeeper.toml:4: window.days: the list [Sat Sat], expected each value once, not \"Sat\" twice"},
		{"no day", "[[window]]\n" + good + "days = []\n",
			"lockkeeper.toml:4: window.days: the list [], expected at least one day; without the key, the window opens every day"},
		{"one day, no list", "[[window]]\n" + good + "days = \"Sat\"\n",
			"lockkeeper.toml:4: window.days: \"Sat\", expected a list, such as [\"…\", \"…\"]"},
		{"no such time of the day", "[[window]]\nstart = \"24:00\"\nduration = \"4h\"\n",
			"lockkeeper.toml:2: window.start: \"24:00\", expected a time of the day, 00:00 to 23:59"},
		{"a time of TOML's", "[[window]]\nstart = 02:00:00\nduration = \"4h\"\n",
			"lockkeeper.toml:2: window.start: a time without quotes, expected a string in quotes"},
		{"too short", "[[window]]\nstart = \"02:00\"\nduration = \"9m59s\"\n",
			"lockkeeper.toml:3: window.duration: \"9m59s\", expected 10m to 24h"},
		{"too long", "[[window]]\nstart = \"02:00\"\nduration = \"24h1s\"\n",
			"lockkeeper.toml:3: window.duration: \"24h1s\", expected 10m to 24h"},
		{"no such zone", "[[window]]\n" + good + "time_zone = \"Europe/Bielefeld\"\n",
			"lockkeeper.toml:4: window.time_zone: \"Europe/Bielefeld\", expected a name of the IANA time zone database, such as Europe/Berlin or UTC"},
		{"the machine's zone, whatever it is", "[[window]]\n" + good + "time_zone = \"Local\"\n",
			"lockkeeper.toml:4: window.time_zone: \"Local\", expected a name of the IANA time zone database, such as Europe/Berlin or UTC"},
		{"no zone", "[[window]]\n" + good + "time_zone = \"\"\n",
			"lockkeeper.toml:4: window.time_zone: \"\", expected a name of the IANA time zone database, such as Europe/Berlin or UTC"},
		{"nothing in it", "\n[[window]]\n",
			"lockkeeper.toml:2: window.duration: missing, expected 10m to 24h, such as \"4h\"; " +
				"lockkeeper.toml:2: window.start: missing, expected 00:00 to 23:59, such as \"02:00\""},
		{"a policy's word", "[[window]]\n" + good + "timeZone = \"UTC\"\n",
			"lockkeeper.toml:4: window.timeZone: not a known key, expected window.time_zone"},
		{"another table's key", "[[window]]\n" + good + "paused = \"x\"\n",
			"lockkeeper.toml:4: window.paused: not a known key, expected one of the keys that `lockkeeper check-config --effective` lists"},
		{"a key of windows at the top", "time_zone = \"UTC\"\n",
			"lockkeeper.toml:1: time_zone: not a known key, expected window.time_zone (in the table [[window]])"},
		{"misspelt", "[[windows]]\n" + good,
			"lockkeeper.toml:1: windows: not a known key, expected [[window]]"},
		{"one pair of brackets", "[window]\n" + good,
			"lockkeeper.toml:1: window: a table, expected tables [[window]]"},
		{"no table", "window = [[], {}]\n",
			"lockkeeper.toml:1: window: the list [[] map[]], expected tables [[window]]"},
		{"a number", "window = 3\n",
			"lockkeeper.toml:1: window: 3, expected tables [[window]]"},
		{"the first and the third of three", "[[window]]\nstart = 1\nduration = \"1h\"\n\n# [[window]]\n[[ \"window\" ]] # fine\n" + good +
			"[[window]]\nduration = \"1h\"\n\nstart = \"2:00\"\n[reboot]\nmin_uptime = \"0s\"\n",
			"lockkeeper.toml:2: window.start: 1, expected a string in quotes; " +
				"lockkeeper.toml:12: window.start: \"2:00\", expected a time of the day, 00:00 to 23:59; " +
				"lockkeeper.toml:14: reboot.min_uptime: \"0s\", expected 1m to 1h"},
		{"several in one", "[[window]]\nstart = \"25:00\"\n[[window]]\ndays = [\"Monday\"]\nstart = \"22:00\"\nduration = \"30h\"\ntime_zone = \"Mars/X\"\n",
			"lockkeeper.toml:1: window.duration: missing, expected 10m to 24h, such as \"4h\"; " +
				"lockkeeper.toml:2: window.start: \"25:00\", expected a time of the day, 00:00 to 23:59; " +
				"lockkeeper.toml:4: window.days: \"Monday\", expected Mon, Tue, Wed, Thu, Fri, Sat or Sun; " +
				"lockkeeper.toml:6: window.duration: \"30h\", expected 10m to 24h; " +
				"lockkeeper.toml:7: window.time_zone: \"Mars/X\", expected a name of the IANA time zone database, such as Europe/Berlin or UTC"},
		{"a header in a string", "paused = '''\n[[window]]\n'''\n[[window]]\n" + good + "[[window]]\nstart = \"\"\nduration = \"4h\"\n",
			"lockkeeper.toml:1: paused: \"[[window]] \", expected one line of at most 256 bytes; " +
				"lockkeeper.toml:8: window.start: \"\", expected a time of the day, 00:00 to 23:59"},
		{"on one line", "mode = \"act\"\nwindow = [{ start = \"02:00\", duration = \"4h\" }, { start = \"25:00\", duration = \"4h\" }]\n",
			"lockkeeper.toml:2: window.start: \"25:00\", expected a time of the day, 00:00 to 23:59"},
		{"too many", strings.Repeat("[[window]]\n"+good, 33),
			"lockkeeper.toml:97: window: 33 of them, expected at most 32"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, got := loadText(t, tc.text)
			if got != tc.want {
				t.Errorf("got\n%s\nexpected\n%s", got, tc.want)
			}
			if c != nil {
				t.Error("a Config came with the error")
			}
		})
	}
}

// Windows are a list: those of a later file replace all of an earlier one's, and none is a list too.
func TestWindowsOfDropIns(t *testing.T) {
	const first, second = "[[window]]\nstart = \"01:00\"\nduration = \"1h\"\n", "[[window]]\nstart = \"02:00\"\nduration = \"1h\"\n"
	for _, tc := range []struct {
		name, file, dropIn, want string
	}{
		{"none", "", "", ""},
		{"the file's", first + second, "", "01:00 02:00 l.toml:1 l.toml:4"},
		{"the drop-in's", first + first, second, "02:00 config.d/d.toml:1"},
		{"emptied", first, "window = []\n", ""},
		{"on one line", "", "window = [{ start = \"03:00\", duration = \"1h\" }]\n", "03:00 config.d/d.toml:1"},
	} {
		dir := tree(t, map[string]string{"l.toml": tc.file, "config.d/d.toml": tc.dropIn})
		c, _, err := Load(Options{File: filepath.Join(dir, "l.toml")})
		if err != nil {
			t.Fatal(err)
		}
		var starts, origins []string
		for _, w := range c.Windows {
			starts = append(starts, fmt.Sprintf("%02d:%02d", w.Hour, w.Minute))
		}
		for _, v := range c.Effective() {
			if v.Name == "window.start" {
				// Its table stands on the line above.
				file, line, _ := strings.Cut(strings.TrimPrefix(v.Origin, dir+"/"), ":")
				var n int
				fmt.Sscan(line, &n)
				if strings.HasPrefix(tc.dropIn, "window = [{") {
					n++
				}
				origins = append(origins, fmt.Sprintf("%s:%d", file, n-1))
			}
		}
		if got := strings.Join(append(starts, origins...), " "); got != tc.want {
			t.Errorf("%s: %q, expected %q", tc.name, got, tc.want)
		}
	}
}

func TestWindowsInEffect(t *testing.T) {
	dir := tree(t, map[string]string{"l.toml": `
[[window]]
duration = "90m"
start = "23:05"
[[window]]
days = ["Sun", "Sat"]
start = "02:00"
duration = "4h"
time_zone = "Australia/Lord_Howe"
[hooks]
timeout = "1s"
`})
	c, _, err := Load(Options{File: filepath.Join(dir, "l.toml")})
	if err != nil {
		t.Fatal(err)
	}
	want := []policy.Window{
		{Days: [7]bool{true, true, true, true, true, true, true}, Hour: 23, Minute: 5, Duration: 90 * time.Minute, Zone: zone(t, "UTC")},
		{Days: [7]bool{time.Saturday: true, time.Sunday: true}, Hour: 2, Duration: 4 * time.Hour, Zone: zone(t, "Australia/Lord_Howe")},
	}
	if !reflect.DeepEqual(c.Windows, want) {
		t.Errorf("%+v, expected %+v", c.Windows, want)
	}
	var b strings.Builder
	if err := c.WriteEffective(&b); err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(strings.ReplaceAll(b.String(), dir, "DIR"), "\n[[window]]")
	text = "[[window]]" + text
	const shown = `[[window]]
days = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"] # default
start = "23:05" # DIR/l.toml:4
duration = "1h30m" # DIR/l.toml:3
time_zone = "UTC" # default

[[window]]
days = ["Sun", "Sat"] # DIR/l.toml:6
start = "02:00" # DIR/l.toml:7
duration = "4h" # DIR/l.toml:8
time_zone = "Australia/Lord_Howe" # DIR/l.toml:9
`
	if strings.Join(strings.Fields(text), " ") != strings.Join(strings.Fields(shown), " ") {
		t.Errorf("shown\n%s\nexpected\n%s", text, shown)
	}
	again, wrong := loadText(t, b.String())
	if wrong != "" {
		t.Fatalf("what it writes is not valid: %s", wrong)
	}
	if !reflect.DeepEqual(again.Windows, c.Windows) {
		t.Errorf("written and read again: %+v", again.Windows)
	}
}

func TestPrometheusURL(t *testing.T) {
	for _, good := range []string{"http://127.0.0.1:9090", "https://p.example.com/a/b", "http://[::1]:9090/", "HTTP://p"} {
		if wrong := webAddress(good); wrong != "" {
			t.Errorf("%s: %s", good, wrong)
		}
	}
	for _, bad := range []string{"127.0.0.1:9090", "p.example.com", "ftp://p", "http://", "http:p", "http://:9090", "http://u:p@h", "http://h?x", "http://h/?", "http://h/#x", "http://h/ x", "http://h/" + strings.Repeat("a", 1100), "http://h\n"} {
		if webAddress(bad) == "" {
			t.Errorf("%q is taken", bad)
		}
	}
	_, wrong := loadText(t, "[coordinator]\nprometheus_url = \"localhost:9090\"\nprometheus_token_file = \"token\"\n")
	const want = `lockkeeper.toml:2: coordinator.prometheus_url: "localhost:9090", expected an address such as "http://127.0.0.1:9090" or "https://prometheus.example.com/path", without a user, ? and #, or "" for no server, which closes all gates; ` +
		`lockkeeper.toml:3: coordinator.prometheus_token_file: "token", expected an absolute path without . and .. and // in it, or "" for no token`
	if wrong != want {
		t.Errorf("got\n%s\nexpected\n%s", wrong, want)
	}
}
