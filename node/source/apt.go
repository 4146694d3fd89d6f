package source

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"lockkeeper.dev/lockkeeper/node/hostfs"
)

const (
	aptParts    = "/etc/apt/apt.conf.d"
	aptMain     = "/etc/apt/apt.conf"
	maxAptFiles = 256
)

var (
	// aptName matches the names that apt reads in its directory, by apt.conf(5), and those with a colon, which it reads too.
	aptName = regexp.MustCompile(`^[\w:-]([\w.:-]*\.conf|[\w:-]*)$`)
	// aptToken matches a comment, a quoted word, or a word.
	aptToken = regexp.MustCompile(`//.*|#.*|(?s:/\*.*?\*/)|"[^"]*"|[;{}]|[^\s";{}]+`)
)

// aptAutomaticReboot returns apt's setting Unattended-Upgrade::Automatic-Reboot, which the
// last file that sets it decides. It does not know scopes and #clear: the setting has the
// same name in any scope, and remains after a #clear. Both are errors on the safe side, and
// a file that sets it to "false" corrects them.
//
// It does not ask apt-config, because the service runs no programs as root.
func aptAutomaticReboot(r hostfs.FS) (bool, error) {
	names, err := r.Names(aptParts)
	if err != nil {
		return false, fmt.Errorf("apt's configuration: %w", err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !aptName.MatchString(name) })
	if len(names) > maxAptFiles {
		return false, fmt.Errorf("apt's configuration: %d files, expected at most %d", len(names), maxAptFiles)
	}
	reboot := false
	for _, name := range append(names, aptMain) {
		if name != aptMain {
			name = path.Join(aptParts, name)
		}
		if info, err := r.Stat(name); err == nil && !info.Mode().IsRegular() {
			continue // apt ignores it, too: a directory with old files, or a link to /dev/null
		}
		text, err := r.Read(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("apt's configuration: %w", err)
		}
		if value, ok := lastAptValue(text, "Automatic-Reboot"); ok {
			reboot = aptTrue(value)
		}
	}
	return reboot, nil
}

// lastAptValue returns the last value that a text in apt's format sets for the name.
func lastAptValue(text, name string) (value string, ok bool) {
	key := ""
	for _, token := range aptToken.FindAllString(text, -1) {
		if token[0] == '#' || strings.HasPrefix(token, "//") || strings.HasPrefix(token, "/*") {
			continue
		}
		if last := key[strings.LastIndex(key, ":")+1:]; strings.EqualFold(last, name) && !strings.ContainsAny(token, ";{}") {
			value, ok = strings.Trim(token, `"`), true
		}
		key = token
	}
	return value, ok
}

// aptTrue reports whether apt takes the value for true.
func aptTrue(value string) bool {
	if n, err := strconv.Atoi(value); err == nil {
		return n != 0
	}
	return slices.Contains([]string{"yes", "true", "with", "on", "enable"}, strings.ToLower(value))
}
