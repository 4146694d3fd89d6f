package policy

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Key returns the source and the path or unit of a rule. A rule replaces the rules with
// the same key in policies of lower precedence.
func Key(r *v1alpha1.Rule) string {
	switch {
	case r.Path != "":
		return string(r.Source) + " " + r.Path
	case r.Unit != "":
		return string(r.Source) + " " + r.Unit
	}
	return string(r.Source)
}

func (c *compiler) checkRules(rules []v1alpha1.Rule) {
	seen := map[string]int{}
	for i := range rules {
		r := &rules[i]
		field := "spec.rules[" + strconv.Itoa(i) + "]"
		c.checkRule(field, r)
		key := Key(r)
		if other, twice := seen[key]; twice {
			c.wrong(field, "spec.rules[%[2]d] is already a rule for %[1]s; expected one rule for each", key, other)
		}
		seen[key] = i
	}
}

func (c *compiler) checkRule(field string, r *v1alpha1.Rule) {
	switch r.Source {
	case v1alpha1.SourceFile:
		if r.Path == "" {
			c.wrong(field+".path", "missing, expected the absolute path of a file or directory")
		}
	case v1alpha1.SourceUnit:
		if ValidateUnit(r.Unit) != "" {
			c.wrong(field+".unit", "%q, expected a unit's full name such as containerd.service", r.Unit)
		}
	case v1alpha1.SourceOSUpdate, v1alpha1.SourceSentinel, v1alpha1.SourceRequest, v1alpha1.SourceFleetLock:
	default:
		c.wrong(field+".source", "%q, expected OSUpdate, Sentinel, File, Unit, Request or FleetLock", r.Source)
	}
	if r.Path != "" && r.Source != v1alpha1.SourceFile && r.Source != v1alpha1.SourceSentinel {
		c.wrong(field+".path", "a rule for %s has none", r.Source)
	} else if clean := path.Clean("/" + strings.Map(printable, r.Path)); r.Path != "" && clean != r.Path {
		// A block scalar of YAML ends with a line feed: no file has that name, and no one would notice.
		c.wrong(field+".path", "%q, expected an absolute and clean path, %q", r.Path, clean)
	}
	if r.Unit != "" && r.Source != v1alpha1.SourceUnit {
		c.wrong(field+".unit", "a rule for %s has none", r.Source)
	}
	if r.HoldBack != "" {
		if strings.ContainsAny(r.HoldBack, `[]\`) || r.Source != v1alpha1.SourceOSUpdate {
			c.wrong(field+".holdBack", "%q, expected a pattern of OS versions such as 4081.* (* and ? are all that is special) in a rule for OSUpdate", r.HoldBack)
		}
	}
	if r.Source == v1alpha1.SourceFleetLock && !slices.ContainsFunc(r.Actions, func(a v1alpha1.Action) bool {
		return a.Type == v1alpha1.ActionReboot || a.Type == v1alpha1.ActionNone
	}) {
		c.wrong(field+".actions", "no Reboot, expected Reboot in a rule for FleetLock, since its client reboots the host; or None, which gives it no permission")
	}
	c.checkActions(field, r)
}

// printable drops control characters in [strings.Map].
func printable(r rune) rune {
	if unicode.IsControl(r) {
		return -1
	}
	return r
}

func (c *compiler) checkActions(field string, r *v1alpha1.Rule) {
	if len(r.Actions) == 0 {
		c.wrong(field+".actions", "empty, expected at least one; use None for a change that costs nothing")
	}
	for i, a := range r.Actions {
		at := field + ".actions[" + strconv.Itoa(i) + "]"
		switch a.Type {
		case v1alpha1.ActionReload, v1alpha1.ActionRestart:
			if ValidateUnit(a.Unit) != "" {
				c.wrong(at+".unit", "%q, expected the full name of the unit to %s", a.Unit, strings.ToLower(string(a.Type)))
			} else if g := Refuse(a.Type, a.Unit); g != nil {
				c.wrong(at+".unit", "%s %s, expected %s", a.Unit, g.Why, g.Instead)
			}
			continue
		case v1alpha1.ActionNone:
			if len(r.Actions) > 1 {
				c.wrong(at, "None is listed with other actions, expected None alone")
			}
		case v1alpha1.ActionDrain, v1alpha1.ActionDaemonReload, v1alpha1.ActionReboot:
		default:
			c.wrong(at+".type", "%q, expected None, DaemonReload, Reload, Restart, Drain or Reboot", a.Type)
		}
		if a.Type == v1alpha1.ActionDrain && r.Drain == v1alpha1.DrainNever {
			c.wrong(at, "Drain in a rule with drain: Never; leave one of them out")
		}
		if a.Unit != "" {
			c.wrong(at+".unit", "%s has none", a.Type)
		}
	}
	if r.Drain != "" && r.Drain != v1alpha1.DrainNever {
		c.wrong(field+".drain", "%q, expected Never, or nothing", r.Drain)
	}
}

// unitTypes are the ends of units' names, by their types; see systemd.unit(5).
var unitTypes = strings.Fields(".service .socket .device .mount .automount .swap .target .path .timer .slice .scope")

// ValidateUnit returns why a unit's name is invalid, or "" if it is valid; see
// systemd.unit(5). The name of a template is invalid.
func ValidateUnit(name string) string {
	kind := path.Ext(name)
	stem := strings.TrimSuffix(name, kind)
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_.\\@"
	switch {
	case stem == "" || !slices.Contains(unitTypes, kind):
		return "no type of unit at its end"
	case len(name) > 255:
		return "longer than 255 bytes"
	case strings.Trim(stem, allowed) != "":
		return "characters that a unit's name cannot hold"
	case strings.HasSuffix(stem, "@"), strings.HasPrefix(stem, "@"):
		return "a template; name an instance of it"
	}
	return ""
}
