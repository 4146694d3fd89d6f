package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHooksDocument has the API server take the policies in docs/hooks.md, which the examples' manifests speak of too.
func TestHooksDocument(t *testing.T) {
	t.Parallel()
	must(t, examplePlane().ApplyLockkeeper(exampleSoon(t)))
	text, err := os.ReadFile("../../docs/hooks.md")
	must(t, err)
	blocks := strings.Split(string(text), "```yaml\n")[1:]
	if len(blocks) == 0 {
		t.Fatal("there is no policy in it")
	}
	for _, b := range blocks {
		b, _, _ = strings.Cut(b, "```")
		until(t, "the kind to be served", func() bool {
			out, err := kubectl(t, admin(t), "get", "disruptionpolicies", "-o", "name")
			return err == nil && out != ""
		})
		file := filepath.Join(t.TempDir(), "policy.yaml")
		must(t, os.WriteFile(file, []byte(b), 0o644))
		if out, err := kubectl(t, admin(t), "apply", "--dry-run=server", "--validate=strict", "-f", file); err != nil {
			t.Errorf("%v: %s\n%s", err, out, b)
		}
		for _, line := range []string{"name: wait-for-replicas", "name: notify-before-reboot", "name: notify-before-uncordon"} {
			if !strings.Contains(b, line) {
				t.Errorf("the policy does not say %s", line)
			}
		}
	}
}
