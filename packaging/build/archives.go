package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// platform is what the command line alone is built for. People use it on their own machines.
type platform struct{ goos, goarch string }

func (p platform) String() string { return p.goos + "/" + p.goarch }

// platforms are all of them, in the order of the krew manifest.
var platforms = []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}

// choose returns the platforms that a list such as "linux/amd64,darwin/arm64" names.
func choose(list string) ([]platform, error) {
	var chosen []platform
	for name := range strings.SplitSeq(list, ",") {
		before := len(chosen)
		for _, p := range platforms {
			if p.String() == name {
				chosen = append(chosen, p)
			}
		}
		if len(chosen) == before {
			return nil, fmt.Errorf("platform %q, expected some of %v", name, platforms)
		}
	}
	return chosen, nil
}

// noAgent is the build tag of the command line alone; see cli/run.go.
const noAgent = "noagent"

// member is a file of an archive.
type member struct {
	name, src string
	mode      int64
}

// withLicences returns the members that every archive has: the binary, and the terms under which it comes.
func (b *build) withLicences(binary string) []member {
	return []member{{"lockkeeper", binary, 0o755}, {"LICENSE", "LICENSE", 0o644}, {"third-party.gz", filepath.Join(b.stage, "third-party.gz"), 0o644}}
}

// hostArchive packs the static binary of a host that has no package manager of ours, with its units.
func (b *build) hostArchive(arch architecture, binary, made string) error {
	members := b.withLicences(binary)
	for _, f := range repositoryFiles {
		if strings.HasPrefix(f.Dst, units) && len(f.Only) == 0 {
			members = append(members, member{"systemd/" + filepath.Base(f.Dst), f.Src, 0o644})
		}
	}
	return b.pack(filepath.Join(made, fmt.Sprintf("lockkeeper_%s_linux_%s.tar.gz", b.version, arch.goarch)), members)
}

// commandLines packs the command line alone for each platform, and writes the krew manifest that names the archives.
func (b *build) commandLines(ctx context.Context, made string) error {
	type archive struct{ OS, Arch, File, SHA256 string }
	var archives []archive
	for _, p := range b.platforms {
		binary := filepath.Join(b.stage, p.goos+"-"+p.goarch)
		if err := b.compile(ctx, p, noAgent, binary); err != nil {
			return err
		}
		name := fmt.Sprintf("lockkeeper-cli_%s_%s_%s", b.version, p.goos, p.goarch)
		if err := b.sbom(binary, filepath.Join(made, name+".cdx.json")); err != nil {
			return err
		}
		members := b.withLicences(binary)
		for _, shell := range []string{"bash", "zsh", "fish"} {
			members = append(members, member{"completions/lockkeeper." + shell, "packaging/completions/lockkeeper." + shell, 0o644})
		}
		path := filepath.Join(made, name+".tar.gz")
		if err := b.pack(path, members); err != nil {
			return err
		}
		sum, err := sha256Of(path)
		if err != nil {
			return err
		}
		archives = append(archives, archive{p.goos, p.goarch, name + ".tar.gz", sum})
	}
	// krew wants a semantic version.
	text, err := fill("packaging/krew.yaml", struct {
		Version, URL string
		Archives     []archive
	}{"v" + strings.ReplaceAll(b.version, "~", "-"), b.url, archives})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(made, fmt.Sprintf("lockkeeper-krew-%s.yaml", b.version)), []byte(text), 0o644)
}

// pack writes an archive whose bytes depend on nothing but its members' names, modes and contents and the commit's time.
func (b *build) pack(path string, members []member) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	zipped := gzip.NewWriter(f) // the best compression saves 1 % and takes three times as long
	archive := tar.NewWriter(zipped)
	for _, m := range members {
		data, err := os.ReadFile(m.src)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: m.name, Mode: m.mode, Size: int64(len(data)), ModTime: b.at, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("%s in %s: %w", m.name, path, err)
		}
		if _, err := archive.Write(data); err != nil {
			return fmt.Errorf("%s in %s: %w", m.name, path, err)
		}
	}
	return errors.Join(archive.Close(), zipped.Close())
}
