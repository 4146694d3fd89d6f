package v1alpha1

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestAck(t *testing.T) {
	for text, want := range map[string]Ack{
		"":                        {},
		"t1/b1/draining/seen":     {"t1", "b1", StateDraining, ReportSeen, ""},
		"t1/b1/rebooting/done":    {"t1", "b1", StateRebooting, ReportDone, ""},
		"t/b/applying/committed":  {"t", "b", StateApplying, ReportCommitted, ""},
		"t/b/draining/refused:No": {"t", "b", StateDraining, ReportRefused, "No"},
		"t/b/rebooting/failed:X9": {"t", "b", StateRebooting, ReportFailed, "X9"},
	} {
		got, err := ParseAck(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
		if got.String() != text {
			t.Errorf("%q comes back as %q", text, got.String())
		}
	}
	for text, part := range map[string]string{
		"t/b/draining":                  "3 parts",
		"/b/draining/seen":              "turn",
		"t//draining/seen":              "boot id",
		"t/b c/draining/seen":           "boot id",
		"t/b/idle/seen":                 "not a state of a turn",
		"t/b//seen":                     "not a state of a turn",
		"t/b/flooding/seen":             "not a state of a turn",
		"t/b/draining/heard":            "not a report",
		"t/b/draining/seen:Why":         "no reason",
		"t/b/draining/refused":          "needs a CamelCase reason",
		"t/b/draining/failed:not camel": "needs a CamelCase reason",
	} {
		if got, err := ParseAck(text); err == nil || !strings.Contains(err.Error(), part) || got != (Ack{}) {
			t.Errorf("%q: %+v, error %v; expected one about %q", text, got, err, part)
		}
	}
}

func TestParseRecordsAreBoundedAndChecked(t *testing.T) {
	huge := `{"turn":"` + strings.Repeat("x", maxRecord) + `"}`
	for name, parse := range map[string]func(string) error{
		"host":  func(s string) error { _, err := ParseHost(s); return err },
		"grant": func(s string) error { _, err := ParseGrant(s); return err },
		"last":  func(s string) error { _, err := ParseLast(s); return err },
	} {
		if err := parse(""); err != nil {
			t.Errorf("%s: nothing is an error: %v", name, err)
		}
		for _, bad := range []string{"{", "[]", `"text"`, "{}", huge, "null"} {
			if bad == "null" && name == "last" {
				continue // an empty record; its result is refused below
			}
			if err := parse(bad); err == nil {
				t.Errorf("%s: %s passes", name, clip(bad))
			}
		}
	}
	if _, err := ParseLast(`{"result":"Perished"}`); err == nil {
		t.Error("last: an unknown result passes")
	}
	if _, err := ParseLast(`{"result":"BackedOut","attempts":-1}`); err == nil {
		t.Error("last: negative attempts pass")
	}
	h, err := ParseHost(`{"protocol":7,"nodeUID":"u","bootID":"b","bootTime":"2026-01-02T03:04:05Z","started":"2026-01-02T03:04:05Z","novelty":1}`)
	if err != nil || h.Protocol != 7 {
		t.Errorf("a newer host's field is not passed over: %+v, %v", h, err)
	}
}

func TestRecordsComeBack(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	g := Grant{
		Turn: "t", Epoch: "e", NodeUID: "u", BootID: "b", Wants: WantsReboot, Drains: true,
		Changes: []Change{{Source: SourceOSUpdate, Version: "4.2"}}, StartedAt: at, StageAt: at, PausedSince: &at,
		PausedFor: metav1.Duration{Duration: time.Minute},
		Terms:     Terms{BeforeDrain: []Hook{{Name: "lb", OnTimeout: OnTimeoutAbort}}},
	}
	text := FormatRecord(g)
	back, err := ParseGrant(text)
	if err != nil || FormatRecord(back) != text {
		t.Errorf("%s\ncomes back as\n%s (%v)", text, FormatRecord(back), err)
	}
	if h := back.Terms.Hooks(StateBeforeDrain); len(h) != 1 || h[0].Name != "lb" {
		t.Errorf("hooks of before-drain: %v", h)
	}
	if h := back.Terms.Hooks(StateDraining); h != nil {
		t.Errorf("hooks of draining: %v", h)
	}
}

func TestIntent(t *testing.T) {
	until := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		text    string
		want    Intent
		warning bool
	}{
		{"", Intent{}, false},
		{" disk change ", Intent{Reason: "disk change"}, false},
		{"false", Intent{Reason: "false"}, true},
		{"FALSE", Intent{Reason: "FALSE"}, true},
		{`{"reason":"disk","by":"ann","until":"2030-01-01T00:00:00Z","force":true}`, Intent{Reason: "disk", By: "ann", Until: &until, Force: true}, false},
		// Half a payload must neither force nor expire.
		{`{"force":true,"until":"tomorrow"}`, Intent{Reason: `{"force":true,"until":"tomorrow"}`}, true},
		{`{"force":true,"untill":"x"}`, Intent{Reason: `{"force":true,"untill":"x"}`}, true},
		{`{}`, Intent{}, false},
		{` { "until" : "2030-01-01T01:00:00.000+01:00" , "reason" : "a \"until\" \u003c é" } `, Intent{Reason: `a "until" < é`, Until: &until}, false},
		{`{"reason":"\"until\":\"2030-01-01T00:00:00Z\""}`, Intent{Reason: `"until":"2030-01-01T00:00:00Z"`}, false},
		// What encoding/json takes and the admission policy does not is not taken either.
		{`{"Until":"2030-01-01T00:00:00Z"}`, Intent{Reason: `{"Until":"2030-01-01T00:00:00Z"}`}, true},
		{`{"\u0075ntil":"2030-01-01T00:00:00Z"}`, Intent{Reason: `{"\u0075ntil":"2030-01-01T00:00:00Z"}`}, true},
		{`{"until":"2030-01-01T00:00:00Z"} x`, Intent{Reason: `{"until":"2030-01-01T00:00:00Z"} x`}, true},
		{`{"until":"2020-01-01T00:00:00Z","until":"2030-01-01T00:00:00Z"}`, Intent{Reason: `{"until":"2020-01-01T00:00:00Z","until":"2030-01-01T00:00:00Z"}`}, true},
		{`{"force":true,"reason":"\"force\":","force":false}`, Intent{Reason: `{"force":true,"reason":"\"force\":","force":false}`}, true},
		{`{"reason":"\"until\":","until":"2030-01-01T00:00:00Z"}`, Intent{Reason: `"until":`, Until: &until}, false},
		{`{"until":null}`, Intent{Reason: `{"until":null}`}, true},
		{`{"until":"0000-01-01T00:00:00Z"}`, Intent{Reason: `{"until":"0000-01-01T00:00:00Z"}`}, true},
		{"\u00a0{\"until\":\"2030-01-01T00:00:00Z\"}", Intent{Reason: `{"until":"2030-01-01T00:00:00Z"}`}, true},
		{"{\"force\":true}\v", Intent{Reason: `{"force":true}`}, true},
	} {
		got, err := ParseIntent(c.text)
		if (err != nil) != c.warning {
			t.Errorf("%q: error %v, expected one: %t", c.text, err, c.warning)
		}
		if got.Until != nil && !got.Until.Equal(until) {
			t.Errorf("%q: until %v", c.text, got.Until)
		}
		if got.Reason != c.want.Reason || got.By != c.want.By || got.Force != c.want.Force || (got.Until == nil) != (c.want.Until == nil) {
			t.Errorf("%q: %+v", c.text, got)
		}
	}
}

// The admission policy takes the times out of a payload as text. It finds the Until that ParseIntent reads, and none where
// ParseIntent reads none.
func FuzzIntentUntil(f *testing.F) {
	for _, text := range []string{
		`{"until":"2030-01-01T00:00:00Z"}`, `{"until":"2020-01-01T00:00:00Z","until":"2030-01-01T00:00:00.5+02:00"}`,
		`{"reason":"\"until\":\"2020-01-01T00:00:00Z\""}`, `{"reason":"a \"until","by":":"}`, `{"reason":"\\","until":"2030-01-01T00:00:00Z"}`,
		`{"reason":"until","by":"x"}`, `{"reason":"x","reason":"\"until\" : "}`, `{"force":true}`, `{}`, "disk", `"until":"2020-01-01T00:00:00Z"`,
		"\u00a0{\"until\":\"2030-01-01T00:00:00Z\"}", "{\"force\":true}\u0085",
	} {
		f.Add(text)
	}
	times := regexp.MustCompile(`"until"\s*:\s*"([^"]*)"`) // as in packaging/manifests/admission.yaml
	f.Fuzz(func(t *testing.T, text string) {
		i, err := ParseIntent(text)
		if !intentForm.MatchString(text) {
			if i.Until != nil || i.Force {
				t.Errorf("%q: %+v, and the admission policy does not read it", text, i)
			}
			return
		}
		found := times.FindAllStringSubmatch(text, -1)
		if err != nil {
			return // the policy may read more than ParseIntent: such an intent has no end
		}
		if (i.Until != nil) != (len(found) > 0) {
			t.Fatalf("%q: until %v, the policy finds %q", text, i.Until, found)
		}
		if i.Until != nil {
			if last, err := time.Parse(time.RFC3339, found[len(found)-1][1]); err != nil || !last.Equal(*i.Until) {
				t.Errorf("%q: until %v, the policy finds %q", text, i.Until, found)
			}
		}
	})
}

func TestRequest(t *testing.T) {
	long := strings.Repeat("ä", MaxRequestReason)
	for text, want := range map[string]Request{
		"reboot":                                 {Action: "reboot"},
		" reboot ":                               {Action: "reboot"},
		`{"action":"reboot","reason":"memory"}`:  {Action: "reboot", Reason: "memory"},
		` {"action":"reboot","by":"ada\u000a"} `: {Action: "reboot", By: "ada "},
		`{"action":"reboot","reason":"` + long + `","by":"` + long + `"}`: {Action: "reboot",
			Reason: long[:MaxRequestReason-4] + "…", By: long[:MaxRequestBy-4] + "…"},
	} {
		if r, err := ParseRequest(text); err != nil || *r != want {
			t.Errorf("%q: %+v, %v; want %+v", text, r, err, want)
		}
	}
	for text, want := range map[string]string{
		"": `"", expected "reboot"`, "Reboot": `"Reboot", expected "reboot"`, "drain": "expected", "true": "expected",
		`{"action":"drain"}`: `expected "reboot"`, `{"reason":"x"}`: `expected "reboot"`,
		"{":                                  "unexpected EOF",
		`{"action":"reboot"} x`:              "nothing after the closing brace",
		`{"action":"reboot"}}`:               "nothing after the closing brace",
		`{"action":"reboot","until":"5m"}`:   `unknown field "until"`,
		`{"action":"reboot","reason":7}`:     "cannot unmarshal number",
		`{"action":"reboot","now":true}`:     "use the annotation lockkeeper.dev/request-now",
		`{"action":"reboot","NOW":true}`:     "use the annotation lockkeeper.dev/request-now",
		"{" + strings.Repeat(" ", maxRecord): "bytes, expected at most",
	} {
		if r, err := ParseRequest(text); r != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.50q: %+v, %v; want an error with %q", text, r, err, want)
		}
	}
}

func TestRequestNote(t *testing.T) {
	request := Change{Source: SourceRequest}
	for want, r := range map[string]*Request{
		"":                       {},
		" (now)":                 {Now: true},
		" (by ada)":              {By: "ada"},
		" (memory)":              {Reason: "memory"},
		" (now, by ada: memory)": {Now: true, By: "ada", Reason: "memory"},
	} {
		if got := r.Note(request); got != want {
			t.Errorf("%+v: %q, want %q", r, got, want)
		}
		if got := r.Note(Change{Source: SourceOSUpdate}); got != "" {
			t.Errorf("an update has the note %q of %+v", got, r)
		}
	}
	if got := (*Request)(nil).Note(request); got != "" {
		t.Errorf("no request: %q", got)
	}
}

// The key of the annotation decides whether a request skips windows, whatever its payload says.
func TestRequestNow(t *testing.T) {
	const why = `{"action":"reboot","reason":"why"}`
	for name, test := range map[string]struct {
		annotations map[string]string
		want        *Request
		all         Requests
		problems    string
	}{
		"request":               {map[string]string{AnnotationRequest: why}, &Request{Action: "reboot", Reason: "why"}, Requests{Waits: Digest(why)}, ""},
		"now":                   {map[string]string{AnnotationRequestNow: why}, &Request{Action: "reboot", Reason: "why", Now: true}, Requests{Now: Digest(why)}, ""},
		"both":                  {map[string]string{AnnotationRequest: "reboot", AnnotationRequestNow: why}, &Request{Action: "reboot", Reason: "why", Now: true}, Requests{Digest("reboot"), Digest(why)}, ""},
		"a payload that claims": {map[string]string{AnnotationRequest: `{"action":"reboot","now":true}`}, nil, Requests{}, AnnotationRequest},
		"now does not parse":    {map[string]string{AnnotationRequestNow: "true"}, nil, Requests{}, AnnotationRequestNow},
		"only now does not":     {map[string]string{AnnotationRequest: why, AnnotationRequestNow: "{"}, &Request{Action: "reboot", Reason: "why"}, Requests{Waits: Digest(why)}, AnnotationRequestNow},
	} {
		t.Run(name, func(t *testing.T) {
			k := ReadKeys(nil, test.annotations)
			if (k.Request == nil) != (test.want == nil) || k.Request != nil && *k.Request != *test.want || k.Requests != test.all {
				t.Errorf("%+v, %+v, want %+v, %+v", k.Request, k.Requests, test.want, test.all)
			}
			var problems []string
			for _, p := range k.Problems {
				problems = append(problems, p.Key)
			}
			if got := strings.Join(problems, " "); got != test.problems {
				t.Errorf("problems %q, want %q", got, test.problems)
			}
		})
	}
}

func TestReadKeysTakesBrokenValuesAsAbsent(t *testing.T) {
	k := ReadKeys(
		map[string]string{LabelState: "flooding", LabelWants: "world-peace", LabelManaged: "no", LabelOS: ""},
		map[string]string{
			AnnotationHost: "{", AnnotationAck: "x", AnnotationGrant: "[]", AnnotationLast: "1", AnnotationCordon: "",
			AnnotationPaused: "{broken", AnnotationDetached: "", AnnotationRequest: "please", HookAnnotation("lb"): "t1",
		})
	if k.Wants != "" || k.Host != nil || k.Grant != nil || k.Last != nil || k.Ack != (Ack{}) || k.Request != nil {
		t.Errorf("a broken value is taken: %+v", k)
	}
	if k.Managed == nil || *k.Managed {
		t.Error("managed=no does not keep hands off")
	}
	if k.Paused == nil || k.Detached == nil || !k.Mark {
		t.Error("a broken payload does not pause or detach, or an empty mark is none")
	}
	if k.Hooks["lb"] != "t1" || k.RawHost != "{" {
		t.Errorf("hooks %v, raw host %q", k.Hooks, k.RawHost)
	}
	var keys []string
	for _, p := range k.Problems {
		keys = append(keys, strings.TrimPrefix(p.Key, Prefix))
	}
	if got, want := strings.Join(keys, " "), "state wants managed host ack grant last paused request"; got != want {
		t.Errorf("problems: %s\nexpected: %s", got, want)
	}
	if empty := ReadKeys(nil, nil); empty.State != StateAbsent || len(empty.Problems) != 0 || empty.Managed != nil {
		t.Errorf("an empty Node: %+v", empty)
	}
}

func TestStateWords(t *testing.T) {
	turns := map[State]bool{
		StateAbsent: false, StateIdle: false, StatePaused: false,
		StateBeforeDrain: true, StateDraining: true, StateBeforeReboot: true, StateRebooting: true,
		StateApplying: true, StateBeforeUncordon: true, StateUncordoning: true,
	}
	if len(turns) != len(States()) {
		t.Errorf("%d states, expected %d", len(States()), len(turns))
	}
	for s, in := range turns {
		if !s.Known() || s.InTurn() != in {
			t.Errorf("%s: known %t, in a turn %t", s, s.Known(), s.InTurn())
		}
	}
	if State("flooding").Known() || !State("flooding").InTurn() {
		t.Error("an unknown state has to take a slot")
	}
	if !WantsReboot.AtLeast(WantsDrain) || !WantsDrain.AtLeast(WantsDrain) || WantsApply.AtLeast(WantsDrain) || Wants("").AtLeast(WantsNothing) {
		t.Error("the order of wants is wrong")
	}
	if WantsNothing.Something() || Wants("").Something() || Wants("tea").Something() || !WantsApply.Something() {
		t.Error("Something is wrong")
	}
}

func TestSameChanges(t *testing.T) {
	a, b := Change{Source: SourceOSUpdate, Version: "1"}, Change{Source: SourceFile, Name: "/etc/x"}
	if !SameChanges([]Change{a, b}, []Change{b, a}) || !SameChanges(nil, []Change{}) {
		t.Error("the order makes a difference")
	}
	if SameChanges([]Change{a, a}, []Change{a, b}) || SameChanges([]Change{a}, []Change{a, a}) || SameChanges([]Change{a}, nil) {
		t.Error("other changes are the same")
	}
	if got := (Change{SourceFile, "/etc/x", "9"}).String(); got != "File /etc/x@9" {
		t.Errorf("String: %q", got)
	}
}

func TestKeysAreValidAndOwnedOnce(t *testing.T) {
	owners := map[string]int{}
	for _, keys := range []func() ([]string, []string){HostKeys, CoordinatorKeys, AdminKeys} {
		labels, annotations := keys()
		for _, k := range append(labels, annotations...) {
			owners[k]++
			if errs := validation.IsQualifiedName(k); len(errs) > 0 {
				t.Errorf("%s: %v", k, errs)
			}
		}
	}
	if len(owners) != 20 {
		t.Errorf("%d keys, expected 20", len(owners))
	}
	for k, n := range owners {
		if n != 1 {
			t.Errorf("%s has %d owners", k, n)
		}
	}
	for name, ok := range map[string]bool{"lb": true, "a.b-c_d": true, "": false, "-a": false, "a/b": false, strings.Repeat("a", 64): false} {
		if err := ValidateHookName(name); (err == nil) != ok {
			t.Errorf("hook name %q: %v", name, err)
		}
	}
}

func FuzzReadKeys(f *testing.F) {
	f.Add("draining", "reboot", `{"protocol":1}`, "t/b/draining/seen", `{"turn":"t"}`, `{"force":true}`)
	f.Fuzz(func(t *testing.T, state, wants, host, ack, grant, intent string) {
		k := ReadKeys(
			map[string]string{LabelState: state, LabelWants: wants, LabelManaged: wants},
			map[string]string{AnnotationHost: host, AnnotationAck: ack, AnnotationGrant: grant, AnnotationLast: grant, AnnotationRuns: grant,
				AnnotationPaused: intent, AnnotationDetached: intent, AnnotationRequest: intent})
		if k.Paused == nil || k.Detached == nil {
			t.Error("an intent is not heeded")
		}
		if k.Ack != (Ack{}) && k.Ack.String() != ack {
			t.Errorf("%q comes back as %q", ack, k.Ack.String())
		}
		for _, v := range []string{LabelValue(state), LabelValue(host)} {
			if errs := validation.IsValidLabelValue(v); len(errs) > 0 {
				t.Errorf("LabelValue: %q: %v", v, errs)
			}
		}
	})
}

// Whatever a host has to say fits into a record that readers accept, and what is left out is the end of it.
func TestHostTrim(t *testing.T) {
	host := func(changes, plan, length int) Host {
		h := Host{Protocol: 1, NodeUID: "u", BootID: "b"}
		for i := range changes {
			h.Changes = append(h.Changes, Change{Source: SourceFile, Name: fmt.Sprintf("/etc/%03d%s", i, strings.Repeat("<", length)), Version: "1"})
		}
		for i := range plan {
			h.Plan = append(h.Plan, fmt.Sprint(i, strings.Repeat("x", 190)))
		}
		return h
	}
	for _, c := range []struct{ changes, plan, length, keepsChanges, keepsPlan int }{
		{0, 0, 0, 0, 0}, {10, 16, 10, 10, 16}, {200, 16, 0, 200, 16}, {300, 16, 0, 300, 0}, {500, 16, 0, 324, 0}, {500, 0, 300, 8, 0}, {1, 0, 100_000, 0, 0},
	} {
		h := host(c.changes, c.plan, c.length)
		h.Trim()
		text := FormatRecord(&h)
		if got, err := ParseHost(text); err != nil || len(got.Changes) != len(h.Changes) {
			t.Errorf("%+v: %d bytes cannot be read back: %v", c, len(text), err)
		}
		if c.keepsPlan > 0 && len(h.Plan) == 0 || c.keepsPlan == 0 && len(h.Plan) > 13 {
			t.Errorf("%+v: %d lines of the plan are left", c, len(h.Plan))
		}
		if len(h.Changes) != c.keepsChanges {
			t.Errorf("%+v: %d changes are left", c, len(h.Changes))
		}
		if n := len(h.Changes); n > 0 && h.Changes[n-1] != host(c.changes, 0, c.length).Changes[n-1] {
			t.Errorf("%+v: the last change is %v", c, h.Changes[n-1])
		}
	}
	// Steps are whole, or left out.
	for _, c := range []struct{ steps, left int }{{100, 100}, {300, 0}} {
		h := host(300, 16, 0)
		for range c.steps {
			h.Steps = append(h.Steps, Action{Type: ActionRestart, Unit: "a-unit.service"})
		}
		h.Trim()
		if text := FormatRecord(&h); len(h.Steps) != c.left || len(h.Changes) < 100 || len(text) > MaxHost {
			t.Errorf("%d steps: %d are left, %d changes, %d bytes", c.steps, len(h.Steps), len(h.Changes), len(text))
		}
	}
}
