package packaging

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"
)

// transferKeys are the keys of a transfer file, by sysupdate.d(5) of systemd 251 to 258. Only those
// that Flatcar's oldest systemd (252) knows are here.
var transferKeys = map[string][]string{
	"Transfer": {"MinVersion", "ProtectVersion", "Verify"},
	"Source":   {"Type", "Path", "MatchPattern"},
	"Target": {"Type", "Path", "MatchPattern", "MatchPartitionType", "PartitionUUID", "PartitionFlags", "PartitionNoAuto",
		"PartitionGrowFileSystem", "ReadOnly", "Mode", "TriesDone", "TriesLeft", "InstancesMax", "RemoveTemporary", "CurrentSymlink"},
}

var fenced = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// blocks returns a page's blocks of one language.
func blocks(t *testing.T, page, language string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
		if m[1] == language {
			found = append(found, m[2])
		}
	}
	return found
}

// ignition is what Butane makes, as far as the test reads it.
type ignition struct {
	Storage struct {
		Files []struct {
			Path     string
			Contents struct{ Source, Compression string }
		}
		Links []struct{ Path, Target string }
	}
	Systemd struct {
		Units []struct {
			Name, Contents string
			Mask, Enabled  bool
			Dropins        []struct{ Name, Contents string }
		}
	}
}

// TestFlatcar checks the Butane file of docs/flatcar.md and the one that the packages come with:
// Butane and Ignition's validator accept them, systemd accepts their units and knows the keys of
// their transfer file, and both say the same.
func TestFlatcar(t *testing.T) {
	page := blocks(t, "flatcar.md", "yaml")
	if len(page) != 1 {
		t.Fatalf("docs/flatcar.md has %d YAML blocks, expected 1", len(page))
	}
	values := map[string]string{"URL": "https://downloads.example.com/lockkeeper/1.2", "Arch": "x86-64", "Image": "lockkeeper-1.2.3-x86-64.raw", "SHA256": strings.Repeat("0", 64), "Minor": "1.2"}
	values["Transfer"] = "          " + strings.ReplaceAll(filled(t, "flatcar/lockkeeper.conf", values), "\n", "\n          ")
	services := map[string]string{}
	for name, source := range map[string]string{"docs/flatcar.md": page[0], "lockkeeper.bu": filled(t, "flatcar/lockkeeper.bu", values)} {
		ign := butane(t, name, source)
		units := t.TempDir()
		for _, u := range ign.Systemd.Units {
			switch {
			case u.Name == "locksmithd.service":
				if !u.Mask {
					t.Errorf("%s: locksmithd is not masked", name)
				}
				continue
			case u.Enabled:
				t.Errorf("%s: %s is enabled", name, u.Name)
			}
			if err := os.WriteFile(filepath.Join(units, u.Name), []byte(u.Contents), 0o644); err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(u.Name, ".service") {
				services[name] = u.Contents
			}
		}
		verifyUnits(t, units)
		transfers := 0
		for _, f := range ign.Storage.Files {
			if strings.HasPrefix(f.Path, "/etc/sysupdate.lockkeeper.d/") {
				transfers++
				checkTransfer(t, name, inline(t, f.Contents.Source))
			}
		}
		if transfers != 1 || len(ign.Storage.Links) != 1 || ign.Storage.Links[0].Path != "/etc/extensions/lockkeeper.raw" {
			t.Errorf("%s: %d transfer files, links %+v", name, transfers, ign.Storage.Links)
		}
	}
	if services["docs/flatcar.md"] != services["lockkeeper.bu"] || services["lockkeeper.bu"] == "" {
		t.Errorf("the update services differ: %q", services)
	}
	if out, err := runTool(t, "github.com/coreos/butane/internal", strings.Replace(page[0], "mask: true", "masked: true", 1), "--strict"); err == nil {
		t.Errorf("Butane finds no mistake in a key that does not exist: %s", out)
	}
}

// TestFedoraCoreOS gives Butane the file of docs/fedora-coreos.md, next to what the host's archive has, and systemd the units.
func TestFedoraCoreOS(t *testing.T) {
	page := slices.DeleteFunc(blocks(t, "fedora-coreos.md", "yaml"), func(b string) bool { return !strings.HasPrefix(b, "variant: fcos\n") })
	if len(page) != 1 {
		t.Fatalf("docs/fedora-coreos.md has %d Butane files, expected 1", len(page))
	}
	archive, units := t.TempDir(), t.TempDir()
	if err := os.CopyFS(filepath.Join(archive, "systemd"), os.DirFS("systemd")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lockkeeper", "fleetlock.toml", "50-lockkeeper.toml"} {
		write(t, filepath.Join(archive, name), name)
	}
	ign := butane(t, "docs/fedora-coreos.md", page[0], "--files-dir", archive)
	for _, f := range ign.Storage.Files {
		if got := inline(t, f.Contents.Source); got != filepath.Base(f.Path) {
			t.Errorf("%s is %q", f.Path, got)
		}
	}
	for _, u := range ign.Systemd.Units {
		want, err := os.ReadFile(filepath.Join("systemd", u.Name))
		if err != nil || u.Contents != string(want) || u.Enabled != (u.Name == "lockkeeper.service") {
			t.Errorf("%s: enabled: %t, %v\n%s", u.Name, u.Enabled, err, u.Contents)
		}
		// systemd looks for the program, which is not installed here.
		write(t, filepath.Join(units, u.Name), u.Contents)
		for _, d := range u.Dropins {
			write(t, filepath.Join(units, u.Name+".d", d.Name), strings.Replace(d.Contents, "=/usr/local/bin/lockkeeper ", "=/bin/true ", 1))
		}
	}
	verifyUnits(t, units)
	if inArchive, err := os.ReadDir("systemd"); err != nil || len(ign.Storage.Files) != 3 || len(ign.Systemd.Units) != len(inArchive) {
		t.Errorf("the page has %d files and %d units, and the archive has %d units: %v", len(ign.Storage.Files), len(ign.Systemd.Units), len(inArchive), err)
	}
}

// filled is a template of this directory with its values.
func filled(t *testing.T, file string, values any) string {
	t.Helper()
	tmpl, err := template.ParseFiles(file)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := tmpl.Execute(&b, values); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// runTool runs a command of tools.mod with a text for its standard input, and returns what it prints.
func runTool(t *testing.T, tool, stdin string, args ...string) (stdout string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"tool", "-modfile=tools.mod", tool}, args...)...)
	cmd.Dir = ".."
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", tool, err, stderr.String())
	}
	return string(out), err
}

func butane(t *testing.T, name, source string, args ...string) (ign ignition) {
	t.Helper()
	out, err := runTool(t, "github.com/coreos/butane/internal", source, append([]string{"--strict", "--pretty"}, args...)...)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	file := filepath.Join(t.TempDir(), "node.ign")
	if err := os.WriteFile(file, []byte(out), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := runTool(t, "github.com/coreos/ignition/v2/validate", "", file); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if err := json.Unmarshal([]byte(out), &ign); err != nil {
		t.Fatal(err)
	}
	return ign
}

// inline returns the text of a data URL as Butane writes it: plain, or compressed if that is shorter.
func inline(t *testing.T, source string) string {
	t.Helper()
	if packed, ok := strings.CutPrefix(source, "data:;base64,"); ok {
		r, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(packed)))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	text, err := url.PathUnescape(strings.TrimPrefix(source, "data:,"))
	if err != nil || !strings.HasPrefix(source, "data:,") {
		t.Fatalf("a data URL that the test does not know: %q, %v", source, err)
	}
	return text
}

// checkTransfer compares a transfer file with what systemd documents, key by key.
func checkTransfer(t *testing.T, name, text string) {
	t.Helper()
	section, got := "", map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch key, value, ok := strings.Cut(line, "="); {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
		case !ok || !slices.Contains(transferKeys[section], key):
			t.Errorf("%s: systemd knows no %q in section %q of a transfer file", name, line, section)
		default:
			got[section+"."+key] = value
		}
	}
	for key, want := range map[string]string{
		"Transfer.Verify": "yes", "Source.Type": "url-file", "Source.Path": "https://downloads.example.com/lockkeeper/1.2", "Target.Type": "regular-file",
		"Target.Path": "/opt/extensions/lockkeeper", "Target.CurrentSymlink": "/etc/extensions/lockkeeper.raw", "Target.MatchPattern": got["Source.MatchPattern"],
	} {
		if got[key] != want {
			t.Errorf("%s: %s is %q, expected %q", name, key, got[key], want)
		}
	}
	pattern := strings.NewReplacer("%a", "x86-64", ".", `\.`).Replace(got["Source.MatchPattern"])
	for image, want := range map[string]bool{"lockkeeper-1.2.3-x86-64.raw": true, "lockkeeper-1.2.3~rc.1-x86-64.raw": true, "lockkeeper-1.3.0-x86-64.raw": false, "lockkeeper-1.20.0-x86-64.raw": false} {
		if strings.Count(pattern, "@v") != 1 || regexp.MustCompile("^"+strings.Replace(pattern, "@v", ".+", 1)+"$").MatchString(image) != want {
			t.Errorf("%s: %q matches %s: %t, expected %t", name, got["Source.MatchPattern"], image, !want, want)
		}
	}
}

// verifyUnits has systemd check the unit files of a directory.
func verifyUnits(t *testing.T, dir string) {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("left out: systemd-analyze is missing, so systemd did not check the units")
		return
	}
	names, err := filepath.Glob(filepath.Join(dir, "*[^d]")) // without the directories of drop-ins, *.d
	if err != nil || len(names) == 0 {
		t.Fatalf("no units in %s: %v", dir, err)
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", append([]string{"verify", "--man=no", "--recursive-errors=no"}, names...)...).CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) != 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

var execStart = regexp.MustCompile(`(?m)^ +ExecStart=/bin/sh -ec '(.*)'$`)

// TestFlatcarUpdate runs the script of lockkeeper-sysupdate.service with stand-ins for
// systemd-sysupdate and systemctl. TestFlatcar checks that the page's and the packages' are the same.
func TestFlatcarUpdate(t *testing.T) {
	text, err := os.ReadFile("flatcar/lockkeeper.bu")
	if err != nil {
		t.Fatal(err)
	}
	m := execStart.FindStringSubmatch(string(text))
	if m == nil {
		t.Fatal("no script found")
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	script := strings.NewReplacer("$$", "$", "/etc/extensions/", at("etc")+"/", "/run/", at("run")+"/", "/usr/lib/systemd/", at("bin")+"/").Replace(m[1])
	program := func(name, text string) {
		if err := os.Chmod(write(t, at("bin/"+name), "#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program("systemctl", `echo "$@" >>"`+at("calls")+`"; test ! -e "`+at("broken")+`"`)
	publish := func(image string) { // what systemd-sysupdate will find
		program("systemd-sysupdate", `test "$*" = "-C lockkeeper update" && ln -sfn "`+write(t, at("opt/"+image), "")+`" "`+at("etc/lockkeeper.raw")+`"`)
	}
	run := func(what string, want string, ok bool) {
		t.Helper()
		write(t, at("calls"), "")
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-ec", script)
		cmd.Env = []string{"PATH=" + at("bin") + ":/usr/bin:/bin"}
		out, err := cmd.CombinedOutput()
		calls, readErr := os.ReadFile(at("calls"))
		if readErr != nil {
			t.Fatal(readErr)
		}
		if got := strings.ReplaceAll(strings.TrimSpace(string(calls)), "\n", "; "); got != want || (err == nil) != ok {
			t.Errorf("%s: systemctl was called with %q, expected %q; %v\n%s", what, got, want, err, out)
		}
	}
	const refresh = "restart systemd-sysext.service; daemon-reload; restart lockkeeper.service"
	page := blocks(t, "flatcar.md", "")
	back := "systemctl " + strings.ReplaceAll(refresh, "; ", "\nsystemctl ") + "\n"
	if !slices.ContainsFunc(page, func(b string) bool { return strings.HasPrefix(b, "ln -sfn ") && strings.HasSuffix(b, back) }) {
		t.Errorf("docs/flatcar.md does not go back to an older image as the service goes to a newer one: %q", page)
	}
	write(t, at("run/x"), "")
	write(t, at("etc/x"), "")
	if err := os.Symlink(write(t, at("opt/1.raw"), ""), at("etc/lockkeeper.raw")); err != nil {
		t.Fatal(err)
	}
	publish("1.raw")
	run("no other image", "", true)
	publish("2.raw")
	run("a new image", refresh, true)
	run("the same again", "", true)
	publish("3.raw")
	write(t, at("run/reboot-required"), "")
	run("a reboot is pending", "", true)
	if err := os.Remove(at("run/reboot-required")); err != nil {
		t.Fatal(err)
	}
	run("the reboot was called off", refresh, true)
	publish("4.raw")
	write(t, at("broken"), "")
	run("the refresh fails", "restart systemd-sysext.service", false)
	if err := os.Remove(at("broken")); err != nil {
		t.Fatal(err)
	}
	run("after the failure", refresh, true)
	program("systemd-sysupdate", "exit 1")
	run("nothing can be downloaded", "", false)
}
