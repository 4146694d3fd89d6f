package identity

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// openAPISchema is the part of a schema that refuses something.
type openAPISchema struct {
	Enum        []string
	Minimum     *float64
	Maximum     *float64
	MinLength   *int
	MaxLength   *int
	MaxItems    *int
	Pattern     string
	ListMapKeys []string                              `json:"x-kubernetes-list-map-keys"`
	Rules       []struct{ Message, FieldPath string } `json:"x-kubernetes-validations"`
	Properties  map[string]*openAPISchema
	Items       *openAPISchema
}

// rules are what each of its parts refuses, in the API server's words, as "field: words"; items of lists are [].
func (s *openAPISchema) rules(at string) (all []string) {
	add := func(field, format string, args ...any) { all = append(all, field+": "+fmt.Sprintf(format, args...)) }
	for _, r := range s.Rules {
		add(at+r.FieldPath, "%s", r.Message)
	}
	if len(s.Enum) > 0 {
		add(at, `supported values: "%s"`, strings.Join(s.Enum, `", "`))
	}
	if s.Minimum != nil {
		add(at, "should be greater than or equal to %v", *s.Minimum)
	}
	if s.Maximum != nil {
		add(at, "should be less than or equal to %v", *s.Maximum)
	}
	if s.MinLength != nil {
		add(at, "should be at least %d chars long", *s.MinLength)
	}
	if s.MaxLength != nil {
		add(at, "Too long: may not be more than %d bytes", *s.MaxLength)
	}
	if s.MaxItems != nil {
		add(at, "must have at most %d items", *s.MaxItems)
	}
	if s.Pattern != "" {
		add(at, "a pattern, whose refusal says nothing to people: a rule with a message is expected")
	}
	if len(s.ListMapKeys) > 0 {
		add(at+"[]", "Duplicate value")
	}
	for name, p := range s.Properties {
		all = append(all, p.rules(strings.TrimPrefix(at+"."+name, "."))...)
	}
	if s.Items != nil {
		all = append(all, s.Items.rules(at+"[]")...)
	}
	return all
}

// TestEveryRuleHasACounterExample: no rule of the schema's that is not seen refusing something.
func TestEveryRuleHasACounterExample(t *testing.T) {
	text, err := os.ReadFile("../../packaging/manifests/crds.yaml")
	must(t, err)
	text, err = yaml.ToJSON(text)
	must(t, err)
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct{ OpenAPIV3Schema openAPISchema }
			}
		}
	}
	must(t, json.Unmarshal(text, &crd))
	root := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	delete(root.Properties, "status") // the coordinator's
	index := regexp.MustCompile(`\[[0-9]+\]`)
	seen := map[string]bool{}
	for _, c := range refusals {
		seen[index.ReplaceAllString(c.field, "[]")+": "+c.says] = true
	}
	rules := root.rules("")
	for _, r := range rules {
		// The root's own rule has its field with a dot before it.
		if !seen[strings.TrimPrefix(r, ".")] {
			t.Errorf("no counter-example: %s", r)
		}
	}
	if len(rules) < 90 {
		t.Errorf("%d rules found, expected 90 and more", len(rules))
	}
}
