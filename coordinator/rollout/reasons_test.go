package rollout_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestReasonsAreProvoked: every reason that the table of reasons says is written in the label held is the outcome of a script, and no
// other is; and every reason that ends a turn is one in a script, here or among the host's.
func TestReasonsAreProvoked(t *testing.T) {
	held := found(t, `held (Failed|[A-Z][A-Za-z]+)`, "testdata/decide/*.txt", "testdata/*.txt")
	ends := found(t, `(?:last=[A-Za-z]+,|\(|refused:|failed:|(?:Done|Cancelled|BackedOut|Failed) )([A-Z][A-Za-z]+)`, "testdata/decide/*.txt", "testdata/*.txt", "../../node/step/testdata/*.txt")
	for _, d := range v1alpha1.ReasonDocs() {
		if d.Reason == v1alpha1.ReasonInvalidGrant {
			held[d.Reason] = false // only to a reader: a leader repairs the grant instead
		}
		if d.Reason.Holds() != held[d.Reason] {
			t.Errorf("%s: held by a script %t, and the table says %t", d.Reason, held[d.Reason], d.Reason.Holds())
		}
		if d.Reason.Ends() && !ends[d.Reason] {
			t.Errorf("%s: the table says that a turn ends for it, and none does in a script", d.Reason)
		}
	}
}

// found are the words that an expression finds in files.
func found(t *testing.T, expression string, globs ...string) map[v1alpha1.Reason]bool {
	t.Helper()
	words := map[v1alpha1.Reason]bool{}
	for _, glob := range globs {
		files, err := filepath.Glob(glob)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", glob, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(expression).FindAllStringSubmatch(string(text), -1) {
				words[v1alpha1.Reason(m[1])] = true
			}
		}
	}
	return words
}
