package v1alpha1

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMetricDocs: every metric that is declared is documented, once, under a name that Prometheus' own rules approve of.
func TestMetricDocs(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "metric.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && v.Type != nil {
			if id, ok := v.Type.(*ast.Ident); ok && id.Name == "Metric" {
				declared++
			}
		}
		return true
	})
	name := regexp.MustCompile(`^lockkeeper(_[a-z0-9]+)+$`)
	seen := map[Metric]bool{}
	for _, d := range MetricDocs() {
		if seen[d.Name] || !name.MatchString(string(d.Name)) {
			t.Errorf("%q: no name, or there twice", d.Name)
		}
		seen[d.Name] = true
		if d.Help == "" || strings.HasSuffix(d.Help, ".") || strings.ContainsAny(d.Help, "\n|") {
			t.Errorf("%s says %q", d.Name, d.Help)
		}
		if total := strings.HasSuffix(string(d.Name), "_total"); total != (d.Type == Counter) {
			t.Errorf("%s is a %s", d.Name, d.Type)
		}
		if seconds := strings.HasSuffix(string(d.Name), "_seconds"); seconds != strings.HasPrefix(d.Unit, "seconds") {
			t.Errorf("%s has the unit %q", d.Name, d.Unit)
		}
		if !slices.Contains([]MetricType{Gauge, Counter, Histogram}, d.Type) {
			t.Errorf("%s is a %q", d.Name, d.Type)
		}
	}
	if len(seen) != declared || declared < 15 {
		t.Errorf("%d documented, %d declared", len(seen), declared)
	}
}
