package updateengine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

// Run keeps Latest up to date until ctx ends, and only then returns, with ctx's error. It needs neither the engine
// nor the bus: both may be missing, go and come back. changed (may be nil) is called from Run's goroutine after
// Latest came to say something else than before, progress included; it must not block and must not call Run.
// A second Run of the same Source beside the first is refused.
func (s *Source) Run(ctx context.Context, changed func()) error {
	if !s.running.CompareAndSwap(false, true) {
		return errors.New("update engine: already running")
	}
	defer s.running.Store(false)
	defer s.drop()
	if changed == nil {
		changed = func() {}
	}
	backoff := minBackoff
	for {
		s.opts.Alive()
		s.Read(ctx) // what went wrong is in Latest
		wait := s.opts.PollInterval
		if s.current() == nil {
			wait = min(wait, backoff/2+rand.N(backoff))
			backoff = min(2*backoff, maxBackoff)
		} else {
			backoff = minBackoff
		}
		if err := s.rest(ctx, wait, changed); err != nil {
			return err
		}
	}
}

// rest waits until the next look is due: after d, or sooner when there is a hint or the connection is lost; but
// never sooner than the spacing after the last look, so that a flood of hints is not a flood of calls.
func (s *Source) rest(ctx context.Context, d time.Duration, changed func()) error {
	due := time.Now().Add(d)
	timer := time.NewTimer(d)
	defer timer.Stop()
	sooner := func() {
		s.mu.Lock()
		next := s.asked.Add(s.spacing)
		s.mu.Unlock()
		if next.Before(due) {
			timer.Reset(time.Until(next))
		}
	}
	var lost <-chan struct{}
	if conn := s.current(); conn != nil {
		lost = conn.Context().Done()
	}
	hint := s.hint
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.news:
			changed()
		case <-timer.C:
			return nil
		case <-lost:
			lost = nil
			sooner()
		case <-hint:
			hint = nil
			sooner()
		}
	}
}

// connect gives the connection, made and subscribed anew if there is none or it is dead. Only the holder of the
// gate may call it.
func (s *Source) connect(ctx context.Context) (conn *dbus.Conn, fresh bool, err error) {
	if conn := s.current(); conn != nil {
		if conn.Connected() {
			return conn, false, nil
		}
		s.drop()
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	l := &listener{hint: s.hint}
	conn, err = dial(ctx, s.opts.Address, l)
	if err != nil {
		return nil, false, err
	}
	if err := l.subscribe(ctx, conn); err != nil {
		conn.Close()
		return nil, false, fmt.Errorf("subscribing to the update engine's signals: %w", err)
	}
	s.mu.Lock()
	s.conn = conn
	s.mu.Unlock()
	return conn, true, nil
}

func (s *Source) current() *dbus.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn
}

func (s *Source) drop() {
	s.mu.Lock()
	conn := s.conn
	s.conn = nil
	s.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// dropIfDead asks the bus itself after the engine did not answer: a bus that is silent too is worth a new
// connection, one that answers is not to blame.
func (s *Source) dropIfDead(ctx context.Context, conn *dbus.Conn) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetId", 0).Err != nil {
		s.drop()
	}
}

// listener turns the few signals that matter into hints and forgets all others. It never blocks and keeps no
// queue. The match rule lets through broadcasts of the name's owner only; a signal can also be sent to this
// connection alone, past any rule, so the sender is compared too. The bus vouches for the sender, which makes a
// forged hint cost nothing; were one to slip through while the owner changes, it would cost one GetStatus.
type listener struct {
	hint chan struct{}

	mu    sync.Mutex
	owner string // unique name of the engine's owner; "" if nobody
}

const dbusName = "org.freedesktop.DBus"

func (l *listener) subscribe(ctx context.Context, conn *dbus.Conn) error {
	err := conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(dbusName), dbus.WithMatchInterface(dbusName),
		dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, BusName))
	if err != nil {
		return err
	}
	err = conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(BusName), dbus.WithMatchInterface(Interface),
		dbus.WithMatchObjectPath(ObjectPath), dbus.WithMatchMember("StatusUpdate"))
	if err != nil {
		return err
	}
	var owner string
	err = conn.BusObject().CallWithContext(ctx, dbusName+".GetNameOwner", 0, BusName).Store(&owner)
	var none dbus.Error
	if errors.As(err, &none) && nobodyOwns(none) {
		return nil // if somebody comes, NameOwnerChanged says so
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owner == "" { // else a change was heard meanwhile, which is newer
		l.owner = owner
	}
	return nil
}

// DeliverSignal is called by godbus for every signal that reaches the connection.
func (l *listener) DeliverSignal(iface, member string, sig *dbus.Signal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case sig.Sender == dbusName && iface == dbusName && member == "NameOwnerChanged":
		if len(sig.Body) != 3 || sig.Body[0] != BusName {
			return
		}
		l.owner, _ = sig.Body[2].(string)
	case iface == Interface && member == "StatusUpdate" && sig.Path == ObjectPath && sig.Sender == l.owner && l.owner != "":
	default:
		return
	}
	poke(l.hint)
}
