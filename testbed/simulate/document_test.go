package simulate

import (
	"os"
	"regexp"
	"testing"
)

// The example of the document is one that runs, and its output is what comes of
// it.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/simulate.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```yaml\n(.*?)```.*?```text\n(.*?)```").FindSubmatch(text)
	if m == nil {
		t.Fatal("docs/simulate.md shows no fleet with its output")
	}
	if r := roll(t, string(m[1])); r.String() != string(m[2]) {
		t.Errorf("docs/simulate.md shows another output than this:\n%s", r)
	}
}
