package updateengine

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

func TestDecode(t *testing.T) {
	r, err := decode([]any{int64(1700000000), 0.25, "UPDATE_STATUS_DOWNLOADING", "4230.2.1", int64(1 << 30)})
	if err != nil {
		t.Fatal(err)
	}
	want := Reading{Presence: Present, Operation: "DOWNLOADING", Version: "4230.2.1",
		LastChecked: time.Unix(1700000000, 0), Progress: 0.25}
	if r != want {
		t.Errorf("got %+v, want %+v", r, want)
	}
}

func TestDecodeSanitises(t *testing.T) {
	for _, c := range []struct {
		name string
		body []any
		want Reading
	}{
		{"no number", []any{int64(0), math.NaN(), "UPDATE_STATUS_IDLE", "0.0.0", int64(0)}, Reading{Operation: Idle}},
		{"beyond all bounds", []any{int64(math.MaxInt64), math.Inf(1), "UPDATE_STATUS_IDLE", "", int64(math.MinInt64)}, Reading{Operation: Idle, Progress: 1}},
		{"below", []any{int64(-1), -0.5, "UPDATE_STATUS_IDLE", "", int64(-1)}, Reading{Operation: Idle}},
		{"lines", []any{int64(0), 0.0, "UPDATE\nSTATUS", "1\x00\x1b[2J\u202e", int64(0)}, Reading{Operation: "UPDATE STATUS", Version: "1  [2J "}},
		{"unknown", []any{int64(0), 0.0, "unknown status", "1.2.3", int64(0)}, Reading{Operation: "unknown status", Version: "1.2.3"}},
		{"without prefix", []any{int64(0), 0.0, "IDLE", "", int64(0)}, Reading{Operation: "?IDLE"}},
	} {
		c.want.Presence = Present
		r, err := decode(c.body)
		if err != nil || r != c.want {
			t.Errorf("%s: got %+v, %v, want %+v", c.name, r, err, c.want)
		}
	}
}

// Readings that differ in anything but their time are not the same.
func TestSameReading(t *testing.T) {
	base := Reading{Presence: Present, Operation: Idle, Version: "1.2.3", LastChecked: time.Unix(1700000000, 0), At: time.Unix(1700000001, 0)}
	for name, c := range map[string]struct {
		change func(*Reading)
		want   bool
	}{
		"nothing":         {func(*Reading) {}, true},
		"when it came":    {func(r *Reading) { r.At = time.Unix(1700000002, 0) }, true},
		"the time zone":   {func(r *Reading) { r.LastChecked = r.LastChecked.UTC() }, true},
		"the last check":  {func(r *Reading) { r.LastChecked = time.Unix(1700000002, 0) }, false},
		"the operation":   {func(r *Reading) { r.Operation = UpdatedNeedReboot }, false},
		"the progress":    {func(r *Reading) { r.Progress = 0.1 }, false},
		"an error":        {func(r *Reading) { r.Err = errors.New("one") }, false},
		"unknown version": {func(r *Reading) { r.VersionUnknown = true }, false},
	} {
		other := base
		c.change(&other)
		if base.same(other) != c.want || other.same(base) != c.want {
			t.Errorf("%s: same is %t, want %t", name, base.same(other), c.want)
		}
	}
	one, another := Reading{Err: errors.New("one")}, Reading{Err: errors.New("another")}
	if one.same(another) || !one.same(Reading{Err: errors.New("one")}) {
		t.Error("errors are the same if their texts are")
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, body := range [][]any{
		nil,
		{},
		{int64(0), 0.0, "UPDATE_STATUS_IDLE", "1"},
		{int64(0), 0.0, "UPDATE_STATUS_IDLE", "1", int64(0), "more"},
		{"0", 0.0, "UPDATE_STATUS_IDLE", "1", int64(0)},
		{int64(0), 0.0, "UPDATE_STATUS_IDLE", "1", uint64(0)},
		{int64(0), 0.0, []string{"UPDATE_STATUS_IDLE"}, "1", int64(0)},
		{int64(0), 0.0, "", "1", int64(0)},
		{nil, nil, nil, nil, nil},
	} {
		if r, err := decode(body); !errors.Is(err, errMalformed) || r != (Reading{}) {
			t.Errorf("%v: %+v, %v", body, r, err)
		}
	}
}

func TestRebootPending(t *testing.T) {
	for op, want := range map[Operation]struct{ pending, known bool }{
		Idle: {false, true}, "CHECKING_FOR_UPDATE": {false, true}, "UPDATE_AVAILABLE": {false, true}, "DOWNLOADING": {false, true},
		"VERIFYING": {false, true}, "FINALIZING": {false, true}, "REPORTING_ERROR_EVENT": {false, true},
		UpdatedNeedReboot: {true, true},
		"unknown status":  {false, false}, "?IDLE": {false, false}, "": {false, false},
	} {
		pending, known := Reading{Presence: Present, Operation: op}.RebootPending()
		if pending != want.pending || known != want.known {
			t.Errorf("%q: pending %v, known %v", op, pending, known)
		}
	}
	for _, p := range []Presence{Unknown, Absent} {
		if pending, known := (Reading{Presence: p, Operation: UpdatedNeedReboot}).RebootPending(); pending || known {
			t.Errorf("%v: pending %v, known %v", p, pending, known)
		}
	}
}

func TestVersionIsRememberedOnlyWhilePending(t *testing.T) {
	memory := ""
	for i, step := range []struct {
		presence Presence
		op       Operation
		version  string
		want     string
		unknown  bool
	}{
		{Present, UpdatedNeedReboot, "", "", true}, // found pending at our start
		{Present, UpdatedNeedReboot, "1.2.3", "1.2.3", false},
		{Unknown, "", "", "", false},               // the bus away: nothing forgotten
		{Absent, "", "", "", false},                // the engine away: nothing forgotten
		{Present, "unknown status", "", "", false}, // says nothing about the pending reboot
		{Present, UpdatedNeedReboot, "", "1.2.3", false},
		{Present, UpdatedNeedReboot, "1.2.4", "1.2.4", false},
		{Present, UpdatedNeedReboot, "", "1.2.4", false},
		{Present, Idle, "", "", false}, // cancelled
		{Present, UpdatedNeedReboot, "", "", true},
	} {
		r := Reading{Presence: step.presence, Operation: step.op, Version: step.version}
		memory = settleVersion(&r, memory)
		if r.Version != step.want || r.VersionUnknown != step.unknown {
			t.Errorf("step %d: version %q, unknown %v", i, r.Version, r.VersionUnknown)
		}
	}
}

// FuzzDecode: whatever the types and values, no panic, and what comes out is bounded, printable and can be marshalled.
func FuzzDecode(f *testing.F) {
	f.Add("xdssx", int64(1700000000), 0.5, "UPDATE_STATUS_IDLE", "1.2.3")
	f.Add("xdssx", int64(math.MaxInt64), math.NaN(), strings.Repeat("é", 100), "\xff\xfe\n")
	f.Add("xdss", int64(0), 0.0, "", "")
	f.Add("sdxst", int64(-1), math.Inf(-1), "\x00", "0.0.0")
	f.Fuzz(func(t *testing.T, signature string, n int64, d float64, s1, s2 string) {
		var body []any
		strs := []string{s1, s2}
		for i, c := range signature {
			switch c {
			case 'x':
				body = append(body, n)
			case 't':
				body = append(body, uint64(n))
			case 'd':
				body = append(body, d)
			case 's':
				body = append(body, strs[i%2])
			case 'a':
				body = append(body, []any{n, s1})
			case '(':
				body = append(body, map[string]any{s1: s2})
			default:
				body = append(body, nil)
			}
		}
		r, err := decode(body)
		if (err == nil) != (signature == "xdssx" && s1 != "") {
			t.Fatalf("signature %q: err %v", signature, err)
		}
		if err != nil {
			return
		}
		if !(r.Progress >= 0 && r.Progress <= 1) || len(r.Operation) > maxOperation+1 || len(r.Version) > maxVersion {
			t.Fatalf("out of bounds: %+v", r)
		}
		for _, text := range []string{string(r.Operation), r.Version} {
			if !utf8.ValidString(text) || strings.ContainsFunc(text, func(c rune) bool { return unicode.IsControl(c) }) {
				t.Fatalf("not printable: %q", text)
			}
		}
		if _, err := json.Marshal(r); err != nil {
			t.Fatal(err)
		}
	})
}
