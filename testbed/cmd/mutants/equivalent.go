package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// key identifies a mutant as long as its line stays as it is.
type key struct {
	file     string // in the repository
	operator string // gremlins' name of what it did
	text     string // the line, with the mutated token in brackets: a [<] b
}

// source returns the lines of each Go file in the directory, except tests.
func source(root, dir string) (map[string][]string, error) {
	names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	files := map[string][]string{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		files[filepath.Base(name)] = strings.Split(string(text), "\n")
	}
	return files, err
}

// newMutant reads one line of gremlins: the status, the operator, the file, the line and the column.
func newMutant(dir string, files map[string][]string, fields []string) (mutant, error) {
	line, _ := strconv.Atoi(fields[3])
	column, _ := strconv.Atoi(fields[4])
	lines := files[fields[2]]
	if line < 1 || line > len(lines) || column < 1 || column > len(lines[line-1]) {
		return mutant{}, fmt.Errorf("gremlins reports %s, which does not exist", strings.Join(fields, " "))
	}
	before, after := lines[line-1][:column-1], lines[line-1][column-1:]
	token := after[:len(after)-len(strings.TrimLeft(after, "!=<>&|+-*/%^"))]
	for _, word := range []string{"break", "continue"} {
		if strings.HasPrefix(after, word) {
			token = word
		}
	}
	text := strings.TrimSpace(before) + " [" + token + "] " + strings.TrimSpace(after[len(token):])
	return mutant{key{dir + "/" + fields[2], fields[1], strings.TrimSpace(text)}, fields[0], line}, nil
}

// readEquivalent reads the list of mutants that no test can kill, and how often each of them exists. An entry is a line with the
// file and the operator, a line with the mutated line, and lines with the reason; they are indented.
func readEquivalent(name string) (map[key]int, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	known := map[key]int{}
	for i, entry := range strings.Split(strings.TrimSpace(string(content)), "\n\n") {
		if strings.HasPrefix(entry, "#") {
			continue
		}
		lines := strings.Split(entry, "\n")
		head := strings.Fields(lines[0])
		if len(lines) < 3 || len(head) != 2 || !slices.ContainsFunc(targets, func(t target) bool { return t.dir == filepath.Dir(head[0]) }) {
			return nil, fmt.Errorf("%s: entry %d: expected a line with FILE OPERATOR, one with the mutated line, and the reason, not %q", name, i+1, entry)
		}
		known[key{head[0], head[1], strings.TrimSpace(lines[1])}]++
	}
	return known, nil
}

// compare returns how many mutants live and are not in the list, and which entries of the list are wrong: their mutants are killed or
// no longer exist.
func compare(t target, found []mutant, known map[key]int) (unlisted int, wrong []string) {
	alive, seen := map[key]int{}, map[string]bool{}
	for _, m := range found {
		if seen[m.file] = true; m.alive() {
			alive[m.key]++
		}
	}
	for k, n := range alive {
		unlisted += max(0, n-known[k])
	}
	for k, n := range known {
		// Where only one file was mutated, the entries of the others say nothing.
		if filepath.Dir(k.file) == t.dir && (t.only == "" || seen[k.file]) && n > alive[k] {
			wrong = append(wrong, fmt.Sprintf("%s %s is in equivalent.txt, and is killed or does not exist: %s", k.file, k.operator, k.text))
		}
	}
	slices.Sort(wrong)
	return unlisted, wrong
}
