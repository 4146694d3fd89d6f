package simhost

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// Config is a host's lockkeeper.toml: values by table ("" for keys outside of a table) and key. A value is a string, a bool, an int, a
// []string, or a time.Duration, which is written as a string.
type Config map[string]map[string]any

// Set sets one value in its table.
func (c Config) Set(table, key string, value any) {
	if c[table] == nil {
		c[table] = map[string]any{}
	}
	c[table][key] = value
}

// defaultConfig is the product's default with shorter waits. Some values are below the minimums that apply without --root.
func (h *Host) defaultConfig() Config {
	return Config{
		"":            {"log_level": "debug"},
		"kubernetes":  {"kubeconfig": h.dir.Join("kubelet.kubeconfig")},
		"lease":       {"duration": 6 * time.Second, "renew_deadline": 4 * time.Second, "retry_period": 500 * time.Millisecond},
		"coordinator": {"kubeconfig": h.coordinatorKubeconfig()},
		"sources":     {"poll_interval": time.Second},
		"reboot":      {"session_delay": time.Duration(0), "min_uptime": time.Duration(0)},
		"health":      {"timeout": time.Minute},
		"metrics":     {"listen": ""}, // many hosts share one machine
	}
}

func (c Config) toml() (string, error) {
	var b strings.Builder
	for _, table := range slices.Sorted(maps.Keys(c)) { // "" comes first
		if table != "" {
			fmt.Fprintf(&b, "[%s]\n", table)
		}
		for _, key := range slices.Sorted(maps.Keys(c[table])) {
			text, err := tomlValue(c[table][key])
			if err != nil {
				return "", fmt.Errorf("configuration, %s.%s: %w", table, key, err)
			}
			fmt.Fprintf(&b, "%s = %s\n", key, text)
		}
	}
	return b.String(), nil
}

func tomlValue(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return tomlString(v), nil
	case time.Duration:
		return tomlString(v.String()), nil
	case bool, int:
		return fmt.Sprint(v), nil
	case []string:
		quoted := make([]string, len(v))
		for i, s := range v {
			quoted[i] = tomlString(s)
		}
		return "[" + strings.Join(quoted, ", ") + "]", nil
	}
	return "", fmt.Errorf("unsupported type %T", v)
}

// tomlString returns text as a TOML basic string. TOML's escapes differ from Go's.
func tomlString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, "\\u%04X", r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// Configure changes the host's lockkeeper.toml. lockkeeper reads it at its next start, or at SIGHUP (see [Host.Signal]).
func (h *Host) Configure(edit func(Config)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if edit != nil {
		edit(h.config)
	}
	text, err := h.config.toml()
	if err != nil {
		return err
	}
	if err := os.WriteFile(h.ConfigPath(), []byte(text), 0o600); err != nil {
		return fmt.Errorf("writing the configuration of %s: %w", h.opts.Name, err)
	}
	return nil
}

// ConfigPath returns the path of the host's lockkeeper.toml.
func (h *Host) ConfigPath() string { return h.dir.Join("lockkeeper.toml") }
