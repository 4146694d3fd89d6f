package v1alpha1

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"a\nb\x00c":                  "a b c",
		"\x1b[2Ja\u202eb\u200b":      " [2Ja b ",
		"":                           "",
		strings.Repeat("a\xff", 128): strings.Repeat("a\uFFFD", 63) + "a…",
		"a\xffb":                     "a\uFFFDb",
		strings.Repeat("a", 256):     strings.Repeat("a", 256),
		strings.Repeat("a", 257):     strings.Repeat("a", 253) + "…",
		strings.Repeat("äb", 100):    strings.Repeat("äb", 84) + "…", // 252 bytes, and half an ä
		strings.Repeat("ä", 10000):   strings.Repeat("ä", 126) + "…",
	} {
		if got := OneLine(text, 256); got != want || len(got) > 256 || !utf8.ValidString(got) {
			t.Errorf("%.20q…: %q, expected %q", text, got, want)
		}
	}
}
