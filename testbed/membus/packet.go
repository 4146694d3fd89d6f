package membus

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/godbus/dbus/v5"
)

const (
	maxMessage = 1 << 27 // bytes; D-Bus's own limit
	fixed      = 16      // bytes before the header's fields
)

// errInvalid is the error of a message that the daemon would not understand.
var errInvalid = errors.New("the message is invalid")

// packet is a message as it is on the wire, with its header. The body is decoded when it is needed: most messages are passed on as they are.
type packet struct {
	raw           []byte
	kind          dbus.Type
	flags         dbus.Flags
	serial, reply uint32
	texts         [dbus.FieldUnixFDs + 1]string // the fields that are text
	sender, after int                           // where the field of the sender is in raw; 0 if it is not
	body          func() ([]any, error)
}

func (m *packet) text(field dbus.HeaderField) string { return m.texts[field] }

// method returns the message's method or signal in the notation interface.Member.
func (m *packet) method() string {
	return strings.TrimPrefix(m.text(dbus.FieldInterface)+"."+m.text(dbus.FieldMember), ".")
}

// readPacket reads one message.
func readPacket(in *bufio.Reader) (*packet, error) {
	start, err := in.Peek(fixed)
	if err != nil {
		return nil, err
	}
	order := byteOrder(start)
	length := padded(fixed+uint64(order.Uint32(start[12:]))) + uint64(order.Uint32(start[4:]))
	if length > maxMessage {
		return nil, errors.New("the message is too long")
	}
	raw := make([]byte, length)
	if _, err := io.ReadFull(in, raw); err != nil {
		return nil, err
	}
	return parsePacket(raw)
}

func byteOrder(raw []byte) binary.ByteOrder {
	if raw[0] == 'B' {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// padded returns the next multiple of 8.
func padded(n uint64) uint64 { return (n + 7) &^ 7 }

// parsePacket reads the header of a whole message.
func parsePacket(raw []byte) (*packet, error) {
	order := byteOrder(raw)
	m := &packet{raw: raw, kind: dbus.Type(raw[1]), flags: dbus.Flags(raw[2]), serial: order.Uint32(raw[8:])}
	fields := raw[:fixed+order.Uint32(raw[12:])]
	for at := fixed; at < len(fields); {
		next, err := m.field(fields, at, order)
		if err != nil {
			return nil, err
		}
		at = int(padded(uint64(next)))
	}
	m.body = sync.OnceValues(func() ([]any, error) {
		whole, err := dbus.DecodeMessage(bytes.NewReader(raw))
		if err != nil {
			return nil, err
		}
		return whole.Body, nil
	})
	return m, m.check()
}

// field reads the header field at an offset, which is a multiple of 8, and returns where it ends.
func (m *packet) field(fields []byte, at int, order binary.ByteOrder) (end int, err error) {
	rest := fields[at:]
	short := len(rest) < 5 || rest[2] != 'g' && len(rest) < 8 // only a signature has one byte for its length
	if short || rest[1] != 1 || rest[3] != 0 {
		return 0, fmt.Errorf("%w: its header is damaged", errInvalid)
	}
	code, kind := dbus.HeaderField(rest[0]), rest[2]
	var start, size uint64
	switch kind {
	case 'u':
		if code == dbus.FieldReplySerial {
			m.reply = order.Uint32(rest[4:])
		}
		return at + 8, nil
	case 'g':
		start, size = 5, uint64(rest[4])
	case 's', 'o':
		start, size = 8, uint64(order.Uint32(rest[4:]))
	default:
		return 0, fmt.Errorf("%w: a field of its header has the type %q", errInvalid, kind)
	}
	if start+size+1 > uint64(len(rest)) || int(code) >= len(m.texts) {
		return 0, fmt.Errorf("%w: the field %d of its header is damaged", errInvalid, code)
	}
	end = at + int(start+size) + 1
	m.texts[code] = string(rest[start : start+size])
	if code == dbus.FieldSender {
		m.sender, m.after = at, min(int(padded(uint64(end))), len(fields))
	}
	return end, nil
}

// check returns an error if the message does not have what its type needs.
func (m *packet) check() error {
	needs := map[dbus.Type][]dbus.HeaderField{
		dbus.TypeMethodCall: {dbus.FieldPath, dbus.FieldMember}, dbus.TypeSignal: {dbus.FieldPath, dbus.FieldInterface, dbus.FieldMember},
		dbus.TypeError: {dbus.FieldErrorName}, dbus.TypeMethodReply: {},
	}
	fields, known := needs[m.kind]
	answers := m.kind == dbus.TypeMethodReply || m.kind == dbus.TypeError
	lacks := func(f dbus.HeaderField) bool { return m.text(f) == "" }
	if !known || answers && m.reply == 0 || slices.ContainsFunc(fields, lacks) {
		return fmt.Errorf("%w: its type is %d, and its header lacks a field or the type is unknown", errInvalid, m.kind)
	}
	return nil
}

// sentBy returns the message with that sender, and without another one that it claims. The body's bytes stay as they are.
func (m *packet) sentBy(name string) *packet {
	order := byteOrder(m.raw)
	end := fixed + int(order.Uint32(m.raw[12:]))
	raw := make([]byte, 0, len(m.raw)+len(name)+24)
	align := func() { raw = append(raw, make([]byte, int(padded(uint64(len(raw))))-len(raw))...) }
	if m.sender > 0 {
		raw = append(append(raw, m.raw[:m.sender]...), m.raw[m.after:end]...)
	} else {
		raw = append(raw, m.raw[:end]...)
	}
	align()
	raw = append(raw, byte(dbus.FieldSender), 1, 's', 0, 0, 0, 0, 0)
	order.PutUint32(raw[len(raw)-4:], uint32(len(name)))
	raw = append(append(raw, name...), 0)
	order.PutUint32(raw[12:], uint32(len(raw)-fixed))
	align()
	sent := *m
	sent.raw = append(raw, m.raw[padded(uint64(end)):]...)
	sent.texts[dbus.FieldSender] = name
	return &sent
}
