package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pages returns the text of every document that people read, by its path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "testbed/*.md"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			texts[name] = string(text)
		}
	}
	if len(texts) < 30 {
		t.Fatalf("only %d documents found", len(texts))
	}
	return texts
}

var (
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the fragments of a page's headings, as GitHub makes them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		title := link.ReplaceAllString(m[1], "]")
		found[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(title), ""), " ", "-")] = true
	}
	return found
}

// TestLinks fails if a link of a document leads to a file or a heading that does not exist.
func TestLinks(t *testing.T) {
	texts := pages(t)
	links := 0
	for name, text := range texts {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			target, fragment, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") {
				continue // another site
			}
			links++
			file := name
			if target != "" {
				file = filepath.Join(filepath.Dir(name), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
				continue
			}
			if page, known := texts[file]; known && fragment != "" && !anchors(page)[fragment] {
				t.Errorf("%s links to %s, and %s has no such heading", name, m[1], file)
			}
		}
	}
	if links < 300 {
		t.Errorf("only %d links found", links)
	}
}

// TestEveryDocumentIsListed fails if docs/README.md does not list a document.
func TestEveryDocumentIsListed(t *testing.T) {
	texts := pages(t)
	for name := range texts {
		if dir, page := filepath.Split(name); dir == "docs/" && page != "README.md" && !strings.Contains(texts["docs/README.md"], "| ["+page+"]("+page+") |") {
			t.Errorf("docs/README.md does not list %s", name)
		}
	}
}
