package simulate

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Spread is a distribution of durations: a duration ("5m"), a range with a uniform distribution ("2m..10m"), or never;
// or several of them with shares ("2m..10m, 5% 1h..2h, 1% never"). A part without a share takes the rest. The zero
// Spread means that no value was set.
type Spread struct {
	parts []part
	text  string
}

type part struct {
	share    float64 // from 0 to 1
	from, to time.Duration
	never    bool
}

// String returns the Spread as in the file.
func (s Spread) String() string { return s.text }

func (s Spread) said() bool { return len(s.parts) > 0 }

// UnmarshalJSON parses a Spread.
func (s *Spread) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fmt.Errorf("%s, expected a duration such as 5m, or 2m..10m, 5%% never", b)
	}
	var err error
	*s, err = ParseSpread(text)
	return err
}

// ParseSpread parses a Spread.
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

// draw returns a random duration from the distribution. ok is false for never.
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

// Share is a share of a whole, such as 2.5%.
type Share float64

// UnmarshalJSON parses a Share.
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

// Moment is a time in the run: a duration after its start ("2h"), or a date (RFC 3339). The zero Moment is the start,
// or means that no value was set.
type Moment struct {
	after time.Duration
	date  time.Time
}

// UnmarshalJSON parses a Moment.
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

// in returns the moment as a time in a run, but not before its start.
func (m Moment) in(start time.Time) time.Time {
	if m.date.After(start) {
		return m.date
	}
	return start.Add(m.after)
}
