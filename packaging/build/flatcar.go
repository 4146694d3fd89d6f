package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
)

// The tools of tools.mod that are commands without a name of their own.
const (
	butane            = "github.com/coreos/butane/internal"
	ignitionValidator = "github.com/coreos/ignition/v2/validate"
)

// flatcar makes what a Flatcar host is provisioned with: the sysupdate file, the
// Butane source with the image's checksum in it, and the Ignition file, which
// Ignition's own validator has seen.
func (b *build) flatcar(ctx context.Context, arch architecture, made string) error {
	sum, err := sha256Of(filepath.Join(made, b.image(arch)))
	if err != nil {
		return err
	}
	values := struct{ URL, Arch, Image, SHA256, Transfer, Minor string }{
		URL: b.url, Arch: arch.systemd, Image: b.image(arch), SHA256: sum, Minor: minor(b.version),
	}
	transfer, err := fill("packaging/flatcar/lockkeeper.conf", values)
	if err != nil {
		return err
	}
	values.Transfer = indent(transfer, 10)
	source, err := fill("packaging/flatcar/lockkeeper.bu", values)
	if err != nil {
		return err
	}
	at := func(what string) string {
		return filepath.Join(made, fmt.Sprintf("lockkeeper-%s-%s.%s", b.version, arch.systemd, what))
	}
	if err := os.WriteFile(at("sysupdate.conf"), []byte(transfer), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(at("bu"), []byte(source), 0o644); err != nil {
		return err
	}
	if err := quiet(tool(ctx, butane, "--strict", "--pretty", "--output", at("ign"), at("bu"))); err != nil {
		return err
	}
	return quiet(tool(ctx, ignitionValidator, at("ign")))
}

// tool is a command of tools.mod.
func tool(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "go", append([]string{"tool", "-modfile=tools.mod", name}, args...)...)
}

// fill fills in a file that is a template.
func fill(file string, values any) (string, error) {
	t, err := template.ParseFiles(file)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if err := t.Execute(&b, values); err != nil {
		return "", err
	}
	return b.String(), nil
}

// indent moves all lines but empty ones to the right, and ends without a line's
// end.
func indent(text string, by int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, l := range lines {
		if l != "" {
			lines[i] = strings.Repeat(" ", by) + l
		}
	}
	return strings.Join(lines, "\n")
}
