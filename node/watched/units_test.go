package watched

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
)

// unitFiles is a systemd that knows the paths of unit files.
type unitFiles struct {
	mu  sync.Mutex
	err error
}

func (u *unitFiles) UnitFiles(_ context.Context, unit string) (fragments, dropIns []string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.err != nil {
		return nil, nil, u.err
	}
	for _, dir := range []string{"/etc/systemd/system/", "/usr/lib/systemd/system/"} {
		fragments = append(fragments, dir+unit)
		dropIns = append(dropIns, dir+unit+".d", dir+"service.d")
	}
	return fragments, append(dropIns, "/opt/single.conf"), nil
}

func (u *unitFiles) fail(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.err = err
}

// TestUnits checks that the files of a unit are the fragment in effect and all drop-ins, in any directory.
func TestUnits(t *testing.T) {
	b := newBench(t)
	systemd := &unitFiles{}
	b.options.Units = systemd
	b.write("usr/lib/systemd/system/a.service", "[Service]")
	b.write("etc/systemd/system/multi-user.target.wants/x", "")
	w, stop := b.run()
	w.Watch(nil, []string{"a.service", "none.service"}, nil)
	b.reports(w, "")
	undo := func(name string) {
		b.reports(w, "a.service=…")
		b.remove(name)
		b.reports(w, "")
	}
	b.write("etc/systemd/system/a.service.d/10.conf", "[Service]")
	undo("etc/systemd/system/a.service.d/10.conf")
	b.write("etc/systemd/system/a.service", "[Service]\nUser=a")
	b.reports(w, "a.service=…")
	overridden, _, _ := read(w)
	b.write("usr/lib/systemd/system/a.service", "which is no longer in effect")
	must(t, w.Refresh(t.Context()))
	if changes, _, _ := read(w); !slices.Equal(changes, overridden) {
		t.Errorf("an overridden fragment counts: %v, %v", changes, overridden)
	}
	b.write("usr/lib/systemd/system/a.service", "[Service]")
	undo("etc/systemd/system/a.service")
	must(t, os.Symlink("/dev/null", b.at("etc/systemd/system/a.service"))) // masked
	// A host with another root cannot follow the link; the machine's own root can.
	until(t, "the mask", func() bool { return !complete(w) })
	b.remove("etc/systemd/system/a.service")
	b.reports(w, "")
	must(t, os.Chmod(b.at("usr/lib/systemd/system/a.service"), 0o600))
	b.reports(w, "a.service=…")
	must(t, os.Chmod(b.at("usr/lib/systemd/system/a.service"), 0o644))
	b.reports(w, "")
	b.write("usr/lib/systemd/system/service.d/all.conf", "") // applies to every service, also without a file
	b.reports(w, "a.service=… none.service=…")
	b.remove("usr/lib/systemd/system/service.d")
	b.write("opt/single.conf", "")
	b.reports(w, "a.service=… none.service=…")
	b.remove("opt")
	b.write("etc/systemd/system/none.service", "")
	b.reports(w, "none.service=…")
	b.remove("etc/systemd/system/none.service")
	b.reports(w, "")

	b.write("etc/systemd/system/a.service.d/README", "no drop-in")
	must(t, os.Symlink("/usr/lib/systemd/system/a.service", b.at("etc/systemd/system/multi-user.target.wants/a.service"))) // enabled
	must(t, w.Refresh(t.Context()))
	if names(w) != "" {
		t.Errorf("a file that does not belong to the unit changes it: %q", names(w))
	}

	b.remove("usr/lib/systemd/system/a.service")
	b.reports(w, "a.service=absent")
	changes, _, _ := read(w)
	must(t, w.MarkApplied(changes))
	b.reports(w, "")
	b.write("usr/lib/systemd/system/a.service", "[Service]\nType=oneshot")
	b.reports(w, "a.service=…")
	stop()

	w = b.new()
	w.Watch(nil, []string{"a.service"}, nil)
	systemd.fail(errors.New("the bus is down"))
	expectProblem(t, w, "a.service", "the bus is down", "")
	systemd.fail(nil)
	expectChanges(t, w, "a.service=…")
	systemd.fail(errors.New("the bus is down"))
	expectProblem(t, w, "a.service", "the bus is down", "a.service=…")
	changes, _, _ = read(w)
	must(t, w.MarkApplied(changes))
	systemd.fail(nil)
	expectChanges(t, w, "")

	b.options.Units = nil
	w = b.new()
	w.Watch(nil, []string{"a.service"}, nil)
	expectProblem(t, w, "a.service", "no systemd", "")
}

// TestBurst checks that after concurrent changes the last report equals the report of a new process.
func TestBurst(t *testing.T) {
	b := newBench(t)
	for i := range 20 {
		b.write(fmt.Sprintf("etc/dir/%d/f", i), "in effect")
	}
	w, _ := b.run()
	w.Watch([]string{"/etc/dir", "/etc/dir/3", "/etc/one"}, nil, nil)
	b.reports(w, "")
	var wg sync.WaitGroup
	for seed := range uint64(4) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 6))
			for range 200 {
				at := func() string { return b.at(fmt.Sprintf("etc/dir/%d", r.IntN(20))) }
				switch r.IntN(6) {
				case 0:
					_ = os.RemoveAll(at())
				case 1:
					_ = os.Rename(at(), at())
				case 2:
					_ = os.Symlink("nowhere", at())
				case 3:
					_ = os.WriteFile(at(), []byte{byte(r.Uint32())}, 0o644)
				default:
					dir := at()
					_ = os.MkdirAll(dir, 0o755)
					_ = os.WriteFile(dir+"/f", []byte{byte(r.Uint32())}, 0o644)
				}
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			_ = w.Refresh(t.Context()) // a vanished file is not an error, but a file that is replaced each time is
		}
	})
	wg.Wait()
	fresh := b.new() // uses the same baseline
	fresh.Watch([]string{"/etc/dir", "/etc/dir/3", "/etc/one"}, nil, nil)
	must(t, fresh.Refresh(t.Context()))
	want, _, _ := read(fresh)
	until(t, fmt.Sprint(want), func() bool {
		got, _, complete := read(w)
		return complete && slices.Equal(got, want)
	})
	if len(want) == 0 {
		t.Error("there are no changes at the end")
	}
}
