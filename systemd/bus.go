package systemd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/godbus/dbus/v5"
)

const (
	callTimeout = 10 * time.Second // one call, connecting included
	pingTimeout = 2 * time.Second  // for the bus itself, after a service did not answer
	dbusName    = "org.freedesktop.DBus"

	maxText = 256 // bytes of any text that others wrote: inhibitors' reasons, user names, errors
)

// ErrAbsent means that the bus answers and nobody owns the name that was asked: no logind or no systemd on it.
var ErrAbsent = errors.New("no such service on the bus")

// CallError is what became of a D-Bus call that failed.
type CallError struct {
	// Method in the notation interface.Member.
	Method string
	// Name of the D-Bus error, as org.freedesktop.DBus.Error.AccessDenied; "" when no answer came at all.
	Name string
	// Message is the other side's text (sanitised, at most 256 bytes), "" when no answer came.
	Message string
	// Err is the cause when no answer came: no bus, connection lost, time out, the caller's context.
	Err error
}

func (e *CallError) Error() string {
	switch {
	case e.Name == "":
		return fmt.Sprintf("%s: %v", e.Method, e.Err)
	case e.Message == "" || e.Message == e.Name:
		return fmt.Sprintf("%s: %s", e.Method, e.Name)
	}
	return fmt.Sprintf("%s: %s: %s", e.Method, e.Name, e.Message)
}

func (e *CallError) Unwrap() error { return e.Err }

// Is makes errors.Is(err, ErrAbsent) true for the bus's own words that nobody owns the name.
func (e *CallError) Is(target error) bool {
	return target == ErrAbsent && (e.Name == dbusName+".Error.NameHasNoOwner" || e.Name == dbusName+".Error.ServiceUnknown")
}

// Refused reports whether the call is known not to have been carried out: somebody answered with an error. If it
// is false the outcome is unknown: the call may have been carried out and the answer lost.
func (e *CallError) Refused() bool {
	switch e.Name {
	case "", dbusName + ".Error.NoReply", dbusName + ".Error.Timeout", dbusName + ".Error.TimedOut", dbusName + ".Error.Disconnected":
		return errors.Is(e.Err, errNotSent)
	}
	return true
}

// errNotSent marks calls that never left this process.
var errNotSent = errors.New("no connection to the bus")

// Bus is a lazily made connection to a message bus, shared by Logind and Units. A connection that breaks is made
// anew by the next call. The zero value is the system bus, ready for use; do not copy it.
type Bus struct {
	// Address in D-Bus's notation (unix:path=... or unix:abstract=...); "" is the system bus, or what
	// DBUS_SYSTEM_BUS_ADDRESS names. Not to be changed after the first call.
	Address string

	timeout time.Duration // callTimeout but in tests
	revoke  bool          // a call that is given up closes the connection; see Reboot

	gate sync.Mutex // held while connecting, which is bounded
	mu   sync.Mutex
	conn *dbus.Conn
	subs map[*subscription]struct{}
}

// Close drops the connection. A later call makes a new one.
func (b *Bus) Close() error {
	b.drop(nil)
	return nil
}

func (b *Bus) limit() time.Duration {
	if b.timeout > 0 {
		return b.timeout
	}
	return callTimeout
}

// target is one object of a service.
type target struct {
	service string
	path    dbus.ObjectPath
	// mayStart lets the bus start a service that does not run and keep the call for it. The call may then arrive long
	// after the caller has given up, so only queries may set this, never a call that changes something on the host.
	mayStart bool
}

func (t target) flags() dbus.Flags {
	if t.mayStart {
		return 0
	}
	return dbus.FlagNoAutoStart
}

// call calls a method, connecting if need be, and gives the reply's body. All errors are *CallError.
func (b *Bus) call(ctx context.Context, t target, method string, args ...any) ([]any, error) {
	return b.callWithin(ctx, b.limit(), time.Time{}, t, method, args...)
}

// callWithin is call for a method that may take longer than others, and for one that must not be called after by, the zero
// time for none: the error matches ErrTooLate then, however long it took to connect.
func (b *Bus) callWithin(ctx context.Context, limit time.Duration, by time.Time, t target, method string, args ...any) ([]any, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v: %w", limit, context.DeadlineExceeded))
	defer cancel()
	for attempt := 1; ; attempt++ {
		connecting, connected := context.WithTimeout(ctx, b.limit())
		conn, err := b.connect(connecting)
		connected()
		if err == nil && !by.IsZero() && time.Now().After(by) {
			err = ErrTooLate
		}
		if err != nil {
			return nil, &CallError{Method: method, Err: fmt.Errorf("%w: %w", errNotSent, err)}
		}
		call := conn.Object(t.service, t.path).CallWithContext(ctx, method, t.flags(), args...)
		if call.Err == nil {
			return call.Body, nil
		}
		var answer dbus.Error
		switch {
		case errors.As(call.Err, &answer):
			return nil, &CallError{Method: method, Name: printable(answer.Name, maxText), Message: printable(answer.Error(), maxText)}
		case ctx.Err() != nil:
			if b.revoke {
				b.drop(conn)
			} else {
				b.dropIfSilent(conn)
			}
			return nil, &CallError{Method: method, Err: context.Cause(ctx)}
		}
		b.drop(conn)
		if neverSent(call.Err) {
			if attempt == 1 {
				continue
			}
			return nil, &CallError{Method: method, Err: fmt.Errorf("%w: %w", errNotSent, call.Err)}
		}
		return nil, &CallError{Method: method, Err: call.Err}
	}
}

// neverSent recognises a connection that was found closed when the call was to be written: a bus that went away
// before it had the whole call has not passed it on.
func neverSent(err error) bool {
	return errors.Is(err, dbus.ErrClosed) || errors.Is(err, syscall.EPIPE)
}

// dropIfSilent asks the bus itself after a service did not answer. The connection is shared, and dropping it would
// lose the answers to others' calls: only a bus that is silent too deserves it.
func (b *Bus) dropIfSilent(conn *dbus.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), min(b.limit(), pingTimeout))
	defer cancel()
	if conn.BusObject().CallWithContext(ctx, dbusName+".GetId", 0).Err != nil {
		b.drop(conn)
	}
}

// separate returns a Bus at the same address that shares no connection with b. The caller closes it.
func (b *Bus) separate() *Bus { return &Bus{Address: b.Address, timeout: b.timeout} }

// owner returns the unique name of the connection that owns a service's name. A call to that name reaches this connection or
// nothing. The error matches ErrAbsent if the service does not run.
func (b *Bus) owner(ctx context.Context, service string) (unique string, err error) {
	body, err := b.call(ctx, target{service: dbusName, path: "/org/freedesktop/DBus"}, dbusName+".GetNameOwner", service)
	if err == nil {
		err = dbus.Store(body, &unique)
	}
	if err != nil {
		return "", fmt.Errorf("looking for %s on the bus: %w", service, err)
	}
	return unique, nil
}

// property reads one property of an object.
func (b *Bus) property(ctx context.Context, t target, iface, name string, value any) error {
	body, err := b.call(ctx, t, dbusName+".Properties.Get", iface, name)
	if err == nil {
		var v dbus.Variant
		if err = dbus.Store(body, &v); err == nil {
			err = v.Store(value)
		}
	}
	if err != nil {
		return fmt.Errorf("reading %s of %s: %w", name, t.path, err)
	}
	return nil
}

// connect gives the present connection or makes one.
func (b *Bus) connect(ctx context.Context) (*dbus.Conn, error) {
	b.gate.Lock()
	defer b.gate.Unlock()
	b.mu.Lock()
	conn := b.conn
	b.mu.Unlock()
	if conn != nil && conn.Connected() {
		return conn, nil
	}
	b.drop(conn)
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	conn, err := dial(ctx, b.Address, delivery{b})
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.conn = conn
	b.mu.Unlock()
	return conn, nil
}

// drop closes conn if it is the present connection; nil means whichever is.
func (b *Bus) drop(conn *dbus.Conn) {
	b.mu.Lock()
	if conn == nil || conn == b.conn {
		conn, b.conn = b.conn, nil
	}
	b.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// subscription is one kind of signal somebody waits for.
type subscription struct {
	service, iface, member string
	path                   dbus.ObjectPath
	take                   func(*dbus.Signal) // told of each such signal before the hint, whoever sent it; must not block
	hint                   chan struct{}      // capacity 1
	on                     *dbus.Conn         // the connection on which the bus was asked for it; the watcher's own
}

// subscribe registers for a signal. What comes is a hint that there is something to look at: any local user can send
// signals to our connection, and who takes their bodies has to look at the sender, which the bus itself writes. The
// caller has the bus filter for it with listen.
func (b *Bus) subscribe(s *subscription) (unsubscribe func()) {
	s.hint = make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subs == nil {
		b.subs = map[*subscription]struct{}{}
	}
	b.subs[s] = struct{}{}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.subs, s)
	}
}

// listen asks the bus for the signal on the present connection, made if need be, which is returned: it has to be
// asked anew on the next.
func (b *Bus) listen(ctx context.Context, s *subscription) (*dbus.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, b.limit())
	defer cancel()
	conn, err := b.connect(ctx)
	if err != nil || conn == s.on {
		return conn, err
	}
	err = conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(s.service), dbus.WithMatchInterface(s.iface),
		dbus.WithMatchObjectPath(s.path), dbus.WithMatchMember(s.member))
	if err != nil {
		b.drop(conn)
		return nil, fmt.Errorf("subscribing to %s.%s: %w", s.iface, s.member, err)
	}
	s.on = conn
	return conn, nil
}

// delivery is a Bus as godbus sees it.
type delivery struct{ *Bus }

// DeliverSignal is called for every signal that reaches the connection. It never blocks.
func (d delivery) DeliverSignal(iface, member string, sig *dbus.Signal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.subs {
		if s.iface == iface && s.member == member && s.path == sig.Path {
			if s.take != nil {
				s.take(sig)
			}
			select {
			case s.hint <- struct{}{}:
			default:
			}
		}
	}
}

// printable makes foreign text fit for a log line: valid UTF-8 on one line, at most limit bytes.
func printable(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	return cut(s, limit)
}

// cut shortens valid UTF-8 to at most limit bytes without splitting a rune.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && s[limit]&0xC0 == 0x80 {
		limit--
	}
	return s[:limit]
}
