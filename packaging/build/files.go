package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

const units = "/usr/lib/systemd/system/"

var (
	packages = []string{"deb", "rpm"}
	deb      = []string{"deb"}
	rpm      = []string{"rpm"}
	image    = []string{"sysext"}
)

// repositoryFiles are installed as they are in the repository, on every architecture.
var repositoryFiles = []file{
	{Src: "packaging/lockkeeper.toml", Dst: "/etc/lockkeeper/lockkeeper.toml", Type: config, Only: packages},
	{Src: "packaging/systemd/lockkeeper.service", Dst: units + "lockkeeper.service"},
	{Src: "packaging/systemd/lockkeeper-before-drain.target", Dst: units + "lockkeeper-before-drain.target"},
	{Src: "packaging/systemd/lockkeeper-before-reboot.target", Dst: units + "lockkeeper-before-reboot.target"},
	{Src: "packaging/systemd/lockkeeper-before-uncordon.target", Dst: units + "lockkeeper-before-uncordon.target"},
	{Src: "packaging/lockkeeper.catalog", Dst: "/usr/lib/systemd/catalog/lockkeeper.catalog"},
	{Src: "packaging/flatcar/multi-user.conf", Dst: units + "multi-user.target.d/10-lockkeeper.conf", Only: image},
	{Src: "packaging/flatcar/lockkeeper-sysext.target", Dst: units + "lockkeeper-sysext.target", Only: image},
	{Src: "packaging/flatcar/service.conf", Dst: units + "lockkeeper.service.d/10-flatcar.conf", Only: image},
	{Src: "packaging/lockkeeper.toml", Dst: "/usr/lib/lockkeeper/config.d/00-defaults.toml", Only: image},
	{Src: "packaging/deb/copyright", Dst: doc + "copyright", Only: deb},
	{Src: "packaging/deb/lintian-overrides", Dst: "/usr/share/lintian/overrides/lockkeeper", Only: deb},
	{Src: "LICENSE", Dst: "/usr/share/licenses/lockkeeper/LICENSE", Type: "license", Only: []string{"rpm", "sysext"}},
	{Src: "README.md", Dst: doc + "README.md", Type: "doc", Only: packages},
	{Src: "SECURITY.md", Dst: doc + "SECURITY.md", Type: "doc", Only: packages},
	{Src: "packaging/completions/lockkeeper.bash", Dst: "/usr/share/bash-completion/completions/lockkeeper"},
	{Src: "packaging/completions/lockkeeper.zsh", Dst: "/usr/share/zsh/vendor-completions/_lockkeeper", Only: deb},
	{Src: "packaging/completions/lockkeeper.zsh", Dst: "/usr/share/zsh/site-functions/_lockkeeper", Only: rpm},
	{Src: "packaging/completions/lockkeeper.fish", Dst: "/usr/share/fish/vendor_completions.d/lockkeeper.fish", Only: packages},
}

// documentation are the directories whose files are installed as documentation: the
// pages, with the links between them, and the examples of docs/hooks.md and
// docs/monitoring.md.
var documentation = map[string]string{
	"docs":                 doc + "docs",
	"packaging/examples":   doc + "examples",
	"packaging/monitoring": doc + "examples/monitoring",
}

// sharedFiles returns the files that are the same on every architecture, and makes those
// that this build has to make.
func (b *build) sharedFiles(ctx context.Context) ([]file, error) {
	files := slices.Clone(repositoryFiles)
	for from, to := range documentation {
		err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && !strings.HasSuffix(path, ".test.yaml") {
				files = append(files, file{Src: path, Dst: to + strings.TrimPrefix(path, from), Type: "doc", Only: packages})
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(cmp.Compare(a.Dst, b.Dst), cmp.Compare(a.Src, b.Src)) })
	licences, err := licences(ctx)
	if err != nil {
		return nil, err
	}
	debian := fmt.Sprintf("lockkeeper (%s) stable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- The lockkeeper authors <lockkeeper@lockkeeper.dev>  %s\n",
		b.version, b.at.Format(time.RFC1123Z))
	for _, m := range []struct {
		dst, src string // src is the file that text is read from
		text     string
		only     []string
	}{
		{"/usr/share/man/man8/lockkeeper.8.gz", "packaging/man/lockkeeper.8", "", packages},
		{"/usr/share/man/man5/lockkeeper.toml.5.gz", "packaging/man/lockkeeper.toml.5", "", packages},
		{doc + "changelog.gz", "", debian, deb},
		{doc + "CHANGELOG.md.gz", "CHANGELOG.md", "", packages},
		{doc + "third-party.gz", "", string(licences), nil},
	} {
		text := []byte(m.text)
		if m.src != "" {
			if text, err = os.ReadFile(m.src); err != nil {
				return nil, err
			}
		}
		zipped := filepath.Join(b.stage, filepath.Base(m.dst))
		if err := writeGzip(zipped, text); err != nil {
			return nil, err
		}
		files = append(files, file{Src: zipped, Dst: m.dst, Type: "doc", Only: m.only})
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
