package node

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// self is what this host is in its present boot. It does not change while the
// process runs.
type self struct {
	bootID  string
	booted  time.Time // with a monotonic reading, so that uptime is right when the clock is set
	started time.Time

	osID, osVersion, group string
}

// maxFile bounds what is read of any of the files, in bytes.
const maxFile = 64 << 10

// readSelf reads the host's files below root.
func readSelf(root string) (self, error) {
	s := self{started: time.Now()}
	r, err := os.OpenRoot(root)
	if err != nil {
		return s, err
	}
	defer r.Close()

	id, err := readFile(r, "proc/sys/kernel/random/boot_id")
	if err != nil {
		return s, err
	}
	s.bootID = strings.TrimSpace(id)
	if err := v1alpha1.ValidateID(s.bootID); err != nil {
		return s, fmt.Errorf("/proc/sys/kernel/random/boot_id: %w", err)
	}
	up, err := readFile(r, "proc/uptime")
	if err != nil {
		return s, err
	}
	first, _, _ := strings.Cut(strings.TrimSpace(up), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil || !(seconds >= 0 && seconds < 1e9) {
		return s, fmt.Errorf("/proc/uptime: %q, expected seconds since the boot", first)
	}
	s.booted = s.started.Add(-time.Duration(seconds * float64(time.Second)))

	osRelease, err := readPairs(r, "etc/os-release", "usr/lib/os-release")
	if err != nil {
		return s, err
	}
	s.osID, s.osVersion = osRelease["ID"], osRelease["VERSION_ID"]
	// Flatcar's update.conf: the file in /etc stands over that in /usr.
	for _, path := range []string{"etc/flatcar/update.conf", "usr/share/flatcar/update.conf"} {
		conf, err := readPairs(r, path)
		if err != nil {
			return s, err
		}
		if s.group == "" {
			s.group = conf["GROUP"]
		}
	}
	return s, nil
}

func readFile(r *os.Root, path string) (string, error) {
	f, err := r.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b := make([]byte, 0, 4096)
	for len(b) < maxFile {
		n, err := f.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err != nil || n == 0 {
			break
		}
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
	}
	return string(b), nil
}

// readPairs reads KEY=value lines of the first of the files that is there,
// quotes taken off. None there is no pairs and no error.
func readPairs(r *os.Root, paths ...string) (map[string]string, error) {
	for _, path := range paths {
		text, err := readFile(r, path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		pairs := map[string]string{}
		lines := bufio.NewScanner(strings.NewReader(text))
		for lines.Scan() {
			key, value, ok := strings.Cut(strings.TrimSpace(lines.Text()), "=")
			if ok && !strings.HasPrefix(key, "#") {
				pairs[key] = strings.Trim(value, `"'`)
			}
		}
		return pairs, nil
	}
	return nil, nil
}

func (s *self) uptime() time.Duration { return time.Since(s.booted) }

// host is what Observation.Self starts from.
func (s *self) host(version string) v1alpha1.Host {
	return v1alpha1.Host{
		Version: version, BootID: s.bootID, OSVersion: s.osVersion,
		BootTime: s.booted.UTC().Truncate(time.Second), Started: s.started.UTC().Truncate(time.Second),
	}
}

func (s *self) info() map[string]string {
	return map[string]string{
		v1alpha1.LabelOS:        v1alpha1.LabelValue(s.osID),
		v1alpha1.LabelOSVersion: v1alpha1.LabelValue(s.osVersion),
		v1alpha1.LabelGroup:     v1alpha1.LabelValue(s.group),
	}
}
