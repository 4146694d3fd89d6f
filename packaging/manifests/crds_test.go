package manifests

import (
	"bytes"
	"os"
	"os/exec"
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
	head, err := os.ReadFile("crds.head")
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string][]byte{
		"packaging/manifests/crds.yaml":          append(head, generate("crd")...),
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
