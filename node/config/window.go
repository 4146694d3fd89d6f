package config

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// windowTable is the name of the list of tables that windows are.
const windowTable = "window"

// maxWindows bounds the number of windows of a host.
const maxWindows = 32

// window is a [[window]] table.
type window struct {
	v1alpha1.Window
	origins map[string]origin // by key; a key that is absent has its default
}

// setWindows replaces all windows by those of a file.
func (c *Config) setWindows(p *parsed) Errors {
	if len(p.windows) > maxWindows {
		return Errors{{File: p.file, Line: p.windows[maxWindows].line, Key: windowTable, Got: strconv.Itoa(len(p.windows)) + " of them",
			Expected: "at most " + strconv.Itoa(maxWindows)}}
	}
	var errs Errors
	c.Windows, c.windows = nil, nil
	for _, t := range p.windows {
		w := window{origins: map[string]origin{}}
		compiled, wrong := w.read(c, t)
		errs = append(errs, wrong...)
		c.Windows, c.windows = append(c.Windows, compiled), append(c.windows, w)
	}
	c.origins[windowTable] = p.windowsAt
	return errs
}

// read sets the window to what a table says. policy.ParseWindow judges the values, so a
// host's windows follow the same rules as a policy's.
func (w *window) read(c *Config, t table) (policy.Window, Errors) {
	var errs Errors
	in := target{c, &w.Window}
	for i := range keys {
		if k := &keys[i]; k.List && k.Default != "" {
			k.setDefault(in)
		}
	}
	for _, s := range t.settings {
		errs = append(errs, in.set(s, w.origins, false)...)
	}
	for i := range keys {
		missing := !slices.ContainsFunc(t.settings, func(s setting) bool { return s.key == keys[i].Name })
		if k := &keys[i]; k.List && k.Default == "" && missing {
			errs = append(errs, &Error{File: t.file, Line: t.line, Key: k.Name, Got: "missing", Expected: strings.ReplaceAll(k.Bounds, "`", "") + ", such as " + k.Example})
		}
	}
	// In a policy, a list without days cannot be told from no list, and stands for all days. Here it is more likely meant to
	// stand for none.
	if at, set := w.origins[windowTable+".days"]; set && len(w.Days) == 0 {
		errs = append(errs, &Error{File: at.file, Line: at.line, Key: windowTable + ".days", Got: "the list []", Expected: "at least one day; without the key, the window opens every day"})
	}
	compiled, problems := policy.ParseWindow(w.Window, time.LoadLocation)
	for _, p := range problems {
		field, _, _ := strings.Cut(p.Field, "[")
		key := windowTable + "." + strings.Replace(field, "timeZone", "time_zone", 1)
		if slices.ContainsFunc(errs, func(e *Error) bool { return e.Key == key }) {
			continue // the value was not taken over
		}
		got, expected, _ := strings.Cut(p.Text, ", expected ")
		errs = append(errs, &Error{File: t.file, Line: w.origins[key].line, Key: key, Got: clip(got), Expected: expected})
	}
	return compiled, errs
}
