package forecast

import (
	"fmt"
	"path"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// maxVersion bounds the version in os:VERSION, in bytes.
const maxVersion = 128

// ChangeForms are the forms of a change that [ParseChange] accepts.
const ChangeForms = "file:/etc/…, unit:NAME, sentinel:/run/…, os, os:VERSION, request or fleetlock"

// ParseChange parses a change that a user wrote in one of the [ChangeForms].
func ParseChange(text string) (v1alpha1.Change, error) {
	fail := func(format string, args ...any) (v1alpha1.Change, error) {
		return v1alpha1.Change{}, fmt.Errorf("%q, expected "+format, append([]any{text}, args...)...)
	}
	kind, name, named := strings.Cut(text, ":")
	switch kind {
	case "file", "sentinel":
		source, example := v1alpha1.SourceFile, "file:/etc/containerd/config.toml"
		if kind == "sentinel" {
			source, example = v1alpha1.SourceSentinel, "sentinel:/run/reboot-required"
		}
		switch {
		case !path.IsAbs(name):
			return fail("an absolute path, as in %s", example)
		case path.Clean(name) != name:
			return fail("a clean path: %s:%s", kind, path.Clean(name))
		}
		return v1alpha1.Change{Source: source, Name: name}, nil
	case "unit":
		if wrong := policy.ValidateUnit(name); wrong != "" {
			return fail("a unit's full name, as in unit:containerd.service (%s)", wrong)
		}
		return v1alpha1.Change{Source: v1alpha1.SourceUnit, Name: name}, nil
	case "os":
		if named && strings.TrimSpace(name) == "" || len(name) > maxVersion {
			return fail("os, or os:VERSION with a version of at most %d bytes", maxVersion)
		}
		return v1alpha1.Change{Source: v1alpha1.SourceOSUpdate, Version: name}, nil
	case "request", "fleetlock":
		if named {
			return fail("%s, with nothing after it", kind)
		}
		source := v1alpha1.SourceRequest
		if kind == "fleetlock" {
			source = v1alpha1.SourceFleetLock
		}
		return v1alpha1.Change{Source: source}, nil
	}
	return fail(ChangeForms)
}
