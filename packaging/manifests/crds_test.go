package manifests

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// What controller-gen makes of the types is what is in the tree. It reads Go
// and writes to this test alone.
func TestGeneratedUpToDate(t *testing.T) {
	const root = "../../"
	generate := func(generator string) []byte {
		cmd := exec.CommandContext(t.Context(), "go", "tool", "-modfile=tools.mod", "controller-gen", generator, "paths=./api/v1alpha1", "output:stdout")
		cmd.Dir = root
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("controller-gen %s: %v\n%s", generator, err, stderr.Bytes())
		}
		return out
	}
	// Go keeps a test's result until a file changes that the test itself reads.
	sources, err := filepath.Glob(root + "api/v1alpha1/*.go")
	if err != nil || len(sources) == 0 {
		t.Fatalf("%d sources: %v", len(sources), err)
	}
	for _, file := range append(sources, root+"tools.mod") {
		if _, err := os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	head, err := os.ReadFile("crds.head")
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string][]byte{
		"packaging/manifests/crds.yaml":         append(head, bytes.TrimPrefix(generate("crd"), []byte("---\n"))...),
		"api/v1alpha1/zz_generated.deepcopy.go": generate("object"),
	} {
		have, err := os.ReadFile(root + file)
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(have, want) {
			t.Errorf("%s is not what the types say: make generate", file)
		}
	}
}
