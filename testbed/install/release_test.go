package install

import (
	"archive/tar"
	"compress/gzip"
	"debug/macho"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// members unpacks an archive and returns the names in it.
func members(t *testing.T, path, to string) []string {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	zipped, err := gzip.NewReader(f)
	must(t, err)
	var names []string
	for archive := tar.NewReader(zipped); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		must(t, err)
		if h.Uid != 0 || h.Gid != 0 || fmt.Sprint(h.ModTime.Unix()) != epoch {
			t.Errorf("%s in %s: owner %d:%d, time %s", h.Name, filepath.Base(path), h.Uid, h.Gid, h.ModTime)
		}
		names = append(names, h.Name)
		data, err := io.ReadAll(archive)
		must(t, err)
		file := filepath.Join(to, h.Name)
		must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must(t, os.WriteFile(file, data, h.FileInfo().Mode()))
	}
}

// TestArchives unpacks the archives.
func TestArchives(t *testing.T) {
	dir := t.TempDir()
	if got, want := strings.Join(members(t, artefact(dist(t), "lockkeeper_%s_linux_amd64.tar.gz", v1), filepath.Join(dir, "host")), " "),
		"lockkeeper LICENSE third-party.gz systemd/lockkeeper.service systemd/lockkeeper-before-drain.target systemd/lockkeeper-before-reboot.target systemd/lockkeeper-before-uncordon.target"; got != want {
		t.Errorf("the host's archive has %s, expected %s", got, want)
	}
	const alone = "lockkeeper LICENSE third-party.gz completions/lockkeeper.bash completions/lockkeeper.zsh completions/lockkeeper.fish"
	for _, name := range []string{"linux_amd64", "darwin_arm64"} {
		if got := strings.Join(members(t, artefact(dist(t), "lockkeeper-cli_%s_"+name+".tar.gz", v1), filepath.Join(dir, name)), " "); got != alone {
			t.Errorf("the archive for %s has %s, expected %s", name, got, alone)
		}
	}
	if out := mustRun(t, filepath.Join(dir, "host", "lockkeeper"), "help"); !strings.Contains(out, "\n  run ") {
		t.Errorf("the host's binary has no command run:\n%s", out)
	}
	cli := filepath.Join(dir, "linux_amd64", "lockkeeper")
	if out := mustRun(t, cli, "help"); strings.Contains(out, "\n  run ") || !strings.Contains(out, "\n  status ") {
		t.Errorf("the command line alone has these commands:\n%s", out)
	}
	out, err := run(t, cli, "run")
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 64 || !strings.Contains(out, "without the service") {
		t.Errorf("lockkeeper run: %v\n%s", err, out)
	}
	if out := mustRun(t, cli, "version"); !strings.HasPrefix(out, "lockkeeper v1.2.3 ") {
		t.Errorf("the command line alone says %q", out)
	}
	mac, err := macho.Open(filepath.Join(dir, "darwin_arm64", "lockkeeper"))
	must(t, err)
	defer mac.Close()
	if mac.Cpu != macho.CpuArm64 || mac.Type != macho.TypeExec {
		t.Errorf("the Mac's binary is for %s, of type %s", mac.Cpu, mac.Type)
	}
}

// TestKubectlPlugin installs the plugin as the krew manifest says, and has the real kubectl run and complete it.
func TestKubectlPlugin(t *testing.T) {
	data, err := os.ReadFile(artefact(dist(t), "lockkeeper-krew-%s.yaml", v1))
	must(t, err)
	var plugin struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Spec             struct {
			Version, ShortDescription string
			Platforms                 []struct {
				URI, SHA256, Bin string
				Selector         struct{ MatchLabels map[string]string }
				Files            []struct{ From, To string }
			}
		}
	}
	must(t, yaml.Unmarshal(data, &plugin))
	if plugin.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || plugin.Kind != "Plugin" || plugin.Metadata.Name != "lockkeeper" ||
		plugin.Spec.Version != "v1.2.3" || len(plugin.Spec.Platforms) != 2 || strings.Contains(plugin.Spec.ShortDescription, "\n") {
		t.Fatalf("the manifest says %+v", plugin)
	}
	bin := t.TempDir()
	for _, p := range plugin.Spec.Platforms {
		name := filepath.Base(p.URI)
		if p.URI != publishedAt+"/"+name || p.SHA256 != sumOf(t, filepath.Join(dist(t), name)) {
			t.Errorf("the manifest has %s with %s", p.URI, p.SHA256)
		}
		if p.Selector.MatchLabels["os"] != "linux" || p.Selector.MatchLabels["arch"] != "amd64" {
			continue
		}
		in := members(t, filepath.Join(dist(t), name), filepath.Join(bin, "store"))
		for _, f := range p.Files {
			if !slices.Contains(in, f.From) {
				t.Errorf("%s has no %s", name, f.From)
			}
		}
		must(t, os.Symlink(filepath.Join(bin, "store", p.Bin), filepath.Join(bin, "kubectl-lockkeeper")))
		must(t, os.Symlink(filepath.Join(bin, "kubectl-lockkeeper"), filepath.Join(bin, "kubectl_complete-lockkeeper")))
	}
	kubectl := examplePlane().Binaries().Kubectl
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	if out := mustRun(t, kubectl, "lockkeeper", "help", "status"); !strings.HasPrefix(out, "Usage: kubectl lockkeeper status [FLAG…] [NODE]\n") {
		t.Errorf("help status:\n%s", out)
	}
	if out := mustRun(t, kubectl, "plugin", "list"); !strings.Contains(out, "kubectl-lockkeeper\n") || strings.Contains(out, "warning") {
		t.Errorf("plugin list:\n%s", out)
	}
	for typed, want := range map[string][]string{"status -o j": {"json\n", ":4\n"}, "retry --kubeconfig /e": {":0\n"}, "sta": {"status\tShow", ":4\n"}} {
		out := mustRun(t, kubectl, append([]string{"__complete", "lockkeeper"}, strings.Fields(typed)...)...)
		for _, line := range want {
			if !strings.Contains(strings.ReplaceAll(out, "\t\n", "\n"), line) {
				t.Errorf("completing %q: no %q in\n%s", typed, line, out)
			}
		}
	}
}

// TestSignatures checks the checksums as docs/download.md says, and that they are all of the release.
func TestSignatures(t *testing.T) {
	w := publish(t, dist(t))
	dir := t.TempDir()
	commands := pageCommands(t, "Check a download", w)
	check := func() (string, error) {
		return run(t, "env", "GNUPGHOME="+t.TempDir(), "sh", "-ec", `cd "$1"; eval "$2"`, "sh", dir, commands)
	}
	deb := filepath.Join(dir, fmt.Sprintf(debForm, v1))
	data, err := os.ReadFile(artefact(dist(t), debForm, v1))
	must(t, err)
	must(t, os.WriteFile(deb, data, 0o644))
	if out, err := check(); err != nil || !strings.Contains(out, filepath.Base(deb)+": OK") || !strings.Contains(out, keyring.ours) {
		t.Errorf("%v\n%s", err, out)
	}
	// systemd-sysupdate calls gpg so, with lockkeeper.gpg as its keyring.
	verify := func(sums string) (string, error) {
		return run(t, "env", "GNUPGHOME="+t.TempDir(), "sh", "-ec", `exec gpg --no-options --no-default-keyring --no-auto-key-locate --no-auto-check-trustdb --batch --trust-model=always \
			--homedir="$GNUPGHOME" --keyring="$1/lockkeeper.gpg" --verify "$1/SHA256SUMS.gpg" - <"$2"`, "sh", dist(t), sums)
	}
	if out, err := verify(filepath.Join(dist(t), "SHA256SUMS")); err != nil {
		t.Errorf("systemd-sysupdate refuses the signature: %v\n%s", err, out)
	}
	if out, err := verify(deb); err == nil {
		t.Errorf("the signature is also that of a package:\n%s", out)
	}
	must(t, os.WriteFile(deb, flipped(t, deb), 0o644))
	if out, err := check(); err == nil {
		t.Errorf("a changed package passes:\n%s", out)
	}
	must(t, os.WriteFile(deb, data, 0o644))
	w.replace["SHA256SUMS"] = flipped(t, filepath.Join(dist(t), "SHA256SUMS"))
	if out, err := check(); err == nil {
		t.Errorf("changed checksums pass:\n%s", out)
	}

	sums, err := os.ReadFile(filepath.Join(dist(t), "SHA256SUMS"))
	must(t, err)
	entries, err := os.ReadDir(dist(t))
	must(t, err)
	for _, e := range entries {
		listed := strings.Contains(string(sums), "  "+e.Name()+"\n")
		if want := !e.IsDir() && !onlySigned[e.Name()] && e.Name() != "SHA256SUMS"; listed != want {
			t.Errorf("%s is in SHA256SUMS: %t, expected %t", e.Name(), listed, want)
		}
	}
}

// TestEveryFileHasAPlace finds each file of a release in the table of docs/install.md, and each row's files in a release. The addresses
// in the files are those of the release's own directory.
func TestEveryFileHasAPlace(t *testing.T) {
	text, err := os.ReadFile(source + "/docs/install.md")
	must(t, err)
	_, table, _ := strings.Cut(string(text), "## Get the files\n")
	table, _, _ = strings.Cut(table, "\n## ")
	patterns := map[string]*regexp.Regexp{}
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		for name := range strings.SplitSeq(first, ", ") {
			name = strings.Trim(name, "`")
			pattern := strings.NewReplacer("VERSION", `[0-9][0-9.]*`, "OS", "(linux|darwin)", "ARCH", "(amd64|arm64|x86_64|aarch64|x86-64)", "PATH", ".*").Replace(regexp.QuoteMeta(name))
			patterns[name] = regexp.MustCompile("^" + pattern + "$")
		}
	}
	address := regexp.MustCompile(`https://downloads\.example\.com[^\s"',\]]*`)
	found, named := map[string]bool{}, 0
	must(t, filepath.WalkDir(dist(t), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dist(t), path)
		var rows []string
		for row, pattern := range patterns {
			if pattern.MatchString(name) {
				rows = append(rows, row)
				found[row] = true
			}
		}
		if len(rows) != 1 {
			t.Errorf("%s is in %q of docs/install.md's table, expected one", name, rows)
		}
		if slices.Contains([]string{".deb", ".rpm", ".raw", ".gz", ".tgz"}, filepath.Ext(name)) {
			return err
		}
		text, err := os.ReadFile(path)
		addresses := address.FindAllString(string(text), -1)
		for _, a := range addresses {
			if !strings.HasPrefix(a+"/", publishedAt+"/") {
				t.Errorf("%s names %s, which is not below %s", name, a, publishedAt)
			}
		}
		named += min(len(addresses), 1)
		return err
	}))
	for row := range patterns {
		if !found[row] {
			t.Errorf("a release has no %s", row)
		}
	}
	if named != 7 { // .bu, .ign, sysupdate.conf, the krew manifest, the chart's index, and those for apt and dnf
		t.Errorf("%d files name the address, expected 7", named)
	}
}
