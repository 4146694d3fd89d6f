package systemd

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// TestWatchJobs checks that the end of a job of one of the units leads to a read, also after the bus was down.
func TestWatchJobs(t *testing.T) {
	b := newBus(t)
	bus := &Bus{Address: b.Address}
	defer bus.Close()
	var subscribed atomic.Int32
	start := func() *dbus.Conn {
		conn := b.Connect()
		must(t, conn.ExportMethodTable(map[string]any{
			"Subscribe": func() *dbus.Error {
				if subscribed.Add(1) == 1 {
					return nil
				}
				return dbus.NewError("org.freedesktop.systemd1.AlreadySubscribed", nil)
			},
		}, managerPath, managerIface))
		own(t, conn, managerName)
		return conn
	}
	ends := func(conn *dbus.Conn, unit string) {
		must(t, conn.Emit(managerPath, managerIface+".JobRemoved", uint32(7), dbus.ObjectPath("/org/freedesktop/systemd1/job/7"), unit, "done"))
	}
	var reads atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Units{Bus: bus}.watch(ctx, jobRemoved, jobOf("a.service", "b.service"), time.Hour, func(context.Context) { reads.Add(1) })
	}()
	conn := start() // systemd starts after the call
	eventually(t, "the subscription", func() bool { return subscribed.Load() > 0 })
	// The arrival of systemd leads to at most two reads, which is less than the number of jobs.
	jobs := func(unit string) {
		t.Helper()
		for range 4 {
			before := reads.Load()
			ends(conn, unit)
			eventually(t, "a read after a job of "+unit, func() bool { return reads.Load() > before })
		}
	}
	jobs("b.service")
	b.Stop()
	b.Start()
	seen := subscribed.Load()
	conn = start()
	eventually(t, "the new subscription", func() bool { return subscribed.Load() > seen })
	jobs("a.service")
	cancel()
	if err := <-done; err != context.Canceled {
		t.Error(err)
	}
}

// TestJobOf checks that jobs of other units, and malformed signals, lead to no read.
func TestJobOf(t *testing.T) {
	const path = dbus.ObjectPath("/org/freedesktop/systemd1/job/7")
	watched := jobOf("a.service", "b.service")
	for _, c := range []struct {
		body []any
		want bool
	}{
		{[]any{uint32(7), path, "a.service", "done"}, true},
		{[]any{uint32(7), path, "b.service", "failed"}, true},
		{[]any{uint32(7), path, "other.service", "done"}, false},
		{[]any{uint32(7), path, path, "done"}, false},
		{[]any{uint32(7), path, "a.service"}, false},
		{nil, false},
	} {
		if got := watched(c.body); got != c.want {
			t.Errorf("%v: %t", c.body, got)
		}
	}
}

// TestOnlySystemdEndsJobs checks that only systemd's own signals about the unit end its jobs.
func TestOnlySystemdEndsJobs(t *testing.T) {
	const path = dbus.ObjectPath("/org/freedesktop/systemd1/job/7")
	j := &job{before: unit{Id: "a.service"}, ends: map[dbus.ObjectPath]string{}}
	s := &subscription{object: (&Bus{}).Object(managerName, managerPath), signal: jobRemoved, filter: j.ended, owner: ":1.0", hint: make(chan struct{}, 1)}
	end := func(sender string, body ...any) {
		s.deliver(&dbus.Signal{Sender: sender, Path: managerPath, Name: jobRemoved, Body: body})
	}
	end(":1.7", uint32(7), path, "a.service", "done")
	end("", uint32(7), path, "a.service", "done")
	end(":1.0", uint32(7), path, "b.service", "done")
	if result, known := j.result(path); known || len(s.hint) > 0 {
		t.Errorf("forged, or of another unit: %q, %d hints", result, len(s.hint))
	}
	end(":1.0", uint32(7), string(path), "a.service", "done") // malformed
	end(":1.0", uint32(7), path, "a.service", 1)
	end(":1.0", uint32(7), path)
	if result, known := j.result(path); known {
		t.Errorf("malformed: %q", result)
	}
	end(":1.0", uint32(7), path, "a.service", "failed")
	end(":1.7", uint32(7), path, "a.service", "done")
	if result, known := j.result(path); !known || result != "failed" {
		t.Errorf("systemd's own: %q, known %t", result, known)
	}
	for i := range 2 * maxJobEnds {
		end(":1.0", uint32(i), dbus.ObjectPath(fmt.Sprintf("/job/%d", i)), "a.service", "done")
	}
	if len(j.ends) != maxJobEnds {
		t.Errorf("%d results are kept, expected at most %d", len(j.ends), maxJobEnds)
	}
}
