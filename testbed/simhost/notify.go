package simhost

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
)

// Notify is what lockkeeper has sent to its service manager since its last start.
type Notify struct {
	Ready  bool
	Status string // the last STATUS=
}

// notifyListener is the service manager's side of sd_notify.
type notifyListener struct {
	conn *net.UnixConn
	done chan struct{}

	mu      sync.Mutex
	state   Notify
	changed chan struct{} // closed and replaced at each change
}

func listenNotify(path string) (*notifyListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing the old notification socket: %w", err)
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("opening the notification socket: %w", err)
	}
	l := &notifyListener{conn: conn, done: make(chan struct{}), changed: make(chan struct{})}
	go l.read()
	return l, nil
}

func (l *notifyListener) read() {
	defer close(l.done)
	buf := make([]byte, 64<<10)
	for {
		n, _, err := l.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		l.change(func(s *Notify) { s.take(string(buf[:n])) })
	}
}

// take reads one message of KEY=VALUE lines. It ignores unknown keys.
func (s *Notify) take(message string) {
	for line := range strings.Lines(message) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		switch key {
		case "READY":
			s.Ready = true
		case "STATUS":
			s.Status = value
		}
	}
}

func (l *notifyListener) change(f func(*Notify)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.state)
	close(l.changed)
	l.changed = make(chan struct{})
}

// reset clears what an earlier process sent.
func (l *notifyListener) reset() { l.change(func(s *Notify) { *s = Notify{} }) }

// now returns the current state and a channel that is closed when the state changes.
func (l *notifyListener) now() (Notify, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state, l.changed
}

func (l *notifyListener) close() {
	l.conn.Close()
	<-l.done
}
