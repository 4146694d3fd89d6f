package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/node/hostfs"
)

func TestLastAptValue(t *testing.T) {
	for name, c := range map[string]struct {
		text, want string
		ok         bool
	}{
		"one line":            {`Unattended-Upgrade::Automatic-Reboot "true";`, "true", true},
		"scopes":              {"Unattended-Upgrade {\n  Automatic-Reboot \"true\";\n  Mail \"root; {a}\";\n};\nX \"1\";", "true", true},
		"the last one":        {`Automatic-Reboot "1"; automatic-reboot "2";`, "2", true},
		"without quotes":      {"U::Automatic-Reboot true;", "true", true},
		"comments":            {"// Automatic-Reboot \"1\";\n# Automatic-Reboot \"2\";\n/* Automatic-Reboot \"3\";\n */ Automatic-Reboot \"5\"; // Automatic-Reboot \"6\";\n", "5", true},
		"comment in value":    {`Mail "http://x/#y /* z"; Automatic-Reboot "1";`, "1", true},
		"block comment":       {`Automatic-Reboot /* or not */ "1";`, "1", true},
		"comment in name":     {"Automatic-Reboot // or not\n\"1\";", "1", true},
		"other settings":      {`Automatic-Reboot-Time "02:00"; Automatic-Reboot-WithUsers "true"; X-Automatic-Reboot "1";`, "", false},
		"a value of the name": {`Mail "Automatic-Reboot"; X "1";`, "", false},
		"no value":            {"Automatic-Reboot;", "", false},
		"a scope":             {`Automatic-Reboot { A "1"; };`, "", false},
		"clear":               {"Automatic-Reboot \"1\";\n#clear Automatic-Reboot;", "1", true},
		"no end":              {`Automatic-Reboot "1`, "1", true},
		"no end of comment":   {`/* Automatic-Reboot "1";`, "1", true},
		"nothing":             {"\x00\xff;;{}{", "", false},
	} {
		if got, ok := lastAptValue(c.text, "Automatic-Reboot"); got != c.want || ok != c.ok {
			t.Errorf("%s: %q, %t, expected %q, %t", name, got, ok, c.want, c.ok)
		}
	}
}

func FuzzLastAptValue(f *testing.F) {
	f.Add("Automatic-Reboot { B \"1\"; };\n#clear A;\n// x\n/* y */")
	f.Fuzz(func(t *testing.T, text string) { lastAptValue(text, "Automatic-Reboot") })
}

// TestAutomaticReboot has the files that apt reads, in their order. They count only if the
// tool that would reboot is installed.
func TestAutomaticReboot(t *testing.T) {
	const on, off, tool = `Unattended-Upgrade::Automatic-Reboot "true";`, `Unattended-Upgrade::Automatic-Reboot "false";`, "usr/bin/unattended-upgrade"
	for name, c := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"on":                       {map[string]string{tool: "", "etc/apt/apt.conf.d/50unattended-upgrades": on}, true},
		"not installed":            {map[string]string{"etc/apt/apt.conf.d/50unattended-upgrades": on}, false},
		"no configuration":         {map[string]string{tool: ""}, false},
		"as it is shipped":         {map[string]string{tool: "", "etc/apt/apt.conf.d/50unattended-upgrades": "//" + off}, false},
		"a later file":             {map[string]string{tool: "", "etc/apt/apt.conf.d/50unattended-upgrades": on, "etc/apt/apt.conf.d/99lockkeeper": off}, false},
		"an earlier file":          {map[string]string{tool: "", "etc/apt/apt.conf.d/10x": off, "etc/apt/apt.conf.d/50y.conf": on}, true},
		"apt.conf is the last":     {map[string]string{tool: "", "etc/apt/apt.conf.d/99x": on, "etc/apt/apt.conf": off}, false},
		"a file that apt passes":   {map[string]string{tool: "", "etc/apt/apt.conf.d/50x.ucf-dist": on, "etc/apt/apt.conf.d/60y~": on, "etc/apt/apt.conf.d/.z": on, "etc/apt/apt.conf.d/a.conf.bak": on}, false},
		"a directory":              {map[string]string{tool: "", "etc/apt/apt.conf.d/old/50x": on, "etc/apt/apt.conf.d/10x": off}, false},
		"a name with a colon":      {map[string]string{tool: "", "etc/apt/apt.conf.d/50:x": on}, true},
		"a name with dots":         {map[string]string{tool: "", "etc/apt/apt.conf.d/50.x.conf": on}, true},
		"in apt's other words":     {map[string]string{tool: "", "etc/apt/apt.conf.d/50x": "unattended-upgrade { AUTOMATIC-REBOOT yes; };"}, true},
		"no word for true or none": {map[string]string{tool: "", "etc/apt/apt.conf.d/50x": `Unattended-Upgrade::Automatic-Reboot "maybe";`}, false},
	} {
		r, err := hostfs.New(root(t, c.files))
		if err != nil {
			t.Fatal(err)
		}
		got, err := automaticReboot(r)
		if got != c.want || err != nil {
			t.Errorf("%s: %t, %v", name, got, err)
		}
		r.Close()
	}
}

// root makes a host's root directory of the files, path to text.
func root(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, text := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if to, link := strings.CutPrefix(text, "-> "); link {
			must(t, os.Symlink(to, path))
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
