package simulate

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Spread is how long something takes: a duration ("5m"), one of a range, each as
// likely as the others ("2m..10m"), or never; and several of them with their
// shares ("2m..10m, 5% 1h..2h, 1% never"), of which one without a share takes
// what is left. The zero Spread was not said.
type Spread struct {
	parts []part
	text  string
}

type part struct {
	share    float64 // of 1
	from, to time.Duration
	never    bool
}

// String returns the Spread as it was written.
func (s Spread) String() string { return s.text }

func (s Spread) said() bool { return len(s.parts) > 0 }

// UnmarshalJSON reads it.
func (s *Spread) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fmt.Errorf("%s, expected a duration such as 5m, or 2m..10m, 5%% never", b)
	}
	var err error
	*s, err = ParseSpread(text)
	return err
}

// ParseSpread reads a Spread.
func ParseSpread(text string) (Spread, error) {
	s := Spread{text: text}
	left, rest := 1.0, -1
	for i, word := range strings.Split(text, ",") {
		p, shared, err := parsePart(strings.TrimSpace(word))
		switch {
		case err != nil:
			return Spread{}, fmt.Errorf("%q: %w", text, err)
		case shared:
			left -= p.share
		case rest >= 0:
			return Spread{}, fmt.Errorf("%q: two parts without a share, expected one", text)
		default:
			rest = i
		}
		s.parts = append(s.parts, p)
	}
	const rounding = 1e-9
	switch {
	case left < -rounding:
		return Spread{}, fmt.Errorf("%q: the shares are more than 100%%", text)
	case rest >= 0:
		s.parts[rest].share = left
	case left > rounding:
		return Spread{}, fmt.Errorf("%q: the shares are less than 100%%, expected one part without a share", text)
	}
	return s, nil
}

func parsePart(text string) (p part, shared bool, err error) {
	if share, rest, ok := strings.Cut(text, "% "); ok {
		if p.share, err = parseShare(share + "%"); err != nil {
			return p, true, err
		}
		text, shared = strings.TrimSpace(rest), true
	}
	if p.never = text == "never"; p.never {
		return p, shared, nil
	}
	from, to, ranges := strings.Cut(text, "..")
	if p.from, err = time.ParseDuration(from); err != nil {
		return p, shared, fmt.Errorf("%q, expected a duration such as 5m, a range such as 2m..10m, or never", text)
	}
	if p.to = p.from; ranges {
		if p.to, err = time.ParseDuration(to); err != nil {
			return p, shared, fmt.Errorf("%q, expected a range such as 2m..10m", text)
		}
	}
	if p.from < 0 || p.to < p.from || p.to > longest {
		return p, shared, fmt.Errorf("%q, expected 0s to %v, the shorter one first", text, longest)
	}
	return p, shared, nil
}

// draw returns how long it takes this time; ok is false for never.
func (s Spread) draw(r *rand.Rand) (d time.Duration, ok bool) {
	at := r.Float64()
	for i, p := range s.parts {
		if at -= p.share; at >= 0 && i < len(s.parts)-1 {
			continue
		}
		if p.never {
			return 0, false
		}
		return p.from + time.Duration(r.Float64()*float64(p.to-p.from)), true
	}
	return 0, true
}

// Share is a part of all, such as 2.5%.
type Share float64

// UnmarshalJSON reads it.
func (s *Share) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fmt.Errorf("%s, expected a share such as 2.5%%", b)
	}
	f, err := parseShare(text)
	*s = Share(f)
	return err
}

func parseShare(text string) (float64, error) {
	digits, ok := strings.CutSuffix(text, "%")
	f, err := strconv.ParseFloat(digits, 64)
	if !ok || err != nil || !(f >= 0 && f <= 100) {
		return 0, fmt.Errorf("%q, expected a share of 0%% to 100%%", text)
	}
	return f / 100, nil
}

func (s Share) falls(r *rand.Rand) bool { return r.Float64() < float64(s) }

// Moment is a time in the run: how long after its start ("2h"), or a date
// (RFC 3339). The zero Moment is the start, or was not said.
type Moment struct {
	after time.Duration
	date  time.Time
}

// UnmarshalJSON reads it.
func (m *Moment) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fmt.Errorf("%s, expected a moment such as 2h, after the start, or 2026-03-29T01:30:00+01:00", b)
	}
	var err error
	if m.date, err = time.Parse(time.RFC3339, text); err == nil {
		return nil
	}
	if m.after, err = time.ParseDuration(text); err != nil || m.after < 0 || m.after > longest {
		return fmt.Errorf("%q, expected a moment such as 2h, after the start, or 2026-03-29T01:30:00+01:00", text)
	}
	return nil
}

func (m Moment) said() bool { return m != Moment{} }

// in returns when that is in a run; nothing is before its start.
func (m Moment) in(start time.Time) time.Time {
	if m.date.After(start) {
		return m.date
	}
	return start.Add(m.after)
}
