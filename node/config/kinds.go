package config

import (
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// kind is how values of one type are read, bounded and written.
type kind[T any] struct {
	name   string // what docs call the type
	bounds string // what docs say of the bounds
	// read returns the value, or what was expected instead of raw.
	read func(raw any, testbed bool) (v T, expected string)
	// write returns the value as TOML.
	write func(T) string
	same  func(a, b T) bool
}

func equal[T comparable](a, b T) bool { return a == b }

func boolean() kind[bool] {
	return kind[bool]{
		name: "boolean", bounds: "`true` or `false`",
		read: func(raw any, _ bool) (bool, string) {
			if v, ok := raw.(bool); ok {
				return v, ""
			}
			return false, "true or false"
		},
		write: strconv.FormatBool, same: equal[bool],
	}
}

// choice is one of a few words.
func choice[T ~string](words ...T) kind[T] {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = strconv.Quote(string(w))
	}
	list := strings.Join(quoted, " or ")
	return kind[T]{
		name: "string", bounds: code(quoted),
		read: func(raw any, _ bool) (T, string) {
			if s, ok := raw.(string); ok && slices.Contains(words, T(s)) {
				return T(s), ""
			}
			return "", list
		},
		write: func(v T) string { return strconv.Quote(string(v)) }, same: equal[T],
	}
}

var levels = []slog.Level{slog.LevelError, slog.LevelWarn, slog.LevelInfo, slog.LevelDebug}

func level() kind[slog.Level] {
	words := make([]string, len(levels))
	for i, l := range levels {
		words[i] = strings.ToLower(l.String())
	}
	k := choice(words...)
	return kind[slog.Level]{
		name: k.name, bounds: k.bounds,
		read: func(raw any, testbed bool) (slog.Level, string) {
			word, expected := k.read(raw, testbed)
			if expected != "" {
				return 0, expected
			}
			return levels[slices.Index(words, word)], ""
		},
		write: func(l slog.Level) string { return strconv.Quote(words[slices.Index(levels, l)]) }, same: equal[slog.Level],
	}
}

// duration has bounds that are both allowed; testbed replaces low for tests.
func duration(low, high, testbed time.Duration) kind[time.Duration] {
	bounds := func(low time.Duration) string { return short(low) + " to " + short(high) }
	return kind[time.Duration]{
		name: "duration", bounds: bounds(low),
		read: func(raw any, inTestbed bool) (time.Duration, string) {
			low := low
			if inTestbed {
				low = testbed
			}
			s, ok := raw.(string)
			if !ok {
				return 0, `a duration in quotes, with its unit, such as "90s": ` + bounds(low)
			}
			d, err := time.ParseDuration(s)
			switch {
			case err != nil:
				return 0, `a duration with its unit, such as "90s" or "1h30m": ` + bounds(low)
			case d < low || d > high:
				return 0, bounds(low)
			}
			return d, ""
		},
		write: func(d time.Duration) string { return strconv.Quote(short(d)) }, same: equal[time.Duration],
	}
}

// short is the duration without the zeros that its String has: 5m, not 5m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// text is a string that check approves of: it returns what was expected, or "".
func text(name, bounds string, check func(string) string) kind[string] {
	return kind[string]{
		name: name, bounds: bounds,
		read: func(raw any, _ bool) (string, string) {
			s, ok := raw.(string)
			if !ok {
				return "", "a string in quotes"
			}
			return s, check(s)
		},
		write: strconv.Quote, same: equal[string],
	}
}

// list is strings that check approves of, each once.
func list(name, bounds string, limit int, check func(string) string) kind[[]string] {
	return kind[[]string]{
		name: name, bounds: fmt.Sprintf("at most %d, %s", limit, bounds),
		read: func(raw any, _ bool) ([]string, string) {
			values, ok := raw.([]any)
			if !ok {
				return nil, "a list, such as [\"…\", \"…\"]"
			}
			if len(values) > limit {
				return nil, fmt.Sprintf("at most %d, not %d", limit, len(values))
			}
			out := []string{}
			for _, v := range values {
				s, ok := v.(string)
				if !ok {
					return nil, fmt.Sprintf("strings in quotes, not %s", show(v))
				}
				if expected := check(s); expected != "" {
					return nil, fmt.Sprintf("%s, not %s", expected, show(s))
				}
				if slices.Contains(out, s) {
					return nil, fmt.Sprintf("each once; %s stands there twice", show(s))
				}
				out = append(out, s)
			}
			return out, ""
		},
		write: func(v []string) string {
			quoted := make([]string, len(v))
			for i, s := range v {
				quoted[i] = strconv.Quote(s)
			}
			return "[" + strings.Join(quoted, ", ") + "]"
		},
		same: slices.Equal[[]string],
	}
}

const maxPath = 4096 // bytes, PATH_MAX

// oneLine is any text that fits on a line: it ends up in status and labels'
// neighbourhood, where a line feed would forge another line.
func oneLine(limit int) func(string) string {
	return func(s string) string {
		if len(s) > limit || strings.ContainsFunc(s, unicode.IsControl) {
			return fmt.Sprintf("one line of at most %d bytes", limit)
		}
		return ""
	}
}

func absolute(s string) string {
	if !filepath.IsAbs(s) || filepath.Clean(s) != s || s == "/" || oneLine(maxPath)(s) != "" {
		return "an absolute path without . and .. and // in it"
	}
	return ""
}

// or allows "" beside what check approves of.
func or(empty string, check func(string) string) func(string) string {
	return func(s string) string {
		if s == "" {
			return ""
		}
		if expected := check(s); expected != "" {
			return expected + `, or "" for ` + empty
		}
		return ""
	}
}

var (
	dnsLabel     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	dnsSubdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	unitName     = regexp.MustCompile(`^[A-Za-z0-9:_.\\-]+(@[A-Za-z0-9:_.\\-]+)?\.(service|socket|target|mount|automount|swap|timer|path|slice|scope|device)$`)
)

func label(s string) string {
	if len(s) > 63 || !dnsLabel.MatchString(s) {
		return "a DNS label: at most 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"
	}
	return ""
}

func subdomain(s string) string {
	if len(s) > 253 || !dnsSubdomain.MatchString(s) {
		return "a DNS name: at most 253 of a-z, 0-9, - and ., beginning and ending with a letter or digit"
	}
	return ""
}

// address is what a server listens at; port 0 is any that is free.
func address(s string) string {
	host, port, err := net.SplitHostPort(s)
	number, badPort := strconv.ParseUint(port, 10, 16)
	if err != nil || badPort != nil || strconv.FormatUint(number, 10) != port ||
		host != "" && net.ParseIP(host) == nil && subdomain(host) != "" {
		return "HOST:PORT, such as \"127.0.0.1:9477\" or \"[::1]:9477\""
	}
	return ""
}

// webAddress is where a server of an HTTP API is. A user's name and password have
// no place in it: it is shown to people.
func webAddress(s string) string {
	u, err := url.Parse(s)
	if err != nil || len(s) > 1024 || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Opaque != "" ||
		u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.ContainsFunc(s, unicode.IsSpace) {
		return "an address such as \"http://127.0.0.1:9090\" or \"https://prometheus.example.com/path\", without a user, ? and #"
	}
	return ""
}

// webhook is where notifications are sent. A query is allowed: the addresses of
// Teams' workflows have one.
func webhook(s string) string {
	u, err := url.Parse(s)
	if err != nil || len(s) > 2048 || u.Hostname() == "" || u.Opaque != "" || u.User != nil || u.Fragment != "" || strings.ContainsFunc(s, unicode.IsSpace) ||
		u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
		return "an address such as \"https://hooks.example.com/path\", or \"http://127.0.0.1:8080/path\" on this host, of at most 2048 bytes, without a user and #"
	}
	return ""
}

func loopback(host string) bool { return host == "localhost" || net.ParseIP(host).IsLoopback() }

// occasions are the allowed values of notify.on.
var occasions = func() []string {
	var all []string
	for _, d := range v1alpha1.OccasionDocs() {
		all = append(all, string(d.Occasion))
	}
	return all
}()

func occasion(s string) string {
	if !slices.Contains(occasions, s) {
		return joinAnd(occasions)
	}
	return ""
}

func unit(s string) string {
	if len(s) > math.MaxUint8 || !unitName.MatchString(s) {
		return "names of systemd units with their suffix, such as \"chronyd.service\""
	}
	return ""
}

func code(words []string) string {
	return "`" + strings.Join(words, "` or `") + "`"
}
