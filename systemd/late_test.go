package systemd

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// TestSlowDaemonReload checks that a daemon-reload may take longer than other calls, because systemd reads all unit files and runs its
// generators. Without an answer it would be asked for again and again.
func TestSlowDaemonReload(t *testing.T) {
	b := newBus(t)
	conn := b.Connect()
	slow := make(chan struct{})
	must(t, conn.ExportMethodTable(map[string]any{
		"Reload": func() *dbus.Error { <-slow; return nil },
	}, managerPath, managerIface))
	own(t, conn, managerName)
	u := Units{Bus: &Bus{Address: b.Address}}
	defer u.Bus.Close()
	_, err := u.Bus.connect(t.Context())
	must(t, err)
	u.Bus.timeout = 100 * time.Millisecond // for other calls
	time.AfterFunc(500*time.Millisecond, func() { close(slow) })
	if err := u.DaemonReload(t.Context(), time.Now().Add(time.Minute)); err != nil {
		t.Error(err)
	}
}

// TestDaemonReloadInTime checks that a call is not sent after its deadline, when the bus is slow to accept a
// connection, because the caller's checks are too old by then.
func TestDaemonReloadInTime(t *testing.T) {
	b := newBus(t)
	var reloads atomic.Int32
	conn := b.Connect()
	must(t, conn.ExportMethodTable(map[string]any{
		"Reload": func() *dbus.Error { reloads.Add(1); return nil },
	}, managerPath, managerIface))
	if _, err := conn.RequestName(managerName, 0); err != nil {
		t.Fatal(err)
	}
	u := Units{Bus: &Bus{Address: b.Address}}
	defer u.Bus.Close()
	thaw := b.Freeze()
	defer thaw()
	by := time.Now().Add(100 * time.Millisecond)
	time.AfterFunc(500*time.Millisecond, thaw)
	if err := u.DaemonReload(t.Context(), by); !errors.Is(err, ErrTooLate) || reloads.Load() > 0 {
		t.Errorf("%d reloads, error %v; expected none and ErrTooLate", reloads.Load(), err)
	}
	if err := u.DaemonReload(t.Context(), time.Now().Add(time.Minute)); err != nil || reloads.Load() != 1 {
		t.Errorf("%d reloads, error %v; want one", reloads.Load(), err)
	}
}
