package install

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/testbed/walkthrough"
)

// publishedAt is the address that the artifacts are built for: a directory for each minor version, as docs/download.md says.
const publishedAt = "https://downloads.example.com/lockkeeper/1.2"

// website serves a directory of artifacts on the loopback, as a static web server does, and only under their exact names. It puts its own address in the place of
// publishedAt, and changes what a test wants changed.
type website struct {
	url string
	// replace has other contents for some paths; nil bytes are a file that does not exist.
	replace map[string][]byte
}

func publish(t *testing.T, dir string) *website {
	w := &website{replace: map[string][]byte{}}
	s := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		path := strings.TrimPrefix(in.URL.Path, "/")
		data, other := w.replace[path]
		if !other && path == filepath.Clean(path) {
			var err error
			if data, err = os.ReadFile(filepath.Join(dir, filepath.Clean("/"+path))); err != nil {
				data = nil
			}
		}
		if data == nil {
			http.NotFound(out, in)
			return
		}
		if path == "lockkeeper.sources" || path == "lockkeeper.repo" {
			data = bytes.ReplaceAll(data, []byte(publishedAt), []byte(w.url))
		}
		_, _ = out.Write(data)
	}))
	t.Cleanup(s.Close)
	w.url = s.URL
	return w
}

// flipped is a file with one bit changed, at the same size.
func flipped(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	data[len(data)/2] ^= 1
	return data
}

// pageCommands returns the block of commands below a heading of docs/download.md, for a site.
func pageCommands(t *testing.T, title string, w *website) string {
	t.Helper()
	text, err := os.ReadFile(source + "/docs/download.md")
	must(t, err)
	steps, err := walkthrough.Steps(string(text))
	must(t, err)
	for _, s := range steps {
		if s.Title == title {
			if !strings.Contains(s.Text, publishedAt) {
				t.Fatalf("the commands below %q do not name %s", title, publishedAt)
			}
			return strings.ReplaceAll(s.Text, publishedAt, w.url)
		}
	}
	t.Fatalf("docs/download.md has no commands below %q", title)
	return ""
}

// client is a root whose only source of packages is a website. It has no curl of its own; apt's downloader stands in for it.
func client(t *testing.T) *root {
	r := newRoot(t)
	r.must("sh", "-ec", `rm -rf /etc/apt/sources.list /etc/apt/sources.list.d; rm -rf /etc/apt/keyrings; mkdir -p /etc/apt/sources.list.d /etc/yum.repos.d
cat >/usr/local/bin/curl <<'END'
#!/bin/sh
test "$1" = -fsSLo || exit 2
exec /usr/lib/apt/apt-helper -o Acquire::Retries=0 download-file "$3" "$2" >/dev/null
END
chmod 0755 /usr/local/bin/curl; echo 'Acquire::Retries "0";' >/etc/apt/apt.conf.d/90retries`)
	return r
}

// debian is a client without curl. Its other source of packages is an archive with the stand-in, for the page to install first.
func debian(t *testing.T) *root {
	r := client(t)
	r.must("sh", "-ec", `mkdir -p /srv/archive /srv/curl/usr/bin /srv/curl/DEBIAN; cd /srv; mv /usr/local/bin/curl curl/usr/bin
printf 'Package: curl\nVersion: 1\nArchitecture: all\nMaintainer: a test\nDescription: a stand-in\n' >curl/DEBIAN/control
dpkg-deb --build --root-owner-group curl archive
echo 'deb [trusted=yes] file:/srv/archive ./' >/etc/apt/sources.list.d/archive.list`)
	if out, err := r.outside("sh", "-ec", `cd "$0/srv/archive"; apt-ftparchive packages . >Packages`, r.dir); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return r
}

// installed is the version of the package that a package manager's database has, "" for none.
func (r *root) installed() string {
	out, err := r.run("lockkeeper", "version")
	if err != nil {
		return ""
	}
	return strings.Fields(out)[1]
}

// otherSignatures are the signatures of a stranger below the release's own files.
func otherSignatures(t *testing.T) (inRelease, repomd []byte) {
	t.Helper()
	sign := func(how, file string) []byte {
		to := filepath.Join(t.TempDir(), "signature")
		if out, err := keyring.gpg(t.Context(), "--local-user", keyring.stranger, "--output", to, "--armor", how, filepath.Join(dist(t), file)); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		data, err := os.ReadFile(to)
		must(t, err)
		return data
	}
	return sign("--clear-sign", "dists/stable/Release"), sign("--detach-sign", "repodata/repomd.xml")
}

const aptGet = "apt-get -q -y "

// TestAptRepository follows docs/download.md on a Debian that has nothing of lockkeeper's, upgrades and removes the package.
func TestAptRepository(t *testing.T) {
	t.Parallel()
	r := debian(t)
	w := publish(t, dist(t))
	r.must("sh", "-ec", pageCommands(t, "Debian and Ubuntu", w))
	if got := r.installed(); got != "v1.2.3" {
		t.Errorf("installed: %q", got)
	}
	if got := r.isEnabled(); got != "enabled" {
		t.Errorf("installed: %s, expected enabled", got)
	}
	upgrade := publish(t, next(t))
	r.must("sh", "-ec", "sed -i 's|"+w.url+"|"+upgrade.url+"|' /etc/apt/sources.list.d/lockkeeper.sources; "+aptGet+"update; "+aptGet+"upgrade")
	if got := r.installed(); got != "v1.3.0-rc.1" {
		t.Errorf("upgraded: %q", got)
	}
	r.must("sh", "-ec", aptGet+"purge lockkeeper")
	if got := r.installed(); got != "" || r.has("/etc/lockkeeper") {
		t.Errorf("purged: %q is still there, or /etc/lockkeeper is", got)
	}
}

// TestAptRefuses breaks one file of the repository at a time.
func TestAptRefuses(t *testing.T) {
	t.Parallel()
	r := debian(t)
	deb := fmt.Sprintf(debForm, v1)
	stranger, _ := otherSignatures(t)
	const inRelease, release, packages = "dists/stable/InRelease", "dists/stable/Release", "dists/stable/main/binary-amd64/Packages"
	for _, tc := range []struct {
		name    string
		replace map[string][]byte
	}{
		{"a changed package", map[string][]byte{deb: flipped(t, filepath.Join(dist(t), deb))}},
		{"a changed index of packages", map[string][]byte{packages + ".gz": flipped(t, filepath.Join(dist(t), packages+".gz")), packages: nil}},
		{"a changed InRelease", map[string][]byte{inRelease: flipped(t, filepath.Join(dist(t), inRelease)), release: nil}},
		{"no signature", map[string][]byte{inRelease: nil, release + ".gpg": nil}},
		{"another key's signature", map[string][]byte{inRelease: stranger}},
	} {
		w := publish(t, dist(t))
		w.replace = tc.replace
		r.must("sh", "-ec", "rm -rf /etc/apt/sources.list.d/lockkeeper.sources /var/lib/apt/lists /var/cache/apt/archives; mkdir -p /var/cache/apt/archives")
		out, err := r.run("sh", "-ec", pageCommands(t, "Debian and Ubuntu", w))
		if got := r.installed(); err == nil || got != "" {
			t.Errorf("%s: installed is %q: %v\n%s", tc.name, got, err, out)
		}
	}
}

// dnf turns the page's commands into those that install into the root.
func (r *root) dnf(t *testing.T, commands string) (string, error) {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(commands) {
		args, isDNF := strings.CutPrefix(strings.TrimSpace(line), "dnf ")
		said, err := "", error(nil)
		if isDNF {
			said, err = r.outside("sh", "-ec", `dnf --installroot "$0" --releasever 9 --setopt=install_weak_deps=False --setopt=retries=1 `+args, r.dir)
		} else {
			said, err = r.run("sh", "-ec", line)
		}
		out.WriteString(said)
		if err != nil {
			return out.String(), err
		}
	}
	return out.String(), nil
}

// rpmClient is a client whose rpm database has what the package requires.
func rpmClient(t *testing.T) *root {
	r := client(t)
	stubs := t.TempDir()
	for name, provides := range map[string]string{"systemd": "/bin/sh", "dbus": "dbus-daemon"} {
		recipe := filepath.Join(stubs, name+".yaml")
		must(t, os.WriteFile(recipe, fmt.Appendf(nil, "name: %s\narch: all\nversion: 252\ndescription: a stub\nlicense: none\nmaintainer: a test\nprovides: [%s]\n", name, provides), 0o644))
		mustRun(t, "go", "-C", source, "tool", "-modfile=tools.mod", "nfpm", "package", "--config", recipe, "--packager", "rpm", "--target", filepath.Join(stubs, name+".rpm"))
	}
	if out, err := r.outside("sh", "-ec", `rpm --root "$0" -i "$@"`, r.dir, filepath.Join(stubs, "systemd.rpm"), filepath.Join(stubs, "dbus.rpm")); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return r
}

// TestDnfRepository follows docs/download.md on a host with dnf, upgrades and removes the package.
func TestDnfRepository(t *testing.T) {
	t.Parallel()
	r := rpmClient(t)
	w := publish(t, dist(t))
	if out, err := r.dnf(t, pageCommands(t, "RHEL family and Fedora", w)); err != nil || r.installed() != "v1.2.3" {
		t.Fatalf("installed %q: %v\n%s", r.installed(), err, out)
	}
	upgrade := publish(t, next(t))
	r.must("sed", "-i", "s|"+w.url+"|"+upgrade.url+"|", "/etc/yum.repos.d/lockkeeper.repo")
	if out, err := r.dnf(t, "dnf upgrade -y --refresh lockkeeper\n"); err != nil || r.installed() != "v1.3.0-rc.1" {
		t.Errorf("upgraded to %q: %v\n%s", r.installed(), err, out)
	}
	if out, err := r.dnf(t, "dnf remove -y lockkeeper\n"); err != nil || r.installed() != "" {
		t.Errorf("removed, and %q is there: %v\n%s", r.installed(), err, out)
	}
}

// TestDnfRefuses breaks one file of the repository at a time.
func TestDnfRefuses(t *testing.T) {
	t.Parallel()
	r := rpmClient(t)
	rpm := fmt.Sprintf(rpmForm, v1)
	_, stranger := otherSignatures(t)
	const repomd = "repodata/repomd.xml"
	primary, err := filepath.Glob(filepath.Join(dist(t), "repodata", "*-primary.xml.gz"))
	if err != nil || len(primary) != 1 {
		t.Fatalf("the index of packages: %q, %v", primary, err)
	}
	for _, tc := range []struct {
		name    string
		replace map[string][]byte
	}{
		{"a changed package", map[string][]byte{rpm: flipped(t, filepath.Join(dist(t), rpm))}},
		{"a changed index of packages", map[string][]byte{"repodata/" + filepath.Base(primary[0]): flipped(t, primary[0])}},
		{"a changed repomd.xml", map[string][]byte{repomd: flipped(t, filepath.Join(dist(t), repomd))}},
		{"no signature", map[string][]byte{repomd + ".asc": nil}},
		{"another key's signature", map[string][]byte{repomd + ".asc": stranger}},
	} {
		w := publish(t, dist(t))
		w.replace = tc.replace
		r.must("rm", "-rf", "/var/cache/dnf")
		out, err := r.dnf(t, pageCommands(t, "RHEL family and Fedora", w))
		if got := r.installed(); err == nil || got != "" {
			t.Errorf("%s: installed is %q: %v\n%s", tc.name, got, err, out)
		}
	}
}
