package policy

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// named returns a name that the entry of the list stands for.
func named(entry string) string {
	if stem, ok := strings.CutSuffix(entry, "*"); ok {
		return stem + "anything.service"
	}
	return entry
}

// compileAction returns what is wrong with a policy that has the action in one rule.
func compileAction(a v1alpha1.Action) []Problem {
	spec := v1alpha1.DefaultPolicySpec()
	spec.Rules = []v1alpha1.Rule{{Source: v1alpha1.SourceFile, Path: "/etc/x", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionDaemonReload}, a}}}
	return compile(spec).Problems
}

// TestRefusedUnits: each name in the list is refused, as are the instances of a
// template of that name and the name in disguise.
func TestRefusedUnits(t *testing.T) {
	seen := map[string]bool{}
	for _, g := range AllRefusedUnits() {
		for _, entry := range g.Units {
			if seen[entry] {
				t.Errorf("%s is in the list twice", entry)
			}
			seen[entry] = true
			name := named(entry)
			if why := ValidateUnit(name); why != "" {
				t.Errorf("%s: %s", entry, why)
			}
			kind := strings.TrimPrefix(path.Ext(name), ".")
			stem := strings.TrimSuffix(name, "."+kind)
			for _, unit := range []string{
				name, stem + "@x." + kind, stem + "@." + kind, stem + `@a-b\x2dc.d.` + kind,
				strings.ReplaceAll(stem, "-", `\x2d`) + "." + kind, fmt.Sprintf(`\x%02x`, stem[0]) + stem[1:] + "." + kind, stem + `\x40x.` + kind,
			} {
				for _, action := range []v1alpha1.ActionType{v1alpha1.ActionReload, v1alpha1.ActionRestart} {
					refused := Refuse(action, unit)
					if g.Reloads && action == v1alpha1.ActionReload {
						if refused != nil {
							t.Errorf("%s %s is refused", action, unit)
						}
						continue
					}
					if refused == nil || refused.Why != g.Why {
						t.Errorf("%s %s: %+v, expected %q", action, unit, refused, g.Why)
					}
					if ValidateUnit(unit) != "" {
						continue // that is what Compile says then
					}
					want := []Problem{{"spec.rules[0].actions[1].unit", unit + " " + g.Why + ", expected " + g.Instead}}
					if got := compileAction(v1alpha1.Action{Type: action, Unit: unit}); !slices.Equal(got, want) {
						t.Errorf("%s %s: %v, expected %v", action, unit, got, want)
					}
				}
			}
			for _, action := range []v1alpha1.ActionType{v1alpha1.ActionNone, v1alpha1.ActionDrain, v1alpha1.ActionDaemonReload, v1alpha1.ActionReboot} {
				if g := Refuse(action, name); g != nil {
					t.Errorf("%s, which has no unit, is refused", action)
				}
			}
		}
	}
}

// TestRefusedUnitsByHand are the units for which the list exists, and names near to
// those that stay what they were.
func TestRefusedUnitsByHand(t *testing.T) {
	refused := strings.FieldsSeq(`reboot.target poweroff.target halt.target kexec.target soft-reboot.target rescue.target rescue.service
		emergency.target emergency.service suspend.target hibernate.target hybrid-sleep.target suspend-then-hibernate.target sleep.target
		shutdown.target umount.target final.target exit.target ctrl-alt-del.target initrd.target initrd-switch-root.service
		initrd-switch-root.target system-update.target system-update-cleanup.service runlevel0.target runlevel1.target runlevel6.target
		systemd-reboot.service systemd-poweroff.service systemd-halt.service systemd-kexec.service systemd-soft-reboot.service
		systemd-exit.service systemd-suspend.service systemd-hibernate.service systemd-hybrid-sleep.service
		systemd-suspend-then-hibernate.service systemd-hibernate-resume@dev-sda1.service systemd-sysinstall@1.service
		systemd-factory-reset@1.service factory-reset-now.target sysinit.target dbus.service dbus.socket dbus-broker.service`)
	for unit := range refused {
		if Refuse(v1alpha1.ActionRestart, unit) == nil {
			t.Errorf("Restart %s is accepted", unit)
		}
	}
	accepted := strings.FieldsSeq(`kubelet.service containerd.service crio.service lockkeeper.service lockkeeper-before-reboot.target
		systemd-logind.service systemd-journald.service systemd-networkd.service systemd-resolved.service systemd-udevd.service
		default.target multi-user.target graphical.target basic.target runlevel2.target runlevel5.target user@1000.service
		session-1.scope user.slice reboot.service my-reboot.target reboot-tool.target initrd.service systemd-reboot.timer
		rescue-me.service dbus-org.freedesktop.login1.service system-updates.service app@reboot.target.service app@rescue.service
		systemd-sysupdate-reboot.timer Reboot.target`)
	for unit := range accepted {
		for _, action := range []v1alpha1.ActionType{v1alpha1.ActionReload, v1alpha1.ActionRestart} {
			if problems := compileAction(v1alpha1.Action{Type: action, Unit: unit}); len(problems) > 0 {
				t.Errorf("%s %s: %v", action, unit, problems)
			}
		}
	}
	// What a rule watches is only read.
	spec := v1alpha1.DefaultPolicySpec()
	spec.Rules = []v1alpha1.Rule{{Source: v1alpha1.SourceUnit, Unit: "reboot.target", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionReboot}}}}
	if problems := compile(spec).Problems; len(problems) > 0 {
		t.Errorf("a rule that watches reboot.target: %v", problems)
	}
}

// TestSystemdUnits holds the list against all units that three versions of systemd
// ship, each judged by hand.
func TestSystemdUnits(t *testing.T) {
	text, err := os.ReadFile("testdata/systemd-units.txt")
	if err != nil {
		t.Fatal(err)
	}
	units := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		units++
		unit, want := strings.CutPrefix(line, "!")
		if refused := Refuse(v1alpha1.ActionRestart, unit) != nil; refused != want {
			t.Errorf("%s: refused %t, expected %t", unit, refused, want)
		}
	}
	if units < 300 {
		t.Errorf("%d units, expected more than 300", units)
	}
}

// TestFleetLockRule checks that a rule for FleetLock grants the reboot that its client makes, or nothing at all.
func TestFleetLockRule(t *testing.T) {
	for action, want := range map[v1alpha1.ActionType]string{
		v1alpha1.ActionReboot: "", v1alpha1.ActionNone: "",
		v1alpha1.ActionDrain:        "spec.rules[0].actions: no Reboot, expected Reboot in a rule for FleetLock",
		v1alpha1.ActionDaemonReload: "spec.rules[0].actions: no Reboot, expected Reboot in a rule for FleetLock",
	} {
		s := v1alpha1.DefaultPolicySpec()
		s.Rules = []v1alpha1.Rule{{Source: v1alpha1.SourceFleetLock, Actions: []v1alpha1.Action{{Type: action}}}}
		problems := compile(s).Problems
		if (want == "") != (len(problems) == 0) || want != "" && !strings.HasPrefix(problems[0].String(), want) {
			t.Errorf("%s: %v, expected %q", action, problems, want)
		}
	}
}
