package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// windowTable is the name of the list of tables that windows are.
const windowTable = "window"

// maxWindows bounds how many windows a host has.
const maxWindows = 32

// windowValues are a window as a file has it, before it is known to be one.
type windowValues struct {
	days     []string
	start    string
	duration time.Duration
	zone     string
}

// windowKeys are the keys of each [[window]] table. policy.ParseWindow has the
// last word on their values, so that a host's windows and a policy's are read
// by the same rules.
var windowKeys = []Key{
	windowKey("days", list("list of days", "of `\"Mon\"`, `\"Tue\"`, `\"Wed\"`, `\"Thu\"`, `\"Fri\"`, `\"Sat\"` and `\"Sun\"`", 7, oneLine(16)),
		`["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]`, `["Sat"]`,
		"The days on which the window opens. One that crosses midnight belongs to the day on which it opens.",
		func(w *windowValues) *[]string { return &w.days }),
	windowKey("start", text("string", "`00:00` to `23:59`", oneLine(16)), "", `"02:00"`,
		"When it opens, by the clocks of `time_zone`. In the night in which they skip that time it opens when they have; in the one in which they show it twice, the first time.",
		func(w *windowValues) *string { return &w.start }),
	windowKey("duration", duration(10*time.Minute, 24*time.Hour, 10*time.Minute), "", `"4h"`,
		"How long it is open, whatever clocks are put forward or back meanwhile.",
		func(w *windowValues) *time.Duration { return &w.duration }),
	windowKey("time_zone", text("string", "a name of the IANA time zone database", oneLine(64)), `"UTC"`, `"UTC"`,
		"The zone of `start` and `days`. The host needs no time zone database for it.",
		func(w *windowValues) *string { return &w.zone }),
}

func init() {
	windowKeys[0].About = "Each `[[window]]` is a time of the week in which this host may be disturbed; without any it may be at all times. " +
		"While none is open the host has a veto, `Window`: it commits to no cordon, no apply and no reboot. A turn that a window closes on is not backed out: " +
		"pods that are being evicted go on being evicted, and then the host waits, drained, until a window opens. What gives the node back to the cluster is done at any time. " +
		"The windows of a file replace all windows of the files before it; `window = []` at the top of a drop-in leaves none."
}

// windowKey ties a kind to the place of its value in a window.
func windowKey[T any](name string, k kind[T], def, example, means string, at func(*windowValues) *T) Key {
	return Key{
		Name: windowTable + "." + name, Type: k.name, Bounds: k.bounds, Default: def, Example: example, Means: means, Reload: reload, List: true,
		setWindow: func(w *windowValues, raw any) string {
			v, expected := k.read(raw, false)
			if expected == "" {
				*at(w) = v
			}
			return expected
		},
	}
}

// window is a [[window]] table as a file has it.
type window struct {
	line   int
	values map[string]windowValue // by key, without the table's name
}

type windowValue struct {
	line int
	raw  any
}

// windows takes in the value of the key window: a list of tables.
func (w *walk) windows(line int, value toml.Primitive, raw any) {
	wrong := func(got, expected string) {
		w.wrong = append(w.wrong, &Error{File: w.file, Line: line, Key: windowTable, Got: got, Expected: expected})
	}
	var tables []map[string]toml.Primitive
	// The decoder makes empty maps of what are no tables.
	if !tablesOnly(raw) || w.md.PrimitiveDecode(value, &tables) != nil {
		wrong(show(raw), "tables [["+windowTable+"]]")
		return
	}
	if len(tables) > maxWindows {
		wrong(strconv.Itoa(len(tables))+" of them", "at most "+strconv.Itoa(maxWindows))
		return
	}
	heads := headers(w.data)
	found := []window{}
	for i, t := range tables {
		one := window{line: line, values: map[string]windowValue{}}
		lineOf := func(string) int { return line }
		if len(heads) == len(tables) { // else they stand on one line
			one.line = heads[i].line
			lineOf = w.linesOf(heads, i)
		}
		for name, value := range t {
			var raw any
			if err := w.md.PrimitiveDecode(value, &raw); err != nil {
				w.wrong = append(w.wrong, &Error{File: w.file, Line: lineOf(name), Key: windowTable + "." + clip(name), Err: err})
				continue
			}
			one.values[name] = windowValue{lineOf(name), raw}
		}
		found = append(found, one)
	}
	w.found = append(w.found, setting{origin: origin{w.file, line}, key: windowTable, raw: found})
}

func tablesOnly(raw any) bool {
	switch list := raw.(type) {
	case []map[string]any:
		return true
	case []any:
		return !slices.ContainsFunc(list, func(v any) bool { _, ok := v.(map[string]any); return !ok })
	}
	return false
}

// header is a line [[window]].
type header struct {
	line  int // from 1
	begin int // where the line begins in the text, in bytes
}

var windowHeader = regexp.MustCompile(`(?m)^[ \t]*\[\[[ \t]*(window|"window"|'window')[ \t]*\]\]`)

// headers finds the lines [[window]] in a text that is known to be TOML. What
// looks like one and stands inside of a string is none: the text before the end
// of that line is no TOML then.
func headers(data []byte) []header {
	var heads []header
	for _, at := range windowHeader.FindAllIndex(data, 4*maxWindows) {
		if tables, _ := lastWindow(data[:at[1]]); tables == len(heads)+1 {
			heads = append(heads, header{1 + strings.Count(string(data[:at[0]]), "\n"), at[0]})
		}
	}
	return heads
}

// lastWindow decodes a text and returns how many windows it has, and how to
// find out on which line a key of the last of them stands.
func lastWindow(data []byte) (tables int, line func(key string) int) {
	var root map[string]toml.Primitive
	md, err := toml.Decode(string(data), &root)
	if err != nil {
		return 0, nil
	}
	var all []map[string]toml.Primitive
	if value, ok := root[windowTable]; !ok || md.PrimitiveDecode(value, &all) != nil || len(all) == 0 {
		return 0, nil
	}
	w := &walk{md: &md}
	return len(all), func(key string) int { return w.line(all[len(all)-1][key]) }
}

// linesOf returns how to find out on which line a key of the i-th window stands.
// The decoder knows one line for a key of all tables of a list, the last: so
// what comes after the i-th is cut off.
func (w *walk) linesOf(heads []header, i int) func(key string) int {
	end := len(w.data)
	if i+1 < len(heads) {
		end = heads[i+1].begin
	}
	if _, line := lastWindow(w.data[:end]); line != nil {
		return line
	}
	return func(string) int { return heads[i].line }
}

// setWindows takes in a file's windows, in place of those before.
func (c *Config) setWindows(s setting) Errors {
	var errs Errors
	var all []policy.Window
	var origins []map[string]origin
	for _, t := range s.raw.([]window) {
		w, wrong := readWindow(s.file, t)
		if len(wrong) > 0 {
			errs = append(errs, wrong...)
			continue
		}
		where := map[string]origin{}
		for name, v := range t.values {
			where[windowTable+"."+name] = origin{s.file, v.line}
		}
		all, origins = append(all, w), append(origins, where)
	}
	if len(errs) == 0 {
		c.Windows, c.windowOrigins = all, origins
		c.origins[windowTable] = s.origin
	}
	return errs
}

// readWindow reads one window; the errors are in no order.
func readWindow(file string, t window) (policy.Window, Errors) {
	var errs Errors
	v := windowValues{zone: "UTC"}
	for i := range windowKeys {
		k := &windowKeys[i]
		name := strings.TrimPrefix(k.Name, windowTable+".")
		given, ok := t.values[name]
		if !ok {
			if k.Default == "" {
				errs = append(errs, &Error{File: file, Line: t.line, Key: k.Name, Got: "missing", Expected: strings.ReplaceAll(k.Bounds, "`", "") + ", such as " + k.Example})
			}
			continue
		}
		if expected := k.setWindow(&v, given.raw); expected != "" {
			errs = append(errs, &Error{File: file, Line: given.line, Key: k.Name, Got: show(given.raw), Expected: expected})
		}
	}
	for name, given := range t.values {
		if full := (toml.Key{windowTable, name}).String(); !slices.ContainsFunc(windowKeys, func(k Key) bool { return k.Name == full }) {
			errs = append(errs, &Error{File: file, Line: given.line, Key: full, Got: "not a known key", Expected: wanted(full)})
		}
	}
	if len(errs) > 0 {
		return policy.Window{}, errs
	}
	spec := v1alpha1.Window{Start: v.start, Duration: metav1.Duration{Duration: v.duration}, TimeZone: v.zone}
	for _, d := range v.days {
		spec.Days = append(spec.Days, v1alpha1.Day(d))
	}
	w, problems := policy.ParseWindow(spec, time.LoadLocation)
	for _, p := range problems {
		field, _, _ := strings.Cut(p.Field, "[")
		if field == "timeZone" {
			field = "time_zone"
		}
		got, expected, _ := strings.Cut(p.Text, ", expected ")
		errs = append(errs, &Error{File: file, Line: t.lineOf(field), Key: windowTable + "." + field, Got: clip(got), Expected: expected})
	}
	return w, errs
}

// lineOf is where a key stands or, if it is not there, its table.
func (t *window) lineOf(field string) int {
	if v, ok := t.values[field]; ok {
		return v.line
	}
	return t.line
}

// windowTexts are a window's values as TOML, in the order of windowKeys.
func windowTexts(w policy.Window) []string {
	var days []string
	for i := range w.Days {
		if d := time.Weekday((i + 1) % 7); w.Days[d] { // weeks begin on Monday
			days = append(days, strconv.Quote(d.String()[:3]))
		}
	}
	return []string{
		"[" + strings.Join(days, ", ") + "]", fmt.Sprintf(`"%02d:%02d"`, w.Hour, w.Minute), strconv.Quote(short(w.Duration)), strconv.Quote(w.Zone.String()),
	}
}
