package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Intent is the payload of [AnnotationPaused] and [AnnotationDetached]: any
// text, taken as the reason, or JSON. The annotation's presence is what
// counts; a payload that does not parse still pauses or detaches.
type Intent struct {
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
	// Until is when the coordinator removes the annotation, judged by the
	// coordinator's clock alone. nil: never.
	Until *time.Time `json:"until,omitempty"`
	// Force, for detached only: let go at once, except while a reboot or an
	// apply is committed.
	Force bool `json:"force,omitempty"`
}

// IntentPattern is the only JSON form of an Intent, as an RE2 regular
// expression. The admission policy for the coordinator uses the same expression
// to find out when an intent ends, so both read an end in the same texts only. A
// text that matches has these members and no others, and spells their names
// without an escape, so `"until"` followed by a colon is always a member's name.
// Years begin with 1000: a policy cannot read year 0.
const IntentPattern = `^\s*\{((` + intentMember + `,)*` + intentMember + `|\s*)\}\s*$`

const (
	intentMember = `\s*("(reason|by)"\s*:\s*"([^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"|` +
		`"until"\s*:\s*"[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"|` +
		`"force"\s*:\s*(true|false))\s*`
)

var (
	intentForm = regexp.MustCompile(IntentPattern)
	intentName = regexp.MustCompile(`"(reason|by|until|force)"\s*:`)
)

// ParseIntent reads the annotation's value. The Intent counts whatever the
// error, which is for a warning.
func ParseIntent(s string) (Intent, error) {
	text := strings.TrimSpace(s)
	if !strings.HasPrefix(text, "{") {
		i := Intent{Reason: text}
		if strings.EqualFold(text, "false") {
			return i, errors.New(`the value "false" does not resume; remove the annotation (kubectl annotate node NODE KEY-)`)
		}
		return i, nil
	}
	var i Intent
	if len(text) > maxRecord {
		return Intent{}, fmt.Errorf("%d bytes, expected at most %d", len(text), maxRecord)
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&i); err != nil {
		// Half of a payload is worse than none: an Until or a Force that was
		// read before the mistake may not be what was meant.
		return Intent{Reason: clip(text)}, fmt.Errorf("expected text or JSON {reason, by, until, force}: %w", err)
	}
	if !intentForm.MatchString(text) {
		return Intent{Reason: clip(text)}, errors.New("expected text or JSON {reason, by, until, force}: " +
			"the names in lower case and without escapes, no null, and nothing after the closing brace")
	}
	names := map[string]bool{}
	for _, m := range intentName.FindAllStringSubmatch(text, -1) {
		if names[m[1]] {
			return Intent{Reason: clip(text)}, fmt.Errorf("expected text or JSON {reason, by, until, force}, each at most once: %s is there twice", m[1])
		}
		names[m[1]] = true
	}
	return i, nil
}

// Request is the payload of [AnnotationRequest] and [AnnotationRequestNow].
type Request struct {
	Action string `json:"action"` // "reboot"
	// Reason and By are for people: one line each, of at most MaxRequestReason and
	// MaxRequestBy bytes.
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
	// Now: the request came by AnnotationRequestNow. Only records have it. In a payload
	// it is an error, because the key decides which permission the request needs.
	Now bool `json:"now,omitempty"`
}

// The limits of a Request's texts, in bytes. A longer text is cut.
const (
	MaxRequestReason = 256
	MaxRequestBy     = 128
)

// Note returns what the request adds to the text of the change c, such as
// " (now, by ada: a memory error)". It is "" without a request, and for a change that is not a
// Request.
func (r *Request) Note(c Change) string {
	if r == nil || c.Source != SourceRequest {
		return ""
	}
	var parts []string
	if r.Now {
		parts = append(parts, "now")
	}
	if r.By != "" {
		parts = append(parts, "by "+r.By)
	}
	note := strings.Join(parts, ", ")
	if r.Reason != "" {
		note = strings.TrimPrefix(note+": "+r.Reason, ": ")
	}
	if note == "" {
		return ""
	}
	return " (" + note + ")"
}

// ParseRequest reads the annotation's value: "reboot", or JSON with the action "reboot",
// a reason and by. Anything else is an error and no request.
func ParseRequest(s string) (*Request, error) {
	text := strings.TrimSpace(s)
	r := &Request{Action: text}
	if strings.HasPrefix(text, "{") {
		if len(s) > maxRecord {
			return nil, fmt.Errorf("%d bytes, expected at most %d", len(s), maxRecord)
		}
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(r); err != nil {
			return nil, fmt.Errorf("expected \"reboot\" or JSON {action, reason, by}: %w", err)
		}
		if d.InputOffset() != int64(len(text)) {
			return nil, errors.New("expected \"reboot\" or JSON {action, reason, by}, and nothing after the closing brace")
		}
		if r.Now {
			return nil, errors.New("expected \"reboot\" or JSON {action, reason, by}; instead of now, use the annotation " + AnnotationRequestNow)
		}
	}
	if r.Action != "reboot" {
		return nil, fmt.Errorf("%q, expected \"reboot\" or JSON {\"action\": \"reboot\", \"reason\": …, \"by\": …}", clip(s))
	}
	r.Reason, r.By = OneLine(r.Reason, MaxRequestReason), OneLine(r.By, MaxRequestBy)
	return r, nil
}
