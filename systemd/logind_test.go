package systemd

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

func testLogind(t *testing.T, b *testBus) Logind {
	bus := &Bus{Address: b.Address}
	t.Cleanup(func() { bus.Close() })
	return Logind{Bus: bus}
}

func TestReboot(t *testing.T) {
	b := newBus(t)
	f := newLogin(t, b)
	if err := testLogind(t, b).Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.called(); !slices.Equal(got, []string{"RebootWithFlags(1)"}) {
		t.Errorf("called %v", got)
	}
}

func TestInhibited(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       bool
	}{
		{"org.freedesktop.DBus.Error.AccessDenied", "Access denied to root due to active block inhibitor", true},  // systemd 252
		{"org.freedesktop.DBus.Error.AccessDenied", "Access denied due to active block inhibitor", true},          // systemd 257
		{"org.freedesktop.login1.BlockedByInhibitorLock", "Operation denied due to active block inhibitor", true}, // later ones
		{"org.freedesktop.DBus.Error.AccessDenied", "Permission denied", false},
		{"org.freedesktop.login1.OperationInProgress", "There's already a shutdown or sleep operation in progress", false},
	} {
		b := newBus(t)
		f := newLogin(t, b)
		f.on(dbus.NewError(c.name, []any{c.text}), nil)
		if err := testLogind(t, b).Reboot(t.Context()); err == nil || Inhibited(err) != c.want {
			t.Errorf("%s: %t (%v)", c.text, Inhibited(err), err)
		}
	}
	if Inhibited(nil) || Inhibited(errors.New("inhibitor")) {
		t.Error("no error without an answer from logind")
	}
}

func TestRebootRefused(t *testing.T) {
	for _, name := range []string{
		"org.freedesktop.DBus.Error.AccessDenied",
		"org.freedesktop.login1.BlockedByInhibitorLock",
		"org.freedesktop.login1.OperationInProgress",
	} {
		b := newBus(t)
		f := newLogin(t, b)
		f.on(dbus.NewError(name, []any{"Operation inhibited by \"apt\"\n(PID 1)"}), nil)
		err := testLogind(t, b).Reboot(t.Context())
		e, ok := errors.AsType[*CallError](err)
		if !ok || e.Name != name || !e.Refused() || !strings.Contains(err.Error(), `inhibited by "apt" (PID 1)`) {
			t.Errorf("%s: got %v", name, err)
		}
		if got := f.called(); !slices.Equal(got, []string{"RebootWithFlags(1)"}) {
			t.Errorf("%s: calls %v: a refused call must not be repeated", name, got)
		}
	}
}

// TestRebootWithoutAnswer checks that a missing answer is not a refusal: the reboot may be in progress.
func TestRebootWithoutAnswer(t *testing.T) {
	b := newBus(t)
	f := newLogin(t, b)
	hang := make(chan struct{})
	defer close(hang)
	f.on(nil, hang)
	l := testLogind(t, b)
	if _, err := l.BlockingInhibitors(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.Bus.timeout = 2 * time.Second // the time in which the bus has to answer
	began := time.Now()
	err := l.Reboot(t.Context())
	e, ok := errors.AsType[*CallError](err)
	if !ok || e.Refused() || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if d := time.Since(began); d > time.Minute {
		t.Errorf("the call took %v", d)
	}
	if len(f.called()) != 1 {
		t.Errorf("called %v", f.called())
	}
	if present(l.Bus) == nil {
		t.Error("the shared connection was closed although the bus answers")
	}
}

func TestLogindDiesDuringACall(t *testing.T) {
	for _, who := range []string{"logind", "bus"} {
		b := newBus(t)
		f := newLogin(t, b)
		hang := make(chan struct{})
		f.on(nil, hang)
		result := make(chan error, 1)
		go func() { result <- testLogind(t, b).Reboot(t.Context()) }()
		eventually(t, "the call to arrive", func() bool { return len(f.called()) == 1 })
		if who == "bus" {
			b.Stop()
		} else {
			f.conn.Close()
		}
		err := <-result
		if e, ok := errors.AsType[*CallError](err); !ok || e.Refused() || errors.Is(err, ErrAbsent) {
			t.Errorf("%s died: %v", who, err)
		}
		close(hang)
	}
}

func TestNoLogindOrNoBus(t *testing.T) {
	b := newBus(t)
	l := testLogind(t, b)
	err := l.Reboot(t.Context())
	if e, ok := errors.AsType[*CallError](err); !ok || !e.Refused() || !errors.Is(err, ErrAbsent) {
		t.Errorf("no logind: %v", err)
	}
	b.Stop()
	err = l.Reboot(t.Context())
	if e, ok := errors.AsType[*CallError](err); !ok || !e.Refused() || errors.Is(err, ErrAbsent) {
		t.Errorf("no bus: %v", err)
	}
	b.Start()
	newLogin(t, b)
	if err := l.Reboot(t.Context()); err != nil {
		t.Errorf("bus and logind came back: %v", err)
	}
}

func TestBlockingInhibitors(t *testing.T) {
	b := newBus(t)
	newLogin(t, b)
	got, err := testLogind(t, b).BlockingInhibitors(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []Inhibitor{
		{What: []string{"shutdown", "sleep"}, Who: "apt", Why: "upgrade in progress", Mode: "block", UID: 0, PID: 123},
		{What: []string{"shutdown"}, Who: "desk", Why: "meeting", Mode: "block-weak", UID: 1000, PID: 78},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestSessions(t *testing.T) {
	b := newBus(t)
	newLogin(t, b)
	got, err := testLogind(t, b).Sessions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []Session{
		{ID: "1", User: "anna", UID: 1000, TTY: "tty1"},
		{ID: "2", User: "bert", UID: 1000, TTY: "pts/0"},
		{ID: "7", User: "root", UID: 1000, TTY: "tty2"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestRebootUnderway(t *testing.T) {
	job := func(unit, kind string) jobRow { return jobRow{1, unit, kind, "waiting", "/j", "/u"} }
	for _, c := range []struct {
		name           string
		login, systemd bool
		odd            bool // logind answers with an error
		preparing      bool
		jobs           []jobRow
		want, fails    bool
	}{
		{name: "quiet", login: true, systemd: true, jobs: []jobRow{job("apt-daily.service", "start"), job("shutdown.target", "stop")}},
		{name: "preparing", login: true, systemd: true, preparing: true, want: true},
		{name: "preparing, no systemd", login: true, preparing: true, want: true},
		{name: "reboot queued", login: true, systemd: true, jobs: []jobRow{job("reboot.target", "start")}, want: true},
		{name: "kexec queued", login: true, systemd: true, jobs: []jobRow{job("a.service", "stop"), job("kexec.target", "start")}, want: true},
		{name: "shutdown queued, logind gone", systemd: true, jobs: []jobRow{job("shutdown.target", "start")}, want: true},
		{name: "no systemd", login: true},
		{name: "no logind", systemd: true},
		{name: "neither", fails: true},
		{name: "logind answers with an error", odd: true, systemd: true, fails: true},
		{name: "the same, reboot queued", odd: true, systemd: true, jobs: []jobRow{job("reboot.target", "start")}, want: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBus(t)
			if c.odd {
				_, err := b.Connect().RequestName(loginName, dbus.NameFlagDoNotQueue)
				must(t, err)
			}
			if c.login {
				newLogin(t, b).setPreparing(c.preparing)
			}
			if c.systemd {
				newSystemd(t, b, "running", nil, c.jobs...)
			}
			got, err := testLogind(t, b).RebootUnderway(t.Context())
			if got != c.want || (err != nil) != c.fails {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

// watch runs WatchShutdown until the test ends and records what it reports.
func watch(t *testing.T, l Logind) (reported func() []bool) {
	t.Helper()
	var mu sync.Mutex
	var got []bool
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		err := l.WatchShutdown(ctx, func(active bool) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, active)
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("WatchShutdown: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return func() []bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(got)
	}
}

func TestWatchShutdown(t *testing.T) {
	b := newBus(t)
	f := newLogin(t, b)
	reported := watch(t, testLogind(t, b))
	listening(t, b, loginManager)
	f.prepare(t, true)
	eventually(t, "the shutdown to be reported", func() bool { return slices.Equal(reported(), []bool{true}) })
	f.prepare(t, false)
	eventually(t, "the end of the shutdown to be reported", func() bool { return slices.Equal(reported(), []bool{true, false}) })

	b.Stop()
	b.Start()
	f = newLogin(t, b)
	listening(t, b, loginManager)
	f.prepare(t, true)
	eventually(t, "a report from the new bus", func() bool { return slices.Equal(reported(), []bool{true, false, true}) })
}

func TestWatchShutdownStartsInTheMiddle(t *testing.T) {
	b := newBus(t)
	newLogin(t, b).setPreparing(true)
	reported := watch(t, testLogind(t, b))
	eventually(t, "the running shutdown to be reported", func() bool { return slices.Equal(reported(), []bool{true}) })
}

// TestForgedPrepareForShutdown checks that a forged signal, even one sent only to this connection, has no effect: it
// neither causes a query to logind nor costs the host its Lease.
func TestForgedPrepareForShutdown(t *testing.T) {
	b := newBus(t)
	f := newLogin(t, b)
	l := testLogind(t, b)
	reported := watch(t, l)
	eventually(t, "the first read", func() bool { return f.props.read() > 0 })
	forger := b.Connect()
	victim := present(l.Bus).Names()[0]
	name := loginName
	for _, dest := range []string{victim, ""} {
		for _, forged := range []struct {
			path          dbus.ObjectPath
			iface, member string
			body          []any
		}{
			{loginPath, loginManager, "PrepareForShutdown", []any{true}},
			{"/org/freedesktop/DBus", dbusName, "NameOwnerChanged", []any{name, "", forger.Names()[0]}},
		} {
			msg := &dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
				dbus.FieldPath: dbus.MakeVariant(forged.path), dbus.FieldInterface: dbus.MakeVariant(forged.iface),
				dbus.FieldMember: dbus.MakeVariant(forged.member), dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(forged.body...)),
			}, Body: forged.body}
			if dest != "" {
				msg.Headers[dbus.FieldDestination] = dbus.MakeVariant(dest)
			}
			must(t, forger.Send(msg, nil).Err)
		}
	}
	// The bus keeps the order of one sender, so it has processed the signals when it answers the forger.
	must(t, forger.BusObject().Call("org.freedesktop.DBus.GetId", 0).Err)
	seen := f.props.read()
	f.prepare(t, true)
	eventually(t, "the real signal to be reported", func() bool { return slices.Equal(reported(), []bool{true}) })
	if n := f.props.read() - seen; n != 1 {
		t.Errorf("%d reads, expected one for the real signal", n)
	}
}

// present returns the connection of a Bus, or nil.
func present(b *Bus) *connection {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.conn
}

// listening waits until a process has subscribed to signals of an interface.
func listening(t *testing.T, b *testBus, iface string) {
	t.Helper()
	conn := b.Connect()
	eventually(t, "a match rule for "+iface, func() bool {
		var rules map[string][]string
		err := conn.BusObject().Call("org.freedesktop.DBus.Debug.Stats.GetAllMatchRules", 0).Store(&rules)
		if err != nil {
			t.Fatal(err)
		}
		for _, of := range rules {
			if slices.ContainsFunc(of, func(r string) bool { return strings.Contains(r, iface) }) {
				return true
			}
		}
		return false
	})
}

func TestFrozenBusIsBounded(t *testing.T) {
	b := newBus(t)
	newLogin(t, b)
	l := testLogind(t, b)
	if _, err := l.BlockingInhibitors(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.Bus.timeout = 200 * time.Millisecond
	thaw := b.Freeze()
	defer thaw()
	for range 2 { // once on the old connection, once on a new one
		if _, err := l.BlockingInhibitors(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if present(l.Bus) != nil {
			t.Error("a connection to a silent bus was kept")
		}
	}
	thaw()
	eventually(t, "a successful call after the thaw", func() bool {
		_, err := l.BlockingInhibitors(t.Context())
		return err == nil
	})
}
