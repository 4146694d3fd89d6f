package systemd

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	watchSpacing  = 200 * time.Millisecond // between two reads, however many signals come
	watchMinRetry = 500 * time.Millisecond // first pause after a failure, doubling
	watchMaxRetry = 30 * time.Second
)

// Watch calls read again and again until ctx ends, and returns the cause of that: at once, after the object's signal (in the
// notation interface.Member), after its service came or went, after the connection to the bus was lost, and at least once
// in each interval, see [Aligned]. At least 200 ms are between two reads. If read fails, or there is no bus, the next read comes after at
// most 45 s. An error that matches [ErrAbsent] is not a failure: the service will come or not.
//
// A signal is no more than a reason to read. It counts only if it comes from the service's owner.
func (o Object) Watch(ctx context.Context, signal string, interval time.Duration, read func(context.Context) error) error {
	return o.watch(ctx, signal, nil, interval, read)
}

// watch is Watch with a filter for the bodies of signals; nil lets all through. The filter must not block.
func (o Object) watch(ctx context.Context, signal string, filter func(body []any) bool, interval time.Duration, read func(context.Context) error) error {
	var s *subscription
	for failures := 0; ; {
		// The subscription comes first: what changes after the read is signaled.
		var err error
		s, err = o.subscribe(ctx, s, signal, filter)
		if readErr := read(ctx); err == nil {
			err = readErr
		}
		ended := time.Now()
		var wait time.Duration
		wait, failures = nextRead(err, failures, interval)
		var lost <-chan struct{}
		var hint chan struct{}
		if s != nil {
			lost, hint = s.conn.Context().Done(), s.hint
		}
		if failures == 0 {
			wait = Aligned(interval)
		}
		if err := AwaitRead(ctx, ended, watchSpacing, wait, lost, hint); err != nil {
			return err
		}
	}
}

// nextRead returns when to read again after a read that ended with err, and how many reads in a row have failed by then. The
// pauses after failures double, up to half a minute, and vary by a half.
func nextRead(err error, failures int, interval time.Duration) (wait time.Duration, failed int) {
	if err == nil || errors.Is(err, ErrAbsent) {
		return interval, 0
	}
	pause := min(watchMinRetry<<min(failures, 16), watchMaxRetry)
	return min(interval, pause/2+rand.N(pause)), failures + 1
}

// pause waits for d, or until the connection is lost or a hint comes. The error is the cause of ctx's end.
func pause(ctx context.Context, d time.Duration, lost, hint <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
	case <-lost:
	case <-hint:
	}
	return nil
}

// connection is a connection to the bus, and what is subscribed to on it. Subscriptions end with their connection.
type connection struct {
	*dbus.Conn

	mu            sync.Mutex
	subscriptions []*subscription
}

// DeliverSignal is called by godbus for each signal that reaches the connection. It does not block.
func (c *connection) DeliverSignal(_, _ string, signal *dbus.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.subscriptions {
		s.deliver(signal)
	}
}

// subscription is one signal of an object, and the coming and going of the object's service.
type subscription struct {
	object Object
	signal string
	filter func(body []any) bool // may be nil
	conn   *connection
	hint   chan struct{} // capacity 1

	// Under the connection's mutex.
	owner      string // unique name of the service's owner; "" if there is none
	ownerKnown bool
}

// deliver passes on what the service's owner signals, and forgets all else. The bus's filter does not suffice: any process
// can send a signal to this connection alone. The bus itself writes the sender into a signal.
func (s *subscription) deliver(signal *dbus.Signal) {
	switch {
	case signal.Sender == dbusName && signal.Name == dbusName+".NameOwnerChanged":
		if len(signal.Body) != 3 || signal.Body[0] != s.object.service {
			return
		}
		s.owner, _ = signal.Body[2].(string)
		s.ownerKnown = true
	case s.owner == "" || signal.Sender != s.owner || signal.Path != s.object.path || signal.Name != s.signal:
		return
	case s.filter != nil && !s.filter(signal.Body):
		return
	}
	select {
	case s.hint <- struct{}{}:
	default:
	}
}

// subscribe subscribes to a signal on the present connection. It returns last if that is such a subscription already, and
// nil with an error.
func (o Object) subscribe(ctx context.Context, last *subscription, signal string, filter func(body []any) bool) (*subscription, error) {
	ctx, cancel := context.WithTimeout(ctx, o.bus.limit())
	defer cancel()
	conn, err := o.bus.connect(ctx)
	if err != nil {
		return nil, err
	}
	if last != nil && last.conn == conn {
		return last, nil
	}
	s := &subscription{object: o, signal: signal, filter: filter, conn: conn, hint: make(chan struct{}, 1)}
	conn.mu.Lock()
	conn.subscriptions = append(conn.subscriptions, s)
	conn.mu.Unlock()
	dot := strings.LastIndexByte(signal, '.')
	for _, match := range [][]dbus.MatchOption{
		{dbus.WithMatchSender(dbusName), dbus.WithMatchInterface(dbusName), dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, o.service)},
		{dbus.WithMatchSender(o.service), dbus.WithMatchInterface(signal[:dot]), dbus.WithMatchObjectPath(o.path), dbus.WithMatchMember(signal[dot+1:])},
	} {
		if err := conn.AddMatchSignalContext(ctx, match...); err != nil {
			o.bus.drop(conn)
			return nil, err
		}
	}
	owner, err := o.owner(ctx)
	if err != nil && !errors.Is(err, ErrAbsent) {
		o.bus.drop(conn)
		return nil, err
	}
	conn.mu.Lock()
	defer conn.mu.Unlock()
	if !s.ownerKnown { // otherwise a change was signaled meanwhile, which is newer
		s.owner, s.ownerKnown = owner, true
	}
	return s, nil
}
