// Package membus is a message bus in memory. It does what dbus-daemon does for connections over [net.Pipe]: names, match
// rules, calls, answers and signals. It waits for nothing but pipes, channels and timers, so it works in a bubble of
// testing/synctest, where a socket would stop the clock. A function of the test delays and loses messages.
//
// The bus must not know of systemd, logind or lockkeeper. [TestAsTheDaemon] holds it against a real dbus-daemon. It has
// neither policies nor file descriptors.
package membus

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

// errClosed is the error of a connection to a bus whose daemon does not run.
var errClosed = errors.New("connection refused: the bus does not run")

// Bus is one run of a bus's daemon. Its methods are safe for concurrent use. Its goroutines end soon after Close.
type Bus struct {
	// Fault, if set, is asked for each message from a connection made by Dial, and for each answer and signal to one. It is
	// called from several goroutines, and may call the Bus. Set it before the first connection.
	Fault func(Transit) Verdict
	// Activate, if set, is asked about a call that may start its service, and whose name has no owner. If it returns true, the
	// bus keeps this call and later ones, and delivers them when the name has an owner. It must neither block nor call the Bus,
	// but have another goroutine start the service. Set it before the first connection.
	Activate func(name string) bool

	mu     sync.Mutex
	closed bool
	id     string
	peers  []*peer             // those that have said Hello, in this order
	unique map[string]*peer    // by unique name
	names  map[string]*queue   // by well-known name
	calls  map[call]*answer    // calls that wait for an answer
	kept   map[string][]func() // deliver calls that wait for their service, by its name
	open   map[*peer]bool      // all connections
	last   int                 // number of the last unique name
	serial uint32              // of the daemon's last message
}

// Transit is a message on its way through the bus.
type Transit struct {
	// ToClient: the message is an answer or a signal to the connection. Otherwise the connection has sent it.
	ToClient bool
	// Conn is the connection's unique name; "" before its Hello.
	Conn string
	// By is what DialFor received for the connection; nil for every other connection.
	By any
	// Peer is the other end: the name that was called, or a well-known name of a signal's sender.
	Peer string
	// Method is the method of a call, or of the call that is answered, or the signal, in the notation interface.Member.
	Method string
	// Serial is the message's number among those that its sender has sent.
	Serial uint32
	// Body decodes the arguments, which must not be changed.
	Body func() ([]any, error)
}

// Verdict is what happens to a message. The zero value delivers it now.
type Verdict struct {
	// Delay delivers the message later. Later messages between the same two ends stay behind it; all others overtake it.
	// A call whose sender is gone by then is delivered nevertheless, as dbus-daemon does.
	Delay time.Duration
	// Drop loses the message.
	Drop bool
	// Break loses the message and closes the connection.
	Break bool
}

// New starts a bus.
func New() *Bus {
	b := &Bus{
		unique: map[string]*peer{}, names: map[string]*queue{}, calls: map[call]*answer{}, kept: map[string][]func(){}, open: map[*peer]bool{},
	}
	b.id = fmt.Sprintf("%032x", 1)
	return b
}

// Dial opens a connection whose messages are subject to Fault, for systemd.Bus.Dial. The connection is not authenticated.
func (b *Bus) Dial(ctx context.Context) (net.Conn, error) { return b.DialFor(ctx, nil) }

// DialFor is Dial for the process by, so that Fault can distinguish several processes: it receives by in each Transit of the connection.
func (b *Bus) DialFor(ctx context.Context, by any) (net.Conn, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return b.pipe(true, by)
}

// Connect opens a connection for a service; Fault does not see its messages.
func (b *Bus) Connect(opts ...dbus.ConnOption) (*dbus.Conn, error) {
	end, err := b.pipe(false, nil)
	if err != nil {
		return nil, err
	}
	conn, err := dbus.NewConn(&buffered{end, bufio.NewReader(end)}, opts...)
	if err != nil {
		end.Close()
		return nil, err
	}
	if err = conn.Auth(nil); err == nil {
		err = conn.Hello()
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("connecting to the bus in memory: %w", err)
	}
	return conn, nil
}

// Close ends the daemon without notice: all connections break, messages on their way are lost, and Dial fails.
func (b *Bus) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for p := range b.open {
		p.close()
	}
	clear(b.open)
	clear(b.calls)
	clear(b.kept)
	b.peers = nil
}

// pipe connects a peer to the bus and returns the other end.
func (b *Bus) pipe(dialed bool, by any) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errClosed
	}
	ours, theirs := net.Pipe()
	p := &peer{bus: b, pipe: ours, dialed: dialed, by: by, wake: make(chan struct{}, 1), gone: make(chan struct{}), lanes: map[lane]*delayed{}}
	b.open[p] = true
	go p.read()
	go p.write()
	return theirs, nil
}

// buffered reads in large pieces, because each read of a pipe waits for the writer.
type buffered struct {
	net.Conn
	in *bufio.Reader
}

func (c *buffered) Read(p []byte) (int, error) { return c.in.Read(p) }
