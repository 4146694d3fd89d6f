package main

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// described is what `git describe --tags --always --dirty` says: a tag, with the
// commits since and the commit, or the commit alone where there is no tag.
var described = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)(?:-((?:alpha|beta|rc)[0-9.]*))?(?:-(\d+)-g([0-9a-f]+))?(-dirty)?$`)

// exactly matches the versions of releases.
var exactly = regexp.MustCompile(`^v?\d+\.\d+\.\d+(-(alpha|beta|rc)[0-9.]*)?$`)

var commitOnly = regexp.MustCompile(`^([0-9a-f]{7,40})(-dirty)?$`)

// packageVersion makes of git's description one that deb, rpm and systemd put in
// the right order, without a dash, which rpm does not allow: 1.2.3~rc.1 is before
// 1.2.3, and 1.2.3+5.g0123456 is after. Without a tag the commit's time makes the
// order.
func packageVersion(describe string, at time.Time) (string, error) {
	if m := described.FindStringSubmatch(describe); m != nil {
		v, more := m[1], []string{}
		if m[2] != "" {
			v += "~" + m[2]
		}
		if m[3] != "" {
			more = append(more, m[3], "g"+m[4])
		}
		return v + suffix(more, m[5]), nil
	}
	if m := commitOnly.FindStringSubmatch(describe); m != nil {
		return "0.0.0" + suffix([]string{at.UTC().Format("20060102150405"), "g" + m[1]}, m[2]), nil
	}
	return "", fmt.Errorf("the version %q is none that git describes, such as v1.2.3 or v1.2.3-5-g0123456", describe)
}

func suffix(more []string, dirty string) string {
	if dirty != "" {
		more = append(more, "dirty")
	}
	if len(more) == 0 {
		return ""
	}
	return "+" + strings.Join(more, ".")
}

// minor returns the minor version of a package's version: 1.2 of 1.2.3~rc.1.
func minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return parts[0] + "." + parts[1]
}
