package install

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

const (
	conf    = "/etc/lockkeeper/lockkeeper.toml"
	enabled = "/etc/systemd/system/multi-user.target.wants/lockkeeper.service"
)

// isEnabled is what systemctl says of the service.
func (r *root) isEnabled() string {
	out, _ := r.run("systemctl", "is-enabled", "lockkeeper.service")
	return strings.TrimSpace(out)
}

// booted makes the scripts of a package find a system on which systemd runs, and that a removal has left in this boot. /run is empty at
// each command; $1 is the root.
const booted = `mkdir -p "$1/run/systemd/system" "$1/run/lockkeeper" && touch "$1/run/lockkeeper/leaving" && `

// standIn puts a program in the place of lockkeeper that writes down how it is called, and fails like a wait that times out. What it
// returns reports whether the host was made to leave since the last call.
func (r *root) standIn() (left func() bool) {
	r.must("sh", "-c", `rm /usr/bin/lockkeeper
printf '#!/bin/sh\necho "$@" >>/called\nexit 4\n' >/usr/bin/lockkeeper; chmod 0755 /usr/bin/lockkeeper`)
	return func() bool {
		out := r.must("sh", "-c", "cat /called 2>/dev/null; rm -f /called")
		return strings.Contains(out, "leave --this-host\n")
	}
}

// secrets makes the host one that has coordinated: with the administrator's credential, what the service wrote, and other files.
func (r *root) secrets() {
	r.must("sh", "-ec", `umask 077; echo secret >/etc/lockkeeper/coordinator.kubeconfig
mkdir -p /var/cache/lockkeeper /var/lib/lockkeeper; touch /etc/lockkeeper/other /var/lib/lockkeeper/other; echo secret >/var/lib/lockkeeper/coordinator-token.json; echo secret >/var/cache/lockkeeper/plugin`)
}

// left lists what the host has of lockkeeper's, except in the package manager's own records.
func (r *root) left() string {
	return r.must("sh", "-c", "find /etc /opt /srv /usr /var -xdev -path '*lockkeeper*' -not -path '/var/lib/dpkg/*' -not -type d | sort")
}

// remains compares a column of the table in docs/uninstall.md with what the host has.
func (r *root) remains(column int) {
	r.t.Helper()
	text, err := os.ReadFile(source + "/docs/uninstall.md")
	must(r.t, err)
	_, table, _ := strings.Cut(string(text), "\n## What remains where\n")
	rows := 0
	for line := range strings.Lines(table) {
		m := regexp.MustCompile("^\\| \\**(other files in )?`(/(etc|var)/[^`]+)`").FindStringSubmatch(line)
		if m == nil {
			continue
		}
		rows++
		path := m[2]
		if m[1] != "" {
			path += "/other" // of secrets
		}
		cell := strings.TrimSpace(strings.Split(line, "|")[column])
		stays := strings.HasPrefix(cell, "stay")
		if !stays && !strings.HasPrefix(cell, "deleted") {
			r.t.Errorf("docs/uninstall.md does not say whether %s stays: %q", path, cell)
		}
		if r.has(path) != stays {
			r.t.Errorf("docs/uninstall.md says of %s: %s; it is there: %t", path, cell, !stays)
		}
	}
	if rows != 6 {
		r.t.Errorf("docs/uninstall.md has %d rows about files, expected 6", rows)
	}
}

const (
	// removedDeb is what docs/uninstall.md says that `apt-get remove` leaves.
	removedDeb = `/etc/lockkeeper/coordinator.kubeconfig
/etc/lockkeeper/lockkeeper.toml
/etc/lockkeeper/other
/etc/systemd/system/multi-user.target.wants/lockkeeper.service
/var/cache/lockkeeper/plugin
/var/lib/lockkeeper/coordinator-token.json
/var/lib/lockkeeper/other
/var/lib/systemd/deb-systemd-helper-enabled/lockkeeper.service.dsh-also
/var/lib/systemd/deb-systemd-helper-enabled/multi-user.target.wants/lockkeeper.service
`
	// erasedRPM is what it says that `dnf remove` and `rpm -e` leave.
	erasedRPM = `/etc/lockkeeper/coordinator.kubeconfig
/etc/lockkeeper/lockkeeper.toml.rpmsave
/etc/lockkeeper/other
`
	// staysUntil is what the removal says of a credential.
	staysUntil = "lockkeeper: %s is a credential"
)

func TestDeb(t *testing.T) {
	t.Parallel()
	r := newRoot(t)
	old, upgrade := r.copyIn(artefact(dist(t), debForm, v1)), r.copyIn(artefact(next(t), debForm, v2))
	r.must("dpkg", "-i", old)
	if got := r.isEnabled(); got != "enabled" {
		t.Errorf("installed: %s, expected enabled", got)
	}
	if got := r.must("lockkeeper", "check-config"); got != "valid: "+conf+"\n" {
		t.Errorf("installed: %q", got)
	}
	if got := r.must("lockkeeper", "version"); !strings.HasPrefix(got, "lockkeeper v1.2.3 ") {
		t.Errorf("installed: %q", got)
	}

	if got := r.must("journalctl", "--list-catalog"); !strings.Contains(got, "lockkeeper runs") {
		t.Error("installed: journalctl -x does not know our entries")
	}

	r.must("sed", "-i", `s/^#mode = .*/mode = "observe"/`, conf)
	r.must("dpkg", "-i", upgrade)
	if got := r.must("lockkeeper", "version"); !strings.HasPrefix(got, "lockkeeper v1.3.0-rc.1 ") {
		t.Errorf("upgraded: %q", got)
	}
	if got := r.must("grep", "-c", `^mode = "observe"$`, conf); got != "1\n" {
		t.Errorf("upgraded: the administrator's change is gone: %q", got)
	}

	r.must("systemctl", "disable", "lockkeeper.service")
	r.must("dpkg", "-i", old)
	if got := r.isEnabled(); got != "disabled" {
		t.Errorf("another version, after the administrator disabled it: %s, expected disabled", got)
	}
	r.must("systemctl", "enable", "lockkeeper.service")

	left := r.standIn()
	r.must("sh", "-c", booted+"dpkg -i "+upgrade)
	if left() {
		t.Error("upgraded: the host was made to leave")
	}
	r.standIn()
	r.secrets()
	said := r.must("sh", "-c", booted+"dpkg -r lockkeeper 2>&1")
	if !left() {
		t.Error("removed: the host was not made to leave")
	}
	if got := r.left(); got != removedDeb {
		t.Errorf("removed: this is left\n%s\nexpected\n%s", got, removedDeb)
	}
	r.remains(2)
	for _, secret := range []string{"/etc/lockkeeper/coordinator.kubeconfig", "/var/lib/lockkeeper/coordinator-token.json"} {
		if !strings.Contains(said, fmt.Sprintf(staysUntil, secret)) {
			t.Errorf("removed: it does not say that %s stays:\n%s", secret, said)
		}
	}
	r.must("sh", "-c", booted+"dpkg -i "+upgrade+" && test ! -e /run/lockkeeper/leaving") // it does not leave again
	if got := r.isEnabled(); got != "enabled" {
		t.Errorf("installed again: %s, expected enabled", got)
	}

	r.secrets()
	r.must("dpkg", "-P", "lockkeeper")
	for _, gone := range []string{"/etc/lockkeeper", "/var/cache/lockkeeper", "/var/lib/lockkeeper", "/usr/bin/lockkeeper", "/usr/lib/systemd/system/lockkeeper.service"} {
		if r.has(gone) {
			t.Errorf("purged: %s is still there", gone)
		}
	}
	if _, err := r.run("test", "-L", enabled); err == nil {
		t.Errorf("purged: %s is still there", enabled)
	}
	r.remains(3)
	if out := r.must("sh", "-c", "find / -xdev -name '*lockkeeper*' -not -path '/root/*' -not -path '/proc/*'"); out != "" {
		t.Errorf("purged: this is left\n%s", out)
	}
}

// TestRPM installs into a root of its own. Nothing there provides what the rpm requires, as Debian's packages are not rpm's.
func TestRPM(t *testing.T) {
	t.Parallel()
	r := newRoot(t)
	system, then := "", ""
	rpm := func(args ...string) string {
		t.Helper()
		out, err := r.outside(append([]string{"sh", "-c", system + `root=$1 && shift && rpm --root "$root" "$@"` + then, "sh", r.dir}, args...)...)
		if err != nil {
			t.Fatalf("rpm %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		if strings.Contains(out, "warning: %") || strings.Contains(out, "scriptlet") {
			t.Errorf("rpm %s: %s", strings.Join(args, " "), out)
		}
		return out
	}
	old, upgrade := artefact(dist(t), rpmForm, v1), artefact(next(t), rpmForm, v2)
	// Fedora's last preset; Debian enables what no preset names.
	r.must("sh", "-c", "mkdir -p /usr/lib/systemd/system-preset; echo 'disable *' >/usr/lib/systemd/system-preset/99-default-disable.preset")

	rpm("-i", "--nodeps", old)
	if got := r.isEnabled(); got != "disabled" {
		t.Errorf("installed: %s, expected disabled, as the preset says", got)
	}
	if got := r.must("lockkeeper", "check-config"); got != "valid: "+conf+"\n" {
		t.Errorf("installed: %q", got)
	}
	if got := r.must("journalctl", "--list-catalog"); !strings.Contains(got, "lockkeeper runs") {
		t.Error("installed: journalctl -x does not know our entries")
	}
	r.must("systemctl", "enable", "lockkeeper.service")
	r.must("sed", "-i", `s/^#mode = .*/mode = "observe"/`, conf)
	left := r.standIn()
	system = booted
	rpm("-U", "--nodeps", upgrade)
	system = ""
	if left() {
		t.Error("upgraded: the host was made to leave")
	}
	if got := r.must("lockkeeper", "version"); !strings.HasPrefix(got, "lockkeeper v1.3.0-rc.1 ") {
		t.Errorf("upgraded: %q", got)
	}
	if got := r.isEnabled(); got != "enabled" {
		t.Errorf("upgraded: %s, expected still enabled", got)
	}
	if got := r.must("grep", "-c", `^mode = "observe"$`, conf); got != "1\n" {
		t.Errorf("upgraded: the administrator's change is gone: %q", got)
	}
	if got := strings.TrimSpace(rpm("-q", "lockkeeper")); got != "lockkeeper-1.3.0~rc.1-1.x86_64" {
		t.Errorf("upgraded: installed is %q", got)
	}
	r.secrets()
	if said, secret := rpm("-e", "--nodeps", "lockkeeper"), "/etc/lockkeeper/coordinator.kubeconfig"; !strings.Contains(said, fmt.Sprintf(staysUntil, secret)) {
		t.Errorf("removed: it does not say that %s stays:\n%s", secret, said)
	}
	if got := r.left(); got != erasedRPM {
		t.Errorf("removed: this is left\n%s\nexpected\n%s", got, erasedRPM)
	}
	r.remains(4)
	if _, err := r.run("test", "-L", enabled); err == nil {
		t.Errorf("removed: %s is still there", enabled)
	}

	// An administrator's preset enables it.
	r.must("sh", "-c", "mkdir -p /etc/systemd/system-preset; echo 'enable lockkeeper.service' >/etc/systemd/system-preset/10-us.preset")
	system, then = `mkdir -p "$1/run/lockkeeper" && touch "$1/run/lockkeeper/leaving" && `, ` && test ! -e "$root/run/lockkeeper/leaving"` // it does not leave again
	rpm("-i", "--nodeps", old)
	if got := r.isEnabled(); got != "enabled" {
		t.Errorf("installed with a preset: %s, expected enabled", got)
	}
	system, then = booted, ""
	r.standIn()
	rpm("-e", "--nodeps", "lockkeeper")
	if !left() {
		t.Error("removed: the host was not made to leave")
	}
}
