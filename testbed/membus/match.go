package membus

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/godbus/dbus/v5"
)

// rule is a match rule for signals.
type rule struct {
	text   string // as it was added; RemoveMatch compares it
	fields map[string]string
	args   map[int]string
}

// parseRule parses a match rule. It knows the keys that the daemon uses for signals, without arg0namespace and argNpath.
func parseRule(text string) (rule, *problem) {
	r := rule{text: text, fields: map[string]string{}, args: map[int]string{}}
	for rest := text; rest != ""; {
		key, quoted, ok := strings.Cut(rest, "='")
		value, after, closed := strings.Cut(quoted, "'")
		if !ok || !closed {
			return rule{}, &problem{"MatchRuleInvalid", "Match rule has a key with no subsequent '=' character"}
		}
		rest = strings.TrimPrefix(after, ",")
		if n, err := strconv.Atoi(strings.TrimPrefix(key, "arg")); err == nil && strings.HasPrefix(key, "arg") {
			r.args[n] = value
			continue
		}
		if !slices.Contains([]string{"type", "sender", "interface", "member", "path", "path_namespace", "destination"}, key) {
			return rule{}, &problem{"MatchRuleInvalid", fmt.Sprintf("Unknown key %q in match rule", key)}
		}
		r.fields[key] = value
	}
	return r, nil
}

// matches reports whether the rule lets a signal through; from is nil for the daemon's own.
func (r rule) matches(b *Bus, m *packet, from *peer) bool {
	for key, want := range r.fields {
		path := m.text(dbus.FieldPath)
		ok := true
		switch key {
		case "type":
			ok = want == "signal"
		case "sender":
			ok = from == nil && want == daemonName || from != nil && b.owner(want) == from
		case "interface":
			ok = m.text(dbus.FieldInterface) == want
		case "member":
			ok = m.text(dbus.FieldMember) == want
		case "path":
			ok = path == want
		case "path_namespace":
			ok = path == want || strings.HasPrefix(path, strings.TrimSuffix(want, "/")+"/")
		case "destination":
			ok = false // a broadcast has none
		}
		if !ok {
			return false
		}
	}
	for n, want := range r.args {
		if args, err := m.body(); err != nil || n >= len(args) || args[n] != want {
			return false
		}
	}
	return true
}

func (b *Bus) addMatch(p *peer, text string, _ []any) ([]any, *problem) {
	r, refused := parseRule(text)
	if refused != nil {
		return nil, refused
	}
	p.rules = append(p.rules, r)
	return nil, nil
}

func (b *Bus) removeMatch(p *peer, text string, _ []any) ([]any, *problem) {
	if _, refused := parseRule(text); refused != nil {
		return nil, refused
	}
	at := slices.IndexFunc(p.rules, func(r rule) bool { return r.text == text })
	if at < 0 {
		return nil, &problem{"MatchRuleNotFound", "The given match rule wasn't found and can't be removed"}
	}
	p.rules = slices.Delete(p.rules, at, at+1)
	return nil, nil
}
