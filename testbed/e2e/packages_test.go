package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// These are two versions of the package with the same code.
const (
	olderVersion = "0.9.0"
	newerVersion = "0.9.1"
)

// sourceDir is the path from here to the root of the source.
const sourceDir = "../.."

// packages contains the paths of the debs under test on the machine.
type packages struct {
	older, newer string
	dir          string // removed at the end; "" if the packages existed before
}

func (p packages) remove() {
	if p.dir != "" {
		_ = os.RemoveAll(p.dir) // in the temporary directory
	}
}

// buildPackages builds both packages like `make packages`, but only for this machine's architecture.
func buildPackages(ctx context.Context) (p packages, err error) {
	root := os.Getenv("LOCKKEEPER_E2E_PACKAGES")
	if root == "" {
		if p.dir, err = os.MkdirTemp("", "lockkeeper-e2e-"); err != nil {
			return p, err
		}
		root = p.dir
		for _, version := range []string{olderVersion, newerVersion} {
			if err := buildPackage(ctx, version, filepath.Join(root, version)); err != nil {
				p.remove()
				return p, err
			}
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

func buildPackage(ctx context.Context, version, out string) error {
	fmt.Fprintf(os.Stderr, "e2e: building the package %s\n", version)
	cmd := exec.CommandContext(ctx, "go", "run", "./packaging/build", "-version", "v"+version, "-arch", runtime.GOARCH, "-out", out)
	cmd.Dir = sourceDir
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the package %s: %w\n%s", version, err, said)
	}
	return nil
}
