package e2e

import (
	"strings"
)

// A host is a Debian without rpm. It runs the machine's rpm, with the machine's libraries, so rpm's scripts run under
// the host's systemd. Only the names of what the package requires are not checked, because Debian's packages are not in
// rpm's database. dnf, repositories and requirements are tested in package install.
var (
	rpmBinds = map[string]string{"/opt/machine/usr": "/usr", "/usr/lib/rpm": "/usr/lib/rpm"}
	rpmFiles = map[string][]byte{
		"/usr/local/bin/rpm": []byte(`#!/bin/sh
loader=$(echo /opt/machine/usr/lib/*-linux-gnu/ld-linux-*.so.?)
exec "$loader" --library-path "${loader%/*}" /opt/machine/usr/bin/rpm "$@"
`),
	}
)

// erased is what docs/uninstall.md says that `rpm -e` leaves, where an administrator has changed lockkeeper.toml and
// added a file.
const erased = `/etc/lockkeeper/coordinator.kubeconfig
/etc/lockkeeper/lockkeeper.toml.rpmsave
/etc/lockkeeper/note
`

// testRPM installs the rpm, upgrades it while the service runs and while it is stopped, and erases it.
func testRPM(s shell) {
	copyIn := func(deb, to string) {
		s.Helper()
		from, err := beside(deb, "lockkeeper-*.rpm")
		must(s.T, err)
		must(s.T, s.host.CopyIn(within(s.T, soon), from, to))
	}
	copyIn(debs.older, "/root/older.rpm")
	copyIn(debs.newer, "/root/newer.rpm")
	// The last preset of RHEL and Fedora. Debian enables what no preset names.
	s.do("echo 'disable *' >/usr/lib/systemd/system-preset/99-default-disable.preset")
	s.puts("rpm -i --nodeps /root/older.rpm")
	s.is("is-enabled", "disabled")
	s.is("is-active", "inactive")
	s.do("systemctl enable --now lockkeeper") // as docs/download.md says
	s.runs(olderVersion)

	s.do(editConfig)
	s.restarts("rpm -U --nodeps /root/newer.rpm")
	s.runs(newerVersion)
	s.is("is-enabled", "enabled")
	s.stillEdited()

	s.do("systemctl stop lockkeeper")
	s.puts("rpm -U --nodeps --oldpackage /root/older.rpm")
	s.is("is-active", "inactive")
	s.do("systemctl start lockkeeper")
	s.runs(olderVersion)

	s.refusesConfig()
	s.puts("rpm -U --nodeps /root/newer.rpm")
	s.is("is-active", "active")
	s.runs(newerVersion)

	s.do(`mkdir -p /var/cache/lockkeeper; cd /etc/lockkeeper
echo secret | tee coordinator.kubeconfig note /var/lib/lockkeeper/coordinator-token.json >/var/cache/lockkeeper/plugin`)
	if out := s.leaves("rpm -e lockkeeper", "held"); !strings.Contains(out, "/etc/lockkeeper/coordinator.kubeconfig is a credential and stays") {
		s.Errorf("rpm -e does not say that the credential stays: %s", out)
	}
	if out := s.do(left); out != erased {
		s.Errorf("erased: this is left\n%s\nexpected\n%s", out, erased)
	}
	s.is("is-active", "inactive")
	s.notFailed()
}

// left lists what a host has of lockkeeper's. rpm -e also leaves two empty directories below /usr/share, which the
// package does not own.
const left = `{ find /etc/lockkeeper /usr -xdev -path '*lockkeeper*' -not -type d; find /etc/systemd/system/*.wants -name '*lockkeeper*'
find /run /var/cache /var/lib -xdev -name '*lockkeeper*' -not -path '*/apt/*' -not -path '/run/systemd/*'; } | sort`
