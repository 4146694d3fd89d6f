package simhost

import (
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
)

// Inhibitor is a lock as ListInhibitors returns it.
type Inhibitor struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}

// inhibitor is a lock that is held.
type inhibitor struct{ Inhibitor }

func (i *inhibitor) delaysShutdown() bool {
	return i.Mode == "delay" && slices.Contains(strings.Split(i.What, ":"), "shutdown")
}

// Hold takes an inhibitor that is held until the test calls release or the host goes down.
func (l *Logind) Hold(lock Inhibitor) (release func()) {
	i := &inhibitor{lock}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inhibitors[i] = struct{}{}
	return func() { l.drop(i) }
}

// Inhibitors returns the inhibitors that are held now.
func (l *Logind) Inhibitors() []Inhibitor {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := []Inhibitor{}
	for i := range l.inhibitors {
		all = append(all, i.Inhibitor)
	}
	slices.SortFunc(all, func(a, b Inhibitor) int { return strings.Compare(a.Who+a.What, b.Who+b.What) })
	return all
}

func (l *Logind) listInhibitors() ([]Inhibitor, *dbus.Error) { return l.Inhibitors(), nil }

func (l *Logind) drop(i *inhibitor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, held := l.inhibitors[i]; held {
		delete(l.inhibitors, i)
		close(l.freed)
		l.freed = make(chan struct{})
	}
}

// awaitDelays waits until no delay inhibitor is held, for at most InhibitDelayMax.
func (l *Logind) awaitDelays(b *boot) {
	timer := time.NewTimer(l.h.opts.InhibitDelayMax)
	defer timer.Stop()
	for {
		l.mu.Lock()
		delayed, freed := false, l.freed
		if l.boot == b {
			for i := range l.inhibitors {
				delayed = delayed || i.delaysShutdown()
			}
		}
		l.mu.Unlock()
		if !delayed {
			return
		}
		select {
		case <-freed:
		case <-timer.C:
			return
		case <-b.ctx.Done():
			return
		}
	}
}

// inhibit returns the writing end of a pipe. The lock ends when all copies of that end are closed.
func (l *Logind) inhibit(sent *sentFiles, sender, what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	if mode != "block" && mode != "delay" || what == "" {
		return -1, dbus.NewError("org.freedesktop.DBus.Error.InvalidArgs", []any{"Invalid mode or what specification"})
	}
	l.mu.Lock()
	conn, b := l.conn, l.boot
	l.mu.Unlock()
	if conn == nil {
		return -1, dbus.MakeFailedError(errDown)
	}
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return -1, dbus.MakeFailedError(err)
	}
	ours := os.NewFile(uintptr(fds[0]), "inhibitor")
	i := &inhibitor{Inhibitor{what, who, why, mode, uint32(os.Getuid()), pidOf(conn, sender)}}
	l.mu.Lock()
	if l.preparing {
		l.mu.Unlock()
		ours.Close()
		syscall.Close(fds[1])
		return -1, dbus.NewError("org.freedesktop.login1.OperationInProgress", []any{"The operation inhibition has been requested for is already running"})
	}
	l.inhibitors[i] = struct{}{}
	l.mu.Unlock()
	b.task(func() {
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { // the wait also ends with the boot
			select {
			case <-b.ctx.Done():
				ours.Close()
			case <-stop:
			}
		})
		_, _ = ours.Read(make([]byte, 1)) // never reads data: it returns when the last writer has closed its end
		close(stop)
		wg.Wait()
		ours.Close()
		l.drop(i)
	})
	sent.closeWhenSent(fds[1])
	return dbus.UnixFD(fds[1]), nil
}

// sentFiles closes our copy of a file descriptor after the reply with it was sent. Only then can we see the holder close its end. It
// implements godbus's generator of serial numbers, because godbus calls that generator when it is done with a message.
type sentFiles struct {
	mu      sync.Mutex
	last    uint32
	waiting map[int]struct{} // not sent yet
	sent    map[uint32]int   // descriptors by the serial number of the message that carries them
}

func newSentFiles() *sentFiles {
	return &sentFiles{waiting: map[int]struct{}{}, sent: map[uint32]int{}}
}

func (s *sentFiles) closeWhenSent(fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[fd] = struct{}{}
}

// GetSerial implements [dbus.SerialGenerator]. Numbers begin at 1 and are never reused.
func (s *sentFiles) GetSerial() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	return s.last
}

// sending records the descriptors of a message that is about to be sent.
func (s *sentFiles) sending(m *dbus.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range m.Body {
		fd, ok := v.(dbus.UnixFD)
		if _, ours := s.waiting[int(fd)]; ok && ours {
			delete(s.waiting, int(fd))
			s.sent[m.Serial()] = int(fd)
		}
	}
}

// RetireSerial implements [dbus.SerialGenerator]. godbus calls it when it has sent a message, or cannot send it.
func (s *sentFiles) RetireSerial(serial uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fd, ok := s.sent[serial]; ok {
		delete(s.sent, serial)
		syscall.Close(fd)
	}
}
