package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCompare reads what gremlins prints and a list of equivalent mutants, and says which mutants are missing in the list and which
// entries are wrong.
func TestCompare(t *testing.T) {
	files := map[string][]string{"a.go": {"package policy", "", "func f() bool {", "	return a < b && c < d", "}"}}
	const listed = "policy/a.go CONDITIONALS_BOUNDARY\n\treturn a [<] b && c < d\n\ta and b are never equal\n"
	for name, c := range map[string]struct {
		printed, list string
		unlisted      int
		wrong         string
	}{
		"all are killed":                  {"KILLED CONDITIONALS_BOUNDARY at a.go:4:11", "", 0, ""},
		"one lives":                       {"LIVED CONDITIONALS_BOUNDARY at a.go:4:11", "", 1, ""},
		"it is listed":                    {"LIVED CONDITIONALS_BOUNDARY at a.go:4:11", listed, 0, ""},
		"the other one on the line lives": {"LIVED CONDITIONALS_BOUNDARY at a.go:4:20", listed, 1, "a [<] b"},
		"another operator":                {"LIVED CONDITIONALS_NEGATION at a.go:4:11", listed, 1, "a [<] b"},
		"it is killed":                    {"KILLED CONDITIONALS_BOUNDARY at a.go:4:11", listed, 0, "a [<] b"},
		"it does not exist":               {"KILLED INVERT_LOGICAL at a.go:4:15", listed, 0, "a [<] b"},
		"it took too long":                {"TIMED OUT INVERT_LOGICAL at a.go:4:15", "", 1, ""},
		"nothing covers it":               {"NOT COVERED INVERT_LOGICAL at a.go:4:15", "", 1, ""},
		"it does not compile":             {"NOT VIABLE INVERT_LOGICAL at a.go:4:15", "", 0, ""},
	} {
		list := filepath.Join(t.TempDir(), "equivalent.txt")
		if err := os.WriteFile(list, []byte("# A comment.\n\n"+c.list), 0o600); err != nil {
			t.Fatal(err)
		}
		known, err := readEquivalent(list)
		if err != nil {
			t.Fatal(err)
		}
		m, err := newMutant("policy", files, resultLine.FindStringSubmatch("  " + c.printed)[1:])
		if err != nil {
			t.Fatal(err)
		}
		unlisted, wrong := compare(target{dir: "policy"}, []mutant{m}, known)
		if text := strings.Join(wrong, " "); unlisted != c.unlisted || (text == "") != (c.wrong == "") || !strings.Contains(text, c.wrong) {
			t.Errorf("%s: %d are not listed, %q; expected %d, %q", name, unlisted, text, c.unlisted, c.wrong)
		}
	}
}

// TestEquivalent: every entry has a mutant's place and a reason.
func TestEquivalent(t *testing.T) {
	if _, err := readEquivalent("equivalent.txt"); err != nil {
		t.Error(err)
	}
	list := filepath.Join(t.TempDir(), "equivalent.txt")
	for _, bad := range []string{"policy/a.go CONDITIONALS_BOUNDARY\n\ta [<] b", "kube/a.go CONDITIONALS_BOUNDARY\n\ta [<] b\n\tx", "policy/a.go\n\ta [<] b\n\tx"} {
		if err := os.WriteFile(list, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readEquivalent(list); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}
