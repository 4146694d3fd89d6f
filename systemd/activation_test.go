package systemd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// TestRebootStartsNoLogind checks that a reboot is called only on a logind that runs. The bus starts logind for a
// query, and keeps messages until logind has its name. A reboot among these messages would come too late.
func TestRebootStartsNoLogind(t *testing.T) {
	b := newBus(t)
	b.Stop()
	b.Activatable(loginName, fmt.Sprintf("%s -test.run=^TestSlowLogind$ %s", os.Args[0], b.dir))
	b.Start()
	l := testLogind(t, b)
	started := func() bool {
		_, err := os.Stat(filepath.Join(b.dir, "started"))
		return err == nil
	}
	reboot := func(when string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := l.Reboot(ctx)
		if e, ok := errors.AsType[*CallError](err); !ok || !errors.Is(err, ErrAbsent) || !e.Refused() {
			t.Errorf("%s: %v, expected a certain refusal because logind does not run", when, err)
		}
	}

	reboot("without logind")
	if underway, err := l.RebootUnderway(t.Context()); underway || err == nil {
		t.Errorf("reboot in progress: %t, %v; expected an error, because neither logind nor systemd runs", underway, err)
	}
	if started() {
		t.Error("the reboot, or the query whether one is in progress, started logind")
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := l.BlockingInhibitors(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("query to a starting logind: %v, expected a timeout", err)
	}
	eventually(t, "the query to start logind", started)
	reboot("while logind starts")

	must(t, os.WriteFile(filepath.Join(b.dir, "go"), nil, 0o600))
	eventually(t, "logind answers", func() bool {
		_, err := l.BlockingInhibitors(t.Context())
		return err == nil
	})
	calls := func() (calls []string) {
		must(t, b.Connect().Object(loginName, loginPath).Call("test.Logind.Calls", 0).Store(&calls))
		return calls
	}
	if got := calls(); len(got) > 0 {
		t.Errorf("logind got %v after its start, long after the calls were canceled", got)
	}
	must(t, l.Reboot(t.Context()))
	if got := calls(); !slices.Equal(got, []string{"RebootWithFlags(1)"}) {
		t.Errorf("with a running logind: calls %v", got)
	}
}

// TestSlowLogind is the logind that the bus starts in TestRebootStartsNoLogind. It takes its name when the file "go"
// exists in the directory that its argument names, and ends with the bus.
func TestSlowLogind(t *testing.T) {
	dir := flag.Arg(0)
	if dir == "" {
		t.Skip("the bus starts this")
	}
	must(t, os.WriteFile(filepath.Join(dir, "started"), nil, 0o600))
	eventually(t, "the file go", func() bool {
		_, err := os.Stat(filepath.Join(dir, "go"))
		return err == nil
	})
	b := &testBus{t: t, Address: os.Getenv("DBUS_STARTER_ADDRESS")}
	conn := b.Connect()
	f := newLoginOn(t, conn)
	must(t, conn.ExportMethodTable(map[string]any{
		"Calls": func() ([]string, *dbus.Error) { return f.called(), nil },
	}, loginPath, "test.Logind"))
	own(t, conn, loginName)
	<-conn.Context().Done()
}

// TestUnitsStartNoSystemd checks that the bus does not keep a call that changes systemd for a systemd that does not
// run.
func TestUnitsStartNoSystemd(t *testing.T) {
	b := newBus(t)
	b.Stop()
	started := filepath.Join(b.dir, "started")
	b.Activatable(managerName, "/bin/touch "+started)
	b.Start()
	u := Units{Bus: &Bus{Address: b.Address}}
	defer u.Bus.Close()
	soon := time.Now().Add(time.Minute)
	for name, call := range map[string]func(context.Context) error{
		"DaemonReload": func(ctx context.Context) error { return u.DaemonReload(ctx, soon) },
		"Reload":       func(ctx context.Context) error { _, err := u.Reload(ctx, "a.service", soon); return err },
		"Restart":      func(ctx context.Context) error { _, err := u.Restart(ctx, "a.service", soon); return err },
		"RunTarget":    func(ctx context.Context) error { _, err := u.RunTarget(ctx, "a.target", soon, nil); return err },
		"StopTarget":   func(ctx context.Context) error { return u.StopTarget(ctx, "a.target") },
		"StartUnit":    func(ctx context.Context) error { return u.order(ctx, time.Time{}, "StartUnit", "a.service") },
	} {
		if err := call(t.Context()); !errors.Is(err, ErrAbsent) {
			t.Errorf("%s: %v, expected the error that systemd does not run", name, err)
		}
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("the bus tried to start systemd")
	}
}

// TestRebootGivenUpHasNoCaller checks that a canceled call has no caller any more. The real logind asks the bus for the
// caller before it reboots.
func TestRebootGivenUpHasNoCaller(t *testing.T) {
	b := newBus(t)
	f := newLogin(t, b)
	hang := make(chan struct{})
	defer close(hang)
	f.on(nil, hang)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- testLogind(t, b).Reboot(ctx) }()
	eventually(t, "the call to arrive", func() bool { return len(f.called()) == 1 })
	f.mu.Lock()
	caller := f.callers[0]
	f.mu.Unlock()
	connected := func() (owned bool) {
		must(t, f.conn.BusObject().Call(dbusName+".NameHasOwner", 0, string(caller)).Store(&owned))
		return owned
	}
	if !connected() {
		t.Fatal("the caller was gone before the call was canceled")
	}
	cancel()
	err := <-result
	if e, ok := errors.AsType[*CallError](err); !ok || e.Refused() || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, expected an unknown outcome", err)
	}
	eventually(t, "the caller to disconnect", func() bool { return !connected() })
}

// TestRebootGivenUpClosesAtOnce checks that the cancel of a call does not wait for a bus that hangs: messages that the
// bus still has must not reach logind with a caller.
func TestRebootGivenUpClosesAtOnce(t *testing.T) {
	b := newBus(t)
	f := newLogin(t, b)
	hang := make(chan struct{})
	defer close(hang)
	f.on(nil, hang)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- testLogind(t, b).Reboot(ctx) }()
	eventually(t, "the call to arrive", func() bool { return len(f.called()) == 1 })
	defer b.Freeze()()
	began := time.Now()
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if d := time.Since(began); d >= pingTimeout {
		t.Errorf("the cancel took %v: it waited for the bus", d)
	}
}
