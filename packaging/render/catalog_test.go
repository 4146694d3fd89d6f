package render

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestMessageDocs: every kind of event that is declared is documented, once.
func TestMessageDocs(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../api/v1alpha1/event.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Names) == 1 && strings.HasPrefix(v.Names[0].Name, "Message") {
			declared++
		}
		return true
	})
	id, field := regexp.MustCompile(`^[0-9a-f]{32}$`), regexp.MustCompile(`@[^@]*@`)
	seen := map[v1alpha1.MessageID]bool{}
	known := strings.Fields("NODE STATE TURN REASON MEANS DO RESULT WANTS ERR VERSION EPOCH WHY UNITS")
	for _, d := range messageDocs {
		if !id.MatchString(string(d.ID)) || seen[d.ID] {
			t.Errorf("%q: not 32 hexadecimal digits, or there twice", d.ID)
		}
		seen[d.ID] = true
		if d.Subject == "" || d.Means == "" || d.Do == "" || strings.Contains(d.Subject, "\n") {
			t.Errorf("%s: says %q, %q, %q", d.ID, d.Subject, d.Means, d.Do)
		}
		for _, f := range field.FindAllString(d.Subject+" "+d.Means+" "+d.Do, -1) {
			if name, ok := strings.CutPrefix(strings.Trim(f, "@"), "LOCKKEEPER_"); !ok || !slices.Contains(known, name) {
				t.Errorf("%s speaks of %s, which is no field of ours", d.Subject, f)
			}
		}
	}
	if len(seen) != declared || declared < 20 {
		t.Errorf("%d documented, %d declared", len(seen), declared)
	}
}
