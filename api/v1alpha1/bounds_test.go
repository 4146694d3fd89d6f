package v1alpha1

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestBounds: the limits of the records, in bytes. Readers of other versions have them too.
func TestBounds(t *testing.T) {
	for name, c := range map[string]struct{ got, want int }{
		"record": {maxRecord, 32768}, "grant": {maxGrant, 29696}, "host": {MaxHost, 16384}, "steps": {MaxSteps, 8192},
		"lowest priority": {MinPriority, -1000}, "highest priority": {MaxPriority, 1000},
		"hours that a token may last": {int(MaxTokenLifetime / time.Hour), 8760},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, expected %d", name, c.got, c.want)
		}
	}
}

// padded returns the text with x in place of PAD, so many that it has the length.
func padded(text string, length int) string {
	return strings.Replace(text, "PAD", strings.Repeat("x", length-len(text)+len("PAD")), 1)
}

// TestParseAtTheLimit: a text of exactly the limit is read, and one that is longer by a byte is not.
func TestParseAtTheLimit(t *testing.T) {
	const (
		host  = `{"protocol":1,"nodeUID":"u","bootID":"b","osVersion":"PAD"}`
		grant = `{"turn":"t","epoch":"e","nodeUID":"u","wants":"reboot","osVersion":"PAD"}`
		last  = `{"turn":"PAD","result":"Done"}`
	)
	for name, c := range map[string]struct {
		text  string
		limit int
		parse func(string) error
	}{
		"host":    {host, 16384, func(s string) error { _, err := ParseHost(s); return err }},
		"grant":   {grant, 32768, func(s string) error { _, err := ParseGrant(s); return err }},
		"last":    {last, 32768, func(s string) error { _, err := ParseLast(s); return err }},
		"intent":  {`{"reason":"PAD"}`, 32768, func(s string) error { _, err := ParseIntent(s); return err }},
		"request": {`{"action":"reboot","reason":"PAD"}`, 32768, func(s string) error { _, err := ParseRequest(s); return err }},
	} {
		if err := c.parse(padded(c.text, c.limit)); err != nil {
			t.Errorf("%s: %d bytes: %v", name, c.limit, err)
		}
		if err := c.parse(padded(c.text, c.limit+1)); err == nil || !strings.Contains(err.Error(), "bytes, expected at most") {
			t.Errorf("%s: %d bytes: error %v", name, c.limit+1, err)
		}
	}
	for length, fits := range map[int]bool{29696: true, 29697: false} {
		g := Grant{OSVersion: "x"}
		g.OSVersion = strings.Repeat("x", 1+length-len(FormatRecord(g)))
		if g.Fits() != fits {
			t.Errorf("a grant of %d bytes fits: %t", len(FormatRecord(g)), !fits)
		}
	}
}

// TestTrimAtTheLimit: a record of exactly MaxHost bytes, and steps of exactly MaxSteps bytes, are published whole.
func TestTrimAtTheLimit(t *testing.T) {
	for _, over := range []int{0, 1} {
		plan := Host{Plan: []string{"x"}}
		plan.Plan[0] = strings.Repeat("x", 1+MaxHost-len(FormatRecord(plan))+over)
		changes := Host{Changes: []Change{{Source: SourceFile, Name: "x"}}}
		changes.Changes[0].Name = strings.Repeat("x", 1+MaxHost-len(FormatRecord(changes))+over)
		steps := Host{Steps: []Action{{Type: ActionRestart, Unit: "x"}}}
		steps.Steps[0].Unit = strings.Repeat("x", 1+MaxSteps-len(FormatRecord(steps.Steps))+over)
		for name, h := range map[string]*Host{"plan": &plan, "changes": &changes, "steps": &steps} {
			if h.Trim(); len(h.Plan)+len(h.Changes)+len(h.Steps) != 1-over {
				t.Errorf("%s, %d bytes over: %d lines, %d changes, %d steps are left", name, over, len(h.Plan), len(h.Changes), len(h.Steps))
			}
		}
	}
}

// TestCharacters: which characters an ID and a label may have, at the ends of each range and next to them.
func TestCharacters(t *testing.T) {
	for c := range 256 {
		allowed := strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", rune(c)) && c < 128
		id := "a" + string([]byte{byte(c)}) + "a"
		within := allowed || c == '-' || c == '_' || c == '.'
		if err := ValidateID(id); (err == nil) != within {
			t.Errorf("the ID %q: %v", id, err)
		}
		want := id
		if !within {
			want = "a-a"
		}
		if got := LabelValue(id); got != want {
			t.Errorf("the label of %q: %q, expected %q", id, got, want)
		}
		want = ""
		if allowed {
			want = string([]byte{byte(c)})
		}
		if got := LabelValue(string([]byte{byte(c)})); got != want {
			t.Errorf("the label of the byte %d: %q, expected %q", c, got, want)
		}
	}
	for length, ok := range map[int]bool{0: false, 1: true, 320: true, 321: false} {
		if err := ValidateID(strings.Repeat("a", length)); (err == nil) != ok {
			t.Errorf("an ID of %d bytes: %v", length, err)
		}
	}
	for text, want := range map[string]string{
		"--a--": "a", strings.Repeat("a", 63): strings.Repeat("a", 63), strings.Repeat("a", 64): strings.Repeat("a", 63),
		strings.Repeat("a", 62) + "-a": strings.Repeat("a", 62),
	} {
		if got := LabelValue(text); got != want {
			t.Errorf("the label of %q: %q, expected %q", text, got, want)
		}
	}
	for length, want := range map[int]string{80: strings.Repeat("a", 80), 81: strings.Repeat("a", 80) + "…"} {
		if got := clip(strings.Repeat("a", length)); got != want {
			t.Errorf("%d bytes in an error: %q", length, got)
		}
	}
	for text, ok := range map[string]bool{"A": true, "Z": true, "@": false, "[": false, "Aa": true, "Az": true, "AA": true, "AZ": true, "A0": true, "A9": true,
		"A/": false, "A:": false, "A@": false, "A[": false, "A`": false, "A{": false, strings.Repeat("A", 63): true, strings.Repeat("A", 64): false} {
		if Reason(text).Valid() != ok {
			t.Errorf("the reason %q is valid: %t", text, !ok)
		}
	}
}

// TestParseHostChecks has what is wrong with a host's record.
func TestParseHostChecks(t *testing.T) {
	for text, part := range map[string]string{
		`{"protocol":1,"nodeUID":"u","bootID":"b"}`:                                            "",
		`{"protocol":1,"nodeUID":"u","bootID":"b","veto":"Window"}`:                            "",
		`{"protocol":0,"nodeUID":"u","bootID":"b"}`:                                            "protocol: 0",
		`{"protocol":1,"nodeUID":"","bootID":"b"}`:                                             "nodeUID: empty",
		`{"protocol":1,"nodeUID":"u","bootID":"b c"}`:                                          "bootID: ",
		`{"protocol":1,"nodeUID":"u","bootID":"b","veto":"not camel"}`:                         "veto: ",
		`{"protocol":1,"nodeUID":"u","bootID":"b","blockedSince":"0000-01-01T00:00:00+01:00"}`: "blockedSince: -1, expected a year",
		`{"protocol":1,"nodeUID":"u","bootID":"b","pendingSince":"9999-12-31T23:59:59-01:00"}`: "pendingSince: 10000, expected a year",
	} {
		if _, err := ParseHost(text); (err == nil) != (part == "") || err != nil && !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, expected %q", text, err, part)
		}
	}
}

// TestEncodable: the first and the last year that JSON can hold, and the years next to them.
func TestEncodable(t *testing.T) {
	for year, want := range map[int]bool{-1: false, 0: true, 9999: true, 10000: false} {
		if at := time.Date(year, 6, 1, 0, 0, 0, 0, time.UTC); Encodable(at) != want {
			t.Errorf("Encodable(%s): %t", at, !want)
		}
	}
}

// TestFinds: what is looked up in lists of changes, marks and documents.
func TestFinds(t *testing.T) {
	file := Change{Source: SourceFile, Name: "/a", Version: "1"}
	h := Host{Changes: []Change{{Source: SourceOSUpdate}, file}}
	for c, want := range map[Change]bool{{SourceFile, "/a", "2"}: true, {SourceFile, "/b", "1"}: false, {SourceUnit, "/a", "1"}: false} {
		if h.Names(c) != want {
			t.Errorf("Names(%s): %t", c, !want)
		}
	}
	if !Has(h.Changes, SourceFile) || Has(h.Changes, SourceUnit) || Has(nil, "") {
		t.Error("Has is wrong")
	}
	for _, c := range []struct {
		kind MarkKind
		key  string
		want bool
	}{
		{MarkTaint, "karpenter.sh/disrupted", true}, {MarkLabel, "karpenter.sh/disrupted", false}, {MarkTaint, "karpenter.sh/x", false},
		{MarkAnnotation, "machineconfiguration.openshift.io/currentConfig", true}, {MarkTaint, "", false}, {MarkAnnotation, "", false},
	} {
		if InMarks(c.kind, c.key) != c.want {
			t.Errorf("InMarks(%s, %q): %t", c.kind, c.key, !c.want)
		}
	}
	for want, m := range map[string]Mark{"any": {}, "`a`": {Value: "a"}, "not `b`": {Not: "b"}, "not the value of `c`": {Differs: "c"}} {
		if got := m.Condition(); got != want {
			t.Errorf("%+v: %q, expected %q", m, got, want)
		}
	}
	for s, hooks := range map[State]bool{StateBeforeDrain: true, StateBeforeReboot: true, StateBeforeUncordon: true, StateDraining: false, StateIdle: false, "": false} {
		if s.HookStage() != hooks {
			t.Errorf("%s is a hook stage: %t", s, !hooks)
		}
	}
	if StateAbsent.String() != "absent" || StateIdle.String() != "idle" || StateDraining.Doc().State != StateDraining || State("flooding").Doc() != (StateDoc{}) {
		t.Error("the texts of states are wrong")
	}
	if got := (Action{Type: ActionReboot}).String() + ", " + (Action{Type: ActionRestart, Unit: "a.service"}).String(); got != "Reboot, Restart a.service" {
		t.Errorf("actions: %q", got)
	}
	if r := ReasonReplaced; slices.Contains(r.Places(), PlaceStatus) || !slices.Contains(ReasonBudget.Places(), PlaceStatus) {
		t.Errorf("%s is in the status, or %s is not", r, ReasonBudget)
	}
	if CoordinatorUser("ns") != "system:serviceaccount:ns:lockkeeper-coordinator" {
		t.Errorf("the coordinator's user: %q", CoordinatorUser("ns"))
	}
}

// TestReadLabels: labels with valid values have no problems.
func TestReadLabels(t *testing.T) {
	for value, want := range map[string]bool{"true": true, "false": false} {
		k := ReadKeys(map[string]string{LabelManaged: value, LabelOS: "flatcar", LabelGroup: "stable"}, map[string]string{HookAnnotation("a"): "t1", HookAnnotation("b"): "t2"})
		if k.Managed == nil || *k.Managed != want || len(k.Problems) != 0 || k.Info[LabelOS] != "flatcar" || k.Info[LabelGroup] != "stable" || len(k.Info) != 2 || len(k.Hooks) != 2 {
			t.Errorf("managed=%s: %+v", value, k)
		}
	}
}
