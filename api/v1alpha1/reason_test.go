package v1alpha1

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"
)

// constants returns the constants of type Reason that reason.go declares, name to
// value, so that a reason which somebody adds cannot be left undocumented.
func constants(t *testing.T) map[string]Reason {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]Reason{}
	for _, decl := range file.Decls {
		g, ok := decl.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			v := spec.(*ast.ValueSpec)
			typ, ok := v.Type.(*ast.Ident)
			if ok && typ.Name == "Place" {
				continue
			}
			if !ok || typ.Name != "Reason" {
				t.Errorf("%s is not declared as a Reason", v.Names[0].Name)
				continue
			}
			value, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			found[v.Names[0].Name] = Reason(value)
		}
	}
	if len(found) < 40 {
		t.Fatalf("only %d constants found in reason.go", len(found))
	}
	return found
}

func TestReasonDocs(t *testing.T) {
	docs := map[Reason]int{}
	for _, d := range ReasonDocs() {
		docs[d.Reason]++
		if d.Means == "" || d.Do == "" {
			t.Errorf("%s: says %q to do %q", d.Reason, d.Means, d.Do)
		}
	}
	known := map[Reason]bool{}
	for name, r := range constants(t) {
		if r == ReasonNone {
			continue
		}
		known[r] = true
		if name != "Reason"+string(r) {
			t.Errorf("%s has the value %q, expected its own name", name, r)
		}
		if !r.Valid() {
			t.Errorf("%s is not a valid reason", r)
		}
		if docs[r] != 1 {
			t.Errorf("%s is documented %d times, expected once", r, docs[r])
		}
		if r.Doc().Reason != r {
			t.Errorf("%s.Doc() is of %q", r, r.Doc().Reason)
		}
	}
	for r := range docs {
		if !known[r] {
			t.Errorf("%s is documented and is no constant", r)
		}
	}
	if d := Reason("Heard").Doc(); d != (ReasonDoc{}) {
		t.Errorf("a doc for an unknown reason: %+v", d)
	}
}

func TestReasonValid(t *testing.T) {
	for r, want := range map[Reason]bool{
		"Budget": true, "A": true, "OS2": true,
		"": false, "budget": false, "Two Words": false, "Too-Kebab": false, "Ü": false,
		"Loooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooong": false,
	} {
		if r.Valid() != want {
			t.Errorf("%q: valid %t", r, !want)
		}
	}
}
