package membus

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"

	"github.com/godbus/dbus/v5"
)

const (
	daemonName = "org.freedesktop.DBus"
	daemonPath = dbus.ObjectPath("/org/freedesktop/DBus")
	errorNames = daemonName + ".Error."
)

// call names a call that waits for an answer.
type call struct {
	caller string
	serial uint32
}

// answer is what is known about an answer to come.
type answer struct {
	by           *peer
	peer, method string
}

// route passes on a message that p has sent. The mutex must be held.
func (b *Bus) route(p *peer, m *packet) {
	if b.closed {
		return
	}
	if m.kind == dbus.TypeMethodCall && m.text(dbus.FieldDestination) == daemonName {
		b.serve(p, m)
		return
	}
	m = m.sentBy(p.name)
	to := m.text(dbus.FieldDestination)
	switch m.kind {
	case dbus.TypeMethodCall:
		b.routeCall(p, m, to)
	case dbus.TypeSignal:
		b.routeSignal(p, m, to)
	default:
		key := call{to, m.reply}
		a := b.calls[key]
		if a == nil || a.by != p {
			b.refuse(p, m, "AccessDenied", "Rejected send message: no call waits for this answer")
			return
		}
		delete(b.calls, key)
		b.unique[to].send(parcel{packet: m, peer: a.peer, method: a.method})
	}
}

func (b *Bus) routeCall(p *peer, m *packet, to string) {
	target := b.owner(to)
	switch {
	case target != nil:
		if m.flags&dbus.FlagNoReplyExpected == 0 && !p.closed {
			b.calls[call{p.name, m.serial}] = &answer{target, to, m.method()}
		}
		target.send(parcel{packet: m, peer: p.name, method: m.method()})
	case m.flags&dbus.FlagNoAutoStart != 0:
		b.refuse(p, m, "NameHasNoOwner", fmt.Sprintf("Name %q does not exist", to))
	case b.kept[to] != nil || b.Activate != nil && b.Activate(to):
		b.kept[to] = append(b.kept[to], func() { b.routeCall(p, m, to) })
	default:
		b.refuse(p, m, "ServiceUnknown", fmt.Sprintf("The name %s was not provided by any .service files", to))
	}
}

// routeSignal sends a signal to its destination, or to all whose rules match.
func (b *Bus) routeSignal(p *peer, m *packet, to string) {
	out := parcel{packet: m, peer: b.label(p), method: m.method()}
	if to != "" {
		if target := b.owner(to); target != nil {
			target.send(out)
		}
		return
	}
	b.broadcast(out, p)
}

// broadcast sends a signal to all whose rules match; from is nil for the daemon's own.
func (b *Bus) broadcast(m parcel, from *peer) {
	for _, p := range b.peers {
		if slices.ContainsFunc(p.rules, func(r rule) bool { return r.matches(b, m.packet, from) }) {
			p.send(m)
		}
	}
}

// label returns a well-known name of a peer, or its unique one.
func (b *Bus) label(p *peer) string {
	label := p.name
	for name, q := range b.names {
		if q.owner() == p && (label == p.name || name < label) {
			label = name
		}
	}
	return label
}

// owner returns the connection that a name belongs to, or nil.
func (b *Bus) owner(name string) *peer {
	if q := b.names[name]; q != nil {
		return q.owner()
	}
	return b.unique[name]
}

// disconnect forgets a connection: its names are free, and what it has not answered is answered with an error.
func (b *Bus) disconnect(p *peer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.close()
	delete(b.open, p)
	if p.name == "" || b.closed {
		return
	}
	b.peers = slices.DeleteFunc(b.peers, func(o *peer) bool { return o == p })
	delete(b.unique, p.name)
	for _, name := range b.namesOf(p) {
		b.release(p, name)
	}
	b.ownerChanged(p.name, p.name, "")
	for key, a := range b.calls {
		if key.caller == p.name {
			delete(b.calls, key)
		} else if a.by == p {
			delete(b.calls, key)
			b.fail(key, *a, "NoReply", "Message recipient disconnected from message bus without replying")
		}
	}
}

// fail answers a call with one of the daemon's errors.
func (b *Bus) fail(key call, a answer, name, text string) {
	if p := b.unique[key.caller]; p != nil {
		m := b.message(dbus.TypeError, p.name, text)
		m.Headers[dbus.FieldErrorName] = dbus.MakeVariant(errorNames + name)
		m.Headers[dbus.FieldReplySerial] = dbus.MakeVariant(key.serial)
		p.send(parcel{packet: b.packet(m), peer: a.peer, method: a.method})
	}
}

// refuse answers a message with one of the daemon's errors.
func (b *Bus) refuse(p *peer, m *packet, name, text string) {
	if m.flags&dbus.FlagNoReplyExpected == 0 && !p.closed {
		b.fail(call{p.name, m.serial}, answer{peer: m.text(dbus.FieldDestination), method: m.method()}, name, text)
	}
}

// message returns a message of the daemon.
func (b *Bus) message(kind dbus.Type, to string, body ...any) *dbus.Message {
	m := &dbus.Message{Type: kind, Flags: dbus.FlagNoReplyExpected, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldSender: dbus.MakeVariant(daemonName),
	}}
	if to != "" {
		m.Headers[dbus.FieldDestination] = dbus.MakeVariant(to)
	}
	if len(body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
	}
	return m
}

// packet encodes a message of the daemon.
func (b *Bus) packet(m *dbus.Message) *packet {
	var buf bytes.Buffer
	if err := m.EncodeTo(&buf, binary.LittleEndian); err != nil {
		panic("the daemon's own message is invalid: " + err.Error())
	}
	b.serial++
	raw := buf.Bytes()
	binary.LittleEndian.PutUint32(raw[8:], b.serial) // godbus has no setter for a serial number
	parsed, err := parsePacket(raw)
	if err != nil {
		panic("the daemon's own message: " + err.Error())
	}
	return parsed
}

// signal sends a signal of the daemon, to one connection or, without a name, to all whose rules match.
func (b *Bus) signal(to, member string, body ...any) {
	m := b.message(dbus.TypeSignal, to, body...)
	m.Headers[dbus.FieldPath] = dbus.MakeVariant(daemonPath)
	m.Headers[dbus.FieldInterface] = dbus.MakeVariant(daemonName)
	m.Headers[dbus.FieldMember] = dbus.MakeVariant(member)
	out := parcel{packet: b.packet(m), peer: daemonName, method: daemonName + "." + member}
	if to == "" {
		b.broadcast(out, nil)
	} else if p := b.unique[to]; p != nil {
		p.send(out)
	}
}

func (b *Bus) ownerChanged(name, from, to string) {
	b.signal("", "NameOwnerChanged", name, from, to)
}

func (b *Bus) nextName() string {
	b.last++
	return ":1." + strconv.Itoa(b.last-1)
}
