package watched

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// twin computes the expected report of a Watcher in the simplest way: it stores the content of all files, and a copy of
// it for each path that was ever named.
type twin struct {
	b *bench
	// inEffect contains, for each path with a current or an earlier rule, the content in effect of its files. A file
	// in several paths has the same content in all of them.
	inEffect map[string]map[string]string
	named    []string
}

// files reads everything below etc: the content of files and the targets of links.
func (m *twin) files() map[string]string {
	all := map[string]string{}
	must(m.b.t, filepath.WalkDir(m.b.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, mode := []byte(nil), d.Type()
		if mode == fs.ModeSymlink {
			target, err := os.Readlink(path)
			text = []byte(target)
			if err != nil {
				return err
			}
		} else {
			info, err := d.Info()
			if err != nil {
				return err
			}
			mode = info.Mode()
			if text, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		all[strings.TrimPrefix(path, m.b.root)] = fmt.Sprintf("%v %q", mode, text)
		return nil
	}))
	return all
}

func below(files map[string]string, path string) map[string]string {
	in := maps.Clone(files)
	maps.DeleteFunc(in, func(name, _ string) bool { return name != path && !strings.HasPrefix(name, path+"/") })
	return in
}

// watch names paths.
func (m *twin) watch(paths []string) {
	now, known := m.files(), maps.Clone(m.inEffect)
	for _, path := range paths {
		if m.inEffect[path] != nil {
			continue
		}
		mine := below(now, path)
		for other, files := range known {
			for name := range below(now, other) {
				delete(mine, name)
			}
			maps.Copy(mine, below(files, path))
		}
		m.inEffect[path] = mine
	}
	m.named = paths
}

// set sets the content in effect of one file, in every path that contains it; "" means that the file does not exist.
func (m *twin) set(name, content string) {
	for path, files := range m.inEffect {
		if name == path || strings.HasPrefix(name, path+"/") {
			if files[name] = content; content == "" {
				delete(files, name)
			}
		}
	}
}

// changed returns the files that differ, with their current content.
func (m *twin) changed() map[string]string {
	now, changed := m.files(), map[string]string{}
	for _, path := range m.named {
		here := below(now, path)
		for name, content := range here {
			if m.inEffect[path][name] != content {
				changed[name] = content
			}
		}
		for name := range m.inEffect[path] {
			if _, ok := here[name]; !ok {
				changed[name] = ""
			}
		}
	}
	return changed
}

// pending is a change with the content of the file at that time.
type pending struct {
	change  v1alpha1.Change
	content string
}

// step does something random to the files.
func (m *twin) step(r *rand.Rand) {
	at := func() string { return m.b.at(fmt.Sprintf("etc/%d/%d", r.IntN(3), r.IntN(3))) }
	path := at()
	switch r.IntN(8) {
	case 0:
		_ = os.RemoveAll(path)
	case 1:
		_ = os.RemoveAll(filepath.Dir(path))
	case 2:
		_ = os.Rename(path, at())
	case 3:
		_ = os.Rename(filepath.Dir(path), filepath.Dir(at()))
	case 4:
		_ = os.Chmod(path, []fs.FileMode{0o600, 0o644}[r.IntN(2)])
	case 5:
		_ = os.Symlink(fmt.Sprint(r.IntN(2), "-nowhere"), path+"-link") // see TestLinks for rules that name links
	default:
		_ = os.MkdirAll(filepath.Dir(path), 0o755)
		_ = os.WriteFile(path, []byte{'a' + byte(r.IntN(3))}, 0o644)
	}
}

// TestTwin checks that, after any sequence of changes to files, rules, processes, turns and boots, the report equals
// that of a twin that stores the contents of all files.
func TestTwin(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { testTwin(t, rand.New(rand.NewPCG(seed, 13))) })
	}
}

func testTwin(t *testing.T, r *rand.Rand) {
	b := newBench(t)
	b.write("etc/0/0", "a")
	b.write("etc/1/1", "a")
	m := &twin{b: b, inEffect: map[string]map[string]string{}}
	w := b.new()
	var granted []pending
	var did []string
	names := []string{"/etc", "/etc/0", "/etc/1", "/etc/0/1", "/etc/1/2", "/etc/2/0"}
	watch := func() {
		paths := slices.DeleteFunc(slices.Clone(names), func(string) bool { return r.IntN(2) == 0 })
		w.Watch(paths, nil, nil)
		must(t, w.Refresh(t.Context()))
		m.watch(paths)
		did = append(did, fmt.Sprint("watch ", paths))
	}
	watch()
	for range 60 {
		switch r.IntN(10) {
		case 0:
			watch()
		case 1:
			w = b.new()
			w.Watch(m.named, nil, nil)
			did = append(did, "restart")
		case 2:
			var changes []v1alpha1.Change
			for _, p := range granted {
				changes = append(changes, p.change)
				m.set(p.change.Name, p.content)
			}
			must(t, w.MarkApplied(changes))
			did = append(did, fmt.Sprint("applied ", changes))
			granted = nil
		case 3:
			if r.IntN(5) == 0 {
				b.options.BootID += "x"
				w, granted, m.inEffect = b.new(), nil, map[string]map[string]string{}
				w.Watch(m.named, nil, nil)
				must(t, w.Refresh(t.Context()))
				m.watch(m.named)
				did = append(did, "boot")
			}
		default:
			m.step(r)
		}
		must(t, w.Refresh(t.Context()))
		want, report := m.changed(), w.Report()
		got := map[string]string{}
		for _, c := range report.Changes {
			got[c.Name] = want[c.Name]
			if content, ok := want[c.Name]; !ok || (content == "") != (c.Version == v1alpha1.VersionAbsent) {
				t.Fatalf("%v is reported; it is %q, and a change: %t\nafter %s", c, content, ok, strings.Join(did, "\n"))
			}
		}
		if len(report.Problems) != 0 || len(got) != len(want) {
			t.Fatalf("%v, %v\nexpected %v\nafter %s", report.Changes, report.Problems, slices.Sorted(maps.Keys(want)), strings.Join(did, "\n"))
		}
		if r.IntN(4) == 0 {
			granted = nil
			for _, c := range report.Changes {
				granted = append(granted, pending{c, want[c.Name]})
			}
		}
	}
}

// TestLinks checks a rule for a path with links: it also reads the targets of the links, unlike a rule for a directory
// above. Adding or removing one of the two rules is not a change.
func TestLinks(t *testing.T) {
	for _, inner := range []string{"/etc/link", "/etc/dirlink", "/etc/dirlink/a", "/etc/link /etc/dirlink"} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprint(inner, " ", restart), func(t *testing.T) {
				b := newBench(t)
				b.write("usr/one", "1")
				b.write("usr/dir/a", "a")
				must(t, os.Symlink("../usr/one", b.at("etc-link")))
				b.write("etc/x", "x")
				b.rename("etc-link", "etc/link")
				must(t, os.Symlink("../usr/dir", b.at("etc/dirlink")))
				outer, both := []string{"/etc"}, append([]string{"/etc"}, strings.Fields(inner)...)
				w := b.new()
				expect := func(paths []string, want string) {
					t.Helper()
					if restart {
						w = b.new()
					}
					w.Watch(paths, nil, nil)
					expectChanges(t, w, want)
				}
				expect(outer, "")
				expect(both, "")
				expect(outer, "")
				expect(both, "")
				b.write("usr/one", "2")
				b.write("usr/dir/a", "aa")
				want := map[string]string{"/etc/link": "/etc/link=…", "/etc/link /etc/dirlink": "/etc/dirlink/a=… /etc/link=…"}[inner]
				if want == "" {
					want = "/etc/dirlink/a=…"
				}
				expect(both, want)
				expect(outer, "")
				expect(both, want)
				must(t, w.MarkApplied(w.Report().Changes))
				expect(both, "")
				b.remove("etc/link")
				must(t, os.Symlink("../usr/dir/a", b.at("etc/link")))
				expect(both, "/etc/link=…")
				expect(outer, "/etc/link=…")
				expect(both, "/etc/link=…")
				must(t, w.MarkApplied(w.Report().Changes))
				expect(both, "")
				expect(outer, "")
				// A changed link counts as a change for a rule that names it from now on.
				b.remove("etc/dirlink")
				expect(outer, "/etc/dirlink=absent")
				expect([]string{"/etc", "/etc/dirlink"}, map[bool]string{true: "/etc/dirlink=absent /etc/dirlink/a=absent", false: "/etc/dirlink=absent"}[strings.HasSuffix(inner, "dirlink")])
				must(t, w.MarkApplied(w.Report().Changes))
				expect(outer, "")
			})
		}
	}
}

// TestPendingLink checks that a changed link stays a pending change when a rule names it for the first time.
func TestPendingLink(t *testing.T) {
	b := newBench(t)
	b.write("etc/one", "1")
	b.write("etc/two", "2")
	must(t, os.Symlink("one", b.at("etc/link")))
	must(t, os.Symlink("one", b.at("etc/same")))
	w := b.new()
	w.Watch([]string{"/etc"}, nil, nil)
	expectChanges(t, w, "")
	b.remove("etc/link")
	must(t, os.Symlink("two", b.at("etc/link")))
	expectChanges(t, w, "/etc/link=…")
	w.Watch([]string{"/etc", "/etc/link", "/etc/same"}, nil, nil)
	expectChanges(t, w, "/etc/link=…")
	must(t, w.MarkApplied(w.Report().Changes))
	expectChanges(t, w, "")
}
