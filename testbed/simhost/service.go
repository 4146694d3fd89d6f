package simhost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// noRestart are the exit statuses after which a service manager does not restart lockkeeper: usage error, configuration error.
var noRestart = []int{64, 78}

// service is lockkeeper under its service manager during one boot.
type service struct {
	h    *Host
	boot *boot
	ctx  context.Context // ends when the service must stop
	end  context.CancelFunc
	done chan struct{} // closed when no process is left and none will start

	mu   sync.Mutex
	proc *process // the current or last process
}

// startService starts lockkeeper and keeps it running as the host's options require.
func (h *Host) startService(b *boot) (*service, error) {
	s := &service{h: h, boot: b, done: make(chan struct{})}
	s.ctx, s.end = context.WithCancel(b.ctx)
	p, err := s.spawn()
	if err != nil {
		s.end()
		close(s.done)
		return nil, err
	}
	go s.supervise(p)
	return s, nil
}

// supervise waits for the exit of each process and starts the next one.
func (s *service) supervise(p *process) {
	defer close(s.done)
	for {
		<-p.gone
		how := "by itself"
		if s.ctx.Err() != nil {
			how = "as requested"
		}
		status := p.cmd.ProcessState
		s.h.note("lockkeeper (pid %d) ended %s: %v", p.cmd.Process.Pid, how, status)
		s.h.emit(LockkeeperExited, s.boot.id, fmt.Sprintf("%v, %s", status, how))
		if s.h.opts.RestartDelay == 0 || slices.Contains(noRestart, status.ExitCode()) || !pause(s.ctx, s.h.opts.RestartDelay) {
			return
		}
		next, err := s.spawn()
		if err != nil {
			s.h.logf("restarting lockkeeper: %v", err)
			return
		}
		p = next
	}
}

var errUnwanted = errors.New("lockkeeper must not run")

func (s *service) spawn() (*process, error) {
	p, err := s.spawnLocked()
	if err == nil {
		s.h.emit(LockkeeperStarted, s.boot.id, fmt.Sprint(p.cmd.Process.Pid))
	}
	return p, err
}

func (s *service) spawnLocked() (*process, error) {
	h := s.h
	s.mu.Lock() // either stop sees the process, or the process does not start
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, errUnwanted
	}
	if err := h.writeUptime(s.boot.age()); err != nil {
		return nil, err
	}
	args := []string{"run", "--config", h.ConfigPath(), "--root", h.Root()}
	cmd := exec.Command(h.opts.Binary, args...)
	cmd.Dir = h.dir.Path()
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + h.dir.Path(), "TMPDIR=" + h.dir.Path(),
		"DBUS_SYSTEM_BUS_ADDRESS=" + s.boot.theBus().address,
		"NOTIFY_SOCKET=" + h.dir.Join(notifySocket),
		"GORACE=" + RaceOptions, // only a binary with the race detector reads it
	}, h.opts.Env...)
	cmd.Stdout, cmd.Stderr = h.log, h.log
	h.notify.reset()
	p, err := startProcess(cmd)
	if err != nil {
		return nil, fmt.Errorf("starting lockkeeper: %w", err)
	}
	s.proc = p
	h.note("lockkeeper started in boot %s, pid %d", s.boot.id, cmd.Process.Pid)
	return p, nil
}

// stop ends the service without a restart. If grace is not 0 it asks the process to exit first, as systemd does, even if the process is
// stopped. Closing hurry cuts the grace short.
func (s *service) stop(grace time.Duration, hurry <-chan struct{}) {
	s.end()
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	if p != nil {
		if grace > 0 {
			p.signal(syscall.SIGTERM)
			p.signal(syscall.SIGCONT)
		}
		p.end(grace, hurry)
	}
	<-s.done
}

// process returns the running process, or nil.
func (s *service) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || !s.proc.running() {
		return nil
	}
	return s.proc
}

// note adds a line of the testbed to the host's log.
func (h *Host) note(format string, args ...any) {
	_, _ = fmt.Fprintf(h.log, "-- "+format+"\n", args...)
}

// logf logs a problem of the simulation itself in the host's log.
func (h *Host) logf(format string, args ...any) { h.note("simhost: "+format, args...) }

// Logs returns everything that lockkeeper has written on this host over all its starts. Lines of the testbed begin with "--". After Close
// it returns the last mebibyte.
func (h *Host) Logs() string {
	h.mu.Lock()
	closed, kept := h.closed, h.lastLog
	h.mu.Unlock()
	if closed {
		return kept
	}
	text, err := os.ReadFile(h.LogPath())
	if err != nil {
		return "(no log: " + err.Error() + ")"
	}
	return string(text)
}

// LogTail returns the last n lines of Logs, for a test that failed.
func (h *Host) LogTail(n int) string {
	lines := strings.Split(strings.TrimRight(h.Logs(), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// LogPath returns the path of the log file.
func (h *Host) LogPath() string { return h.dir.Join("lockkeeper.log") }
