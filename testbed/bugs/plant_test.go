package bugs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// switchName is the environment variable that has the number of the bug that a test binary is to have; without it the binary
// has none.
const switchName = "LOCKKEEPER_BUG"

// plant writes an overlay for the go command with which all bugs are compiled at once, and returns its path. Each function
// that a bug changes is there twice: as it is, and under another name with the bug. The original calls the other one if the
// bug is switched on. The go command keeps its builds until the code or a bug changes.
func plant(t *testing.T, all []*bug) string {
	t.Helper()
	dir := t.TempDir()
	replace := map[string]string{}
	write := func(file, text string) {
		from, err := filepath.Abs(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		replace[from] = filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(replace[from], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]*planted{}
	for i, b := range all {
		if files[b.file] == nil {
			files[b.file] = newPlanted(t, b.file)
		}
		if err := files[b.file].add(i, b); err != nil {
			t.Errorf("%s: %q: %v", b.where, b.name, err)
		}
	}
	for file, p := range files {
		var text bytes.Buffer
		if err := format.Node(&text, p.fset, p.file); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		write(file, text.String())
		write(filepath.Join(filepath.Dir(file), "bug_switch.go"), fmt.Sprintf("package %s\n\nimport \"os\"\n\nvar bugSwitch = os.Getenv(%q)\n", p.file.Name.Name, switchName))
	}
	doc, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, doc, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// planted is a file of the product with bugs in it.
type planted struct {
	text  string
	fset  *token.FileSet
	file  *ast.File
	funcs map[string]*ast.FuncDecl // by key
	texts map[string]string        // of funcs
}

func newPlanted(t *testing.T, file string) *planted {
	t.Helper()
	p := &planted{text: read(t, file), fset: token.NewFileSet()}
	var err error
	if p.file, p.funcs, p.texts, err = parseFuncs(p.fset, file, p.text); err != nil {
		t.Fatal(err)
	}
	return p
}

// parseFuncs parses a file without its comments. The functions are by their receiver's type and their name.
func parseFuncs(fset *token.FileSet, name, text string) (file *ast.File, funcs map[string]*ast.FuncDecl, texts map[string]string, err error) {
	file, err = parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, nil, err
	}
	funcs, texts = map[string]*ast.FuncDecl{}, map[string]string{}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		key := f.Name.Name
		if f.Recv != nil {
			from, to := fset.Position(f.Recv.Opening).Offset, fset.Position(f.Recv.Closing).Offset
			key = text[from:to] + ") " + key
		}
		funcs[key], texts[key] = f, text[fset.Position(f.Pos()).Offset:fset.Position(f.End()).Offset]
	}
	return file, funcs, texts, nil
}

// add adds the functions that a bug changes. The bug must not change anything else.
func (p *planted) add(number int, b *bug) error {
	at, err := b.place(p.text)
	if err != nil {
		return err
	}
	changed := p.text[:at] + b.new + p.text[at+len(b.old):]
	_, funcs, texts, err := parseFuncs(p.fset, b.file, changed)
	if err != nil {
		return err
	}
	found := false
	for key, f := range funcs {
		switch was, ok := p.texts[key]; {
		case !ok:
			return fmt.Errorf("it adds or renames %s, expected a change inside of functions", key)
		case was != texts[key]:
			found = true
			p.file.Decls = append(p.file.Decls, f)
			call(p.funcs[key], f, number)
		}
	}
	if !found {
		return fmt.Errorf("it changes no function")
	}
	return nil
}

// call renames a function with a bug, and makes the original call it if the bug is switched on.
func call(original, buggy *ast.FuncDecl, number int) {
	buggy.Name = ast.NewIdent(fmt.Sprintf("%s__bug%d", original.Name.Name, number))
	var args []ast.Expr
	variadic := token.NoPos
	for i, field := range original.Type.Params.List {
		if len(field.Names) == 0 {
			field.Names = []*ast.Ident{ast.NewIdent("_")}
		}
		for j, name := range field.Names {
			if name.Name == "_" {
				name = ast.NewIdent(fmt.Sprintf("arg%d_%d", i, j))
				field.Names[j] = name
			}
			args = append(args, ast.NewIdent(name.Name))
		}
		if _, ok := field.Type.(*ast.Ellipsis); ok {
			variadic = 1
		}
	}
	var fun ast.Expr = ast.NewIdent(buggy.Name.Name)
	if original.Recv != nil {
		field := original.Recv.List[0]
		if len(field.Names) == 0 || field.Names[0].Name == "_" {
			field.Names = []*ast.Ident{ast.NewIdent("receiver")}
		}
		fun = &ast.SelectorExpr{X: ast.NewIdent(field.Names[0].Name), Sel: buggy.Name}
	}
	do := &ast.CallExpr{Fun: fun, Args: args, Ellipsis: variadic}
	then := []ast.Stmt{&ast.ExprStmt{X: do}, &ast.ReturnStmt{}}
	if original.Type.Results != nil {
		then = []ast.Stmt{&ast.ReturnStmt{Results: []ast.Expr{do}}}
	}
	on := &ast.BinaryExpr{X: ast.NewIdent("bugSwitch"), Op: token.EQL, Y: &ast.BasicLit{Kind: token.STRING, Value: strconv.Quote(strconv.Itoa(number))}}
	original.Body.List = append([]ast.Stmt{&ast.IfStmt{Cond: on, Body: &ast.BlockStmt{List: then}}}, original.Body.List...)
}
