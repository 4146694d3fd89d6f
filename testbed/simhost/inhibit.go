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

// Inhibitor is a lock as ListInhibitors gives it.
type Inhibitor struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}

// An inhibitor is one that is held.
type inhibitor struct{ Inhibitor }

func (i *inhibitor) delaysShutdown() bool {
	return i.Mode == "delay" && slices.Contains(strings.Split(i.What, ":"), "shutdown")
}

// Hold takes an inhibitor on someone's behalf, until release is called or the host goes down.
func (l *Logind) Hold(lock Inhibitor) (release func()) {
	i := &inhibitor{lock}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inhibitors[i] = struct{}{}
	return func() { l.drop(i) }
}

// Inhibitors are those held now.
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

// awaitDelays waits until no one delays a shutdown any more, for InhibitDelayMax at most.
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

// inhibit hands out the writing end of a pipe; the lock is over when all copies of it are closed.
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
		wg.Go(func() { // the end of the boot ends the wait
			select {
			case <-b.ctx.Done():
				ours.Close()
			case <-stop:
			}
		})
		_, _ = ours.Read(make([]byte, 1)) // no one writes: it ends when the last writer has closed
		close(stop)
		wg.Wait()
		ours.Close()
		l.drop(i)
	})
	sent.closeWhenSent(fds[1])
	return dbus.UnixFD(fds[1]), nil
}

// sentFiles closes our copy of a file descriptor once the reply with it was sent: only then can the holder's end of it be
// seen. It stands where godbus asks for serial numbers, because godbus says there when it is done with a message.
type sentFiles struct {
	mu      sync.Mutex
	last    uint32
	waiting map[int]struct{} // to be sent
	sent    map[uint32]int   // descriptors by the serial number of the message with them
}

func newSentFiles() *sentFiles {
	return &sentFiles{waiting: map[int]struct{}{}, sent: map[uint32]int{}}
}

func (s *sentFiles) closeWhenSent(fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[fd] = struct{}{}
}

// GetSerial implements [dbus.SerialGenerator]: numbers begin at 1 and are not used again.
func (s *sentFiles) GetSerial() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	return s.last
}

// sending is called before a message goes out.
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

// RetireSerial implements [dbus.SerialGenerator]; it is called when a message is through, or cannot be sent.
func (s *sentFiles) RetireSerial(serial uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fd, ok := s.sent[serial]; ok {
		delete(s.sent, serial)
		syscall.Close(fd)
	}
}
