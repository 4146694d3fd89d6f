package membus

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"

	"github.com/godbus/dbus/v5"
)

// queue is who owns a well-known name, and who waits for it.
type queue struct{ claims []claim }

type claim struct {
	peer  *peer
	flags dbus.RequestNameFlags
}

func (q *queue) owner() *peer { return q.claims[0].peer }

// The answers to ReleaseName and RequestName are those of the specification.
const (
	released    = uint32(1)
	nonExistent = uint32(2)
	notOwner    = uint32(3)
)

var wellKnown = regexp.MustCompile(`^[A-Za-z_-][A-Za-z0-9_-]*(\.[A-Za-z_-][A-Za-z0-9_-]*)+$`)

// problem is one of the daemon's errors.
type problem struct{ name, text string }

// serve answers a call to the daemon itself. The mutex must be held.
func (b *Bus) serve(p *peer, m *packet) {
	if p.closed {
		return
	}
	body, refused := b.do(p, m)
	switch {
	case m.flags&dbus.FlagNoReplyExpected != 0:
	case refused != nil:
		b.refuse(p, m, refused.name, refused.text)
	default:
		reply := b.message(dbus.TypeMethodReply, p.name, body...)
		reply.Headers[dbus.FieldReplySerial] = dbus.MakeVariant(m.serial)
		p.send(parcel{packet: b.packet(reply), peer: daemonName, method: m.method()})
	}
	if member := m.text(dbus.FieldMember); member == "Hello" && refused == nil {
		b.signal(p.name, "NameAcquired", p.name)
	}
}

// do performs a call to the daemon.
func (b *Bus) do(p *peer, m *packet) ([]any, *problem) {
	switch iface, member := m.text(dbus.FieldInterface), m.text(dbus.FieldMember); {
	case iface == daemonName+".Peer" && member == "Ping":
		return nil, nil
	case iface != "" && iface != daemonName:
		return nil, &problem{"UnknownInterface", fmt.Sprintf("org.freedesktop.DBus does not understand message %s", member)}
	case member == "Hello" && p.name != "":
		return nil, &problem{"Failed", "Already handled an Hello message"}
	case member == "Hello":
		p.name = b.nextName()
		b.peers, b.unique[p.name] = append(b.peers, p), p
		b.ownerChanged(p.name, "", p.name)
		return []any{p.name}, nil
	case member == "GetId":
		return []any{b.id}, nil
	case member == "ListNames":
		names := slices.Concat([]string{daemonName}, slices.Sorted(maps.Keys(b.names)))
		for _, o := range b.peers {
			names = append(names, o.name)
		}
		return []any{names}, nil
	}
	return b.doWithName(p, m)
}

// doWithName performs a call whose first argument is a name or a rule.
func (b *Bus) doWithName(p *peer, m *packet) ([]any, *problem) {
	member := m.text(dbus.FieldMember)
	handler, ok := map[string]func(p *peer, arg string, args []any) ([]any, *problem){
		"NameHasOwner": func(_ *peer, name string, _ []any) ([]any, *problem) {
			return []any{name == daemonName || b.owner(name) != nil}, nil
		},
		"GetNameOwner": b.getNameOwner, "RequestName": b.requestName, "ReleaseName": b.releaseName,
		"AddMatch": b.addMatch, "RemoveMatch": b.removeMatch,
		"GetConnectionUnixProcessID": b.getPID, "GetConnectionUnixUser": b.getUser,
	}[member]
	if !ok {
		return nil, &problem{"UnknownMethod", fmt.Sprintf("org.freedesktop.DBus does not understand message %s", member)}
	}
	want := "s"
	if member == "RequestName" {
		want = "su"
	}
	args, err := m.body()
	if got := m.text(dbus.FieldSignature); got != want || err != nil {
		return nil, &problem{"InvalidArgs", fmt.Sprintf("Call to %s has wrong args (%s, expected %s)\n", member, got, want)}
	}
	return handler(p, args[0].(string), args)
}

func (b *Bus) getNameOwner(_ *peer, name string, _ []any) ([]any, *problem) {
	if name == daemonName {
		return []any{daemonName}, nil
	}
	if o := b.owner(name); o != nil {
		return []any{o.name}, nil
	}
	return nil, &problem{"NameHasNoOwner", fmt.Sprintf("Could not get owner of name '%s': no such name", name)}
}

// getPID answers with this process, in which all connections are.
func (b *Bus) getPID(_ *peer, name string, _ []any) ([]any, *problem) {
	if name != daemonName && b.owner(name) == nil {
		return nil, &problem{"NameHasNoOwner", fmt.Sprintf("Could not get PID of name '%s': no such name", name)}
	}
	return []any{uint32(os.Getpid())}, nil
}

func (b *Bus) getUser(_ *peer, name string, _ []any) ([]any, *problem) {
	if name != daemonName && b.owner(name) == nil {
		return nil, &problem{"NameHasNoOwner", fmt.Sprintf("Could not get UID of name '%s': no such name", name)}
	}
	return []any{uint32(os.Geteuid())}, nil
}

func (b *Bus) requestName(p *peer, name string, args []any) ([]any, *problem) {
	if !wellKnown.MatchString(name) || name == daemonName {
		return nil, &problem{"InvalidArgs", fmt.Sprintf("Cannot acquire a service named %q", name)}
	}
	flags := dbus.RequestNameFlags(args[1].(uint32))
	q := b.names[name]
	if q == nil {
		b.names[name] = &queue{[]claim{{p, flags}}}
		b.changed(name, nil, p)
		return []any{uint32(dbus.RequestNameReplyPrimaryOwner)}, nil
	}
	at := slices.IndexFunc(q.claims, func(c claim) bool { return c.peer == p })
	if at == 0 {
		q.claims[0].flags = flags
		return []any{uint32(dbus.RequestNameReplyAlreadyOwner)}, nil
	}
	if at > 0 {
		q.claims = slices.Delete(q.claims, at, at+1)
	}
	old := q.claims[0]
	switch queues := flags&dbus.NameFlagDoNotQueue == 0; {
	case flags&dbus.NameFlagReplaceExisting != 0 && old.flags&dbus.NameFlagAllowReplacement != 0:
		q.claims = slices.Insert(q.claims, 0, claim{p, flags})
		if old.flags&dbus.NameFlagDoNotQueue != 0 {
			q.claims = slices.Delete(q.claims, 1, 2)
		}
		b.changed(name, old.peer, p)
		return []any{uint32(dbus.RequestNameReplyPrimaryOwner)}, nil
	case queues:
		q.claims = append(q.claims, claim{p, flags})
		return []any{uint32(dbus.RequestNameReplyInQueue)}, nil
	}
	return []any{uint32(dbus.RequestNameReplyExists)}, nil
}

func (b *Bus) releaseName(p *peer, name string, _ []any) ([]any, *problem) {
	switch {
	case !wellKnown.MatchString(name) || name == daemonName:
		return nil, &problem{"InvalidArgs", fmt.Sprintf("Cannot release a service named %q", name)}
	case b.names[name] == nil:
		return []any{nonExistent}, nil
	case !b.release(p, name):
		return []any{notOwner}, nil
	}
	return []any{released}, nil
}

// release ends a peer's claim to a name, and reports whether it had one.
func (b *Bus) release(p *peer, name string) bool {
	q := b.names[name]
	at := slices.IndexFunc(q.claims, func(c claim) bool { return c.peer == p })
	if at < 0 {
		return false
	}
	q.claims = slices.Delete(q.claims, at, at+1)
	switch {
	case len(q.claims) == 0:
		delete(b.names, name)
		b.changed(name, p, nil)
	case at == 0:
		b.changed(name, p, q.owner())
	}
	return true
}

// namesOf returns the well-known names that a peer owns or waits for.
func (b *Bus) namesOf(p *peer) (names []string) {
	for name, q := range b.names {
		if slices.ContainsFunc(q.claims, func(c claim) bool { return c.peer == p }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// changed sends the signals for a name's new owner.
func (b *Bus) changed(name string, from, to *peer) {
	var old, now string
	if from != nil {
		old = from.name
		b.signal(old, "NameLost", name)
	}
	if to != nil {
		now = to.name
	}
	b.ownerChanged(name, old, now)
	if to == nil {
		return
	}
	b.signal(now, "NameAcquired", name)
	kept := b.kept[name]
	delete(b.kept, name)
	for _, deliver := range kept {
		deliver()
	}
}
