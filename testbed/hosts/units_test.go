package hosts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/systemd"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

const target = "some-stage.target"

// bus returns the product's own client for the host's bus.
func bus(t *testing.T, h *realhost.Host) *systemd.Bus {
	t.Helper()
	b := &systemd.Bus{Address: h.BusAddress()}
	t.Cleanup(func() { b.Close() })
	return b
}

// TestUnitsOfATarget runs the units of a target under a real systemd.
func TestUnitsOfATarget(t *testing.T) {
	ran := func(name string) string { return "echo " + name + " >>/run/ran" }
	h := host(t, "hook-", map[string][]byte{
		"/usr/lib/systemd/system/some-stage.target": []byte("[Unit]\nDescription=a stage\n"),
		"/usr/lib/systemd/system/kept.service":      unit(target, ran("kept"), "RemainAfterExit=yes"),
		"/usr/lib/systemd/system/plain.service":     unit(target, ran("plain")),
		"/usr/lib/systemd/system/masked.service":    unit(target, ran("masked")),
		"/usr/lib/systemd/system/never.service":     unit(target, ran("never")),
		"/usr/lib/systemd/system/skipped.service":   slices.Concat(unit(target, ran("skipped")), []byte("[Unit]\nConditionPathExists=/nonexistent\n")),
		"/usr/lib/systemd/system/unless.service":    unit(target, ran("unless"), "ExecCondition=/bin/sh -c 'exit 1'"),
		"/usr/lib/systemd/system/bad.service":       unit(target, "exit 3"),
		"/usr/lib/systemd/system/after.service":     slices.Concat(unit(target, ran("after")), []byte("[Unit]\nRequires=bad.service\nAfter=bad.service\n")),
		"/usr/lib/systemd/system/slow.service":      unit(target, ran("slow")+"; while [ ! -e /run/go ]; do sleep 0.1; done"),
		"/usr/lib/systemd/system/killed.service":    unit(target, "kill -9 $$$$"),
	})
	u := systemd.Units{Bus: bus(t, h)}
	wanted := func() string {
		all, err := u.Wanted(t.Context(), target)
		must(t, err)
		return strings.Join(all, " ")
	}
	if got := wanted(); got != "" {
		t.Errorf("wanted %q before anything was enabled", got)
	}
	exec(t, h, "systemctl enable kept plain masked && systemctl mask --runtime masked && rm -f /run/ran")
	exec(t, h, "ln -s /usr/lib/systemd/system/gone.service /etc/systemd/system/"+target+".wants/ && systemctl daemon-reload")
	if got := wanted(); got != "kept.service plain.service" {
		t.Errorf("wanted %q, expected the enabled units that can be started", got)
	}
	run := func() string {
		t.Helper()
		states, err := u.RunTarget(t.Context(), target, soon(), func([]systemd.UnitState) {})
		must(t, err)
		return fmt.Sprint(states)
	}
	for range 2 { // two turns in a row
		if got := run(); got != "[{kept.service false false } {plain.service false false }]" {
			t.Errorf("run: %s", got)
		}
		if got := exec(t, h, "systemctl is-active kept plain "+target+" | tr '\\n' ' '"); got != "inactive inactive inactive" {
			t.Errorf("states after the run: %s", got)
		}
	}
	if got := exec(t, h, "sort /run/ran | tr '\\n' ' '"); got != "kept kept plain plain" {
		t.Errorf("ran: %s", got)
	}

	if _, err := u.RunTarget(t.Context(), target, time.Now().Add(-time.Nanosecond), func([]systemd.UnitState) {}); !errors.Is(err, systemd.ErrTooLate) {
		t.Errorf("run after the deadline: %v", err)
	}
	if got := exec(t, h, "sort /run/ran | tr '\n' ' '"); got != "kept kept plain plain" {
		t.Errorf("ran, too late: %s", got)
	}

	// Each failed unit is named with its kind of failure, although the target becomes active.
	exec(t, h, "systemctl disable kept plain && systemctl enable skipped unless bad after killed")
	want := "[{after.service false false was not started: a unit that it requires failed, or its start was called off}" +
		" {bad.service false false exit-code, ExecStart=sh status 3} {killed.service false false signal, ExecStart=sh signal 9} {skipped.service false true } {unless.service false true }]"
	for range 2 {
		if got := run(); got != want {
			t.Errorf("run: %s\nexpected %s", got, want)
		}
	}
	testTakenUp(t, h, u)
	checkLogind(t, h)
}

// testTakenUp checks that units continue to run when the process ends, and that the next process takes them over. When
// the stage ends, it stops them.
func testTakenUp(t *testing.T, h *realhost.Host, u systemd.Units) {
	exec(t, h, "systemctl disable skipped unless bad after killed && systemctl enable slow && rm -f /run/ran")
	start := func(ctx context.Context) (running <-chan struct{}, end <-chan string) {
		began, over := make(chan struct{}), make(chan string, 1)
		var once sync.Once
		go func() {
			states, err := u.RunTarget(ctx, target, soon(), func(s []systemd.UnitState) {
				if len(s) == 1 && s[0].Running {
					once.Do(func() { close(began) })
				}
			})
			over <- fmt.Sprint(states, err)
		}()
		return began, over
	}
	wait := func(c <-chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(90 * time.Second):
			t.Fatal("timed out after 90 s waiting for the unit to run")
		}
	}
	over := errors.New("the process ends")
	ctx, cancel := context.WithCancelCause(t.Context())
	running, end := start(ctx)
	wait(running)
	eventually(t, 90*time.Second, "the first output of the unit", func() bool { return exec(t, h, "cat /run/ran") == "slow" })
	cancel(over)
	if got := <-end; got != "[] the process ends" {
		t.Errorf("result in the process that ended: %s", got)
	}
	running, end = start(t.Context())
	wait(running)
	exec(t, h, "touch /run/go")
	if got := <-end; got != "[{slow.service false false }] <nil>" {
		t.Errorf("taken up: %s", got)
	}
	if got := exec(t, h, "cat /run/ran"); got != "slow" {
		t.Errorf("the unit was started again: %q", got)
	}

	exec(t, h, "rm /run/go")
	ctx, cancel = context.WithCancelCause(t.Context())
	running, end = start(ctx)
	wait(running)
	cancel(over)
	<-end
	begun := func(when, want string) {
		t.Helper()
		if got, err := u.Begun(t.Context(), []string{target, "multi-user.target", "lockkeeper-none.target"}); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: %v have begun, %v; expected %s", when, got, err, want)
		}
	}
	begun("while the unit runs", "["+target+" multi-user.target]")
	must(t, u.StopTarget(t.Context(), target))
	begun("after that", "[multi-user.target]")
	if got := exec(t, h, "systemctl is-active slow "+target+" | tr '\\n' ' '"); got != "failed inactive" {
		t.Errorf("after the end of the stage: %s", got)
	}
	testReloads(t, h, u)
}

// testReloads checks that newly enabled units are noticed at once.
func testReloads(t *testing.T, h *realhost.Host, u systemd.Units) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looks := make(chan string, 100)
	go u.WatchReloads(ctx, func(ctx context.Context) {
		all, _ := u.Wanted(ctx, target)
		looks <- strings.Join(all, " ")
	})
	sees := func(want string) {
		t.Helper()
		for end := time.After(90 * time.Second); ; {
			select {
			case got := <-looks:
				if got == want {
					return
				}
			case <-end:
				t.Fatalf("timed out after 90 s waiting for %q", want)
			}
		}
	}
	sees("slow.service")
	exec(t, h, "systemctl enable plain")
	sees("plain.service slow.service")
	exec(t, h, "systemctl disable plain slow")
	sees("")
}
