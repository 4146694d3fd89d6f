package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"text/template"
	"time"
)

// recipe is what nfpm.yaml is filled with.
type recipe struct {
	Arch, Version, Stage, Src, Time string
	Files                           []file
}

// packages makes deb and rpm.
func (b *build) packages(ctx context.Context, arch architecture, stage string, shared []file, made string) error {
	text, err := template.ParseFiles("packaging/nfpm.yaml")
	if err != nil {
		return err
	}
	for _, p := range []struct{ format, name string }{
		{"deb", fmt.Sprintf("lockkeeper_%s_%s.deb", b.version, arch.goarch)},
		{"rpm", fmt.Sprintf("lockkeeper-%s-1.%s.rpm", b.version, arch.rpm)},
	} {
		config := filepath.Join(stage, p.format+".yaml")
		f, err := os.Create(config)
		if err != nil {
			return err
		}
		r := recipe{arch.goarch, b.version, stage, "packaging", b.at.Format(time.RFC3339), forFormat(shared, p.format)}
		if err := text.Execute(f, r); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "go", "tool", "-modfile=tools.mod", "nfpm", "package",
			"--config", config, "--packager", p.format, "--target", filepath.Join(made, p.name))
		cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", b.at.Unix()))
		if err := quiet(cmd); err != nil {
			return err
		}
	}
	return nil
}
