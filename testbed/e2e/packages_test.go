package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// Two versions of the package, of the same code.
const (
	olderVersion = "0.9.0"
	newerVersion = "0.9.1"
)

// sourceDir is the root of the source from here.
const sourceDir = "../.."

// packages are the debs under test, by their paths on the machine.
type packages struct {
	older, newer string
	dir          string // removed in the end; "" if they were there before
}

func (p packages) remove() {
	if p.dir != "" {
		_ = os.RemoveAll(p.dir) // in the temporary directory
	}
}

// buildPackages builds both as `make packages` does, for this machine alone.
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
			return p, fmt.Errorf("the package is not there: %w", err)
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
