package memhost

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/testbed/engine"
	"lockkeeper.dev/lockkeeper/testbed/referee"
)

const (
	loginName  = "org.freedesktop.login1"
	loginPath  = dbus.ObjectPath("/org/freedesktop/login1")
	loginIface = "org.freedesktop.login1.Manager"
)

// RebootMode is what logind does with a call to reboot.
type RebootMode int

// The modes of logind.
const (
	Obey   RebootMode = iota
	Deny              // answers AccessDenied
	Hang              // neither answers nor reboots until the next boot
	Lose              // reboots, but its answer is lost
	Ignore            // answers with success and does nothing
)

// Logind is the host's systemd-logind over all boots. Its mode stays until it is set again; sessions and inhibitors last until
// the next boot. Its methods are safe for concurrent use.
type Logind struct {
	h       *Host
	removed atomic.Bool
	stalled atomic.Bool // its start hangs

	mu         sync.Mutex
	mode       RebootMode
	boot       *boot
	conn       *dbus.Conn // nil while logind does not run
	shutdown   *shutdown  // nil while there is none
	inhibitors map[*Inhibitor]bool
	freed      chan struct{} // closed and replaced when an inhibitor is released
	sessions   map[string]Session
}

// shutdown is a shutdown under way. systemd continues it if logind dies after it has queued its job.
type shutdown struct {
	queued bool // systemd has its job
	cancel context.CancelFunc
}

func newLogind(h *Host) *Logind { return &Logind{h: h} }

// OnReboot sets what logind does with calls to reboot from now on.
func (l *Logind) OnReboot(mode RebootMode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mode = mode
}

// Start starts logind again after Stop, Stall or Remove.
func (l *Logind) Start() error {
	l.removed.Store(false)
	l.stalled.Store(false)
	b := l.h.current()
	if b == nil {
		return fmt.Errorf("starting logind: %w", ErrDown)
	}
	return l.start(b)
}

// activate starts logind because of a query on the bus. It fails only if the bus is gone.
func (l *Logind) activate() {
	if b := l.h.current(); b != nil && !l.stalled.Load() {
		_ = l.start(b)
	}
}

// Stall ends logind, and its next start hangs until Start or the next boot. Meanwhile the bus keeps the calls that may start it.
func (l *Logind) Stall() {
	l.stalled.Store(true)
	l.Stop()
}

// Stop ends logind. The next query on the bus starts it again; a call to reboot does not. It keeps inhibitors and sessions, and forgets a shutdown that waits for inhibitors, as the real one does.
func (l *Logind) Stop() {
	l.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.shutdown; s != nil && !s.queued {
		s.cancel()
		l.shutdown = nil
	}
}

// Remove takes logind off the host, until Start: the bus does not know how to start it.
func (l *Logind) Remove() {
	l.removed.Store(true)
	l.Stop()
}

// stop takes logind off the bus.
func (l *Logind) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		engine.Drop(l.conn, loginName)
		l.conn = nil
	}
}

func (l *Logind) runs() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil
}

func (l *Logind) start(b *boot) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		return nil
	}
	if l.boot != b {
		l.boot, l.shutdown = b, nil
		l.inhibitors, l.sessions, l.freed = map[*Inhibitor]bool{}, map[string]Session{}, make(chan struct{})
	}
	conn, err := b.theBus().Connect()
	if err != nil {
		return fmt.Errorf("starting logind: %w", err)
	}
	err = conn.ExportMethodTable(map[string]any{
		"RebootWithFlags": func(m dbus.Message, flags uint64) *dbus.Error { return l.reboot(conn, m, flags) },
		"ListInhibitors":  func() ([]Inhibitor, *dbus.Error) { return l.Inhibitors(), nil },
		"ListSessions":    l.listSessions,
	}, loginPath, loginIface)
	if err == nil {
		err = objects{l.properties}.export(conn, loginPath)
	}
	if err == nil {
		err = engine.Own(conn, loginName)
	}
	if err != nil {
		conn.Close()
		return fmt.Errorf("starting logind: %w", err)
	}
	l.conn = conn
	l.stalled.Store(false)
	return nil
}

// RebootFrom describes a call to reboot in events: the unique name of its sender, and its serial number.
func RebootFrom(sender string, serial uint32) string {
	return fmt.Sprintf("RebootWithFlags from %s, call %d", sender, serial)
}

// reboot answers one call to reboot. It returns only after Event has received the event.
func (l *Logind) reboot(conn *dbus.Conn, m dbus.Message, flags uint64) *dbus.Error {
	sender, _ := m.Headers[dbus.FieldSender].Value().(string)
	l.mu.Lock()
	b, mode, running := l.boot, l.mode, l.conn == conn
	l.mu.Unlock()
	if !running {
		return dbus.MakeFailedError(ErrDown)
	}
	who := RebootFrom(sender, m.Serial())
	refuse := func(kind referee.Kind, name, text string) *dbus.Error {
		l.h.emit(kind, b.id, who+": "+text)
		return dbus.NewError(name, []any{text})
	}
	// logind asks the bus for the caller's credentials.
	ctx, cancel := context.WithTimeout(b.over, 10*time.Second)
	defer cancel()
	if err := conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetConnectionUnixUser", 0, sender).Err; err != nil {
		return refuse(CallerGone, "org.freedesktop.DBus.Error.AccessDenied", "No such device or address")
	}
	switch {
	case flags > 1:
		return refuse(referee.RebootRefused, "org.freedesktop.DBus.Error.InvalidArgs", "Invalid flags parameter")
	case mode == Deny:
		return refuse(referee.RebootRefused, "org.freedesktop.DBus.Error.AccessDenied", "Permission denied")
	case mode == Ignore:
		l.h.emit(referee.RebootRefused, b.id, who+": ignored")
		return nil
	case mode == Hang:
		l.h.emit(referee.RebootRefused, b.id, who+": it hangs")
		<-b.over.Done()
		return dbus.MakeFailedError(ErrDown)
	case l.holds("block"):
		// The text of systemd 257. The flag has root respect inhibitors; this logind never lets root pass.
		return refuse(referee.RebootRefused, "org.freedesktop.DBus.Error.AccessDenied", "Access denied due to active block inhibitor")
	}
	if !l.begin(b, func() {
		l.h.mu.Lock()
		l.h.reboots++
		l.h.mu.Unlock()
		l.h.emit(referee.RebootCalled, b.id, who)
	}) {
		return refuse(referee.RebootRefused, "org.freedesktop.login1.OperationInProgress", "There's already a shutdown or sleep operation in progress")
	}
	if mode == Lose {
		<-b.over.Done()
	}
	return nil
}

// begin begins the shutdown of a boot, unless one is under way. accepted is called before the shutdown begins.
func (l *Logind) begin(b *boot, accepted func()) bool {
	ctx, cancel := context.WithCancel(b.over)
	s := &shutdown{cancel: cancel}
	l.mu.Lock()
	if l.shutdown != nil || l.boot != b || b.over.Err() != nil {
		l.mu.Unlock()
		cancel()
		return false
	}
	l.shutdown = s
	l.mu.Unlock()
	accepted()
	l.announce(true)
	go func() {
		defer cancel()
		l.awaitDelays(ctx)
		l.mu.Lock()
		s.queued = ctx.Err() == nil
		l.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		l.h.units.setShuttingDown(true)
		if l.h.o.Stopping != nil {
			l.h.o.Stopping()
		}
		select {
		case <-ctx.Done():
		case <-time.After(l.h.o.ShutdownTakes):
			l.h.goDown(b)
		}
	}()
	return true
}

// announce sends PrepareForShutdown.
func (l *Logind) announce(active bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		_ = l.conn.Emit(loginPath, loginIface+".PrepareForShutdown", active) // fails only without a bus
	}
}

// Shutdown begins a reboot that no call on the bus asked for: an admin's, or a power button's. It reports false while one is
// under way, and while the host is down.
func (l *Logind) Shutdown(who string) bool {
	b := l.h.current()
	return b != nil && l.begin(b, func() { l.h.emit(Shutdown, b.id, who) })
}

// CancelShutdown calls off the shutdown that is under way, and reports whether there was one.
func (l *Logind) CancelShutdown() bool {
	l.mu.Lock()
	b, s := l.boot, l.shutdown
	if s == nil || b.over.Err() != nil {
		l.mu.Unlock()
		return false
	}
	s.cancel()
	l.shutdown = nil
	l.mu.Unlock()
	l.h.units.setShuttingDown(false)
	l.h.emit(ShutdownCanceled, b.id, "")
	l.announce(false)
	return true
}

// properties returns the properties of logind itself and of sessions.
func (l *Logind) properties(path dbus.ObjectPath, _ string) map[string]any {
	l.mu.Lock()
	defer l.mu.Unlock()
	if path == loginPath {
		return map[string]any{
			"PreparingForShutdown": l.shutdown != nil,
			"InhibitDelayMaxUSec":  uint64(l.h.o.InhibitDelayMax.Microseconds()),
		}
	}
	for id, s := range l.sessions {
		if sessionPath(id) == path {
			var since uint64
			if !s.Since.IsZero() {
				since = uint64(s.Since.UnixMicro())
			}
			return map[string]any{
				"Id": s.ID, "Name": s.User, "Class": cmp.Or(s.Class, "user"), "State": cmp.Or(s.State, "active"), "TTY": s.TTY, "Remote": false, "Timestamp": since,
			}
		}
	}
	return nil
}
