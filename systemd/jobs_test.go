package systemd

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/godbus/dbus/v5"
)

// A job of one of the units is told of, also after the bus was away; others' are not.
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
		}, manager.path, managerIface))
		own(t, conn, managerName)
		return conn
	}
	ends := func(conn *dbus.Conn, unit string) {
		must(t, conn.Emit(manager.path, managerIface+".JobRemoved", uint32(7), dbus.ObjectPath("/org/freedesktop/systemd1/job/7"), unit, "done"))
	}
	var looks atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Units{Bus: bus}.WatchJobs(ctx, []string{"a.service", "b.service"}, func() { looks.Add(1) })
	}()
	conn := start() // it comes later than who asks for it
	eventually(t, "a look when it has subscribed", func() bool { return looks.Load() == 1 })
	for range 20 {
		ends(conn, "other.service")
	}
	ends(conn, "b.service")
	eventually(t, "a look at b", func() bool { return looks.Load() >= 2 })
	if n := looks.Load(); n != 2 {
		t.Errorf("%d looks for one job of a unit that is watched", n-1)
	}
	b.Stop()
	b.Start()
	conn = start()
	eventually(t, "a look after the bus was away", func() bool { return looks.Load() >= 3 })
	ends(conn, "a.service")
	eventually(t, "a look at a", func() bool { return looks.Load() >= 4 })
	cancel()
	if err := <-done; err != context.Canceled {
		t.Error(err)
	}
}

// Whoever else says that a job has ended is not believed.
func TestOnlySystemdEndsJobs(t *testing.T) {
	const path = dbus.ObjectPath("/org/freedesktop/systemd1/job/7")
	j := &jobEnds{owner: ":1.0", ends: map[dbus.ObjectPath]string{}}
	end := func(sender string, body ...any) { j.take(&dbus.Signal{Sender: sender, Body: body}) }
	end(":1.7", uint32(7), path, "a.service", "done")
	end("", uint32(7), path, "a.service", "done")
	end(":1.0", "7", path, "a.service", "done")
	if result, known := j.of(path); known {
		t.Errorf("forged: %q", result)
	}
	end(":1.0", uint32(7), path, "a.service", "failed")
	end(":1.7", uint32(7), path, "a.service", "done")
	if result, known := j.of(path); !known || result != "failed" {
		t.Errorf("systemd's own: %q, known %t", result, known)
	}
}
