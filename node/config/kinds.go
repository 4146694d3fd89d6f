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

	"k8s.io/apimachinery/pkg/util/validation"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// kind reads, checks and writes the values of one type.
type kind[T any] struct {
	name   string // the type in docs
	bounds string // the bounds in docs
	// read returns the value, or what was expected instead of raw.
	read func(raw any, testbed bool) (v T, expected string)
	// write returns the value as TOML.
	write func(T) string
}

func boolean() kind[bool] {
	return kind[bool]{
		name: "boolean", bounds: "`true` or `false`",
		read: func(raw any, _ bool) (bool, string) {
			if v, ok := raw.(bool); ok {
				return v, ""
			}
			return false, "true or false"
		},
		write: strconv.FormatBool,
	}
}

// choice is one of a few values.
func choice[T ~string](values ...T) kind[T] {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = strconv.Quote(string(v))
	}
	return kind[T]{
		name: "string", bounds: "`" + strings.Join(quoted, "` or `") + "`",
		read: func(raw any, _ bool) (T, string) {
			if s, ok := raw.(string); ok && slices.Contains(values, T(s)) {
				return T(s), ""
			}
			return "", strings.Join(quoted, " or ")
		},
		write: func(v T) string { return strconv.Quote(string(v)) },
	}
}

func level() kind[slog.Level] {
	k := choice("error", "warn", "info", "debug")
	return kind[slog.Level]{
		name: k.name, bounds: k.bounds,
		read: func(raw any, testbed bool) (l slog.Level, expected string) {
			name, expected := k.read(raw, testbed)
			if expected == "" {
				_ = l.UnmarshalText([]byte(name)) // it knows these four
			}
			return l, expected
		},
		write: func(l slog.Level) string { return strconv.Quote(strings.ToLower(l.String())) },
	}
}

// duration includes both bounds. testbed replaces low in tests.
func duration(low, high, testbed time.Duration) kind[time.Duration] {
	bounds := func(low time.Duration) string {
		return v1alpha1.ShortDuration(low) + " to " + v1alpha1.ShortDuration(high)
	}
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
		write: func(d time.Duration) string { return strconv.Quote(v1alpha1.ShortDuration(d)) },
	}
}

// text is a string. check returns what was expected, or "" if it accepts the string.
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
		write: strconv.Quote,
	}
}

// list is a list of strings, each at most once and each accepted by check.
func list[T ~string](name, bounds string, limit int, check func(string) string) kind[[]T] {
	return kind[[]T]{
		name: name, bounds: fmt.Sprintf("at most %d, %s", limit, bounds),
		read: func(raw any, _ bool) ([]T, string) {
			values, ok := raw.([]any)
			if !ok {
				return nil, "a list, such as [\"…\", \"…\"]"
			}
			if len(values) > limit {
				return nil, fmt.Sprintf("at most %d, not %d", limit, len(values))
			}
			out := []T{}
			for _, v := range values {
				s, ok := v.(string)
				if !ok {
					return nil, "strings in quotes, not " + show(v)
				}
				if expected := check(s); expected != "" {
					return nil, expected + ", not " + show(s)
				}
				if slices.Contains(out, T(s)) {
					return nil, "each value once, not " + show(s) + " twice"
				}
				out = append(out, T(s))
			}
			return out, ""
		},
		write: func(v []T) string {
			quoted := make([]string, len(v))
			for i, s := range v {
				quoted[i] = strconv.Quote(string(s))
			}
			return "[" + strings.Join(quoted, ", ") + "]"
		},
	}
}

const maxPath = 4096 // bytes, PATH_MAX

// oneLine accepts text without control characters. Such text is shown in status, where a
// line feed could forge another line.
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

// or accepts "", which means empty, and what check accepts.
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

var unitName = regexp.MustCompile(`^[A-Za-z0-9:_.\\-]+(@[A-Za-z0-9:_.\\-]+)?\.(service|socket|target|mount|automount|swap|timer|path|slice|scope|device)$`)

func label(s string) string {
	if len(validation.IsDNS1123Label(s)) > 0 {
		return "a DNS label: at most 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"
	}
	return ""
}

func subdomain(s string) string {
	if len(validation.IsDNS1123Subdomain(s)) > 0 {
		return "a DNS name: at most 253 of a-z, 0-9, - and ., beginning and ending with a letter or digit"
	}
	return ""
}

// address checks the address of a server of ours. Port 0 is any free port.
func address(s string) string {
	host, port, err := net.SplitHostPort(s)
	number, badPort := strconv.ParseUint(port, 10, 16)
	if err != nil || badPort != nil || strconv.FormatUint(number, 10) != port ||
		host != "" && net.ParseIP(host) == nil && subdomain(host) != "" {
		return "HOST:PORT, such as \"127.0.0.1:9477\" or \"[::1]:9477\""
	}
	return ""
}

// loopbackAddress checks the address of a server that only this host's programs may reach.
func loopbackAddress(s string) string {
	host, _, _ := net.SplitHostPort(s)
	if address(s) != "" || !net.ParseIP(host).IsLoopback() {
		return "a loopback ADDRESS:PORT, such as \"127.0.0.1:9478\" or \"[::1]:9478\""
	}
	return ""
}

var hexDigits = regexp.MustCompile(`^[0-9a-f]{32}$`)

func hexID(s string) string {
	if !hexDigits.MatchString(s) {
		return "32 of 0-9 and a-f, without hyphens"
	}
	return ""
}

// webAddress checks the address of an HTTP API. It must have no user and no password,
// because it is shown to people.
func webAddress(s string) string {
	u := parseURL(s, 1024)
	if u == nil || u.RawQuery != "" || u.ForceQuery {
		return "an address such as \"http://127.0.0.1:9090\" or \"https://prometheus.example.com/path\", without a user, ? and #"
	}
	return ""
}

// webhook checks the address that notifications are sent to. It may have a query, as the
// addresses of Teams' workflows do.
func webhook(s string) string {
	u := parseURL(s, 2048)
	if u == nil || u.Scheme != "https" && !loopback(u.Hostname()) {
		return "an address such as \"https://hooks.example.com/path\", or \"http://127.0.0.1:8080/path\" on this host, of at most 2048 bytes, without a user and #"
	}
	return ""
}

// parseURL returns nil for anything but an address of http or https of at most limit
// bytes, without a user and a fragment.
func parseURL(s string, limit int) *url.URL {
	u, err := url.Parse(s)
	if err != nil || len(s) > limit || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Opaque != "" ||
		u.User != nil || u.Fragment != "" || strings.ContainsFunc(s, unicode.IsSpace) {
		return nil
	}
	return u
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
