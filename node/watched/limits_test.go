package watched

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/hostfs"
)

// expectProblem refreshes, and checks that there is one problem with this text and that these changes remain.
func expectProblem(t *testing.T, w *Watcher, name, text, remain string) {
	t.Helper()
	if err := w.Refresh(t.Context()); err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("Refresh returned %v, expected %q", err, text)
	}
	_, problems, complete := read(w)
	if complete || len(problems) != 1 || problems[0].Name != name || !strings.Contains(problems[0].Err.Error(), text) {
		t.Errorf("problems %v, complete %t, expected %s: %s", problems, complete, name, text)
	}
	if got := names(w); got != remain {
		t.Errorf("changes %q, expected %q to remain", got, remain)
	}
}

// TestUnreadable checks that an unreadable path is a problem, and that the changes that were reported before remain.
func TestUnreadable(t *testing.T) {
	b := newBench(t)
	b.write("etc/dir/a", "a")
	b.write("etc/dir/b", "b")
	b.write("etc/one", "1")
	w := b.watching()
	refreshed(t, w)
	b.write("etc/dir/a", "aa")
	b.write("etc/one", "2")
	said := "/etc/dir/a=… /etc/one=…"
	expectChanges(t, w, said)

	b.write("etc/dir/b", "bb")
	must(t, os.WriteFile(b.at("etc/dir/big"), nil, 0o600))
	must(t, os.Truncate(b.at("etc/dir/big"), maxBytes))
	expectProblem(t, w, "/etc/dir", "/etc/dir/big: more than 64 MiB in all", said)
	_, problems, _ := read(w)
	for c, want := range map[v1alpha1.Change]bool{file("/etc/dir/a", ""): true, file("/etc/one", ""): false, {Source: v1alpha1.SourceUnit, Name: "/etc/dir"}: false} {
		if problems[0].Covers(c) != want {
			t.Errorf("%v covers %v: %t", problems[0], c, !want)
		}
	}
	expectProblem(t, b.watching(), "/etc/dir", "/etc/dir/big", "/etc/one=…") // after a restart
	b.remove("etc/dir/big")
	expectChanges(t, w, "/etc/dir/a=… /etc/dir/b=… /etc/one=…")
	if !b.log.has("can be read again") {
		t.Error("the log does not report that the path can be read again")
	}

	for i := range maxFiles + 1 { // links are created faster
		if i < 10 {
			must(t, os.MkdirAll(b.at(fmt.Sprintf("etc/many/%d", i)), 0o755))
		}
		must(t, os.Symlink("nowhere", b.at(fmt.Sprintf("etc/many/%d/%d", i%10, i))))
	}
	w.Watch([]string{"/etc/many"}, nil, nil)
	expectProblem(t, w, "/etc/many", "more than 10000 files", "")
	b.remove("etc/many/7/10007")
	expectProblem(t, w, "/etc/many", "more than 10000 files", "")
	b.remove("etc/many/7/17")
	b.remove("etc/many/7/27")
	expectChanges(t, w, "")
	b.remove("etc/many")
	expectChanges(t, w, "/etc/many=absent") // reported separately they would be too many
	changes, _, _ := read(w)
	must(t, w.MarkApplied(changes))
	expectChanges(t, w, "")

	socket, err := net.Listen("unix", b.at("s"))
	must(t, err)
	defer socket.Close()
	w.Watch([]string{"/s"}, nil, nil)
	expectProblem(t, w, "/s", "neither a file nor a directory", "")
	w.Watch([]string{"relative"}, nil, nil)
	expectProblem(t, w, "relative", "no systemd to ask", "")
	var paths []string
	for i := range MaxWatched + 1 {
		paths = append(paths, fmt.Sprintf("/p/%03d", i))
	}
	w.Watch(paths, nil, nil)
	expectProblem(t, w, "/p/500", "more than 500 paths", "")
	w.Watch(paths[1:], nil, nil)
	expectChanges(t, w, "")
}

// TestInputError checks a read error of the kernel: the memory of a process is not readable at its start.
func TestInputError(t *testing.T) {
	b := newBench(t)
	b.options.Root = "/"
	w := b.new()
	must(t, os.Symlink("/proc/self/mem", b.at("link")))
	w.Watch([]string{b.at("link")}, nil, nil)
	expectProblem(t, w, b.at("link"), "input/output error", "")
}

// TestConfined checks that a link cannot lead out of a root other than the machine's own.
func TestConfined(t *testing.T) {
	b := newBench(t)
	outside := filepath.Join(filepath.Dir(b.root), "outside")
	must(t, os.WriteFile(outside, nil, 0o600))
	must(t, os.Symlink("../outside", b.at("link")))
	must(t, os.Symlink("..", b.at("up")))
	w := b.new()
	w.Watch([]string{"/link"}, nil, nil)
	expectProblem(t, w, "/link", "escapes", "")
	w.Watch([]string{"/up/outside"}, nil, nil)
	expectProblem(t, w, "/up/outside", "escapes", "")
}

// TestManyChanges checks that more than fifty changes below a path are reported as one, and that all changes together
// fit on a Node.
func TestManyChanges(t *testing.T) {
	b := newBench(t)
	b.write("etc/dir/keep", "")
	w := b.watching()
	refreshed(t, w)
	for i := range maxChanges {
		b.write(fmt.Sprintf("etc/dir/%02d", i), "")
	}
	if n := len(strings.Fields(refreshed(t, w))); n != 50 {
		t.Errorf("%d changes, expected 50", n)
	}
	b.write("etc/dir/more", "")
	expectChanges(t, w, "/etc/dir=…")
	turn, _, _ := read(w)
	b.write("etc/dir/more", "other")
	expectChanges(t, w, "/etc/dir=…")
	must(t, w.MarkApplied(turn))
	if names(w) != "/etc/dir/more=…" {
		t.Errorf("%q changed after the apply, expected /etc/dir/more", names(w))
	}
	for _, r := range w.roots {
		if len(r.reported) != 0 {
			t.Errorf("%d old states of %s are kept", len(r.reported), r.name)
		}
	}
	turn, _, _ = read(w)
	must(t, w.MarkApplied(turn))
	expectChanges(t, w, "")
	expectChanges(t, b.watching(), "")

	// 4 x 45 changes of about 150 bytes are too many.
	long := strings.Repeat("x", 80)
	var paths []string
	for d := range 4 {
		paths = append(paths, fmt.Sprintf("/etc/%d", d))
	}
	w.Watch(paths, nil, nil)
	refreshed(t, w)
	for d, n := range []int{45, 46, 44, 2} {
		for i := range n {
			b.write(fmt.Sprintf("etc/%d/%s%02d", d, long, i), "")
		}
	}
	must(t, w.Refresh(t.Context()))
	changes, _, _ := read(w)
	if n := weigh(changes); n > maxChangeBytes || len(changes) != 1+1+44+2 || changes[0].Name != "/etc/0" || changes[1].Name != "/etc/1" {
		t.Errorf("%d bytes, %d changes, from %v on", n, len(changes), changes[:2])
	}
	must(t, w.MarkApplied(changes))
	expectChanges(t, w, "")
}

// TestOddNames checks that the baseline can contain names that are not UTF-8.
func TestOddNames(t *testing.T) {
	b := newBench(t)
	b.write("etc/dir/\xff\n\"ü", "a")
	b.write("etc/dir/\xfe", "b")
	refreshed(t, b.watching())
	w := b.watching()
	expectChanges(t, w, "")
	b.write("etc/dir/\xff\n\"ü", "aa")
	expectChanges(t, w, "/etc/dir/\\xff\n\"ü=…")
	changes, _, _ := read(w)
	must(t, w.MarkApplied(changes))
	expectChanges(t, b.watching(), "")
}

// TestReadsOnce checks that a file is not read again while its stamp stays the same, and is read again after any
// change.
func TestReadsOnce(t *testing.T) {
	b := newBench(t)
	b.write("etc/one", "1")
	h, err := hostfs.New(b.root)
	must(t, err)
	defer h.Close()
	read := func(old map[string]entry) map[string]entry {
		s := newScan(t.Context(), h, newKey([]byte("a secret")), &root{name: "/etc/one"}, old)
		must(t, s.visit("/etc/one", true))
		return s.found
	}
	var e entry
	for late := true; late; { // repeat if the test was delayed in between
		began := time.Now()
		b.write("etc/one", "1")
		e = read(nil)["/etc/one"]
		late = e.final && time.Since(began) > clockTick/2
	}
	if e.final {
		t.Error("a new file counts as settled, but may be written again in the same tick")
	}
	planted := func(s stamp, final bool) map[string]entry {
		return map[string]entry{"/etc/one": {digest: "planted", stamp: s, final: final}}
	}
	if got := read(planted(e.stamp, false)); got["/etc/one"].digest != e.digest {
		t.Error("the file was not read again")
	}
	if got := read(planted(e.stamp, true)); got["/etc/one"].digest != "planted" {
		t.Error("the file was read again")
	}
	then := time.Unix(e.stamp.mtime.Unix())
	for what, change := range map[string]func(){
		"mode": func() { must(t, os.Chmod(b.at("etc/one"), 0o600)) },
		"content, and the old time was put back": func() {
			b.write("etc/one", "2")
			must(t, os.Chtimes(b.at("etc/one"), then, then))
		},
		"inode": func() { b.write("new", "1"); b.rename("new", "etc/one") },
	} {
		s := read(nil)["/etc/one"].stamp
		change()
		if got := read(planted(s, true)); got["/etc/one"].digest == "planted" {
			t.Errorf("another %s, but the file was not read again", what)
		}
	}
}
