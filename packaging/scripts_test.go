package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestUpgradeScripts checks what an upgrade does with the service. One that runs restarts, and one that was stopped stays stopped. One
// that has refused its configuration starts, because the version that comes may accept it, and systemd does not start it again.
func TestUpgradeScripts(t *testing.T) {
	for _, c := range []struct{ script, args, ended, want string }{
		{"deb/postinst", "configure 1.0.0", "0", "try-restart"},
		{"deb/postinst", "configure 1.0.0", "78", "start"},
		{"deb/postinst", "configure", "0", "start"},
		{"rpm/postun", "1", "0", "try-restart"},
		{"rpm/postun", "1", "78", "start"},
		{"rpm/postun", "0", "78", ""},
	} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, "run/systemd/system"), 0o755); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(c.script)
		if err != nil {
			t.Fatal(err)
		}
		// The script's directories are below root, and its programs note their arguments.
		script := strings.NewReplacer(" /run/", " "+root+"/run/", " /var/", " "+root+"/var/", " /etc/", " "+root+"/etc/").Replace(string(text))
		note := "#!/bin/sh\n[ $1 = show ] && echo " + c.ended + " || echo $1 >>" + root + "/log\n"
		for _, program := range []string{"systemctl", "deb-systemd-invoke", "deb-systemd-helper", "journalctl"} {
			if err := os.Chmod(write(t, filepath.Join(root, "bin", program), note), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), "sh", append([]string{write(t, filepath.Join(root, "script"), script)}, strings.Fields(c.args)...)...)
		cmd.Env = append(os.Environ(), "PATH="+filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s %s: %v\n%s", c.script, c.args, err, out)
		}
		log, _ := os.ReadFile(filepath.Join(root, "log"))
		got := ""
		for line := range strings.FieldsSeq(string(log)) {
			if line == "start" || line == "try-restart" {
				got += line
			}
		}
		if got != c.want {
			t.Errorf("%s %s, after the service has ended with %s: %q, expected %q", c.script, c.args, c.ended, got, c.want)
		}
	}
}
