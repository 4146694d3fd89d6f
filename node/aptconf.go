package node

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"lockkeeper.dev/lockkeeper/node/hostfs"
)

// What apt's own tools would answer is read from the files that they read, apt.conf(5): asking `apt-config dump` would
// have a service that needs to run nothing run a program with plug-ins, at every look.

const (
	aptParts = "/etc/apt/apt.conf.d"
	aptMain  = "/etc/apt/apt.conf"

	maxAptFiles = 256
	maxAptDepth = 32
)

// aptSettings reads apt's configuration, full name in lower case to value: the last one that is set stands. Files that
// apt would not read are not read; one that is not well-formed is taken as far as it can be understood.
func aptSettings(r hostfs.FS) (map[string]string, error) {
	settings := map[string]string{}
	names, err := r.Names(aptParts)
	if err != nil {
		return nil, fmt.Errorf("apt's configuration: %w", err)
	}
	var paths []string
	for _, name := range names {
		if aptReads(name) {
			paths = append(paths, path.Join(aptParts, name))
		}
	}
	slices.Sort(paths)
	if len(paths) > maxAptFiles {
		return nil, fmt.Errorf("apt's configuration: %d files, expected at most %d", len(paths), maxAptFiles)
	}
	for _, p := range append(paths, aptMain) {
		text, err := r.Read(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("apt's configuration: %w", err)
		}
		parseApt(text, settings)
	}
	return settings, nil
}

// aptReads is apt.conf(5)'s rule for the files in its folder.
func aptReads(name string) bool {
	if ext := path.Ext(name); ext != "" && ext != ".conf" {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == "" && !strings.HasPrefix(name, ".")
}

// parseApt adds to the settings what a text in apt's format sets.
func parseApt(text string, settings map[string]string) {
	var scopes []string
	var words []string
	name := func(tag string) string {
		return strings.ToLower(strings.Join(append(slices.Clone(scopes), tag), "::"))
	}
	flush := func() {
		switch {
		case len(words) >= 2 && words[0] == "#clear":
			for _, tag := range words[1:] {
				for key := range settings {
					if key == name(tag) || strings.HasPrefix(key, name(tag)+"::") {
						delete(settings, key)
					}
				}
			}
		case len(words) == 2:
			settings[name(words[0])] = words[1]
		}
		words = nil
	}
	for token, quoted := range aptTokens(text) {
		switch {
		case quoted:
			words = append(words, token)
		case token == ";":
			flush()
		case token == "{":
			tag := ""
			if len(words) > 0 {
				tag = words[0]
			}
			if len(words) == 2 { // Tag "value" { ... }
				settings[name(tag)] = words[1]
			}
			if words = nil; len(scopes) >= maxAptDepth {
				return
			}
			scopes = append(scopes, tag)
		case token == "}":
			flush()
			scopes = scopes[:max(0, len(scopes)-1)]
		default:
			words = append(words, token)
		}
	}
	flush()
}

// aptTokens yields words, quoted or not, braces and semicolons, without the comments.
func aptTokens(text string) func(yield func(token string, quoted bool) bool) {
	return func(yield func(string, bool) bool) {
		for text != "" {
			var token string
			quoted := false
			switch c := text[0]; {
			case strings.ContainsRune(" \t\r\n\v\f", rune(c)):
				text = text[1:]
				continue
			case strings.HasPrefix(text, "//"), c == '#' && !strings.HasPrefix(text, "#clear"):
				_, text, _ = strings.Cut(text, "\n")
				continue
			case strings.HasPrefix(text, "/*"):
				_, text, _ = strings.Cut(text, "*/")
				continue
			case c == '"':
				token, text, _ = strings.Cut(text[1:], `"`)
				quoted = true
			case strings.ContainsRune(";{}", rune(c)):
				token, text = text[:1], text[1:]
			default:
				end := strings.IndexAny(text, " \t\r\n\v\f\";{}")
				if end < 0 {
					end = len(text)
				}
				token, text = text[:end], text[end:]
			}
			if !yield(token, quoted) {
				return
			}
		}
	}
}

// aptTrue is what apt takes for true.
func aptTrue(value string) bool {
	if n, err := strconv.Atoi(value); err == nil {
		return n != 0
	}
	return slices.Contains([]string{"yes", "true", "with", "on", "enable"}, strings.ToLower(value))
}
