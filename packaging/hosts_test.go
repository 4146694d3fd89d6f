package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// hereDocument matches a file that a command of a page writes.
var hereDocument = regexp.MustCompile(`(?ms)^cat >(\S+) <<'END'\n(.*?)^END$`)

// hostFiles returns the files that docs/hosts.md has the reader write, by their paths.
func hostFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, block := range blocks(t, "hosts.md", "sh") {
		for _, m := range hereDocument.FindAllStringSubmatch(block, -1) {
			files[m[1]] = m[2]
		}
	}
	return files
}

// needs skips a test if a program is missing on this machine.
func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("left out: %v", err)
	}
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestDebianFiles has apt and perl read the files of docs/hosts.md, next to files that say the
// opposite.
func TestDebianFiles(t *testing.T) {
	files := hostFiles(t)
	t.Run("apt", func(t *testing.T) {
		needs(t, "apt-config")
		etc := t.TempDir()
		write(t, filepath.Join(etc, "apt.conf.d/50unattended-upgrades"), "Unattended-Upgrade::Automatic-Reboot \"true\";\n")
		for _, name := range []string{"20auto-upgrades", "99lockkeeper"} {
			text := files["/etc/apt/apt.conf.d/"+name]
			if text == "" {
				t.Fatalf("docs/hosts.md does not write %s", name)
			}
			write(t, filepath.Join(etc, "apt.conf.d", name), text)
		}
		cmd := exec.CommandContext(t.Context(), "apt-config", "dump")
		cmd.Env = append(os.Environ(), "APT_CONFIG="+write(t, filepath.Join(etc, "first.conf"), "Dir::Etc \""+etc+"\";\n"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, want := range []string{`Unattended-Upgrade::Automatic-Reboot "false";`, `APT::Periodic::Unattended-Upgrade "1";`, `APT::Periodic::Update-Package-Lists "1";`} {
			if !strings.Contains(string(out), want+"\n") {
				t.Errorf("apt does not have %s", want)
			}
		}
	})
	t.Run("needrestart", func(t *testing.T) {
		needs(t, "perl")
		text := files["/etc/needrestart/conf.d/lockkeeper.conf"]
		if text == "" {
			t.Fatal("docs/hosts.md does not write needrestart's file")
		}
		file := write(t, filepath.Join(t.TempDir(), "lockkeeper.conf"), text)
		if out, err := exec.CommandContext(t.Context(), "perl", "-c", file).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		// As needrestart does: the file changes a hash of patterns, of which some are there before.
		const script = `our %nrconf = (override_rc => { qr(^dbus) => 0 }); do $ARGV[0]; die $@ if $@;
for my $unit (qw(dbus.service kubelet.service containerd.service)) {
	my @matches = grep { $unit =~ /$_/ } keys %{$nrconf{override_rc}};
	die "$unit: @matches" unless @matches == 1 && $nrconf{override_rc}{$matches[0]} == 0;
}
die "all" if grep { "nginx.service" =~ /$_/ } keys %{$nrconf{override_rc}};`
		if out, err := exec.CommandContext(t.Context(), "perl", "-we", script, file).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// TestRebootCheckUnits has systemd check the example's units.
func TestRebootCheckUnits(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"lockkeeper-reboot-check.service", "lockkeeper-reboot-check.timer"} {
		text, err := os.ReadFile(filepath.Join("examples/reboot-check", name))
		if err != nil {
			t.Fatal(err)
		}
		// systemd looks for the program, which is not installed here.
		write(t, filepath.Join(dir, name), strings.Replace(string(text), "=/usr/local/sbin/lockkeeper-reboot-check", "=/bin/true", 1))
	}
	verifyUnits(t, dir)
}

// TestShellCheck has shellcheck read the packages' scripts and the examples.
func TestShellCheck(t *testing.T) {
	needs(t, "shellcheck")
	var scripts []string
	for _, pattern := range []string{"deb/p*", "rpm/p*", "examples/*/*.sh"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %q, %v", pattern, found, err)
		}
		scripts = append(scripts, found...)
	}
	if out, err := exec.CommandContext(t.Context(), "shellcheck", append([]string{"--shell=sh"}, scripts...)...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
