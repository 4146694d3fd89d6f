package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// These tests check the rules of docs/architecture.md against the source: which package
// may import which, what the pure packages must not use, and that every exported
// declaration has a doc comment.

const module = "lockkeeper.dev/lockkeeper"

// topLevel lists every file and directory that may be in the root.
var topLevel = strings.Fields(`main.go cli kube node coordinator drain updateengine systemd packaging api policy testbed docs
	go.mod go.sum Makefile README.md CONTRIBUTING.md SECURITY.md LICENSE CHANGELOG.md tools.mod tools.sum layout_test.go main_test.go docs_test.go .ci .gitignore .git bin dist`)

// pure lists the packages that use no client, D-Bus, file, clock or random number.
var pure = []string{"api/v1alpha1", "node/turn", "node/step", "policy", "coordinator/rollout", "cli/migrate"}

// allowedImports lists, for each directory, the directories of this module that its
// packages may import. Both sides include what is below them; the entry nearest to a
// package decides. A package without an entry may import nothing of this module.
var allowedImports = map[string][]string{
	".":             {"cli"},
	"cli":           {"api", "cli", "coordinator", "kube", "node/config", "node/local", "packaging/manifests", "policy"},
	"coordinator":   {"api", "coordinator", "kube", "node/turn", "policy", "systemd"},
	"kube":          {"api", "kube"},
	"kube/dirwatch": {},
	"kube/secret":   {},
	"node":          {"api", "drain", "kube", "node", "policy", "systemd", "updateengine"},
	"node/turn":     {"api"},
	"node/step":     {"api", "node/turn", "policy"},
	"node/source":   {"api", "kube/dirwatch", "node/hostfs", "node/timing", "node/watched", "systemd", "updateengine"},
	"node/effect":   {"api", "drain", "node/local", "node/step", "node/timing", "node/turn", "policy", "systemd"},
	"node/publish":  {"api", "kube", "node/hostupdate", "node/lifecycle", "node/local", "node/timing"},
	"node/timing":   {},
	"policy":        {"api"},
	"drain":         {"api", "kube"},
	"systemd":       {"api"},
	"updateengine":  {"api"},
	"api":           {"api"},
	"packaging":     {"api", "packaging"},

	"packaging/render": {"api", "cli/migrate", "coordinator/notify", "node/config", "node/turn", "packaging"},

	"coordinator/rollout": {"api", "node/turn", "policy"},
	// The host's metrics are rendered from the record that the host keeps.
	"cli/credential":        {"api", "cli/page", "kube"},
	"cli/agent/metrics":     {"api", "coordinator", "kube", "node/local"},
	"cli/cluster":           {"api", "cli/migrate", "cli/page", "cli/report", "coordinator/forecast", "coordinator/rollout", "kube", "node/lifecycle", "node/turn", "policy"},
	"cli/migrate":           {"api", "policy"},
	"cli/page":              {},
	"cli/simulate":          {"api", "coordinator/rollout", "node/step", "node/turn", "policy"},
	"cli/report":            {"api", "cli/page", "coordinator/forecast", "coordinator/rollout", "node/local", "node/turn", "policy"},
	"coordinator/forecast":  {"api", "coordinator/rollout", "drain", "node/turn", "policy"},
	"coordinator/notify":    {"api", "coordinator/webclient"},
	"coordinator/webclient": {},
	// The only package that knows both loops: what the command runs.
	"cli/agent": {"api", "cli/agent", "coordinator", "drain", "kube", "node", "policy", "systemd", "updateengine"},
}

// forbidden lists what a pure package must not import. It includes what is below.
var forbidden = []string{
	"os", "net", "io/ioutil", "syscall", "math/rand", "crypto/rand", "log", "path/filepath", "runtime",
	"k8s.io/client-go", "github.com/godbus", "github.com/coreos", "golang.org/x/sys",
}

// clock lists the functions of package time that read the clock or wait.
var clock = []string{"Now", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Since", "Until"}

// pkg is one package of this module: its files without tests, by name.
type pkg struct {
	dir   string // relative to the root, "." for the root
	files map[string]*ast.File
	fset  *token.FileSet
}

// packages parses every package of this module. The testbed is another module.
func packages(t *testing.T) []pkg {
	t.Helper()
	byDir := map[string]*pkg{}
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
		dir := path.Dir(filepath.ToSlash(name))
		if byDir[dir] == nil {
			byDir[dir] = &pkg{dir, map[string]*ast.File{}, fset}
		}
		byDir[dir].files[name] = f
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(byDir) < 8 {
		t.Fatalf("only %d packages found", len(byDir))
	}
	var all []pkg
	for _, p := range byDir {
		all = append(all, *p)
	}
	return all
}

// under reports whether name is one of the roots or below one.
func under(name string, roots []string) bool {
	return slices.ContainsFunc(roots, func(r string) bool { return name == r || strings.HasPrefix(name, r+"/") })
}

// allowed returns what packages in dir may import.
func allowed(dir string) []string {
	for d := dir; ; d = path.Dir(d) {
		if dirs, ok := allowedImports[d]; ok {
			return dirs
		}
		if d == "." || path.Dir(d) == "." {
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
				for _, broken := range checkImport(p.dir, imported) {
					t.Errorf("%s imports %s: %s", name, imported, broken)
				}
			}
		}
	}
}

// checkImport returns the rules that the import breaks.
func checkImport(dir, imported string) (broken []string) {
	if rest, ok := strings.CutPrefix(imported, module+"/"); ok {
		if !under(rest, allowed(dir)) {
			broken = append(broken, "imports run downwards; of this module "+dir+" may import only "+strings.Join(allowed(dir), ", "))
		}
		return broken
	}
	if imported == module {
		broken = append(broken, "no package imports the command")
	}
	if under(dir, pure) {
		if under(imported, forbidden) {
			broken = append(broken, "this package is pure")
		}
	}
	standard := !strings.Contains(strings.Split(imported, "/")[0], ".")
	if under(dir, []string{"api"}) && !standard && !under(imported, []string{"k8s.io/apimachinery"}) {
		broken = append(broken, "the api imports apimachinery and the standard library only")
	}
	if imported == "k8s.io/client-go/kubernetes" {
		broken = append(broken, "it links the clients of all API groups; use kube.API")
	}
	if imported == "math/rand" {
		broken = append(broken, "use math/rand/v2")
	}
	return broken
}

// TestNoClock finds uses of the clock in the pure packages.
func TestNoClock(t *testing.T) {
	for _, p := range packages(t) {
		if !under(p.dir, pure) {
			continue
		}
		for _, f := range p.files {
			for _, at := range clockUses(f) {
				t.Errorf("%s reads the clock, and %s is pure: take the time as an argument", p.fset.Position(at), p.dir)
			}
		}
	}
}

// clockUses returns where the file reads the clock, waits or starts a goroutine. It
// follows a renamed import of package time.
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
			uses = append(uses, n.Pos()) // a function that starts a goroutine does not depend on its arguments alone
		}
		return true
	})
	return uses
}

// TestConcurrent compares the Makefile's list of the packages that the race detector watches with the code.
func TestConcurrent(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(strings.ReplaceAll(string(makefile), "\\\n", " "), "\nCONCURRENT = ")
	list, _, _ = strings.Cut(list, "\n")
	listed := strings.Fields(list)
	for _, p := range packages(t) {
		concurrent := false
		for _, f := range p.files {
			concurrent = concurrent || isConcurrent(f)
		}
		if concurrent != slices.Contains(listed, p.dir) {
			t.Errorf("%s is concurrent: %t, and is in the Makefile's CONCURRENT: %t", p.dir, concurrent, !concurrent)
		}
	}
}

// isConcurrent reports whether the file starts goroutines, has channels or imports package sync.
func isConcurrent(f *ast.File) (is bool) {
	for _, spec := range f.Imports {
		is = is || spec.Path.Value == `"sync"` || spec.Path.Value == `"sync/atomic"`
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.GoStmt, *ast.ChanType:
			is = true
		}
		return true
	})
	return is
}

// TestPurePackagesImportOnlyPureOnes follows the imports of the pure packages through this
// module: a pure package must not reach an impure one through a third.
func TestPurePackagesImportOnlyPureOnes(t *testing.T) {
	imports := map[string][]string{}
	for _, p := range packages(t) {
		for _, f := range p.files {
			for _, spec := range f.Imports {
				if rest, ok := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/"); ok {
					imports[p.dir] = append(imports[p.dir], rest)
				}
			}
		}
	}
	for _, dir := range pure {
		if len(imports[dir]) == 0 && dir != "api/v1alpha1" {
			t.Errorf("%s imports no other package of this module: does it still exist?", dir)
		}
		queue, seen := []string{dir}, map[string]bool{}
		for len(queue) > 0 {
			at := queue[0]
			if queue = queue[1:]; seen[at] {
				continue
			}
			if seen[at] = true; !under(at, pure) {
				t.Errorf("%s reaches %s, which is not pure", dir, at)
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
			t.Errorf("%s: no package comment that says what the package is for", p.dir)
		}
	}
}

// undocumented returns the names of the exported declarations without a comment. Error and
// Unwrap need none.
func undocumented(f *ast.File) []string {
	var missing []string
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) && d.Name.Name != "Error" && d.Name.Name != "Unwrap" {
				missing = append(missing, d.Name.Name)
			}
		case *ast.GenDecl:
			var said strings.Builder // a comment may name the declarations after it, too
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

// exportedReceiver reports whether d is a plain function, or a method of an exported type.
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
		case *ast.IndexListExpr:
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

// TestTheCommandLineAloneHasNoAgent lists what the command line alone links, on both systems.
func TestTheCommandLineAloneHasNoAgent(t *testing.T) {
	agent := []string{"cli/agent", "coordinator", "node", "systemd", "updateengine"}
	for _, tc := range []struct {
		goos, tags string
		agent      int // how many of them it links
	}{{"darwin", "", 0}, {"linux", "noagent", 0}, {"linux", "", len(agent)}} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", tc.tags, ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+tc.goos)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", cmd, err)
		}
		var linked []string
		for _, dir := range agent {
			if slices.Contains(strings.Fields(string(out)), module+"/"+dir) {
				linked = append(linked, dir)
			}
		}
		if len(linked) != tc.agent {
			t.Errorf("GOOS=%s -tags %q links %q", tc.goos, tc.tags, linked)
		}
	}
}

// TestTheRulesCanFail breaks each rule once.
func TestTheRulesCanFail(t *testing.T) {
	for _, c := range []struct {
		dir, imported string
		broken        bool
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
		{"node/source", module + "/policy", true},
		{"node/effect", module + "/kube", true},
		{"node/effect", module + "/drain", false},
		{"node/publish", module + "/node/step", true},
		{"node/source", module + "/node/step", true},
		{"node", module + "/coordinator", true},
		{"node", module + "/coordinator/rollout", true},
		{"node/local", module + "/coordinator", true},
		{"coordinator", module + "/node", true},
		{"cli/report", module + "/node", true},
		{"cli/agent", module + "/node", false},
		{"cli/migrate", "os", true},
		{"cli/migrate", module + "/kube", true},
		{"coordinator/notify", module + "/coordinator/rollout", true},
		{"coordinator/webclient", module + "/api/v1alpha1", true},
		{"coordinator", module + "/node/turn", false},
		{"drain", module + "/node/turn", true},
		{"drain", module + "/kube", false},
		{"kube", module + "/node/turn", true},
		{"kube", module + "/policy", true},
		{"kube/dirwatch", module + "/kube", true},
		{"kube", module + "/coordinator", true},
		{"kube", module + "/api/v1alpha1", false},
		{"kube", "k8s.io/client-go/kubernetes", true},
		{"kube", "k8s.io/client-go/kubernetes/typed/core/v1", false},
		{"systemd", module + "/drain", true},
		{"updateengine", module + "/api/v1alpha1", false},
		{"api/v1alpha1", "k8s.io/api/core/v1", true},
		{"api/v1alpha1", "k8s.io/apimachinery/pkg/apis/meta/v1", false},
		{"api/v1alpha1", module + "/policy", true},
		{"unlisted", module + "/api/v1alpha1", true},
		{"node", module, true},
		{".", module + "/coordinator", true},
		{".", module + "/cli", false},
		{"cli", module + "/node", true},
		{"cli/report", module + "/node", true},
		{"coordinator", "math/rand", true},
		{"coordinator", "math/rand/v2", false},
	} {
		if got := checkImport(c.dir, c.imported); (len(got) > 0) != c.broken {
			t.Errorf("%s imports %s: broken rules %v, expected some: %t", c.dir, c.imported, got, c.broken)
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
type pair[A, B any] struct{}
func (pair[A, B]) I() {}
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

// TestDocumentsNameTests fails if a document names a test that does not exist.
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
