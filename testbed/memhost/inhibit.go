package memhost

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// Inhibitor is a lock as ListInhibitors returns it.
type Inhibitor struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}

func (i Inhibitor) inhibits(mode string) bool {
	return i.Mode == mode && slices.Contains(strings.Split(i.What, ":"), "shutdown")
}

// Session is a login session.
type Session struct {
	ID    string
	User  string
	UID   uint32
	TTY   string
	Class string // "" is "user"
	State string // "" is "active"
	Since time.Time
}

// Hold takes an inhibitor that is held until the test calls release or the host goes down. Nothing is held while the host is
// down.
func (l *Logind) Hold(lock Inhibitor) (release func()) {
	i := &lock
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inhibitors != nil {
		l.inhibitors[i] = true
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.inhibitors[i] {
			delete(l.inhibitors, i)
			close(l.freed)
			l.freed = make(chan struct{})
		}
	}
}

// Inhibitors returns the inhibitors that are held now.
func (l *Logind) Inhibitors() []Inhibitor {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := []Inhibitor{}
	for i := range l.inhibitors {
		all = append(all, *i)
	}
	slices.SortFunc(all, func(a, b Inhibitor) int { return strings.Compare(a.Who+a.What, b.Who+b.What) })
	return all
}

// holds reports whether an inhibitor of shutdowns is held in this mode.
func (l *Logind) holds(mode string) bool {
	return slices.ContainsFunc(l.Inhibitors(), func(i Inhibitor) bool { return i.inhibits(mode) })
}

// awaitDelays waits until no delay inhibitor is held, for at most InhibitDelayMax.
func (l *Logind) awaitDelays(ctx context.Context) {
	timer := time.NewTimer(l.h.o.InhibitDelayMax)
	defer timer.Stop()
	for {
		l.mu.Lock()
		freed := l.freed
		l.mu.Unlock()
		if !l.holds("delay") {
			return
		}
		select {
		case <-freed:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// SetSessions sets the login sessions until the next boot.
func (l *Logind) SetSessions(sessions ...Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sessions = map[string]Session{}
	for _, s := range sessions {
		l.sessions[s.ID] = s
	}
}

// Sessions returns the login sessions.
func (l *Logind) Sessions() []Session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.sessions))
}

func sessionPath(id string) dbus.ObjectPath {
	return loginPath + "/session/_" + dbus.ObjectPath(fmt.Sprintf("%x", id))
}

type sessionRow struct {
	ID   string
	UID  uint32
	User string
	Seat string
	Path dbus.ObjectPath
}

func (l *Logind) listSessions() ([]sessionRow, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rows := []sessionRow{}
	for _, id := range slices.Sorted(maps.Keys(l.sessions)) {
		s := l.sessions[id]
		rows = append(rows, sessionRow{s.ID, s.UID, s.User, "", sessionPath(s.ID)})
	}
	return rows, nil
}
