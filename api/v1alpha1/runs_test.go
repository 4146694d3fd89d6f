package v1alpha1

import (
	"strings"
	"testing"
)

func TestParseRuns(t *testing.T) {
	const since = `"since":"2026-01-01T12:00:00Z"`
	for text, want := range map[string]string{
		"": "",
		`{"osVersion":"4081.2.0","bootID":"b1",` + since + `}`:                             "",
		`{"osVersion":"` + strings.Repeat("4", 128) + `","bootID":"b1",` + since + `}`:     "",
		`{"osVersion":"` + strings.Repeat("4", 129) + `","bootID":"b1",` + since + `}`:     "osVersion: 129 bytes, expected 1 to 128",
		`{"bootID":"b1",` + since + `}`:                                                    "osVersion: 0 bytes, expected 1 to 128",
		`{"osVersion":"4081.2.0",` + since + `}`:                                           "bootID: empty, expected an id",
		`{"osVersion":"4081.2.0","bootID":"b 1",` + since + `}`:                            "bootID: \"b 1\" holds ' '",
		`{"osVersion":"4081.2.0","bootID":"b1","since":"yesterday"}`:                       "not the JSON expected",
		`{"osVersion":"4081.2.0","bootID":"b1","` + strings.Repeat("x", 32<<10) + `":"x"}`: "expected at most 32768",
	} {
		r, err := ParseRuns(text)
		switch {
		case want == "" && (err != nil || (r == nil) != (text == "")):
			t.Errorf("%s: %+v, %v", text, r, err)
		case want != "" && (err == nil || r != nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%.80s: %+v, %v, expected %s", text, r, err, want)
		}
	}
}
