package testbed

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// packageDirs returns the directories with Go files, but the root.
func packageDirs(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "testdata":
			return filepath.SkipDir
		case !d.IsDir() && strings.HasSuffix(path, ".go") && filepath.Dir(path) != ".":
			found[filepath.Dir(path)] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(found))
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The map in README.md names every package once and nothing else.
func TestREADMEMapsEveryPackage(t *testing.T) {
	var named []string
	for line := range strings.Lines(read(t, "README.md")) {
		cells := strings.Split(line, "|")
		// The map has the package in its second column and names what changed in the first, the list of parts has it in the first.
		for _, cell := range cells[min(1, len(cells)):min(3, len(cells))] {
			name := strings.Trim(cell, " `")
			if strings.Contains(cell, "`"+name+"`") && name != strings.ToUpper(name) && !strings.HasPrefix(name, "docs/") && !strings.Contains(name, "make ") {
				named = append(named, name)
			}
		}
	}
	slices.Sort(named)
	if want := packageDirs(t); !slices.Equal(named, want) {
		t.Errorf("README.md names\n%s\nThe packages are\n%s", strings.Join(named, " "), strings.Join(want, " "))
	}
}

// The Makefile names packages of the test bed that exist. TestDocumentsNamePaths of the other module reads the documents.
func TestMakefileNamesPackages(t *testing.T) {
	packages := packageDirs(t)
	count := 0
	for line := range strings.Lines(read(t, "../Makefile")) {
		if !strings.Contains(line, "cd testbed") && !strings.Contains(line, "LOCKKEEPER_SEED") {
			continue
		}
		for _, m := range regexp.MustCompile(` \./([a-z]+)\b`).FindAllStringSubmatch(line, -1) {
			count++
			if m[1] != "cmd" && !slices.Contains(packages, m[1]) {
				t.Errorf("the Makefile names testbed/%s, which is not a package", m[1])
			}
		}
	}
	if count < 10 {
		t.Errorf("only %d names were found", count)
	}
}

// TestKubernetesVersions compares the versions in the README's table, which `make compat` has printed, with those that it builds.
func TestKubernetesVersions(t *testing.T) {
	modules, err := filepath.Glob("controlplane/binaries/*/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	var built []string
	for _, file := range append(modules, "controlplane/binaries/go.mod") {
		version := regexp.MustCompile(`(?m)^\s+k8s\.io/kubernetes v(\S+)`).FindStringSubmatch(read(t, file))
		if version == nil {
			t.Fatalf("%s has no k8s.io/kubernetes", file)
		}
		built = append(built, version[1])
	}
	var named []string
	for _, row := range regexp.MustCompile(`(?m)^\| (1\.\d+\.\d+) \|`).FindAllStringSubmatch(read(t, "../README.md"), -1) {
		named = append(named, row[1])
	}
	slices.Sort(built)
	slices.Sort(named)
	if !slices.Equal(named, built) {
		t.Errorf("README.md has the Kubernetes versions %q, and make compat builds %q: run it, and copy its table", named, built)
	}
}
