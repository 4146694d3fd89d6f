package render

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/migrate"
	"lockkeeper.dev/lockkeeper/node/turn"
)

var update = flag.Bool("update", false, "write the documents that are rendered from code")

// TestDocs compares the documents with the code that they are rendered from.
func TestDocs(t *testing.T) {
	compare(t, "packaging/lockkeeper.catalog", func(string) (string, error) { return Catalog(), nil })
	for name, parts := range Parts() {
		compare(t, "docs/"+name, func(page string) (string, error) { return Fill(page, parts) })
	}
}

// compare compares a document with what it should be, or writes it with -update.
func compare(t *testing.T, name string, rendered func(have string) (string, error)) {
	t.Helper()
	path := filepath.Join("..", "..", name)
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := rendered(string(have))
	switch {
	case err != nil:
		t.Errorf("%s: %v", name, err)
	case *update:
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	case string(have) != want:
		t.Errorf("%s is not what the code says; run: make docs", name)
	}
}

// TestFill checks that a page without a place for a part, or with a part that no code renders, is
// an error, and that everything between the marks is replaced.
func TestFill(t *testing.T) {
	const page = "# Title\n\n<!-- rendered from code: a. Do not edit: make docs -->\nold\n<!-- end of a -->\n\nText\n"
	want := strings.Replace(page, "\nold\n", "\n\nnew\n\n", 1)
	for range 2 {
		got, err := Fill(page, map[string]string{"a": "new\n"})
		if err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	for name, parts := range map[string]map[string]string{"none": {}, "another": {"b": ""}, "one more": {"a": "", "b": ""}} {
		if got, err := Fill(page, parts); err == nil {
			t.Errorf("%s: %q, want an error", name, got)
		}
	}
	if got, err := Fill(strings.Replace(page, "end of a", "end", 1), map[string]string{"a": ""}); err == nil {
		t.Errorf("without an end: %q, want an error", got)
	}
}

// TestSettings checks that each setting of another tool is in the table about the tool.
func TestSettings(t *testing.T) {
	for _, tool := range migrate.Tools() {
		for _, s := range migrate.Settings(tool) {
			if !strings.Contains(settings(tool), "`"+settingName(tool, s.Name)+"`") {
				t.Errorf("%s is not in the table about %s", s.Name, tool)
			}
		}
	}
}

// TestStates looks for what a reader needs in the rendered page: that
// the page equals the code proves little if the code renders half.
func TestStates(t *testing.T) {
	parts := states()
	page := parts["states"] + parts["edges"] + parts["stays"] + parts["diagram"]
	for _, line := range []string{
		"| idle | granted | the plan drains | before-drain |",
		"| absent | adopted | - | idle |",
		"| absent | marked | - | before-uncordon |",
		"| draining | replaced | - | absent |",
		"| rebooting | failed | the slot stays taken and the label held says why |",
		"| applying | want vanished | the host finishes what it began, or refuses |",
		`    state "before-uncordon" as before_uncordon`,
		"    uncordoning --> idle : done / taken back",
		"    idle --> absent : released / let go",
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("missing line %q", line)
		}
	}
	edges := 0
	for _, r := range turn.Table() {
		edges += len(r.Edges)
		for _, e := range r.Edges {
			if !strings.Contains(page, "| "+r.State.String()+" | "+string(e.On)+" | ") {
				t.Errorf("%s on %s is not in the page", r.State, e.On)
			}
		}
	}
	if got := strings.Count(parts["edges"], "\n| ") - 1; got != edges {
		t.Errorf("%d edges in the page, %d in the table", got, edges)
	}
	for _, on := range turn.Events() {
		if !strings.Contains(page, string(on)) {
			t.Errorf("the event %q is not in the page", on)
		}
	}
}

func TestReasons(t *testing.T) {
	page := reasons()
	for _, d := range v1alpha1.ReasonDocs() {
		if !strings.Contains(page, "\n| `"+string(d.Reason)+"` | ") {
			t.Errorf("%s is not in the page", d.Reason)
		}
	}
	if got := table([]string{"h"}, [][]string{{"a|b"}}); got != "| h |\n| --- |\n| a\\|b |\n" {
		t.Errorf("a bar is not kept within its cell: %q", got)
	}
}
