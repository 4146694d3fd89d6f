package v1alpha1

import (
	"strings"
	"unicode"
)

// OneLine returns text as one line of at most limit bytes, which must be at least
// 3. Control and format characters (escape sequences, line feeds, marks that turn
// the direction of the text) become spaces, invalid UTF-8 becomes U+FFFD, and a text
// that was cut ends in "…". It is for the texts of others in messages for people.
func OneLine(text string, limit int) string {
	const cut = "…"
	long := len(text) > limit
	text = text[:min(len(text), limit)]
	if long { // a character may have been cut in two
		text = strings.ToValidUTF8(text, "")
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	if long || len(text) > limit {
		text = strings.ToValidUTF8(text[:min(len(text), limit-len(cut))], "") + cut
	}
	return text
}
