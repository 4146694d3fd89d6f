package realhost

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Options describe a host.
type Options struct {
	// Name of the host and of its Node: a host name.
	Name string
	// Labels are given to the Node by its kubelet when it registers it.
	Labels map[string]string
	// ControlPlane: the Node carries the label of a control plane node, put there by the test bed's admin, since NodeRestriction
	// forbids it to kubelets.
	ControlPlane bool

	// Release is the operating system that the host runs; "" is [DefaultRelease]'s.
	Release Release
	// Version is VERSION_ID at first; "" is 4.1.0.
	Version string
	// OSRelease are more lines for os-release, or others for those that it has: NAME, ID ("testos"), VERSION_ID, PRETTY_NAME.
	OSRelease map[string]string
	// ShutdownGrace is the kubelet's shutdownGracePeriod, of which critical pods get the last second; 0 is 4 s, which is less than
	// logind's own InhibitDelayMaxSec of 5 s.
	ShutdownGrace time.Duration
	// DownTime is between the end of a boot and the next one; 0 is 1 s.
	DownTime time.Duration

	// Files are put on the host before its first boot, readable by all, by absolute path; those in a bin or sbin directory are
	// executable.
	Files map[string][]byte
	// Enable are units, among Files or the tree's, that are wanted by multi-user.target.
	Enable []string
	// Binds are directories or files of the machine that the host sees, read-only: by their path in the host, which is made if need be.
	Binds map[string]string

	// Events is called with every event of this host, one at a time; what it is called for waits until it returns.
	Events func(Event)
}

func (o *Options) setDefaults() error {
	if o.Name == "" || strings.Trim(o.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || len(o.Name) > 63 {
		return fmt.Errorf("%q is no host name", o.Name)
	}
	if o.ShutdownGrace < 0 || o.DownTime < 0 {
		return errors.New("a duration is negative")
	}
	if o.Release == "" {
		release, err := DefaultRelease()
		if err != nil {
			return err
		}
		o.Release = release
	}
	if !slices.Contains(Releases, o.Release) {
		return fmt.Errorf("its release is %q, expected one of %q", o.Release, Releases)
	}
	if o.Version == "" {
		o.Version = "4.1.0"
	}
	if o.ShutdownGrace == 0 {
		o.ShutdownGrace = 4 * time.Second
	}
	if o.DownTime == 0 {
		o.DownTime = time.Second
	}
	return nil
}

// osRelease is the text of the file.
func (o *Options) osRelease(version string) string {
	lines := map[string]string{
		"NAME": "Testbed OS", "ID": "testos", "ID_LIKE": "debian", "VERSION_ID": version, "PRETTY_NAME": "Testbed OS " + version,
	}
	maps.Copy(lines, o.OSRelease)
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(&b, "%s=%q\n", key, lines[key])
	}
	return b.String()
}

// NextBoot says how the next boot, and only that one, differs. The zero value is a boot that brings what was staged.
type NextBoot struct {
	// OldVersion: the host comes back on the version that it ran, as after a rollback; what was staged is lost.
	OldVersion bool
	// Mask are units that are masked before the boot, kubelet.service for one; they stay so until they are unmasked in the host.
	Mask []string
	// StayDown: it does not come back; see [Host.PowerOn].
	StayDown bool
	// DownTime replaces the option's; 0 leaves it.
	DownTime time.Duration
	// Prepare is called while the host is down, before the boot: [Host.WriteFile] then changes the disk.
	Prepare func() error
}
