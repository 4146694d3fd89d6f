package policy

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// RefusedUnits are units that no plan reloads or restarts, with the reason.
type RefusedUnits struct {
	// Why continues the sentence "this unit …". Instead says what to write in the
	// policy; it continues the sentence "expected …".
	Why, Instead string
	// Reloads reports that Reload is accepted: only Restart is refused.
	Reloads bool
	// Units are the units' names; an entry with a * is a pattern as of [path.Match].
	// An entry also covers the instances of a template of that name: rescue.service
	// covers rescue@x.service.
	Units []string
}

const onlyReboot = "the action Reboot, which drains the node and waits for its turn"

// refusedUnits is the only list. It has units that systemd itself ships, from version
// 252 to 262, and the targets of systemd.special(7). A test in testbed/install
// finds units of other versions that are not classified yet.
//
// The rules of v1alpha1.Action repeat the list for the API server, without the instances
// of templates and without escaped names; a test in testbed/identity compares the two.
//
// The list has services as well as targets: Restart leaves an inactive target alone, but
// runs a Type=oneshot service, and systemd-reboot.service is one.
//
// Some units were considered and are not in the list:
//   - default.target, multi-user.target, graphical.target and basic.target. A restart
//     stops no unit below them. Where default.target is an alias of a target in the
//     list, the host refuses it by that name.
//   - systemd-logind.service. It keeps sessions and inhibitors over a restart, and
//     sites do change /etc/systemd/logind.conf.
//   - user@UID.service, sessions, slices and mounts. Their restart may end processes of
//     people or pods, but does not reboot the host. systemd itself refuses it for
//     init.scope, -.slice, system.slice and -.mount.
var refusedUnits = []RefusedUnits{
	{
		Why: "shuts down or reboots the host without a drain", Instead: onlyReboot,
		Units: []string{
			"reboot.target", "poweroff.target", "halt.target", "kexec.target", "soft-reboot.target", "exit.target",
			"systemd-reboot.service", "systemd-poweroff.service", "systemd-halt.service", "systemd-kexec.service",
			"systemd-soft-reboot.service", "systemd-exit.service", "runlevel0.target", "runlevel6.target",
			// Every shutdown goes through these.
			"shutdown.target", "umount.target", "final.target",
			// Keys and a power failure start these.
			"ctrl-alt-del.target", "kbrequest.target", "sigpwr.target",
			// These reboot or power off, depending on what they find.
			"systemd-sysupdate-reboot.service", "systemd-validatefs.service", "systemd-battery-check.service",
		},
	}, {
		Why: "suspends the host", Instead: "another unit: a suspended node is not Ready, and no plan wakes it up",
		Units: []string{
			"sleep.target", "suspend.target", "hibernate.target", "hybrid-sleep.target", "suspend-then-hibernate.target",
			"systemd-suspend.service", "systemd-hibernate.service", "systemd-hybrid-sleep.service",
			"systemd-suspend-then-hibernate.service", "systemd-hibernate-resume.service",
		},
	}, {
		Why: "takes the host to a rescue, update, installation or initrd state", Instead: "another unit, or " + onlyReboot,
		Units: []string{
			"rescue.target", "rescue.service", "emergency.target", "emergency.service", "runlevel1.target",
			// Their failure starts emergency.target.
			"local-fs.target", "systemd-fsck-root.service",
			"system-update.target", "system-update-*", "system-install.target", "systemd-sysinstall.service",
			"factory-reset.target", "factory-reset-*", "systemd-factory-reset.service", "systemd-factory-reset-*",
			"storage-target-mode.target", "systemd-storagetm.service",
			"initrd.target", "initrd-*", "breakpoint-*",
		},
	}, {
		Why: "is required by nearly every unit of the host, and they would all be restarted with it", Instead: "the units that are meant, or " + onlyReboot,
		Units: []string{"sysinit.target"},
	}, {
		Why: "carries the host's message bus, and its restart disconnects logind and every other service", Instead: "Reload of dbus.service, or " + onlyReboot,
		Reloads: true,
		Units:   []string{"dbus.service", "dbus.socket", "dbus-broker.service"},
	},
}

// AllRefusedUnits returns the groups of units that no plan reloads or restarts. The
// caller must not change them.
func AllRefusedUnits() []RefusedUnits { return refusedUnits }

// Refuse returns the group for which the action is not carried out on a unit of this
// name, or nil. The host calls it for every name that the unit has there.
func Refuse(action v1alpha1.ActionType, unit string) *RefusedUnits {
	if action != v1alpha1.ActionReload && action != v1alpha1.ActionRestart {
		return nil
	}
	name := withoutInstance(unescape(unit))
	for i := range refusedUnits {
		g := &refusedUnits[i]
		if g.Reloads && action == v1alpha1.ActionReload {
			continue
		}
		for _, pattern := range g.Units {
			if match, _ := path.Match(pattern, name); match {
				return g
			}
		}
	}
	return nil
}

// unescape returns a unit's name with \xNN replaced by the character; see
// systemd-escape(1). To systemd, the escaped name is that of another unit, but no unit has
// a good reason to use the escaped name of a refused one.
func unescape(unit string) string {
	var b strings.Builder
	for i := 0; i < len(unit); i++ {
		if rest := unit[i:]; len(rest) >= 4 && rest[:2] == `\x` {
			if c, err := strconv.ParseUint(rest[2:4], 16, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(unit[i])
	}
	return b.String()
}

// withoutInstance returns a unit's name without "@" and the instance. It keeps the
// type.
func withoutInstance(unit string) string {
	kind := path.Ext(unit)
	stem, _, _ := strings.Cut(strings.TrimSuffix(unit, kind), "@")
	return stem + kind
}

// RefusedUnitsTable returns the list as a Markdown table, for the documents.
func RefusedUnitsTable() string {
	var b strings.Builder
	b.WriteString("| no plan | units | because each | write instead |\n| --- | --- | --- | --- |\n")
	for _, g := range refusedUnits {
		verbs := "reloads or restarts"
		if g.Reloads {
			verbs = "restarts"
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s |\n", verbs, strings.Join(g.Units, "` `"), g.Why, g.Instead)
	}
	return b.String()
}
