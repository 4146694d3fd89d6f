package node

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/hostfs"
)

// self describes this host in the current boot. It does not change while the process runs.
type self struct {
	bootID  string
	booted  time.Time // with a monotonic reading, so that uptime stays right when the clock is set
	started time.Time

	osID, osVersion, group string
	imageVersion           bool // osVersion differs for each image

	unread []error // one for each file that exists and cannot be read
}

// readSelf reads the host's files below root.
func readSelf(root string) (self, error) {
	s := self{started: time.Now()}
	r, err := hostfs.New(root)
	if err != nil {
		return s, err
	}
	defer r.Close()

	id, err := r.Read("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return s, err
	}
	s.bootID = strings.TrimSpace(id)
	if err := v1alpha1.ValidateID(s.bootID); err != nil {
		return s, fmt.Errorf("/proc/sys/kernel/random/boot_id: %w", err)
	}
	up, err := r.Read("/proc/uptime")
	if err != nil {
		return s, err
	}
	first, _, _ := strings.Cut(strings.TrimSpace(up), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil || !(seconds >= 0 && seconds < 1e9) {
		return s, fmt.Errorf("/proc/uptime: %q, expected seconds since the boot", v1alpha1.LabelValue(first))
	}
	s.booted = s.started.Add(-time.Duration(seconds * float64(time.Second)))

	osRelease := s.pairs(r, "/etc/os-release", "/usr/lib/os-release")
	s.osID, s.osVersion = clip(osRelease["ID"]), clip(osRelease["VERSION_ID"])
	if image := clip(osRelease["OSTREE_VERSION"]); image != "" {
		s.osVersion, s.imageVersion = image, true // VERSION_ID is that of the distribution
	}
	// Flatcar's update.conf: the file in /etc takes precedence over the one in /usr.
	for _, path := range []string{"/etc/flatcar/update.conf", "/usr/share/flatcar/update.conf"} {
		if s.group == "" {
			s.group = clip(s.pairs(r, path)["GROUP"])
		}
	}
	return s, nil
}

// clip bounds a value for the Node. Labels are shortened further.
func clip(value string) string { return strings.ToValidUTF8(value[:min(len(value), 256)], "") }

// pairs returns the KEY=value lines of the first file that can be read, with the quotes removed.
// If a file exists and cannot be read, pairs adds the error to unread and tries the next file.
func (s *self) pairs(r hostfs.FS, paths ...string) map[string]string {
	for _, path := range paths {
		text, err := r.Read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			s.unread = append(s.unread, err)
			continue
		}
		pairs := map[string]string{}
		for line := range strings.Lines(text) {
			key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
			if ok && !strings.HasPrefix(key, "#") {
				pairs[key] = strings.Trim(value, `"'`)
			}
		}
		return pairs
	}
	return nil
}

// uptime returns how long the boot has lasted.
func (s *self) uptime() time.Duration { return time.Since(s.booted) }

// host returns the initial value of Observation.Self.
//
// Started has the full resolution of the clock, because it distinguishes one process from the
// next. A process that was killed may have sent a report, such as Refused, that lands after its
// successor has asked for the reboot. The successor writes the host record first, so the late
// report becomes a conflict.
func (s *self) host(version string) v1alpha1.Host {
	return v1alpha1.Host{
		Version: version, BootID: s.bootID, OSVersion: s.osVersion,
		BootTime: s.booted.UTC().Truncate(time.Second), Started: s.started.Round(0).UTC(),
	}
}

// os returns the running OS, for the host's record.
func (s *self) os() v1alpha1.OSStatus {
	return v1alpha1.OSStatus{ID: v1alpha1.UpdateName(s.osID), Version: v1alpha1.UpdateName(s.osVersion), Group: v1alpha1.UpdateName(s.group)}
}

// info returns the labels that no decision uses.
func (s *self) info() map[string]string {
	return map[string]string{
		v1alpha1.LabelOS:        v1alpha1.LabelValue(s.osID),
		v1alpha1.LabelOSVersion: v1alpha1.LabelValue(s.osVersion),
		v1alpha1.LabelGroup:     v1alpha1.LabelValue(s.group),
	}
}
