package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// licenceFile matches the files that have to go with a module's code.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([._-].*)?$`)

// licences returns the licences of all modules whose code is in the binary, on
// any platform, and of Go itself: the binary holds their code, so their
// texts must accompany it. A module without a licence is an error.
func licences(ctx context.Context) ([]byte, error) {
	dirs := map[string]string{}
	for _, p := range platforms {
		cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Module", ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.goos, "GOARCH="+p.goarch)
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		for dec := json.NewDecoder(bytes.NewReader(out)); ; {
			var p struct {
				Module *struct {
					Path, Version, Dir string
					Main               bool
				}
			}
			if err := dec.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("go list: %w", err)
			}
			if p.Module != nil && !p.Module.Main {
				dirs[p.Module.Path+" "+p.Module.Version] = p.Module.Dir
			}
		}
	}
	goroot, err := output(ctx, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	dirs["Go"] = goroot
	var names []string
	for name := range dirs {
		names = append(names, name)
	}
	slices.Sort(names)
	var all bytes.Buffer
	all.WriteString("lockkeeper's binary holds code of these modules, under the terms that follow each.\n")
	for _, name := range names {
		if err := addLicences(&all, name, dirs[name]); err != nil {
			return nil, err
		}
	}
	return all.Bytes(), nil
}

func addLicences(all *bytes.Buffer, name, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	found := 0
	for _, e := range entries {
		if e.IsDir() || !licenceFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		found++
		fmt.Fprintf(all, "\n%s\n%s, %s\n\n%s\n", strings.Repeat("=", 79), name, e.Name(), strings.TrimSpace(string(text)))
	}
	if found == 0 {
		return fmt.Errorf("%s: no licence in %s", name, dir)
	}
	return nil
}
