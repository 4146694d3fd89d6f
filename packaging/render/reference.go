package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// schema is what a reference tells of an OpenAPI schema in a
// CustomResourceDefinition.
type schema struct {
	Type        string
	Description string
	Default     json.RawMessage
	Enum        []string
	Minimum     *int64
	Maximum     *int64
	MinLength   *int64
	MaxLength   *int64
	MaxItems    *int64
	Required    []string
	Properties  map[string]*schema
	Items       *schema
	Rules       []struct{ Message, FieldPath string } `json:"x-kubernetes-validations"`
	IntOrString bool                                  `json:"x-kubernetes-int-or-string"`
}

// Reference returns a Markdown page about one kind: a table of fields for each
// object in it, from the YAML of its CustomResourceDefinition. The error means
// that the YAML is not one.
func Reference(crd []byte) (string, error) {
	text, err := yaml.ToJSON(crd)
	if err != nil {
		return "", fmt.Errorf("reading the definition of a kind: %w", err)
	}
	var def struct {
		Spec struct {
			Group string
			Scope string
			Names struct {
				Kind, Plural string
				ShortNames   []string
			}
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema schema }
			}
		}
	}
	if err := json.Unmarshal(text, &def); err != nil {
		return "", fmt.Errorf("reading the definition of a kind: %w", err)
	}
	if len(def.Spec.Versions) != 1 {
		return "", fmt.Errorf("%d versions of kind %q, expected one", len(def.Spec.Versions), def.Spec.Names.Kind)
	}
	version := &def.Spec.Versions[0]
	root := &version.Schema.OpenAPIV3Schema
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n<!-- Rendered from code by `make docs`; do not edit. -->\n\nThis page lists every field of a %[1]s, with its default and bounds.\n\n", def.Spec.Names.Kind)
	fmt.Fprintf(&b, "`apiVersion: %s/%s`, %s, `kubectl get %s` or %s.\n\n%s\n\n", def.Spec.Group, version.Name, strings.ToLower(def.Spec.Scope)+"-scoped",
		def.Spec.Names.Plural, strings.Join(def.Spec.Names.ShortNames, ", "), root.Description)
	b.WriteString("The API server writes the defaults into the object, and refuses values out of bounds with the\n" +
		"messages below. The coordinator checks the rest, such as whether a time zone exists, and reports it\n" +
		"in the condition `Valid`.\n")
	refusals(&b, root, "")
	for _, part := range []string{"spec", "status"} {
		if p := root.Properties[part]; p != nil {
			p.section(&b, part)
		}
	}
	return b.String(), nil
}

// section is the table of an object's fields, and after it those of the objects
// in it.
func (s *schema) section(b *strings.Builder, at string) {
	fmt.Fprintf(b, "\n## `%s`\n\n%s\n\n| field | type | default | bounds | means |\n| --- | --- | --- | --- | --- |\n", at, s.Description)
	names := slices.Sorted(maps.Keys(s.Properties))
	for _, name := range names {
		f := s.Properties[name]
		def := "-"
		switch {
		case slices.Contains(s.Required, name) && strings.HasPrefix(at, "spec"):
			def = "required"
		case string(f.Default) == "{}" && f.object():
			def = "see below"
		case f.Default != nil:
			def = "`" + strings.Trim(string(f.Default), `"`) + "`"
		}
		cell := strings.NewReplacer("\n", " ", "|", `\|`, "<", "&lt;")
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", name, f.kind(), cell.Replace(def), cell.Replace(f.bounds()), cell.Replace(f.Description))
	}
	refusals(b, s, at)
	for _, name := range names {
		switch f := s.Properties[name]; {
		case f.object():
			f.section(b, at+"."+name)
		case f.Items != nil && f.Items.object():
			f.Items.section(b, at+"."+name+"[]")
		}
	}
}

// refusals are the rules that are no bounds of one field: those that hold
// between an object's fields, or between the items of a list.
func refusals(b *strings.Builder, s *schema, at string) {
	var lines []string
	for _, r := range s.Rules {
		lines = append(lines, fmt.Sprintf("- `%s`: %s\n", strings.TrimPrefix(at+r.FieldPath, "."), r.Message))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		f := s.Properties[name]
		for _, r := range f.Rules {
			if _, bound := strings.CutPrefix(r.Message, expected); !bound && !f.object() {
				lines = append(lines, fmt.Sprintf("- `%s.%s`: %s\n", at, name, r.Message))
			}
		}
	}
	if len(lines) > 0 {
		b.WriteString("\nRefused:\n\n" + strings.Join(lines, ""))
	}
}

// expected begins what a rule says of the value of one field.
const expected = "expected "

// object reports whether the schema's fields are to be told: they are
// lockkeeper's own.
func (s *schema) object() bool { return s.Properties != nil && s.known() == "" }

// known is the name of what Kubernetes' own documentation tells of.
func (s *schema) known() string {
	switch {
	case s.Properties["matchLabels"] != nil:
		return "label selector"
	case s.Properties["lastTransitionTime"] != nil:
		return "condition"
	}
	return ""
}

func (s *schema) kind() string {
	switch {
	case s.known() != "":
		return s.known()
	case s.Items != nil:
		return "list of " + s.Items.kind() + "s"
	case s.IntOrString:
		return "number or percentage"
	case s.duration():
		return "duration"
	}
	return s.Type
}

func (s *schema) duration() bool {
	return len(s.Rules) > 0 && strings.HasPrefix(s.Rules[0].Message, "expected a duration ")
}

// bounds are what a value has to be.
func (s *schema) bounds() string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	enum := s.Enum
	if s.Items != nil {
		enum = s.Items.Enum
	}
	if len(enum) > 0 {
		add("`%s`", strings.Join(enum, "` `"))
	}
	if s.Minimum != nil && s.Maximum != nil {
		add("%d to %d", *s.Minimum, *s.Maximum)
	}
	if s.MaxItems != nil {
		add("at most %d", *s.MaxItems)
	}
	if s.MaxLength != nil && !s.duration() {
		add("at most %d bytes", *s.MaxLength)
	}
	for _, r := range s.Rules {
		if bound, ok := strings.CutPrefix(r.Message, expected); ok {
			add("%s", bound)
		}
	}
	if len(all) == 0 {
		return "-"
	}
	return strings.Join(all, "; ")
}
