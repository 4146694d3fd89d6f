package policy

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestDocumentsPolicies reads every policy in the documents, and a policy's rules alone, as the API server
// would: no field is unknown, and with the defaults under it nothing is wrong.
func TestDocumentsPolicies(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	for file, want := range map[string]int{"../docs/policy.md": 5, "../docs/hooks.md": 1, "../docs/fedora-coreos.md": 1} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, block := range blocks.FindAllSubmatch(text, -1) {
			if bytes.HasPrefix(block[1], []byte("rules:\n")) {
				block[1] = append([]byte("kind: DisruptionPolicy\nspec:\n "), bytes.ReplaceAll(block[1], []byte("\n"), []byte("\n "))...)
			}
			if !bytes.Contains(block[1], []byte("kind: DisruptionPolicy")) {
				continue
			}
			found++
			data, err := yaml.ToJSON(block[1])
			if err != nil {
				t.Errorf("%s: %v\n%s", file, err, block[1])
				continue
			}
			obj := v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
			decoder := json.NewDecoder(bytes.NewReader(data))
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(&obj); err != nil {
				t.Errorf("%s: %v\n%s", file, err, block[1])
				continue
			}
			for _, problem := range compile(obj.Spec).Problems {
				t.Errorf("%s: policy %s: %v", file, obj.Name, problem)
			}
		}
		if found < want {
			t.Errorf("%s: %d policies, expected at least %d", file, found, want)
		}
	}
}
