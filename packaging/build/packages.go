package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// recipe is what nfpm.yaml is filled with.
type recipe struct {
	Arch, Version, Stage, Src, Time string
	Files                           []file
}

// packages makes deb and rpm.
func (b *build) packages(ctx context.Context, arch architecture, stage string, shared []file, made string) error {
	for _, p := range []struct{ format, name string }{
		{"deb", fmt.Sprintf("lockkeeper_%s_%s.deb", b.version, arch.goarch)},
		{"rpm", fmt.Sprintf("lockkeeper-%s-1.%s.rpm", b.version, arch.rpm)},
	} {
		yaml := filepath.Join(stage, p.format+".yaml")
		text, err := fill("packaging/nfpm.yaml", recipe{arch.goarch, b.version, stage, "packaging", b.at.Format(time.RFC3339), forFormat(shared, p.format)})
		if err != nil {
			return err
		}
		if err := os.WriteFile(yaml, []byte(text), 0o644); err != nil {
			return err
		}
		cmd := tool(ctx, "nfpm", "package", "--config", yaml, "--packager", p.format, "--target", filepath.Join(made, p.name))
		cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", b.at.Unix()))
		if err := quiet(cmd); err != nil {
			return err
		}
	}
	return nil
}
