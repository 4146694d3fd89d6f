package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// file is one that is installed, besides the binary. Its mode is 0644.
type file struct {
	Src, Dst string
	Type     string   // nfpm's: config|noreplace, doc, license; none for most
	Only     []string // the formats that have it: deb, rpm, sysext; all if there are none
}

// forFormat returns the files that a format has.
func forFormat(files []file, format string) []file {
	var out []file
	for _, f := range files {
		if len(f.Only) == 0 || slices.Contains(f.Only, format) {
			if format == "deb" && f.Type != config {
				f.Type = "" // nfpm takes these for rpm's own
			}
			out = append(out, f)
		}
	}
	return out
}

// config is nfpm's type of a file that is the administrator's to change.
const config = "config|noreplace"

const doc = "/usr/share/doc/lockkeeper/"

// examples are what docs/hooks.md speaks of.
var examples = []string{
	"notify-webhook/hook.sh", "notify-webhook/kustomization.yaml", "notify-webhook/manifest.yaml", "notify-webhook/notify-webhook@.service",
	"wait-for-replicas/hook.sh", "wait-for-replicas/host.yaml", "wait-for-replicas/kustomization.yaml", "wait-for-replicas/manifest.yaml",
	"wait-for-replicas/wait-for-replicas.service",
}

// monitoring are the files that docs/monitoring.md describes.
var monitoring = []string{"dashboard.json", "lockkeeper.rules.yaml", "scrape-proxy.yaml", "scrape.yaml"}

// sharedFiles are those that do not depend on the architecture. What has to be
// made for this build is made.
func (b *build) sharedFiles(ctx context.Context) ([]file, error) {
	files := []file{
		{Src: "packaging/lockkeeper.toml", Dst: "/etc/lockkeeper/lockkeeper.toml", Type: config, Only: []string{"deb", "rpm"}},
		{Src: "packaging/systemd/lockkeeper.service", Dst: "/usr/lib/systemd/system/lockkeeper.service"},
		{Src: "packaging/systemd/lockkeeper-before-drain.target", Dst: "/usr/lib/systemd/system/lockkeeper-before-drain.target"},
		{Src: "packaging/systemd/lockkeeper-before-reboot.target", Dst: "/usr/lib/systemd/system/lockkeeper-before-reboot.target"},
		{Src: "packaging/systemd/lockkeeper-before-uncordon.target", Dst: "/usr/lib/systemd/system/lockkeeper-before-uncordon.target"},
		{Src: "packaging/lockkeeper.catalog", Dst: "/usr/lib/systemd/catalog/lockkeeper.catalog"},
		{Src: "packaging/flatcar/multi-user.conf", Dst: "/usr/lib/systemd/system/multi-user.target.d/10-lockkeeper.conf", Only: []string{"sysext"}},
		{Src: "packaging/flatcar/lockkeeper-sysext.target", Dst: "/usr/lib/systemd/system/lockkeeper-sysext.target", Only: []string{"sysext"}},
		{Src: "packaging/flatcar/service.conf", Dst: "/usr/lib/systemd/system/lockkeeper.service.d/10-flatcar.conf", Only: []string{"sysext"}},
		{Src: "packaging/lockkeeper.toml", Dst: "/usr/lib/lockkeeper/config.d/00-defaults.toml", Only: []string{"sysext"}},
		{Src: "packaging/deb/copyright", Dst: doc + "copyright", Only: []string{"deb"}},
		{Src: "packaging/deb/lintian-overrides", Dst: "/usr/share/lintian/overrides/lockkeeper", Only: []string{"deb"}},
		{Src: "LICENSE", Dst: "/usr/share/licenses/lockkeeper/LICENSE", Type: "license", Only: []string{"rpm", "sysext"}},
		{Src: "README.md", Dst: doc + "README.md", Type: "doc", Only: []string{"deb", "rpm"}},
	}
	files = append(files,
		file{Src: "packaging/completions/lockkeeper.bash", Dst: "/usr/share/bash-completion/completions/lockkeeper"},
		file{Src: "packaging/completions/lockkeeper.zsh", Dst: "/usr/share/zsh/vendor-completions/_lockkeeper", Only: []string{"deb"}},
		file{Src: "packaging/completions/lockkeeper.zsh", Dst: "/usr/share/zsh/site-functions/_lockkeeper", Only: []string{"rpm"}},
		file{Src: "packaging/completions/lockkeeper.fish", Dst: "/usr/share/fish/vendor_completions.d/lockkeeper.fish", Only: []string{"deb", "rpm"}},
	)
	for _, name := range examples {
		files = append(files, file{Src: "packaging/examples/" + name, Dst: doc + "examples/" + name, Type: "doc", Only: []string{"deb", "rpm"}})
	}
	for _, name := range monitoring {
		files = append(files, file{Src: "packaging/monitoring/" + name, Dst: doc + "examples/monitoring/" + name, Type: "doc", Only: []string{"deb", "rpm"}})
	}
	manual8, err := os.ReadFile("packaging/man/lockkeeper.8")
	if err != nil {
		return nil, err
	}
	manual5, err := os.ReadFile("packaging/man/lockkeeper.toml.5")
	if err != nil {
		return nil, err
	}
	news, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return nil, err
	}
	licences, err := licences(ctx)
	if err != nil {
		return nil, err
	}
	debian := fmt.Sprintf("lockkeeper (%s) stable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- The lockkeeper authors <lockkeeper@lockkeeper.dev>  %s\n",
		b.version, b.at.Format(time.RFC1123Z))
	for _, m := range []struct {
		dst  string
		text []byte
		only []string
	}{
		{"/usr/share/man/man8/lockkeeper.8.gz", manual8, []string{"deb", "rpm"}},
		{"/usr/share/man/man5/lockkeeper.toml.5.gz", manual5, []string{"deb", "rpm"}},
		{doc + "changelog.gz", []byte(debian), []string{"deb"}},
		{doc + "CHANGELOG.md.gz", news, []string{"deb", "rpm"}},
		{doc + "third-party.gz", licences, nil},
	} {
		src := filepath.Join(b.stage, filepath.Base(m.dst))
		if err := writeGzip(src, m.text); err != nil {
			return nil, err
		}
		files = append(files, file{Src: src, Dst: m.dst, Type: "doc", Only: m.only})
	}
	return files, nil
}

// writeGzip compresses as hard as it can, without a name and a time.
func writeGzip(path string, data []byte) error {
	var buf bytes.Buffer
	w, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, buf.Bytes(), 0o644)
}
