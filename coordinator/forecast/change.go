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

// ParseChange parses a change that a user wrote: file:PATH, unit:NAME, sentinel:PATH,
// os, os:VERSION or request.
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
	case "request":
		if named {
			return fail("request, with nothing after it")
		}
		return v1alpha1.Change{Source: v1alpha1.SourceRequest}, nil
	}
	return fail("file:/etc/…, unit:NAME, sentinel:/run/…, os, os:VERSION or request")
}
