package simhost

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// TestJobs checks that a held job runs until its release and then ends with a signal, that a restart gives the unit a
// new invocation ID and a reload does not, and that a boot ends running jobs without a signal.
func TestJobs(t *testing.T) {
	h, _ := startHost(t, "jobs")
	must(t, h.Units().Set("a.service", Unit{Load: "loaded", Active: "active"}))
	conn := connect(t, h)
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	must(t, conn.AddMatchSignal(dbus.WithMatchInterface(systemdIface), dbus.WithMatchMember("JobRemoved")))
	manager := func() dbus.BusObject { return conn.Object(systemdName, systemdPath) }
	unit := func() (job jobProp, invocation []byte) {
		t.Helper()
		var all map[string]dbus.Variant
		must(t, conn.Object(systemdName, unitPath("a.service")).Call("org.freedesktop.DBus.Properties.GetAll", 0, unitIface).Store(&all))
		must(t, all["Job"].Store(&job))
		must(t, all["InvocationID"].Store(&invocation))
		return job, invocation
	}
	begin := func(method string) (job dbus.ObjectPath) {
		t.Helper()
		must(t, manager().Call(systemdIface+"."+method, 0, "a.service", "replace").Store(&job))
		return job
	}
	ends := func(job dbus.ObjectPath) {
		t.Helper()
		for {
			select {
			case s := <-signals:
				if s.Name == systemdIface+".JobRemoved" && s.Body[1] == job && s.Body[3] == "done" {
					return
				}
			case <-time.After(90 * time.Second):
				t.Fatalf("no JobRemoved signal for %s", job)
			}
		}
	}

	_, first := unit()
	release := h.Units().HoldJobs()
	job := begin("TryRestartUnit")
	if now, invocation := unit(); now.Path != job || now.ID == 0 || !bytes.Equal(invocation, first) {
		t.Errorf("held: job %v, invocation %x; expected %s and %x", now, invocation, job, first)
	}
	release()
	release() // a second call does nothing
	ends(job)
	now, second := unit()
	if now != noJob || bytes.Equal(first, second) {
		t.Errorf("afterwards: job %v, invocation %x, before it %x", now, second, first)
	}
	ends(begin("ReloadUnit"))
	if _, invocation := unit(); !bytes.Equal(invocation, second) {
		t.Errorf("a reload created another invocation ID")
	}
	must(t, manager().Call(systemdIface+".Reload", 0).Err)
	if err := manager().Call(systemdIface+".RestartUnit", 0, "b.service", "replace").Err; err == nil {
		t.Error("a unit that does not exist has a job")
	}
	if want := []string{"TryRestartUnit a.service", "ReloadUnit a.service", "Reload"}; !slices.Equal(h.Units().Jobs(), want) {
		t.Errorf("requested jobs %q, expected %q", h.Units().Jobs(), want)
	}

	h.Units().HoldJobs()
	begin("RestartUnit")
	must(t, h.Crash(CrashOptions{}))
	conn = connect(t, h)
	for end := time.Now().Add(90 * time.Second); manager().Call("org.freedesktop.DBus.Peer.Ping", 0).Err != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("timed out waiting for systemd after the crash")
		}
	}
	if now, _ := unit(); now != noJob {
		t.Errorf("the unit has the job %v in the next boot", now)
	}
}
