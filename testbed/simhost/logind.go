package simhost

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"

	"lockkeeper.dev/lockkeeper/testbed/engine"
)

// Names of logind on the bus.
const (
	loginName    = "org.freedesktop.login1"
	loginPath    = dbus.ObjectPath("/org/freedesktop/login1")
	loginIface   = "org.freedesktop.login1.Manager"
	sessionIface = "org.freedesktop.login1.Session"
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

// Session is a login session.
type Session struct {
	ID     string // letters and digits
	User   string
	UID    uint32
	TTY    string
	Remote bool
	Class  string // "" is "user"
	State  string // "" is "active"
	Since  time.Time
}

// Logind is the simulated systemd-logind of a host. It exists over all boots. Its settings stay until they are set
// again; sessions and inhibitors last only until the next boot. Its methods are safe for concurrent use.
type Logind struct {
	h *Host

	mu         sync.Mutex
	mode       RebootMode
	boot       *boot
	conn       *dbus.Conn // nil while logind does not run
	props      *prop.Properties
	preparing  bool
	inhibitors map[*inhibitor]struct{}
	freed      chan struct{} // closed and replaced when an inhibitor is released
	sessions   map[string]Session
	terminals  []*Terminal
}

// OnReboot sets what logind does with calls to reboot from now on.
func (l *Logind) OnReboot(mode RebootMode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mode = mode
}

// Start starts logind again after Stop.
func (l *Logind) Start() error {
	b := l.h.current()
	if b == nil {
		return fmt.Errorf("starting logind: %w", errDown)
	}
	return l.start(b)
}

// Stop ends logind and releases its name on the bus. Inhibitors remain, as the real logind keeps them over a restart.
func (l *Logind) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		engine.Drop(l.conn, loginName)
		l.conn = nil
	}
}

// hangUp closes all terminals when their boot ends.
func (l *Logind) hangUp() {
	l.mu.Lock()
	terminals := l.terminals
	l.terminals = nil
	l.mu.Unlock()
	for _, t := range terminals {
		t.hangUp()
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
		l.boot, l.preparing = b, false
		l.inhibitors, l.sessions, l.freed = map[*inhibitor]struct{}{}, map[string]Session{}, make(chan struct{})
	}
	sent := newSentFiles()
	conn, err := b.theBus().connect(dbus.WithSerialGenerator(sent), dbus.WithOutgoingInterceptor(sent.sending))
	if err != nil {
		return fmt.Errorf("starting logind: %w", err)
	}
	if err := l.export(conn, sent); err != nil {
		conn.Close()
		return fmt.Errorf("starting logind: %w", err)
	}
	l.conn = conn
	return nil
}

func (l *Logind) export(conn *dbus.Conn, sent *sentFiles) error {
	err := conn.ExportMethodTable(map[string]any{
		"RebootWithFlags": func(m dbus.Message, flags uint64) *dbus.Error { return l.reboot(m, "RebootWithFlags", flags <= 1) },
		"Reboot":          func(m dbus.Message, interactive bool) *dbus.Error { return l.reboot(m, "Reboot", true) },
		"Inhibit": func(sender dbus.Sender, what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
			return l.inhibit(sent, string(sender), what, who, why, mode)
		},
		"ListInhibitors": l.listInhibitors,
		"ListSessions":   l.listSessions,
	}, loginPath, loginIface)
	if err != nil {
		return err
	}
	constant := func(v any) *prop.Prop { return &prop.Prop{Value: v, Emit: prop.EmitFalse} }
	l.props, err = prop.Export(conn, loginPath, prop.Map{loginIface: {
		"PreparingForShutdown": constant(l.preparing),
		"InhibitDelayMaxUSec":  constant(uint64(l.h.opts.InhibitDelayMax.Microseconds())),
	}})
	if err != nil {
		return err
	}
	for _, s := range l.sessions {
		if err := exportSession(conn, s); err != nil {
			return err
		}
	}
	return engine.Own(conn, loginName)
}

// reboot answers one call to reboot. It returns only after the observers of the host's events have received the event.
func (l *Logind) reboot(m dbus.Message, method string, known bool) *dbus.Error {
	sender, _ := m.Headers[dbus.FieldSender].Value().(string)
	l.mu.Lock()
	b, conn, mode := l.boot, l.conn, l.mode
	l.mu.Unlock()
	if conn == nil {
		return dbus.MakeFailedError(errDown)
	}
	who := fmt.Sprintf("%s from pid %d", method, pidOf(conn, sender))
	refuse := func(name, text string) *dbus.Error {
		l.h.emit(RebootRefused, b.id, who+": "+text)
		return dbus.NewError(name, []any{text})
	}
	if !known {
		return refuse("org.freedesktop.DBus.Error.InvalidArgs", "Invalid flags parameter")
	}
	switch mode {
	case Deny:
		return refuse("org.freedesktop.DBus.Error.AccessDenied", "Permission denied")
	case Hang:
		l.h.emit(RebootRefused, b.id, who+": it hangs")
		<-b.theBus().proc.gone
		return dbus.MakeFailedError(errDown)
	case Ignore:
		l.h.emit(RebootRefused, b.id, who+": ignored")
		return nil
	}
	if !l.prepare(b) {
		return refuse("org.freedesktop.login1.OperationInProgress", "There's already a shutdown or sleep operation in progress")
	}
	l.h.countReboot()
	l.h.emit(RebootCalled, b.id, who)
	if !l.announceShutdown(b) {
		return dbus.MakeFailedError(errDown) // the host lost power in the meantime
	}
	l.h.task(func() {
		l.awaitDelays(b)
		l.h.shutDown(b)
	})
	if mode == Lose {
		<-b.theBus().proc.gone
	}
	return nil
}

// prepare claims the one shutdown of this boot.
func (l *Logind) prepare(b *boot) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.preparing || l.boot != b {
		return false
	}
	l.preparing = true
	return true
}

// announceShutdown sends PrepareForShutdown on the bus.
func (l *Logind) announceShutdown(b *boot) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.boot != b || l.conn == nil || b.ctx.Err() != nil {
		return false
	}
	l.props.SetMust(loginIface, "PreparingForShutdown", true)
	_ = l.conn.Emit(loginPath, loginIface+".PrepareForShutdown", true)
	return true
}

// pidOf asks the bus for the PID of a connection. It returns 0 if the bus does not know it.
func pidOf(conn *dbus.Conn, sender string) uint32 {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var pid uint32
	_ = conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetConnectionUnixProcessID", 0, sender).Store(&pid)
	return pid
}

// SetSessions sets the login sessions until the next boot.
func (l *Logind) SetSessions(sessions ...Session) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		return errors.New("logind does not run")
	}
	for id := range l.sessions {
		if err := l.conn.Export(nil, sessionPath(id), "org.freedesktop.DBus.Properties"); err != nil {
			return err
		}
	}
	clear(l.sessions)
	for _, s := range sessions {
		if err := exportSession(l.conn, s); err != nil {
			return err
		}
		l.sessions[s.ID] = s
	}
	return nil
}

func sessionPath(id string) dbus.ObjectPath {
	return loginPath + "/session/_" + dbus.ObjectPath(fmt.Sprintf("%x", id))
}

func exportSession(conn *dbus.Conn, s Session) error {
	text := func(s, fallback string) *prop.Prop {
		if s == "" {
			s = fallback
		}
		return &prop.Prop{Value: s, Emit: prop.EmitFalse}
	}
	var since uint64
	if !s.Since.IsZero() {
		since = uint64(s.Since.UnixMicro())
	}
	_, err := prop.Export(conn, sessionPath(s.ID), prop.Map{sessionIface: {
		"Id": text(s.ID, ""), "Name": text(s.User, ""), "Class": text(s.Class, "user"), "State": text(s.State, "active"),
		"TTY": text(s.TTY, ""), "Remote": {Value: s.Remote}, "Timestamp": {Value: since},
	}})
	if err != nil {
		return fmt.Errorf("exporting session %s: %w", s.ID, err)
	}
	return nil
}

type sessionRow struct {
	ID   string
	UID  uint32
	User string
	Seat string
	Path dbus.ObjectPath
}

func (l *Logind) listSessions() ([]sessionRow, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rows := []sessionRow{}
	for _, id := range slices.Sorted(maps.Keys(l.sessions)) {
		s := l.sessions[id]
		rows = append(rows, sessionRow{s.ID, s.UID, s.User, "", sessionPath(s.ID)})
	}
	return rows, nil
}
