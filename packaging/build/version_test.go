package main

import (
	"testing"
	"time"
)

func TestPackageVersion(t *testing.T) {
	at := time.Date(2026, 11, 21, 9, 5, 7, 0, time.FixedZone("", 3600))
	for describe, want := range map[string]string{
		"v1.2.3":                        "1.2.3",
		"1.2.3":                         "1.2.3",
		"v1.2.3-dirty":                  "1.2.3+dirty",
		"v1.2.3-5-g0123456":             "1.2.3+5.g0123456",
		"v1.2.3-5-g0123456-dirty":       "1.2.3+5.g0123456.dirty",
		"v1.2.3-rc.1":                   "1.2.3~rc.1",
		"v1.2.3-rc.1-5-g0123456":        "1.2.3~rc.1+5.g0123456",
		"0123456":                       "0.0.0+20261121080507.g0123456",
		"0123456-dirty":                 "0.0.0+20261121080507.g0123456.dirty",
		"devel":                         "",
		"":                              "",
		"v1.2":                          "",
		"v1.2.3; rm -rf /":              "",
		"v1.2.3-5-g0123456\nlockkeeper": "",
	} {
		got, err := packageVersion(describe, at)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v; expected %q", describe, got, err, want)
		}
	}
}
