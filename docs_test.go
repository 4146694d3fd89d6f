package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

var (
	indented = regexp.MustCompile(`(?m)^    .*$`)
	quoted   = regexp.MustCompile("`([^`]+)`")
	makes    = regexp.MustCompile(`(?m)(?:^|[;&|])\s*make\s+([a-z][a-z-]*)((?:\s+[A-Z]+=\S*)*)`)
	target   = regexp.MustCompile(`(?m)^([a-z][a-z-]*(?: [a-z-]+)*):`)
	variable = regexp.MustCompile(`(?m)^([A-Z]+) *\??=`)
)

// code returns the parts of a page that are code: fenced blocks, indented lines, and what is between backquotes.
func code(text string) []string {
	prose := fence.ReplaceAllString(text, "")
	parts := append(fence.FindAllString(text, -1), indented.FindAllString(prose, -1)...)
	for _, m := range quoted.FindAllStringSubmatch(indented.ReplaceAllString(prose, ""), -1) {
		parts = append(parts, m[1])
	}
	return parts
}

// TestDocumentsNameTargets fails if a document names a target of make, or a variable for it, that the Makefile does not have.
func TestDocumentsNameTargets(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, m := range append(target.FindAllStringSubmatch(string(makefile), -1), variable.FindAllStringSubmatch(string(makefile), -1)...) {
		for name := range strings.FieldsSeq(m[1]) {
			has[name] = true
		}
	}
	named := 0
	for page, text := range pages(t) {
		for _, part := range code(text) {
			for _, m := range makes.FindAllStringSubmatch(part, -1) {
				for name := range strings.FieldsSeq(m[1] + m[2]) {
					named++
					if name, _, _ := strings.Cut(name, "="); !has[name] {
						t.Errorf("%s says `%s`, and the Makefile has no %s", page, m[0], name)
					}
				}
			}
		}
	}
	if named < 50 {
		t.Errorf("only %d targets and variables found", named)
	}
}

// TestDocumentsNamePaths fails if a document names a file or a directory of the source that does not exist.
func TestDocumentsNamePaths(t *testing.T) {
	named := 0
	for page, text := range pages(t) {
		for _, part := range code(text) {
			for word := range strings.FieldsSeq(part) {
				name := strings.TrimSuffix(strings.Trim(word, `'",;:()`), "/...")
				if !isPath(page, name) {
					continue
				}
				named++
				found := false
				// Commands of testbed/README.md run there, and an archive's files lie in it as they do in packaging.
				for _, dir := range []string{".", filepath.Dir(page), "packaging"} {
					matches, err := filepath.Glob(filepath.Join(dir, name))
					found = found || err == nil && len(matches) > 0
				}
				if !found {
					t.Errorf("%s names %s, which does not exist", page, word)
				}
			}
		}
	}
	if named < 100 {
		t.Errorf("only %d paths found", named)
	}
}

// isPath reports whether a word of a page's code is meant as a path in the source. Words with capitals or a dollar sign have
// something to fill in.
func isPath(page, word string) bool {
	local, isLocal := strings.CutPrefix(word, "./")
	first, _, below := strings.Cut(strings.TrimPrefix(local, "../"), "/")
	switch {
	case strings.ContainsAny(strings.TrimSuffix(word, ".md"), "ABCDEFGHIJKLMNOPQRSTUVWXYZ$"), first == "bin", first == "dist",
		strings.Contains(word, "]("), // a link, see TestLinks
		word == "policy/v1":          // a group of Kubernetes
		return false
	case isLocal && !strings.HasPrefix(page, "docs/"): // there it may be a download
		return true
	}
	return (below || isLocal) && slices.Contains(topLevel, first) || !below && (strings.HasSuffix(word, ".go") || strings.HasSuffix(word, ".md"))
}

// TestGatesLeaveOutOwnAlerts checks that the gates in the documents do not wait for lockkeeper's own alerts. Some of these last until
// the nodes that wait have had their turns.
func TestGatesLeaveOutOwnAlerts(t *testing.T) {
	found := 0
	for name, text := range pages(t) {
		for _, query := range regexp.MustCompile(`query: .*ALERTS.*`).FindAllString(text, -1) {
			found++
			if !strings.Contains(query, `alertname!~"Lockkeeper.+"`) {
				t.Errorf("%s: %s", name, query)
			}
		}
	}
	if found == 0 {
		t.Error("no gate queries ALERTS")
	}
}
