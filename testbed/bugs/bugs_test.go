package bugs

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root is the directory of the product's module.
const root = "../.."

// bug is one change of the product's source.
type bug struct {
	name, file string
	// dir is the package of the test that finds it, from root, and test the name of the test; "" stands for all of them.
	dir, test string
	// old and new are whole lines. old occurs once in the file.
	old, new string
	where    string // in testdata
}

// bugs returns the bugs in testdata.
func bugs(t *testing.T) []*bug {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata has %d files: %v", len(files), err)
	}
	var all []*bug
	names := map[string]bool{}
	for _, file := range files {
		for _, b := range parse(t, file) {
			if names[b.name] {
				t.Errorf("%s: %q is the name of two bugs", b.where, b.name)
			}
			names[b.name] = true
			all = append(all, b)
		}
	}
	return all
}

// parse reads the bugs of a file.
func parse(t *testing.T, file string) []*bug {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []*bug
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if name, ok := strings.CutPrefix(line, "bug: "); ok {
			all = append(all, &bug{name: name, where: fmt.Sprintf("%s:%d", file, n)})
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		if len(all) == 0 {
			t.Fatalf("%s:%d: expected a line that begins with \"bug: \"", file, n)
		}
		b := all[len(all)-1]
		key, value, _ := strings.Cut(line, ": ")
		switch {
		case key == "file":
			b.file = value
		case key == "test":
			b.dir, b.test, _ = strings.Cut(strings.TrimPrefix(value, "./"), " ")
		case line[0] == ' ':
			b.old += line[1:] + "\n"
			b.new += line[1:] + "\n"
		case line[0] == '-':
			b.old += line[1:] + "\n"
		case line[0] == '+':
			b.new += line[1:] + "\n"
		default:
			t.Errorf("%s:%d: expected file, test, or a line that begins with a space, - or +", file, n)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// place returns where the bug's lines are in the text of its file.
func (b *bug) place(text string) (at int, err error) {
	at = strings.Index("\n"+text, "\n"+b.old)
	switch {
	case b.old == "" || b.old == b.new:
		return 0, fmt.Errorf("it changes nothing")
	case at < 0:
		return 0, fmt.Errorf("%s does not contain its lines", b.file)
	case strings.Contains(text[at+1:], "\n"+b.old):
		return 0, fmt.Errorf("%s contains its lines twice; give it more context", b.file)
	}
	return at, nil
}

// TestBugsApply checks that each bug can be planted, and that the test that finds it exists.
func TestBugsApply(t *testing.T) {
	for _, b := range bugs(t) {
		if _, err := b.place(read(t, b.file)); err != nil {
			t.Errorf("%s: %q: %v", b.where, b.name, err)
		}
		if b.test != "" && !hasTest(t, b.dir, b.test) {
			t.Errorf("%s: %q: %s has no test %s", b.where, b.name, b.dir, b.test)
		}
	}
}

func hasTest(t *testing.T, dir, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(text), "\nfunc "+test+"(")
	})
}

// read returns the text of a file of the product.
func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestBugsCompile checks that each bug compiles. Go keeps the result until the code or a bug changes.
func TestBugsCompile(t *testing.T) {
	all := bugs(t)
	args := []string{"build", "-overlay=" + plant(t, all)}
	for _, b := range all {
		if dir := "./" + filepath.Dir(b.file); !slices.Contains(args, dir) {
			args = append(args, dir)
		}
	}
	if out, err := goCommand(t, root, args...); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
