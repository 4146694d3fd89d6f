// Package systemd talks to this host's service manager and its neighbors: systemd and logind over D-Bus, journald, and the
// terminals of logged-in users. It reboots the host, lists what prevents that, runs and watches units, and reports how this
// process is doing.
//
// Each call does one thing and returns what went wrong. The package decides nothing, and it repeats no call that changes
// something on the host. It must not know of Kubernetes, turns or states.
//
// A [Bus] connects when it is used, and every call is bounded. The bus and each service on it may be missing, go away and
// come back.
package systemd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const (
	callTimeout = 10 * time.Second // one call, including connecting
	pingTimeout = 2 * time.Second  // for the bus itself, after a service did not answer
	dbusName    = "org.freedesktop.DBus"

	maxText = 256 // bytes of a text from another process: a reason, a user's name, an error
)

// ErrAbsent means that the bus answers, and that no process on it owns the service's name.
var ErrAbsent = errors.New("no such service on the bus")

// ErrTooLate means that a call was not sent because the time given for it had passed. The caller has checked shortly before
// the call that it may make it, and has to check that again.
var ErrTooLate = errors.New("systemd was not asked in time")

// errNotSent means that a call never left this process.
var errNotSent = errors.New("no connection to the bus")

// CallError is a D-Bus call that failed.
type CallError struct {
	// Method in the notation interface.Member.
	Method string
	// Name of the D-Bus error, such as org.freedesktop.DBus.Error.AccessDenied; "" if no answer came.
	Name string
	// Message is the text of the answer as one line of at most 256 bytes; "" if no answer came.
	Message string
	// Err is the cause if no answer came: no bus, the connection was lost, a timeout, the caller's context.
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

// Unwrap returns the answer as a dbus.Error, and Err if no answer came.
func (e *CallError) Unwrap() error {
	if e.Name != "" {
		return dbus.Error{Name: e.Name, Body: []any{e.Message}}
	}
	return e.Err
}

// Is makes errors.Is(err, ErrAbsent) true if the bus answered that no process owns the name. dbus-daemon gives the first
// name to a call that must not start the service, dbus-broker the second.
func (e *CallError) Is(target error) bool {
	return target == ErrAbsent && (e.Name == dbusName+".Error.NameHasNoOwner" || e.Name == dbusName+".Error.ServiceUnknown")
}

// Refused reports whether it is certain that the call was not carried out: it was answered with an error, or never sent. If
// it is false, the service may have carried the call out, and the answer was lost.
func (e *CallError) Refused() bool {
	switch e.Name {
	case "", dbusName + ".Error.NoReply", dbusName + ".Error.Timeout", dbusName + ".Error.TimedOut", dbusName + ".Error.Disconnected":
		return errors.Is(e.Err, errNotSent)
	}
	return true
}

// answeredWith reports whether a call was answered with one of these D-Bus errors.
func answeredWith(err error, names ...string) bool {
	e, ok := errors.AsType[*CallError](err)
	return ok && slices.Contains(names, e.Name)
}

// Bus is a connection to a message bus, made when it is first needed, shared by all who use the Bus, and replaced when it
// has broken. The zero value is the system bus, ready for use, and so is a nil *Bus. Do not copy a Bus.
type Bus struct {
	// Address in D-Bus's notation (unix:path=... or unix:abstract=...). "" is the address in DBUS_SYSTEM_BUS_ADDRESS or,
	// without that, the system bus. Do not change it after the first call.
	Address string
	// Dial, if set, opens the connection instead of Address, for a bus that is not behind a Unix socket. The connection must
	// respect write deadlines. Do not change it after the first call.
	Dial func(ctx context.Context) (net.Conn, error)

	timeout      time.Duration // instead of callTimeout, in tests
	closesOnStop bool          // a call that is given up closes the connection; see Logind.Reboot

	mu         sync.Mutex
	conn       *connection   // nil, or the newest one
	connecting chan struct{} // holds a value while a call connects, which is bounded; nil before the first call
}

// systemBus is what a nil *Bus means.
var systemBus Bus

// Close closes the connection. The next call makes another one.
func (b *Bus) Close() error {
	b.drop(nil)
	return nil
}

func (b *Bus) limit() time.Duration { return cmp.Or(b.timeout, callTimeout) }

// separate returns a Bus with the same address that shares no connection with b. The caller closes it.
func (b *Bus) separate() *Bus { return &Bus{Address: b.Address, Dial: b.Dial, timeout: b.timeout} }

// connect returns the connection, and makes one if there is none. It takes at most the bus's limit, and it ends with ctx
// while another call connects.
func (b *Bus) connect(ctx context.Context) (*connection, error) {
	b.mu.Lock()
	if b.connecting == nil {
		b.connecting = make(chan struct{}, 1)
	}
	connecting := b.connecting
	b.mu.Unlock()
	select {
	case connecting <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-connecting }()
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
	ctx, cancel := context.WithTimeout(ctx, b.limit())
	defer cancel()
	conn = &connection{}
	var err error
	if conn.Conn, err = b.dial(ctx, conn); err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.conn = conn
	b.mu.Unlock()
	return conn, nil
}

// drop closes conn if it is the present connection; nil means the present one.
func (b *Bus) drop(conn *connection) {
	b.mu.Lock()
	if conn == nil || conn == b.conn {
		conn, b.conn = b.conn, nil
	}
	b.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// dropIfSilent asks the bus itself after a service did not answer. The connection is shared, and closing it loses the
// answers to other calls. So it is closed only if the bus does not answer either.
func (b *Bus) dropIfSilent(conn *connection) {
	ctx, cancel := context.WithTimeout(context.Background(), min(b.limit(), pingTimeout))
	defer cancel()
	if conn.BusObject().CallWithContext(ctx, dbusName+".GetId", 0).Err != nil {
		b.drop(conn)
	}
}

// Object is an object of a service on a bus. Its methods may be called from any goroutine.
type Object struct {
	bus     *Bus
	service string
	path    dbus.ObjectPath

	limit time.Duration // of one call; 0 is the bus's limit
	by    time.Time     // no call is sent after this, if it is set
	// mayStart lets the bus start a service that does not run, and keep the call for it. The call may then arrive long after
	// the caller has given up. So only queries may set this, never a call that changes something on the host.
	mayStart bool
}

// Object returns the object of a service; path must be a valid object path.
func (b *Bus) Object(service string, path dbus.ObjectPath) Object {
	if b == nil {
		b = &systemBus
	}
	return Object{bus: b, service: service, path: path}
}

// Call calls a method, in the notation interface.Member, and returns the body of the answer. It takes at most 10 s and does
// not start the service. All errors are *CallError; they match [ErrAbsent] if the service does not run.
func (o Object) Call(ctx context.Context, method string, args ...any) ([]any, error) {
	limit := cmp.Or(o.limit, o.bus.limit())
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v: %w", limit, context.DeadlineExceeded))
	defer cancel()
	flags := dbus.FlagNoAutoStart
	if o.mayStart {
		flags = 0
	}
	for repeated := false; ; repeated = true {
		conn, err := o.bus.connect(ctx)
		if err == nil && !o.by.IsZero() && time.Now().After(o.by) { // connecting may have taken long
			err = ErrTooLate
		}
		if err != nil {
			return nil, &CallError{Method: method, Err: fmt.Errorf("%w: %w", errNotSent, err)}
		}
		call := conn.Object(o.service, o.path).CallWithContext(ctx, method, flags, args...)
		if call.Err == nil {
			return call.Body, nil
		}
		if answer, ok := errors.AsType[dbus.Error](call.Err); ok {
			return nil, &CallError{Method: method, Name: v1alpha1.OneLine(answer.Name, maxText), Message: v1alpha1.OneLine(answer.Error(), maxText)}
		}
		if ctx.Err() != nil {
			if o.bus.closesOnStop {
				o.bus.drop(conn)
			} else {
				o.bus.dropIfSilent(conn)
			}
			return nil, &CallError{Method: method, Err: context.Cause(ctx)}
		}
		o.bus.drop(conn)
		switch {
		case !neverSent(call.Err):
			return nil, &CallError{Method: method, Err: call.Err}
		case repeated:
			return nil, &CallError{Method: method, Err: fmt.Errorf("%w: %w", errNotSent, call.Err)}
		}
	}
}

// neverSent recognizes a connection that was found closed when the call was to be written. A bus that went away before it
// had the whole call has not passed it on.
func neverSent(err error) bool {
	return errors.Is(err, dbus.ErrClosed) || errors.Is(err, syscall.EPIPE)
}

// call calls a method and stores the answer's values.
func (o Object) call(ctx context.Context, method string, args []any, values ...any) error {
	body, err := o.Call(ctx, method, args...)
	if err == nil && len(values) > 0 {
		err = dbus.Store(body, values...)
	}
	return err
}

// owner returns the unique name of the connection that owns the service's name. A call to that name reaches this connection
// or none.
func (o Object) owner(ctx context.Context) (unique string, err error) {
	err = o.bus.Object(dbusName, "/org/freedesktop/DBus").call(ctx, dbusName+".GetNameOwner", []any{o.service}, &unique)
	if err != nil {
		return "", fmt.Errorf("looking for %s on the bus: %w", o.service, err)
	}
	return unique, nil
}

// property reads one property.
func (o Object) property(ctx context.Context, iface, name string, value any) error {
	var v dbus.Variant
	err := o.call(ctx, dbusName+".Properties.Get", []any{iface, name}, &v)
	if err == nil {
		err = v.Store(value)
	}
	if err != nil {
		return fmt.Errorf("reading %s of %s: %w", name, o.path, err)
	}
	return nil
}

// properties reads the properties that into, a pointer to a struct, has fields for. A field has its property's name, and
// keeps its value if the object has no such property.
func (o Object) properties(ctx context.Context, iface string, into any) error {
	var all map[string]dbus.Variant
	if err := o.call(ctx, dbusName+".Properties.GetAll", []any{iface}, &all); err != nil {
		return err
	}
	for field, value := range reflect.ValueOf(into).Elem().Fields() {
		if v, ok := all[field.Name]; ok {
			if err := v.Store(value.Addr().Interface()); err != nil {
				return fmt.Errorf("property %s: %w", field.Name, err)
			}
		}
	}
	return nil
}
