package simulate

import (
	"os"
	"regexp"
	"testing"
)

// TestDocument checks that the example in the document runs, and that its output is the one in the document.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/simulate.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```yaml\n(.*?)```.*?```text\n(.*?)```").FindSubmatch(text)
	if m == nil {
		t.Fatal("docs/simulate.md contains no fleet with its output")
	}
	if r := roll(t, string(m[1])); r.String() != string(m[2]) {
		t.Errorf("the output differs from docs/simulate.md:\n%s", r)
	}
}
