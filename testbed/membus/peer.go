package membus

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

const maxMessage = 1 << 27 // bytes; D-Bus's own limit

// peer is the bus's end of a connection.
type peer struct {
	bus    *Bus
	pipe   net.Conn
	dialed bool
	wake   chan struct{} // there is something in out; capacity 1
	gone   chan struct{} // closed with the connection

	// The rest is guarded by the bus's mutex.
	name   string // unique; "" before Hello
	closed bool
	rules  []rule
	out    []parcel
	lanes  map[lane]*delayed
}

// packet is a message as it is on the wire, with its content.
type packet struct {
	*dbus.Message
	raw []byte
}

func (m packet) text(field dbus.HeaderField) string {
	v, _ := m.Headers[field].Value().(string)
	return v
}

func (m packet) path() dbus.ObjectPath {
	v, _ := m.Headers[dbus.FieldPath].Value().(dbus.ObjectPath)
	return v
}

func (m packet) replySerial() uint32 {
	v, _ := m.Headers[dbus.FieldReplySerial].Value().(uint32)
	return v
}

// method returns the message's method or signal in the notation interface.Member.
func (m packet) method() string {
	return strings.TrimPrefix(m.text(dbus.FieldInterface)+"."+m.text(dbus.FieldMember), ".")
}

// parcel is a message for a peer. Fault has been asked about it if judged is set.
type parcel struct {
	packet
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
		var m packet
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

// readPacket reads one message.
func readPacket(in *bufio.Reader) (packet, error) {
	start, err := in.Peek(16)
	if err != nil {
		return packet{}, err
	}
	order := byteOrder(start)
	fields, body := order.Uint32(start[12:]), order.Uint32(start[4:])
	length := 16 + (uint64(fields)+7)&^7 + uint64(body)
	if length > maxMessage {
		return packet{}, errors.New("the message is too long")
	}
	raw := make([]byte, length)
	if _, err := io.ReadFull(in, raw); err != nil {
		return packet{}, err
	}
	m, err := dbus.DecodeMessage(bytes.NewReader(raw))
	return packet{m, raw}, err
}

func byteOrder(raw []byte) binary.ByteOrder {
	if raw[0] == 'B' {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// sentBy returns the message with its sender. The body's bytes stay as they are.
func (m packet) sentBy(name string) (packet, error) {
	order := byteOrder(m.raw)
	head := *m.Message
	head.Headers = map[dbus.HeaderField]dbus.Variant{}
	maps.Copy(head.Headers, m.Headers)
	head.Headers[dbus.FieldSender] = dbus.MakeVariant(name)
	length := order.Uint32(m.raw[4:])
	body := m.raw[len(m.raw)-int(length):]
	head.Body = nil
	var buf bytes.Buffer
	if err := head.EncodeTo(&buf, order); err != nil {
		return packet{}, err
	}
	raw := buf.Bytes()
	order.PutUint32(raw[4:], length)
	head.Body = m.Body
	return packet{&head, append(raw, body...)}, nil
}

// accept takes a message that the other end has sent. An error breaks the connection.
func (p *peer) accept(m packet) error {
	var v Verdict
	b := p.bus
	if p.dialed && b.Fault != nil {
		b.mu.Lock()
		t := Transit{Conn: p.name, Peer: m.text(dbus.FieldDestination), Method: m.method(), Message: m.Message}
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
	t := Transit{ToClient: true, Conn: p.name, Peer: m.peer, Method: m.method, Message: m.Message}
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
