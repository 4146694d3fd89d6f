package systemd

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// The end of a job of one of the units leads to a look, also after the bus was away. Jobs of other units lead to none.
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
	var looks atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Units{Bus: bus}.WatchJobs(ctx, []string{"a.service", "b.service"}, func() { looks.Add(1) })
	}()
	// quiet waits until nothing leads to a look any more: the arrival of systemd may lead to two.
	quiet := func() int32 {
		for {
			n := looks.Load()
			time.Sleep(4 * watchSpacing)
			if looks.Load() == n {
				return n
			}
		}
	}
	conn := start() // it comes later than the call
	eventually(t, "a look after it has subscribed", func() bool { return subscribed.Load() > 0 })
	before := quiet()
	for range 20 {
		ends(conn, "other.service")
	}
	ends(conn, "b.service")
	eventually(t, "a look at b", func() bool { return looks.Load() > before })
	if n := quiet() - before; n != 1 {
		t.Errorf("%d looks after one job of a unit that is watched", n)
	}
	b.Stop()
	b.Start()
	seen := subscribed.Load()
	conn = start()
	eventually(t, "it has subscribed again", func() bool { return subscribed.Load() > seen })
	before = quiet()
	ends(conn, "a.service")
	eventually(t, "a look at a", func() bool { return looks.Load() > before })
	cancel()
	if err := <-done; err != context.Canceled {
		t.Error(err)
	}
}

// Only systemd's own signals end jobs, and only those about the unit.
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
		t.Errorf("%d results are kept, want at most %d", len(j.ends), maxJobEnds)
	}
}
