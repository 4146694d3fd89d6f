package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// The repositories for apt and dnf are the directory of the artifacts itself: its packages lie next to the indexes that name them,
// so a static web server publishes all of it as it is. The indexes name the packages of this version only, and so
// docs/download.md has each minor version published in a directory of its own.

const (
	suite       = "stable"
	archiveArea = "main"
)

var releaseDate = regexp.MustCompile(`(?m)^Date: .*$`)

// aptRepository writes the indexes that apt reads, and signs them if there is a key.
func (b *build) aptRepository(ctx context.Context, archs []string, made string) error {
	dists := filepath.Join("dists", suite)
	for _, arch := range archs {
		dir := filepath.Join(made, dists, archiveArea, "binary-"+arch)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		index, err := b.in(ctx, made, "apt-ftparchive", "--arch", arch, "packages", ".")
		if err != nil {
			return err
		}
		// Stores of objects, which are web servers too, do not take ./ out of a name.
		index = bytes.ReplaceAll(index, []byte("\nFilename: ./"), []byte("\nFilename: "))
		if err := os.WriteFile(filepath.Join(dir, "Packages"), index, 0o644); err != nil {
			return err
		}
		if err := writeGzip(filepath.Join(dir, "Packages.gz"), index); err != nil {
			return err
		}
	}
	args := []string{}
	for key, value := range map[string]string{
		"Origin": "lockkeeper", "Label": "lockkeeper", "Suite": suite, "Codename": suite,
		"Components": archiveArea, "Architectures": strings.Join(archs, " "),
	} {
		args = append(args, "-o", "APT::FTPArchive::Release::"+key+"="+value)
	}
	release, err := b.in(ctx, made, "apt-ftparchive", append(args, "release", dists)...)
	if err != nil {
		return err
	}
	// apt-ftparchive has no option for its Date.
	if !releaseDate.Match(release) {
		return fmt.Errorf("apt-ftparchive's Release has no Date:\n%s", release)
	}
	release = releaseDate.ReplaceAll(release, b.at.AppendFormat([]byte("Date: "), "Mon, 02 Jan 2006 15:04:05 +0000"))
	path := filepath.Join(made, dists, "Release")
	if err := os.WriteFile(path, release, 0o644); err != nil {
		return err
	}
	if b.key == "" {
		return nil
	}
	if err := b.sign(ctx, filepath.Join(made, dists, "InRelease"), "--clear-sign", path); err != nil {
		return err
	}
	return b.sign(ctx, path+".gpg", "--armor --detach-sign", path)
}

// rpmRepository writes the indexes that dnf reads, and signs them if there is a key. The packages themselves are not signed: the
// signed index has their checksums, and so a signed release has the same packages as an unsigned one.
func (b *build) rpmRepository(ctx context.Context, made string) error {
	rpms, err := filepath.Glob(filepath.Join(made, "*.rpm"))
	if err != nil {
		return err
	}
	for _, rpm := range rpms { // the index has the files' times
		if err := os.Chtimes(rpm, b.at, b.at); err != nil {
			return err
		}
	}
	if _, err := b.in(ctx, made, "createrepo_c", "--quiet", "--general-compress-type", "gz", "--no-database",
		"--revision", fmt.Sprint(b.at.Unix()), "--set-timestamp-to-revision", "."); err != nil {
		return err
	}
	if b.key == "" {
		return nil
	}
	index := filepath.Join(made, "repodata", "repomd.xml")
	return b.sign(ctx, index+".asc", "--armor --detach-sign", index)
}

// clients writes the files that make a host a client of the repositories. There are none for a release that is not signed.
func (b *build) clients(made string) error {
	for _, source := range []string{"packaging/repositories/lockkeeper.sources", "packaging/repositories/lockkeeper.repo"} {
		text, err := fill(source, struct{ URL, Suite, Component string }{b.url, suite, archiveArea})
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(made, filepath.Base(source)), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// in runs a command in a directory and returns what it prints. It sorts and names times as in every other place.
func (b *build) in(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", b.at.Unix()))
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, said.String())
	}
	return out.Bytes(), nil
}
