package membus

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// peer is the bus's end of a connection.
type peer struct {
	bus    *Bus
	pipe   net.Conn
	dialed bool
	by     any           // see Transit.By
	wake   chan struct{} // there is something in out; capacity 1
	gone   chan struct{} // closed with the connection

	// The rest is guarded by the bus's mutex.
	name   string // unique; "" before Hello
	closed bool
	rules  []rule
	out    []parcel
	lanes  map[lane]*delayed
}

// parcel is a message for a peer. Fault has been asked about it if judged is set.
type parcel struct {
	*packet
	peer, method string
	judged       bool
}

// lane orders the messages of a connection with another one in one direction.
type lane struct {
	toClient bool
	peer     string
}

// delayed is what waits in a lane.
type delayed struct {
	waiting []waiting
}

type waiting struct {
	due     time.Time
	deliver func() // called with the bus's mutex held
}

// close closes the connection. The bus's mutex must be held.
func (p *peer) close() {
	if !p.closed {
		p.closed = true
		close(p.gone)
		p.pipe.Close()
	}
}

// read handles what the other end sends until the connection ends.
func (p *peer) read() {
	in := bufio.NewReaderSize(p.pipe, 4<<10)
	err := handshake(in, p.pipe, p.bus.id)
	for err == nil {
		var m *packet
		if m, err = readPacket(in); err == nil {
			err = p.accept(m)
		}
	}
	p.bus.disconnect(p)
}

// handshake is the daemon's side of the authentication. It accepts every user.
func handshake(in *bufio.Reader, out io.Writer, id string) error {
	if zero, err := in.ReadByte(); err != nil || zero != 0 {
		return errors.Join(err, errors.New("no null byte"))
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		words := strings.Fields(line)
		reply := "ERROR"
		switch strings.Join(words[:min(2, len(words))], " ") {
		case "BEGIN":
			return nil
		case "AUTH EXTERNAL":
			if reply = "DATA"; len(words) > 2 {
				reply = "OK " + id
			}
		case "DATA":
			reply = "OK " + id
		default:
			if len(words) > 0 && words[0] == "AUTH" {
				reply = "REJECTED EXTERNAL"
			}
		}
		if _, err := io.WriteString(out, reply+"\r\n"); err != nil {
			return err
		}
	}
}

// accept takes a message that the other end has sent. An error breaks the connection.
func (p *peer) accept(m *packet) error {
	var v Verdict
	b := p.bus
	if p.dialed && b.Fault != nil {
		b.mu.Lock()
		t := Transit{Conn: p.name, By: p.by, Peer: m.text(dbus.FieldDestination), Method: m.method(), Serial: m.serial, Body: m.body}
		b.mu.Unlock()
		v = b.Fault(t)
	}
	switch {
	case v.Break:
		return errors.New("broken by the test")
	case v.Drop:
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.closed {
		return errClosed
	}
	if p.name == "" && m.method() != daemonName+".Hello" {
		return fmt.Errorf("%s before Hello", m.method())
	}
	p.pass(lane{false, m.text(dbus.FieldDestination)}, v.Delay, func() { b.route(p, m) })
	return nil
}

// pass delivers now, or after a delay and after what waits in the lane already. The bus's mutex must be held.
func (p *peer) pass(l lane, delay time.Duration, deliver func()) {
	q := p.lanes[l]
	if q == nil && delay <= 0 {
		deliver()
		return
	}
	w := waiting{time.Now().Add(delay), deliver}
	if q != nil {
		q.waiting = append(q.waiting, w)
		return
	}
	p.lanes[l] = &delayed{waiting: []waiting{w}}
	p.arm(l)
}

// arm has the lane's first message delivered when it is due. The bus's mutex must be held.
func (p *peer) arm(l lane) {
	q := p.lanes[l]
	time.AfterFunc(time.Until(q.waiting[0].due), func() {
		p.bus.mu.Lock()
		defer p.bus.mu.Unlock()
		if p.bus.closed {
			return
		}
		for len(q.waiting) > 0 && !time.Now().Before(q.waiting[0].due) {
			first := q.waiting[0]
			q.waiting = q.waiting[1:]
			first.deliver()
		}
		if len(q.waiting) == 0 {
			delete(p.lanes, l)
			return
		}
		p.arm(l)
	})
}

// send queues a message for the other end. The bus's mutex must be held.
func (p *peer) send(m parcel) {
	if p.closed {
		return
	}
	p.out = append(p.out, m)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// write sends what is queued until the connection ends.
func (p *peer) write() {
	for {
		p.bus.mu.Lock()
		queued := p.out
		p.out = nil
		p.bus.mu.Unlock()
		for _, m := range queued {
			if !p.judge(m) {
				continue
			}
			if _, err := p.pipe.Write(m.raw); err != nil {
				return // the reader disconnects
			}
		}
		if queued != nil {
			continue
		}
		select {
		case <-p.wake:
		case <-p.gone:
			return
		}
	}
}

// judge reports whether a message goes out now.
func (p *peer) judge(m parcel) bool {
	b := p.bus
	if m.judged || !p.dialed || b.Fault == nil {
		return true
	}
	b.mu.Lock()
	t := Transit{ToClient: true, Conn: p.name, By: p.by, Peer: m.peer, Method: m.method, Serial: m.serial, Body: m.body}
	b.mu.Unlock()
	v := b.Fault(t)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch l := (lane{true, m.peer}); {
	case v.Break:
		p.close()
	case v.Drop:
	case v.Delay <= 0 && p.lanes[l] == nil:
		return true
	default:
		m.judged = true
		p.pass(l, v.Delay, func() { p.send(m) })
	}
	return false
}
