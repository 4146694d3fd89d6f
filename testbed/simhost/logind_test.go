package simhost

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

func reboot(ctx context.Context, conn *dbus.Conn) error {
	return login(conn).CallWithContext(ctx, loginIface+".RebootWithFlags", 0, uint64(0)).Err
}

func TestRefusedReboots(t *testing.T) {
	h, r := startHost(t, "refuse")
	ready(t, h)
	conn := connect(t, h)
	h.Logind().OnReboot(Deny)
	if err := reboot(soon(t), conn); err == nil || err.(dbus.Error).Name != "org.freedesktop.DBus.Error.AccessDenied" {
		t.Errorf("denied: %v", err)
	}
	h.Logind().OnReboot(Ignore)
	must(t, reboot(soon(t), conn))
	h.Logind().OnReboot(Hang)
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := reboot(short, conn); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the hanging logind answered: %v", err)
	}
	var preparing bool
	must(t, login(conn).StoreProperty(loginIface+".PreparingForShutdown", &preparing))
	r.waitFor(t, RebootRefused, 3) // the canceled call may arrive later
	if _, n := r.last(RebootRefused); n != 3 || preparing || h.Boots() != 1 || h.Reboots() != 0 {
		t.Errorf("%d RebootRefused events, preparing: %t, %d boots, %d reboots", n, preparing, h.Boots(), h.Reboots())
	}
	if _, n := r.last(RebootCalled); n != 0 {
		t.Errorf("%d RebootCalled events", n)
	}
	h.Logind().OnReboot(Lose)
	if err := reboot(soon(t), conn); err == nil {
		t.Error("the answer was not lost")
	}
	must(t, h.WaitBoots(soon(t), 2))
	if _, n := r.last(RebootCalled); n != 1 || h.Reboots() != 1 {
		t.Errorf("%d RebootCalled events, %d counted", n, h.Reboots())
	}
}

func TestSessions(t *testing.T) {
	h, _ := startHost(t, "sessions")
	conn := connect(t, h)
	list := func() (rows []sessionRow) {
		t.Helper()
		must(t, login(conn).Call(loginIface+".ListSessions", 0).Store(&rows))
		return rows
	}
	if rows := list(); len(rows) != 0 {
		t.Errorf("before the login: %+v", rows)
	}
	must(t, h.Logind().SetSessions(Session{ID: "7", User: "anna", UID: 1000, TTY: "pts/0", Remote: true}))
	rows := list()
	if len(rows) != 1 || rows[0].ID != "7" || rows[0].User != "anna" || rows[0].UID != 1000 {
		t.Fatalf("sessions %+v", rows)
	}
	var props map[string]dbus.Variant
	must(t, conn.Object(loginName, rows[0].Path).Call("org.freedesktop.DBus.Properties.GetAll", 0, sessionIface).Store(&props))
	if props["Class"].Value() != "user" || props["State"].Value() != "active" || props["TTY"].Value() != "pts/0" || props["Remote"].Value() != true {
		t.Errorf("properties %v", props)
	}
	must(t, h.Logind().SetSessions())
	err := conn.Object(loginName, rows[0].Path).Call("org.freedesktop.DBus.Properties.GetAll", 0, sessionIface).Err
	if len(list()) != 0 || err == nil || !strings.Contains(err.Error(), "bject") {
		t.Errorf("after the logout: %v; %v", list(), err)
	}
}

func TestBusGoesAndComesBack(t *testing.T) {
	h, _ := startHost(t, "bus")
	ready(t, h)
	must(t, h.StageUpdate("4.2.0"))
	before := connect(t, h)
	must(t, h.RestartBus(soon(t), 0))
	if err := reboot(soon(t), before); err == nil {
		t.Error("a connection survived the restart of the bus")
	}
	conn := connect(t, h)
	if s := status(t, conn); s.Operation != OpNeedReboot || s.NewVersion != "0.0.0" {
		t.Errorf("engine after the restart: %+v", s)
	}
	if held := h.Logind().Inhibitors(); len(held) != 1 || held[0].Who != "kubelet" {
		t.Errorf("inhibitors after the restart: %+v", held)
	}
	must(t, reboot(soon(t), conn))
	must(t, h.WaitBoots(soon(t), 2))
	if h.Version() != "4.2.0" {
		t.Errorf("booted %s", h.Version())
	}
}

func TestLogindGoesAndComesBack(t *testing.T) {
	h, _ := startHost(t, "logind")
	conn := connect(t, h)
	h.Logind().Stop()
	if err := reboot(soon(t), conn); err == nil || !strings.HasSuffix(err.(dbus.Error).Name, ".ServiceUnknown") {
		t.Errorf("no logind: %v", err)
	}
	must(t, h.Logind().Start())
	if held := h.Logind().Inhibitors(); len(held) != 1 || held[0].Who != "kubelet" {
		t.Errorf("inhibitors after the restart: %+v", held)
	}
	must(t, reboot(soon(t), conn))
	must(t, h.WaitBoots(soon(t), 2))
}
