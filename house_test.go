package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The rules of the house, DESIGN section 9: who may touch what. They are held
// against the source, so that breaking one fails before anybody reviews it.

const module = "lockkeeper.dev/lockkeeper"

// topLevel is all that may lie in the root.
var topLevel = strings.Fields(`main.go node coordinator drain updateengine systemd packaging api policy testbed docs
	go.mod go.sum Makefile README.md LICENSE CHANGELOG.md tools.mod tools.sum house_test.go main_test.go .ci .gitignore .git bin dist`)

// pure are the rooms without a client, D-Bus, a file, a clock or a die.
var pure = []string{"api/v1alpha1", "node/turn", "policy", "coordinator/rollout"}

// ours says which of our rooms a room may import, itself and what is below it
// included. A room that is not named here may import nothing of ours.
var ours = map[string][]string{
	".":            {"api", "coordinator", "drain", "node", "policy", "systemd", "updateengine", "packaging"},
	"coordinator":  {"api", "coordinator", "node/dirwatch", "node/object", "node/turn", "policy", "systemd"},
	"node":         {"api", "drain", "node", "policy", "systemd", "updateengine"},
	"node/turn":    {"api"},
	"policy":       {"api"},
	"drain":        {"api"},
	"systemd":      {"api"},
	"updateengine": {"api"},
	"api":          {"api"},
	"packaging":    {"api", "packaging"},

	"packaging/render": {"api", "packaging"},

	"coordinator/rollout": {"api", "node/turn", "policy"},
	// The host's metrics are rendered from the record that the host keeps.
	"coordinator/metrics":   {"api", "coordinator", "node/local"},
	"coordinator/report":    {"api", "coordinator", "node/local", "node/object", "node/turn", "policy"},
	"coordinator/forecast":  {"api", "coordinator/rollout", "drain", "node/turn", "policy"},
	"coordinator/notify":    {"api", "coordinator/webclient"},
	"coordinator/webclient": {},
	// The only room that knows both loops: what the command runs.
	"coordinator/instance": {"api", "coordinator", "drain", "node", "policy", "systemd", "updateengine"},
}

// forbidden are what a pure room must not import, themselves and below.
var forbidden = []string{
	"os", "net", "io/ioutil", "syscall", "math/rand", "crypto/rand", "log", "path/filepath", "runtime",
	"k8s.io/client-go", "github.com/godbus", "github.com/coreos", "golang.org/x/sys",
}

// clock is what of package time asks the clock, or waits.
var clock = []string{"Now", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Since", "Until"}

// pkg is one of our packages: its files without tests, by name.
type pkg struct {
	room  string // path from the root, "." for it
	files map[string]*ast.File
	fset  *token.FileSet
}

// packages parses every package of this module (not the testbed's).
func packages(t *testing.T) []pkg {
	t.Helper()
	byRoom := map[string]*pkg{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "testbed" || name == "bin" || name == "dist" || d.Name() == "testdata" || name != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		room := path.Dir(filepath.ToSlash(name))
		if byRoom[room] == nil {
			byRoom[room] = &pkg{room, map[string]*ast.File{}, fset}
		}
		byRoom[room].files[name] = f
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(byRoom) < 8 {
		t.Fatalf("only %d packages found", len(byRoom))
	}
	var all []pkg
	for _, p := range byRoom {
		all = append(all, *p)
	}
	return all
}

// under reports whether name is one of the roots, or below one.
func under(name string, roots []string) bool {
	return slices.ContainsFunc(roots, func(r string) bool { return name == r || strings.HasPrefix(name, r+"/") })
}

// allowed returns what the nearest room in ours may import.
func allowed(room string) []string {
	for r := room; ; r = path.Dir(r) {
		if rooms, ok := ours[r]; ok {
			return rooms
		}
		if r == "." || path.Dir(r) == "." {
			return nil
		}
	}
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		for name, f := range p.files {
			for _, spec := range f.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				for _, broken := range checkImport(p.room, imported) {
					t.Errorf("%s imports %s: %s", name, imported, broken)
				}
			}
		}
	}
}

// checkImport says which rules the import breaks.
func checkImport(room, imported string) (broken []string) {
	if rest, ok := strings.CutPrefix(imported, module+"/"); ok {
		if !under(rest, allowed(room)) {
			broken = append(broken, "arrows run downwards; "+room+" may import of ours only "+strings.Join(allowed(room), ", "))
		}
		return broken
	}
	if imported == module {
		broken = append(broken, "nobody imports the command")
	}
	if under(room, pure) {
		if under(imported, forbidden) {
			broken = append(broken, "this room is pure")
		}
	}
	standard := !strings.Contains(strings.Split(imported, "/")[0], ".")
	if under(room, []string{"api"}) && !standard && !under(imported, []string{"k8s.io/apimachinery"}) {
		broken = append(broken, "the api imports apimachinery and the standard library only")
	}
	if imported == "math/rand" {
		broken = append(broken, "math/rand/v2 is the one in use")
	}
	return broken
}

// TestNoClock finds uses of the clock in the pure rooms.
func TestNoClock(t *testing.T) {
	for _, p := range packages(t) {
		if !under(p.room, pure) {
			continue
		}
		for _, f := range p.files {
			for _, at := range clockUses(f) {
				t.Errorf("%s asks the clock: %s is pure, Now is an argument", p.fset.Position(at), p.room)
			}
		}
	}
}

// clockUses returns where the file uses what of package time asks the clock,
// under whatever name it imports it.
func clockUses(f *ast.File) []token.Pos {
	name := ""
	for _, spec := range f.Imports {
		if spec.Path.Value == `"time"` {
			if name = "time"; spec.Name != nil {
				name = spec.Name.Name
			}
		}
	}
	var uses []token.Pos
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if id, ok := n.X.(*ast.Ident); ok && name != "" && id.Name == name && slices.Contains(clock, n.Sel.Name) {
				uses = append(uses, n.Pos())
			}
			if id, ok := n.X.(*ast.Ident); ok && id.Name == "metav1" && n.Sel.Name == "Now" {
				uses = append(uses, n.Pos())
			}
		case *ast.GoStmt:
			uses = append(uses, n.Pos()) // what runs beside is no function of its arguments
		}
		return true
	})
	return uses
}

// TestPureRoomsStayPure follows the imports of the pure rooms through our own
// packages: a pure room must not reach an impure one by a detour.
func TestPureRoomsStayPure(t *testing.T) {
	imports := map[string][]string{}
	for _, p := range packages(t) {
		for _, f := range p.files {
			for _, spec := range f.Imports {
				if rest, ok := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/"); ok {
					imports[p.room] = append(imports[p.room], rest)
				}
			}
		}
	}
	for _, room := range pure {
		if len(imports[room]) == 0 && room != "api/v1alpha1" {
			t.Errorf("%s imports nothing of ours: is it still there?", room)
		}
		queue, seen := []string{room}, map[string]bool{}
		for len(queue) > 0 {
			at := queue[0]
			if queue = queue[1:]; seen[at] {
				continue
			}
			if seen[at] = true; !under(at, pure) {
				t.Errorf("%s reaches %s, which is not pure", room, at)
			}
			queue = append(queue, imports[at]...)
		}
	}
}

func TestDocComments(t *testing.T) {
	for _, p := range packages(t) {
		documented := false
		for name, f := range p.files {
			documented = documented || f.Doc != nil && len(strings.Fields(f.Doc.Text())) >= 6
			for _, missing := range undocumented(f) {
				t.Errorf("%s: %s has no doc comment", name, missing)
			}
		}
		if !documented {
			t.Errorf("%s: no package comment that says what the room is for", p.room)
		}
	}
}

// undocumented names the exported declarations without a comment. What Error
// and Unwrap do is the language's to say.
func undocumented(f *ast.File) []string {
	var missing []string
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) && d.Name.Name != "Error" && d.Name.Name != "Unwrap" {
				missing = append(missing, d.Name.Name)
			}
		case *ast.GenDecl:
			var said strings.Builder // one comment may speak of its neighbours too
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() && d.Doc == nil && s.Doc == nil {
						missing = append(missing, s.Name.Name)
					}
				case *ast.ValueSpec:
					said.WriteString(" " + s.Doc.Text())
					for _, n := range s.Names {
						if n.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil && !slices.Contains(strings.Fields(said.String()), n.Name) {
							missing = append(missing, n.Name)
						}
					}
				}
			}
		}
	}
	return missing
}

// exportedReceiver reports whether the function is none's method, or that of
// an exported type.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}

func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(topLevel, e.Name()) {
			t.Errorf("%s does not belong in the root", e.Name())
		}
	}
}

// TestTheRulesCanFail plants one offender for each rule.
func TestTheRulesCanFail(t *testing.T) {
	for _, c := range []struct {
		room, imported string
		broken         bool
	}{
		{"node/turn", "os", true},
		{"node/turn", "os/exec", true},
		{"node/turn", "net/http", true},
		{"policy", "math/rand/v2", true},
		{"coordinator/rollout", "k8s.io/client-go/kubernetes", true},
		{"coordinator/rollout", "github.com/godbus/dbus/v5", true},
		{"coordinator/rollout", module + "/coordinator", true},
		{"coordinator/rollout", module + "/node", true},
		{"coordinator/rollout", module + "/node/turn", false},
		{"node/turn", module + "/policy", true},
		{"node", module + "/coordinator", true},
		{"node", module + "/coordinator/rollout", true},
		{"node/local", module + "/coordinator", true},
		{"coordinator", module + "/node", true},
		{"coordinator/report", module + "/node", true},
		{"coordinator/instance", module + "/node", false},
		{"coordinator/notify", module + "/coordinator/rollout", true},
		{"coordinator/webclient", module + "/api/v1alpha1", true},
		{"coordinator", module + "/node/turn", false},
		{"drain", module + "/node/turn", true},
		{"systemd", module + "/drain", true},
		{"updateengine", module + "/api/v1alpha1", false},
		{"api/v1alpha1", "k8s.io/api/core/v1", true},
		{"api/v1alpha1", "k8s.io/apimachinery/pkg/apis/meta/v1", false},
		{"api/v1alpha1", module + "/policy", true},
		{"cellar", module + "/api/v1alpha1", true},
		{"node", module, true},
		{".", module + "/coordinator", false},
		{"coordinator", "math/rand", true},
		{"coordinator", "math/rand/v2", false},
	} {
		if got := checkImport(c.room, c.imported); (len(got) > 0) != c.broken {
			t.Errorf("%s imports %s: broken rules %v, expected some: %t", c.room, c.imported, got, c.broken)
		}
	}
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", `package x
import (
	"time"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)
type T struct{}
type hidden struct{}
var A = 1
// B is told of.
var B = time.Now()
const (
	C = 1 // as is C
	D = 2
)
func F() { time.Sleep(1); go F(); _ = metav1.Now() }
func (T) G() {}
func (hidden) H() {}
func (t *T) after() { var u struct{ Now int }; _ = u.Now; _ = time.Duration(1) }
`, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	if got := clockUses(f); len(got) != 4 {
		t.Errorf("%d uses of the clock found, expected 4", len(got))
	}
	if got := strings.Join(undocumented(f), " "); got != "T A D F G" {
		t.Errorf("undocumented: %s, expected T A D F G", got)
	}
}

// TestDocumentsNameTests: a promise whose test was renamed, or is gone, is no promise.
func TestDocumentsNameTests(t *testing.T) {
	named := map[string]string{} // test to document
	for document, least := range map[string]int{"docs/safety.md": 20, "docs/security.md": 12, "docs/hooks.md": 12} {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, m := range regexp.MustCompile("`(Test[A-Za-z]+)`").FindAllStringSubmatch(string(text), -1) {
			named[m[1]], found[m[1]] = document, true
		}
		if len(found) < least {
			t.Fatalf("%s names %d tests only", document, len(found))
		}
	}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		source, err := os.ReadFile(name)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(source), -1) {
			delete(named, m[1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, document := range named {
		t.Errorf("%s names %s, and there is no such test", document, name)
	}
}
