package realhost

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Options describe a host.
type Options struct {
	// Name is the name of the host and of its Node. It must be a valid host name.
	Name string
	// Labels are set on the Node by its kubelet when the kubelet registers it.
	Labels map[string]string

	// Release is the operating system of the host; "" means [DefaultRelease].
	Release Release
	// OSRelease adds lines to os-release, or replaces its default lines: NAME, ID ("testos"), VERSION_ID, PRETTY_NAME.
	OSRelease map[string]string

	// Files are written to the host before its first boot, by absolute path and readable by all. Files in a bin or
	// sbin directory are executable.
	Files map[string][]byte
	// Enable lists units, from Files or from the tree, that multi-user.target wants.
	Enable []string
	// Binds are directories or files of the machine that the host can read, by their path in the host. Missing paths
	// are created.
	Binds map[string]string

	// Events is called with every event of this host, one at a time. The host waits until the call returns.
	Events func(Event)
}

func (o *Options) setDefaults() error {
	if o.Name == "" || strings.Trim(o.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || len(o.Name) > 63 {
		return fmt.Errorf("%q is not a valid host name", o.Name)
	}
	if o.Release == "" {
		release, err := DefaultRelease()
		if err != nil {
			return err
		}
		o.Release = release
	}
	if !slices.Contains(Releases, o.Release) {
		return fmt.Errorf("the release is %q, expected one of %q", o.Release, Releases)
	}
	return nil
}

// osRelease returns the content of os-release.
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

// NextBoot configures the host's next boot, and only that one. The zero value boots the staged version.
type NextBoot struct {
	// OldVersion makes the host boot its previous version, as after a rollback. The staged version is lost.
	OldVersion bool
	// Mask lists units to mask before the boot, for example kubelet.service. They stay masked until a test unmasks
	// them.
	Mask []string
	// StayDown keeps the host down; see [Host.PowerOn].
	StayDown bool
	// Prepare is called before the boot while the host is down, so [Host.WriteFile] changes the disk.
	Prepare func() error
}
