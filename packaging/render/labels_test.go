package render

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

func allKeys() []keyDoc { return slices.Concat(adminKeys, ownKeys, []keyDoc{hookKey}) }

// keyConstants returns the names of the constants of api/v1alpha1 that are keys, with the part of the key after the prefix.
func keyConstants(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../api/v1alpha1/keys.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, decl := range file.Decls {
		g, ok := decl.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			v := spec.(*ast.ValueSpec)
			name := v.Names[0].Name
			if sum, ok := v.Values[0].(*ast.BinaryExpr); ok && (strings.HasPrefix(name, "Label") || strings.HasPrefix(name, "Annotation")) {
				all[name] = strings.Trim(sum.Y.(*ast.BasicLit).Value, `"`)
			}
		}
	}
	return all
}

// TestEveryKeyIsDocumented: each key constant of the API has one row or section, and no other key has one.
func TestEveryKeyIsDocumented(t *testing.T) {
	constants := keyConstants(t)
	if len(constants) < 18 {
		t.Errorf("%d constants found: %v", len(constants), constants)
	}
	documented := map[string]int{hookKey.key: 1}
	for _, k := range slices.Concat(adminKeys, ownKeys) {
		documented[k.key]++
	}
	page := strings.Join(slices.Collect(maps.Values(labels())), "")
	for name, key := range constants {
		if n := documented[v1alpha1.Prefix+key]; n != 1 {
			t.Errorf("%s, %s%s, is documented %d times in labels.go", name, v1alpha1.Prefix, key, n)
		}
		if !strings.Contains(page, "`"+v1alpha1.Prefix+key+"`") {
			t.Errorf("%s%s is not in the page", v1alpha1.Prefix, key)
		}
	}
	if len(documented) != len(constants)+1 {
		t.Errorf("%d keys are documented, expected the %d constants and the hooks' key", len(documented), len(constants))
	}
	// People set what AdminKeys names, and nothing else.
	labels, annotations := v1alpha1.AdminKeys()
	for _, k := range adminKeys {
		if !slices.Contains(append(labels, annotations...), k.key) {
			t.Errorf("%s is not a key that people set", k.key)
		}
	}
	if len(adminKeys) != len(labels)+len(annotations) {
		t.Errorf("%d keys that people set, expected %d", len(adminKeys), len(labels)+len(annotations))
	}
}

// TestExamplesAreValid has each example read by the parser that the hosts and the coordinator use.
func TestExamplesAreValid(t *testing.T) {
	for _, k := range append(allKeys(), stopKey) {
		if len(k.examples) == 0 {
			t.Errorf("%s has no example", k.key)
		}
		for _, example := range k.examples {
			labels, annotations := map[string]string{}, map[string]string{k.key: example}
			if k.kind() == "label" {
				labels, annotations = annotations, labels
			}
			read := v1alpha1.ReadKeys(labels, annotations)
			for _, p := range read.Problems {
				t.Errorf("%s=%s: %v", k.key, example, p)
			}
			if why := wrong(k.key, example, read); why != "" {
				t.Errorf("%s=%s: %s", k.key, example, why)
			}
		}
	}
}

// wrong returns what is wrong with a value that ReadKeys only copies, or that it reads as absent.
func wrong(key, value string, read v1alpha1.Keys) string {
	valid := true
	switch key {
	case v1alpha1.LabelState:
		valid = read.State.Known() && read.State != ""
	case v1alpha1.LabelHeld:
		valid = read.Held.Valid()
	case v1alpha1.LabelWants:
		valid = read.Wants.Known()
	case v1alpha1.LabelManaged:
		valid = read.Managed != nil
	case v1alpha1.LabelOS, v1alpha1.LabelOSVersion, v1alpha1.LabelGroup:
		valid = v1alpha1.LabelValue(value) == value
	case v1alpha1.AnnotationHost:
		valid = read.Host != nil
	case v1alpha1.AnnotationAck:
		valid = read.Ack != v1alpha1.Ack{}
	case v1alpha1.AnnotationGrant:
		valid = read.Grant != nil
	case v1alpha1.AnnotationLast:
		valid = read.Last != nil
	case v1alpha1.AnnotationRuns:
		valid = read.Runs != nil
	case v1alpha1.AnnotationPaused:
		valid = read.Paused != nil && read.Paused.Reason != "" && !strings.Contains(read.Paused.Reason, "{")
	case v1alpha1.AnnotationDetached:
		valid = read.Detached != nil && read.Detached.Reason != "" && !strings.Contains(read.Detached.Reason, "{")
	case v1alpha1.AnnotationRequest, v1alpha1.AnnotationRequestNow:
		valid = read.Request != nil
	case v1alpha1.AnnotationExpired:
		_, err := time.Parse(time.RFC3339Nano, value)
		valid = err == nil
	case v1alpha1.AnnotationCordon:
		valid = read.Cordon.String() == value && read.Cordon.Ours()
	case v1alpha1.AnnotationRetry, v1alpha1.AnnotationTurn, hookKey.key:
		valid = v1alpha1.ValidateID(value) == nil
	default:
		return "this test does not know how to read it"
	}
	if !valid {
		return "the parser does not accept it"
	}
	return ""
}
