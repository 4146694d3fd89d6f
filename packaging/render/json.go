package render

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// JSONField is one field of the JSON output of a command.
type JSONField struct {
	Path    string // such as nodes[].slot.since
	Type    string
	Meaning string // of the source code's comments
	// Same is the path of an earlier field of the same type, whose fields are not listed again.
	Same string
}

// JSONFields returns the fields of a struct and of the structs in it, as encoding/json writes them.
// Their meanings are the comments in the source below root. others has a meaning for each type
// whose fields are documented somewhere else.
func JSONFields(root string, of reflect.Type, others map[reflect.Type]string) ([]JSONField, error) {
	w := &jsonWalk{root: root, others: others, seen: map[reflect.Type]string{}}
	err := w.object("", of)
	return w.fields, err
}

type jsonWalk struct {
	root   string
	others map[reflect.Type]string
	seen   map[reflect.Type]string // the path of the first field of a type
	fields []JSONField
}

func (w *jsonWalk) object(path string, t reflect.Type) error {
	comments, err := w.commentsOf(t)
	if err != nil {
		return err
	}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
			continue
		case f.Anonymous && name == "":
			if err := w.object(path, f.Type); err != nil {
				return err
			}
			continue
		}
		at, inner, kind := path+name, f.Type, ""
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice || inner.Kind() == reflect.Map {
			switch inner.Kind() {
			case reflect.Slice:
				at, kind = at+"[]", kind+"list of "
			case reflect.Map:
				at, kind = at+".*", kind+"map of "
			}
			inner = inner.Elem()
		}
		field := JSONField{Path: path + name, Type: kind + jsonType(inner), Meaning: comments[f.Name]}
		expand := jsonType(inner) == "object"
		if other, ok := w.others[inner]; ok {
			field.Meaning, expand = strings.TrimSpace(field.Meaning+" "+other), false
		}
		if first, ok := w.seen[inner]; ok && expand {
			field.Same, expand = first, false
		}
		w.fields = append(w.fields, field)
		if expand {
			w.seen[inner] = at
			if err := w.object(at+".", inner); err != nil {
				return err
			}
		}
	}
	return nil
}

// jsonType is the type of a value in JSON.
func jsonType(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Time](), reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return "time"
	case reflect.TypeFor[metav1.Duration]():
		return "duration"
	}
	switch t.Kind() {
	case reflect.Struct:
		return "object"
	case reflect.Bool:
		return "boolean"
	case reflect.String:
		return "string"
	}
	return "number"
}

// marker is a line of a comment that controls a generator.
var marker = regexp.MustCompile(`(?m)^\+.*\n?`)

// commentsOf returns the comments of a struct's fields. A field without one has that of the field
// before it if that comment names it, and otherwise the first sentence about its type.
func (w *jsonWalk) commentsOf(t reflect.Type) (map[string]string, error) {
	spec, _, err := w.declaration(t)
	if err != nil {
		return nil, err
	}
	comments := fieldComments(spec.Type.(*ast.StructType), t)
	for f := range t.Fields() {
		inner := f.Type
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		if comments[f.Name] == "" && strings.Contains(inner.PkgPath(), module) {
			_, about, err := w.declaration(inner)
			if err != nil {
				return nil, err
			}
			comments[f.Name], _, _ = strings.Cut(about, ". ")
		}
	}
	return comments, nil
}

const module = "lockkeeper.dev/lockkeeper/"

// declaration returns the declaration of a type of this module, and its comment.
func (w *jsonWalk) declaration(t reflect.Type) (*ast.TypeSpec, string, error) {
	files, err := filepath.Glob(filepath.Join(w.root, strings.TrimPrefix(t.PkgPath(), module), "*.go"))
	if err != nil {
		return nil, "", err
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			return nil, "", err
		}
		for _, d := range file.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range decl.Specs {
				if spec, ok := spec.(*ast.TypeSpec); ok && spec.Name.Name == t.Name() {
					return spec, strings.Join(strings.Fields(decl.Doc.Text()+spec.Doc.Text()), " "), nil
				}
			}
		}
	}
	return nil, "", fmt.Errorf("%s: no declaration found", t)
}

func fieldComments(s *ast.StructType, t reflect.Type) map[string]string {
	out, last := map[string]string{}, ""
	for _, f := range s.Fields.List {
		text := f.Doc.Text() + f.Comment.Text()
		text = strings.Join(strings.Fields(marker.ReplaceAllString(text, "")), " ")
		for _, name := range f.Names {
			switch {
			case text != "":
				last = text
			case !regexp.MustCompile(`\b` + name.Name + `\b`).MatchString(last):
				last = ""
			}
			out[name.Name] = jsonNames(last, t)
		}
	}
	return out
}

// camelCase matches a Go name that is no word of a sentence.
var camelCase = regexp.MustCompile(`[a-z][A-Z]`)

// page matches the path of a page.
var page = regexp.MustCompile(`docs/([\w-]+\.md)`)

// jsonNames replaces the Go names of a struct's fields, where a sentence begins with one or
// several of them or where no other word has that form, drops the brackets of links, and makes
// links of the paths of pages.
func jsonNames(text string, t reflect.Type) string {
	sentences := strings.SplitAfter(regexp.MustCompile(`\[([\w.]+)\]`).ReplaceAllString(text, "$1"), ". ")
	for i, sentence := range sentences {
		words, begins := strings.Split(sentence, " "), true
		for j, word := range words {
			name := strings.TrimRight(word, ",.:;")
			f, ok := t.FieldByName(name)
			if ok && (begins || camelCase.MatchString(name)) {
				tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				words[j] = codes(tag) + word[len(name):]
			}
			begins = begins && (ok || word == "and")
		}
		sentences[i] = strings.Join(words, " ")
	}
	return page.ReplaceAllString(strings.Join(sentences, ""), "[$1]($1)")
}

// JSONTable is the fields as a Markdown table.
func JSONTable(fields []JSONField) string {
	var b strings.Builder
	b.WriteString("| field | type | meaning |\n| --- | --- | --- |\n")
	for _, f := range fields {
		meaning := f.Meaning
		if f.Same != "" {
			meaning = strings.TrimSpace(meaning + " Its fields are those of `" + f.Same + "`.")
		}
		if meaning = strings.ReplaceAll(meaning, "|", `\|`); meaning != "" && !strings.HasSuffix(meaning, ".") {
			meaning += "."
		}
		if meaning != "" && meaning[0] != '`' {
			meaning = strings.ToUpper(meaning[:1]) + meaning[1:]
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Path, f.Type, meaning)
	}
	return b.String()
}
