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
	"lockkeeper.dev/lockkeeper/packaging/render/intents"
)

var update = flag.Bool("update", false, "write the documents that are rendered from code")

// TestDocs compares the documents with the code that they are rendered from.
func TestDocs(t *testing.T) {
	for name, want := range map[string]string{
		"docs/node-states.md":            States(),
		"docs/reasons.md":                Reasons(),
		"docs/events.md":                 Events(),
		"docs/labels-and-annotations.md": Labels(),
		"docs/other-owners.md":           Owners(),
		"docs/metrics.md":                Metrics(),
		"docs/configuration.md":          Configuration(),
		"packaging/lockkeeper.catalog":   Catalog(),
		"docs/intents.md":                intents.Page(generated),
	} {
		path := filepath.Join("..", "..", name)
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		have, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("reading %s: %v", name, err)
			continue
		}
		if string(have) != want {
			t.Errorf("%s is not what the code says; run: make docs", name)
		}
	}
}

// TestMigrationDocs compares the tables of the pages about other tools with the settings that
// package migrate knows.
func TestMigrationDocs(t *testing.T) {
	for _, tool := range migrate.Tools() {
		path := filepath.Join("..", "..", "docs", "from-"+string(tool)+".md")
		have, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := Migration(string(have), tool)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range migrate.Settings(tool) {
			if !strings.Contains(want, "`"+settingName(tool, s.Name)+"`") {
				t.Errorf("%s is not in the page about %s", s.Name, tool)
			}
		}
		switch {
		case *update:
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		case string(have) != want:
			t.Errorf("%s is not what the code says; run: make docs", path)
		}
	}
}

// TestStates looks for what a reader needs in the rendered page: that
// the page equals the code proves little if the code renders half.
func TestStates(t *testing.T) {
	page := States()
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
	section, _, _ := strings.Cut(page[strings.Index(page, "## Every edge"):], "## What changes nothing")
	if got := strings.Count(section, "\n| ") - 2; got != edges {
		t.Errorf("%d edges in the page, %d in the table", got, edges)
	}
	for _, on := range turn.Events() {
		if !strings.Contains(page, string(on)) {
			t.Errorf("the event %q is not in the page", on)
		}
	}
}

func TestReasons(t *testing.T) {
	page := Reasons()
	for _, d := range v1alpha1.ReasonDocs() {
		if !strings.Contains(page, "\n| `"+string(d.Reason)+"` | ") {
			t.Errorf("%s is not in the page", d.Reason)
		}
	}
	if cell("a|b") != `a\|b` {
		t.Error("a bar is not kept within its cell")
	}
}
