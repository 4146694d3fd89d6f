package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// These are two releases with the same code.
const (
	olderVersion = "0.9.0"
	newerVersion = "0.9.1"
)

// sourceDir is the path from here to the root of the source.
const sourceDir = "../.."

// signer is the user ID of the key that signs both releases.
const signer = "release@lockkeeper.test"

// packages contains the paths of the debs under test on the machine. Each lies in the directory of its release.
type packages struct {
	older, newer string
	dir          string // removed at the end; "" if the packages existed before
}

func (p packages) remove() {
	if p.dir != "" {
		_ = os.RemoveAll(p.dir) // in the temporary directory
	}
}

// beside returns the one file next to a deb that matches a pattern.
func beside(deb, pattern string) (string, error) {
	found, err := filepath.Glob(filepath.Join(filepath.Dir(deb), pattern))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%d files %s in the release, expected one: %v", len(found), pattern, found)
	}
	return cmp.Or(found...), err
}

// buildPackages builds both releases like `make release`, but only for this machine's system and architecture.
func buildPackages(ctx context.Context) (p packages, err error) {
	root := os.Getenv("LOCKKEEPER_E2E_PACKAGES")
	if root == "" {
		if p.dir, err = os.MkdirTemp("", "lockkeeper-e2e-"); err != nil {
			return p, err
		}
		root = p.dir
		if err := buildReleases(ctx, root); err != nil {
			p.remove()
			return p, err
		}
	}
	path := func(version string) string {
		return filepath.Join(root, version, fmt.Sprintf("lockkeeper_%s_%s.deb", version, runtime.GOARCH))
	}
	p.older, p.newer = path(olderVersion), path(newerVersion)
	for _, name := range []string{p.older, p.newer} {
		if _, err := os.Stat(name); err != nil {
			p.remove()
			return p, fmt.Errorf("the package does not exist: %w", err)
		}
	}
	return p, nil
}

// buildReleases builds both releases, signed with a key that exists only as long as the build takes.
func buildReleases(ctx context.Context, root string) error {
	keyring, err := os.MkdirTemp("", "gpg-") // a short path, because gpg-agent's socket is in it
	if err != nil {
		return err
	}
	defer func() {
		_ = exec.Command("gpgconf", "--homedir", keyring, "--kill", "all").Run()
		_ = os.RemoveAll(keyring) // in the temporary directory
	}()
	run := func(name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = sourceDir
		cmd.Env = append(os.Environ(), "GNUPGHOME="+keyring)
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building the releases: %s: %w\n%s", name, err, said)
		}
		return nil
	}
	err = run("gpg", "--batch", "--passphrase", "", "--quick-gen-key", signer, "ed25519", "sign", "never")
	for _, version := range []string{olderVersion, newerVersion} {
		if err == nil {
			fmt.Fprintf(os.Stderr, "e2e: building the release %s\n", version)
			err = run("go", "run", "./packaging/build", "-release", "-url", publishedAt, "-key", signer, "-version", "v"+version,
				"-arch", runtime.GOARCH, "-platforms", runtime.GOOS+"/"+runtime.GOARCH, "-out", filepath.Join(root, version))
		}
	}
	return err
}
