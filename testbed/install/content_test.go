package install

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// exampleFiles are the examples, which deb and rpm have.
const exampleFiles = `-rw-r--r-- /usr/share/doc/lockkeeper/examples/monitoring/dashboard.json
-rw-r--r-- /usr/share/doc/lockkeeper/examples/monitoring/lockkeeper.rules.yaml
-rw-r--r-- /usr/share/doc/lockkeeper/examples/monitoring/scrape-proxy.yaml
-rw-r--r-- /usr/share/doc/lockkeeper/examples/monitoring/scrape.yaml
-rw-r--r-- /usr/share/doc/lockkeeper/examples/notify-webhook/hook.sh
-rw-r--r-- /usr/share/doc/lockkeeper/examples/notify-webhook/kustomization.yaml
-rw-r--r-- /usr/share/doc/lockkeeper/examples/notify-webhook/manifest.yaml
-rw-r--r-- /usr/share/doc/lockkeeper/examples/notify-webhook/notify-webhook@.service
-rw-r--r-- /usr/share/doc/lockkeeper/examples/reboot-check/lockkeeper-reboot-check.service
-rw-r--r-- /usr/share/doc/lockkeeper/examples/reboot-check/lockkeeper-reboot-check.timer
-rw-r--r-- /usr/share/doc/lockkeeper/examples/reboot-check/reboot-check.sh
-rw-r--r-- /usr/share/doc/lockkeeper/examples/wait-for-replicas/hook.sh
-rw-r--r-- /usr/share/doc/lockkeeper/examples/wait-for-replicas/host.yaml
-rw-r--r-- /usr/share/doc/lockkeeper/examples/wait-for-replicas/kustomization.yaml
-rw-r--r-- /usr/share/doc/lockkeeper/examples/wait-for-replicas/manifest.yaml
-rw-r--r-- /usr/share/doc/lockkeeper/examples/wait-for-replicas/wait-for-replicas.service
`

// docs returns the lines of a list of files for the pages of docs and the examples, which deb and rpm have.
func docs(t *testing.T) string {
	t.Helper()
	names, err := filepath.Glob(source + "/docs/*.md")
	if err != nil || len(names) < 20 {
		t.Fatalf("pages %q: %v", names, err)
	}
	var lines strings.Builder
	for _, name := range names {
		fmt.Fprintf(&lines, "-rw-r--r-- /usr/share/doc/lockkeeper/docs/%s\n", filepath.Base(name))
	}
	return lines.String() + exampleFiles
}

// debFiles are what the deb installs, without the docs; a directory ends with a slash.
const debFiles = `
drwxr-xr-x /etc/lockkeeper/
-rw-r--r-- /etc/lockkeeper/lockkeeper.toml
-rwxr-xr-x /usr/bin/lockkeeper
-rw-r--r-- /usr/lib/systemd/catalog/lockkeeper.catalog
-rw-r--r-- /usr/lib/systemd/system/lockkeeper-before-drain.target
-rw-r--r-- /usr/lib/systemd/system/lockkeeper-before-reboot.target
-rw-r--r-- /usr/lib/systemd/system/lockkeeper-before-uncordon.target
-rw-r--r-- /usr/lib/systemd/system/lockkeeper.service
-rw-r--r-- /usr/share/bash-completion/completions/lockkeeper
-rw-r--r-- /usr/share/doc/lockkeeper/CHANGELOG.md.gz
-rw-r--r-- /usr/share/doc/lockkeeper/README.md
-rw-r--r-- /usr/share/doc/lockkeeper/SECURITY.md
-rw-r--r-- /usr/share/doc/lockkeeper/changelog.gz
-rw-r--r-- /usr/share/doc/lockkeeper/copyright
@DOCS@
-rw-r--r-- /usr/share/doc/lockkeeper/third-party.gz
-rw-r--r-- /usr/share/fish/vendor_completions.d/lockkeeper.fish
-rw-r--r-- /usr/share/lintian/overrides/lockkeeper
-rw-r--r-- /usr/share/man/man5/lockkeeper.toml.5.gz
-rw-r--r-- /usr/share/man/man8/lockkeeper.8.gz
-rw-r--r-- /usr/share/zsh/vendor-completions/_lockkeeper
`

// rpmFiles are the rpm's.
const rpmFiles = `
drwxr-xr-x /etc/lockkeeper
-rw-r--r-- /etc/lockkeeper/lockkeeper.toml
-rwxr-xr-x /usr/bin/lockkeeper
-rw-r--r-- /usr/lib/systemd/catalog/lockkeeper.catalog
-rw-r--r-- /usr/lib/systemd/system/lockkeeper-before-drain.target
-rw-r--r-- /usr/lib/systemd/system/lockkeeper-before-reboot.target
-rw-r--r-- /usr/lib/systemd/system/lockkeeper-before-uncordon.target
-rw-r--r-- /usr/lib/systemd/system/lockkeeper.service
-rw-r--r-- /usr/share/bash-completion/completions/lockkeeper
-rw-r--r-- /usr/share/doc/lockkeeper/CHANGELOG.md.gz
-rw-r--r-- /usr/share/doc/lockkeeper/README.md
-rw-r--r-- /usr/share/doc/lockkeeper/SECURITY.md
@DOCS@
-rw-r--r-- /usr/share/doc/lockkeeper/third-party.gz
-rw-r--r-- /usr/share/fish/vendor_completions.d/lockkeeper.fish
-rw-r--r-- /usr/share/licenses/lockkeeper/LICENSE
-rw-r--r-- /usr/share/man/man5/lockkeeper.toml.5.gz
-rw-r--r-- /usr/share/man/man8/lockkeeper.8.gz
-rw-r--r-- /usr/share/zsh/site-functions/_lockkeeper
`

// rawFiles are the sysext image's, which may hold nothing outside /usr.
const rawFiles = `
-rwxr-xr-x /usr/bin/lockkeeper
-rw-r--r-- /usr/lib/extension-release.d/extension-release.lockkeeper
-rw-r--r-- /usr/lib/lockkeeper/config.d/00-defaults.toml
-rw-r--r-- /usr/lib/systemd/catalog/lockkeeper.catalog
-rw-r--r-- /usr/lib/systemd/system/lockkeeper-before-drain.target
-rw-r--r-- /usr/lib/systemd/system/lockkeeper-before-reboot.target
-rw-r--r-- /usr/lib/systemd/system/lockkeeper-before-uncordon.target
-rw-r--r-- /usr/lib/systemd/system/lockkeeper-sysext.target
-rw-r--r-- /usr/lib/systemd/system/lockkeeper.service
-rw-r--r-- /usr/lib/systemd/system/lockkeeper.service.d/10-flatcar.conf
-rw-r--r-- /usr/lib/systemd/system/multi-user.target.d/10-lockkeeper.conf
-rw-r--r-- /usr/share/bash-completion/completions/lockkeeper
-rw-r--r-- /usr/share/doc/lockkeeper/third-party.gz
-rw-r--r-- /usr/share/licenses/lockkeeper/LICENSE
`

// listing makes of `ls -l` lines those of the files above: mode and path, sorted by path. Who owns a file has to be root.
func listing(t *testing.T, text string, path func(string) string) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		name := path(fields[len(fields)-1])
		if !strings.Contains(line, "root/root") && !strings.Contains(line, " root     root ") {
			t.Errorf("%s is not root's: %s", name, line)
		}
		// Directories that every host has are no one's.
		if name == "" || fields[0][0] == 'd' && !strings.HasPrefix(name, "/etc/lockkeeper") {
			continue
		}
		lines = append(lines, fields[0]+" "+name)
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[11:], b[11:]) })
	return strings.Join(lines, "\n")
}

func TestFiles(t *testing.T) {
	for name, c := range map[string]struct{ have, want string }{
		"deb": {listing(t, mustRun(t, "dpkg-deb", "-c", artefact(dist(t), debForm, v1)), func(s string) string { return strings.TrimPrefix(s, ".") }), debFiles},
		"rpm": {listing(t, mustRun(t, "rpm", "-qplv", artefact(dist(t), rpmForm, v1)), func(s string) string { return s }), rpmFiles},
		"raw": {listing(t, mustRun(t, "unsquashfs", "-ll", artefact(dist(t), rawForm, v1)), func(s string) string { return strings.TrimPrefix(s, "squashfs-root") }), rawFiles},
	} {
		if want := strings.TrimSpace(strings.Replace(c.want, "@DOCS@\n", docs(t), 1)); c.have != want {
			t.Errorf("%s holds\n%s\nexpected\n%s", name, c.have, want)
		}
	}
}

func TestMetadata(t *testing.T) {
	deb := artefact(dist(t), debForm, v1)
	if got := mustRun(t, "dpkg-deb", "-f", deb, "Package", "Version", "Architecture", "Depends"); got !=
		"Package: lockkeeper\nVersion: 1.2.3\nArchitecture: amd64\nDepends: systemd (>= 247), default-dbus-system-bus | dbus-system-bus\n" {
		t.Errorf("the deb says\n%s", got)
	}
	if got := mustRun(t, "dpkg-deb", "-I", deb, "conffiles"); got != "/etc/lockkeeper/lockkeeper.toml\n" {
		t.Errorf("conffiles: %q", got)
	}
	rpm := artefact(dist(t), rpmForm, v1)
	if got := mustRun(t, "rpm", "-qp", "--qf", "%{NAME} %{VERSION} %{RELEASE} %{ARCH} %{LICENSE} %{BUILDHOST} %{BUILDTIME}", rpm); got !=
		"lockkeeper 1.2.3 1 x86_64 Apache-2.0 lockkeeper.dev "+epoch {
		t.Errorf("the rpm says %q", got)
	}
	if got := mustRun(t, "rpm", "-qp", "--configfiles", rpm); got != "/etc/lockkeeper/lockkeeper.toml\n" {
		t.Errorf("the rpm's configuration files: %q", got)
	}
	if got := mustRun(t, "rpm", "-qp", "--qf", "[%{FILEFLAGS:fflags} %{FILENAMES}\n]", rpm); !strings.Contains(got, "cn /etc/lockkeeper/lockkeeper.toml\n") {
		t.Errorf("the configuration would be replaced:\n%s", got)
	}
	release := mustRun(t, "unsquashfs", "-cat", artefact(dist(t), rawForm, v1), "/usr/lib/extension-release.d/extension-release.lockkeeper")
	if release != "ID=flatcar\nSYSEXT_LEVEL=1.0\nARCHITECTURE=x86-64\nEXTENSION_RELOAD_MANAGER=1\n" {
		t.Errorf("extension-release says\n%s", release)
	}
}

// TestLinters allows what the overrides with their reasons allow, and no word more.
func TestLinters(t *testing.T) {
	t.Parallel()
	if out, err := run(t, "lintian", "--allow-root", "--fail-on=error,warning", artefact(dist(t), debForm, v1)); err != nil || strings.Contains(out, "E:") || strings.Contains(out, "W:") {
		t.Errorf("lintian: %v\n%s", err, out)
	}
	out, err := run(t, "rpmlint", "--config", filepath.Join(source, "packaging/rpm/rpmlint.toml"), artefact(dist(t), rpmForm, v1))
	if err != nil || !strings.Contains(out, "0 errors, 0 warnings") {
		t.Errorf("rpmlint: %v\n%s", err, out)
	}
}

func TestSums(t *testing.T) {
	sums, err := os.ReadFile(filepath.Join(dist(t), "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dist(t))
	if err != nil {
		t.Fatal(err)
	}
	// The sums have a signature of their own, and so have the repositories, whose files name the key.
	others := []string{"SHA256SUMS", "SHA256SUMS.gpg", "lockkeeper.asc", "lockkeeper.gpg", "lockkeeper.repo", "lockkeeper.sources"}
	var want bytes.Buffer
	for _, e := range entries {
		if !e.IsDir() && !slices.Contains(others, e.Name()) {
			want.WriteString(sumOf(t, filepath.Join(dist(t), e.Name())) + "  " + e.Name() + "\n")
		}
	}
	if bytes.Count(sums, []byte("\n")) != 18 || string(sums) != want.String() {
		t.Errorf("SHA256SUMS:\n%s\nthe files:\n%s", sums, want.String())
	}
}

func sumOf(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// TestBill holds the SBOM against the binary that is in the deb.
func TestBill(t *testing.T) {
	var bill struct {
		Metadata struct {
			Component struct {
				Version string
				Hashes  []struct{ Content string }
			}
		}
		Components []struct{ Name, Version, PURL string }
	}
	data, err := os.ReadFile(artefact(dist(t), bomForm, v1))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &bill); err != nil {
		t.Fatal(err)
	}
	tree := t.TempDir()
	mustRun(t, "dpkg-deb", "-x", artefact(dist(t), debForm, v1), tree)
	binary := filepath.Join(tree, "usr/bin/lockkeeper")
	if main := bill.Metadata.Component; main.Version != v1 || len(main.Hashes) != 1 || main.Hashes[0].Content != sumOf(t, binary) {
		t.Errorf("the bill is of %+v", main)
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, c := range bill.Components {
		have[c.Name] = c.Version
		if c.PURL == "" {
			t.Errorf("%s has no purl", c.Name)
		}
	}
	if len(have) != len(info.Deps)+1 || "go"+have["std"] != info.GoVersion || have["k8s.io/client-go"] == "" {
		t.Errorf("the bill has %d parts, the binary %d and %s", len(have), len(info.Deps), info.GoVersion)
	}
	for _, d := range info.Deps {
		if have[d.Path] != d.Version {
			t.Errorf("%s is %q in the bill, %q in the binary", d.Path, have[d.Path], d.Version)
		}
	}
	if got := mustRun(t, binary, "version"); !strings.HasPrefix(got, "lockkeeper v1.2.3 ") {
		t.Errorf("the binary says %q", got)
	}
}

// TestIgnition looks at what a Flatcar host is given. Ignition's own validator has seen it in the build; here it is shown that it
// sees mistakes.
func TestIgnition(t *testing.T) {
	data, err := os.ReadFile(artefact(dist(t), ignForm, v1))
	if err != nil {
		t.Fatal(err)
	}
	var ign struct {
		Ignition struct{ Version string }
		Storage  struct {
			Files []struct {
				Path     string
				Contents struct {
					Source       string
					Verification struct{ Hash string }
				}
			}
			Links []struct{ Path, Target string }
		}
		Systemd struct {
			Units []struct {
				Name          string
				Mask, Enabled bool
			}
		}
	}
	if err := json.Unmarshal(data, &ign); err != nil {
		t.Fatal(err)
	}
	const image = "/opt/extensions/lockkeeper/lockkeeper-1.2.3-x86-64.raw"
	if ign.Ignition.Version != "3.4.0" || len(ign.Storage.Files) != 3 || len(ign.Storage.Links) != 1 || len(ign.Systemd.Units) != 3 {
		t.Fatalf("the Ignition file says %+v", ign)
	}
	if f := ign.Storage.Files[0]; f.Path != image || f.Contents.Source != publishedAt+"/lockkeeper-1.2.3-x86-64.raw" ||
		f.Contents.Verification.Hash != "sha256-"+sumOf(t, artefact(dist(t), rawForm, v1)) {
		t.Errorf("the image: %+v", f)
	}
	if l := ign.Storage.Links[0]; l.Path != "/etc/extensions/lockkeeper.raw" || l.Target != image {
		t.Errorf("the link: %+v", l)
	}
	if u := ign.Systemd.Units[0]; u.Name != "locksmithd.service" || !u.Mask {
		t.Errorf("locksmithd is not masked: %+v", u)
	}
	if u := ign.Systemd.Units[2]; u.Name != "lockkeeper-sysupdate.timer" || u.Enabled {
		t.Errorf("the timer is enabled: %+v", u)
	}
	broken := filepath.Join(t.TempDir(), "broken.ign")
	bad := bytes.Replace(data, []byte(`"sha256-`), []byte(`"sha256-0`), 1)
	if err := os.WriteFile(broken, bad, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := run(t, "go", "-C", source, "tool", "-modfile=tools.mod", "github.com/coreos/ignition/v2/validate", broken); err == nil {
		t.Errorf("Ignition's validator finds no mistake in a hash that is too long: %s", out)
	}
}
