package install

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

var (
	unitName = regexp.MustCompile(`/systemd/system/([^/]+\.(service|socket|device|mount|automount|swap|target|path|timer|slice|scope))$`)
	// ends finds what a unit file says if the unit may end the boot or take the host to another state.
	ends = regexp.MustCompile(`(?m)^((Success|Failure|JobTimeout|StartLimit)Action=(reboot|poweroff|halt|exit|kexec|soft-reboot)` +
		`|OnFailure=.*(emergency|rescue|reboot|poweroff)` +
		`|(Requires|Wants|BindsTo)=.*(reboot|poweroff|halt|kexec|sleep|suspend|hibernate|rescue|emergency|factory-reset-now)\.target` +
		`|Exec[A-Za-z]*=.*(systemd-sleep|systemd-shutdown|sulogin|systemctl.* (reboot|poweroff|halt|kexec|isolate|switch-root|default)|sysupdate reboot))`)
)

// TestEverySystemdUnitIsJudged fails if the systemd at hand ships a unit that no one has judged, and if a unit that plans may
// restart has come to end the boot. A person then looks at what its restart does, and writes the unit to the list in
// policy/refused.go, or not, and to policy/testdata/systemd-units.txt.
func TestEverySystemdUnitIsJudged(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(source, "policy/testdata/systemd-units.txt"))
	if err != nil {
		t.Fatal(err)
	}
	judged := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		judged[strings.TrimPrefix(strings.TrimSpace(line), "!")] = true
	}
	t.Run("this machine", func(t *testing.T) {
		testUnitsAreJudged(t, judged, "/", func(args ...string) (string, error) { return run(t, args[0], args[1:]...) })
	})
	t.Run("the test bed's hosts", func(t *testing.T) {
		r := newRoot(t)
		testUnitsAreJudged(t, judged, r.lower, r.run)
	})
}

func testUnitsAreJudged(t *testing.T, judged map[string]bool, root string, run func(args ...string) (string, error)) {
	out, err := run("dpkg-query", "--show", "--showformat=${db:Status-Status} ${source:Package} ${source:Version} ${Package}\n")
	if err != nil {
		t.Skipf("left out: which units systemd ships is asked of dpkg: %v", err)
	}
	var packages []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) == 4 && f[0] == "installed" && slices.Contains([]string{"systemd", "dbus", "dbus-broker"}, f[1]) {
			packages = append(packages, f[3])
			t.Log(f[1:])
		}
	}
	if !slices.Contains(packages, "systemd") {
		t.Skip("left out: systemd's own package is not installed")
	}
	if out, err = run(append([]string{"dpkg-query", "--listfiles"}, packages...)...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	units, refused := 0, 0
	for line := range strings.Lines(out) {
		file := strings.TrimSpace(line)
		name := unitName.FindStringSubmatch(file)
		if name == nil {
			continue
		}
		unit := name[1]
		units++
		if !judged[unit] {
			t.Errorf("%s is not in policy/testdata/systemd-units.txt: judge what its restart does", unit)
		}
		if policy.Refuse(v1alpha1.ActionRestart, unit) != nil {
			refused++
			continue
		}
		content, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			continue // an alias that leads nowhere here, which has been judged by its name
		}
		if line := ends.Find(content); line != nil {
			t.Errorf("%s may be restarted by a plan, and its file says %q", unit, line)
		}
	}
	if units < 150 || refused < 40 {
		t.Errorf("%d units, %d of them refused: expected at least 150 and 40", units, refused)
	}
}
