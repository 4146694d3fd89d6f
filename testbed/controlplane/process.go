package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// spawner is one goroutine locked to one thread that lives as long as this process. The kernel's parent-death signal follows
// the thread that forked: sent from an ordinary goroutine, it would kill children whenever Go lets their thread go.
var spawner = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// startChild starts cmd in a process group of its own (a Ctrl-C at the terminal is for us to pass on in order), to be
// killed by the kernel when this process is gone.
func startChild(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	spawner() <- func() { started <- cmd.Start() }
	return <-started
}

// A process is one run of a component.
type process struct {
	name Component
	cmd  *exec.Cmd
	log  string        // path of the file that it writes to
	gone chan struct{} // closed when it has ended and been reaped
	err  error         // how it ended; read after gone

	unwanted atomic.Bool // we have told it to end
}

// startProcess starts a component with its output appended to the file log.
func startProcess(name Component, env []string, log string, path string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", name, err)
	}
	defer out.Close() // the child has its own
	cmd := exec.Command(path, args...)
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = out, out
	if err := startChild(cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, log: log, gone: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.gone)
	}()
	return p, nil
}

// stop asks the process to end, and makes it after grace, at once when that is 0. It returns when the process is gone.
func (p *process) stop(grace time.Duration) {
	p.unwanted.Store(true)
	if grace > 0 {
		p.signal(syscall.SIGTERM)
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-p.gone:
		case <-timer.C:
		}
	}
	p.signal(syscall.SIGKILL)
	<-p.gone
}

func (p *process) signal(sig syscall.Signal) {
	select {
	case <-p.gone: // its number may be somebody else's by now
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, sig)
	}
}

// errDied is in every error about a component that ended by itself.
var errDied = errors.New("ended by itself")

// died describes an unwanted end, with what the component said last.
func (p *process) died() error {
	return fmt.Errorf("%s %w (%v); the end of its log:\n%s", p.name, errDied, p.err, tail(p.log))
}

// waitReady calls probe until it succeeds, the process dies or ctx ends. A probe gets five seconds. There is nothing to watch
// in a server that is not up yet, so this one polls.
func (p *process) waitReady(ctx context.Context, probe func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := probe(short)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-p.gone:
			return p.died()
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s to be ready: %w (last answer: %v); the end of its log:\n%s",
				p.name, context.Cause(ctx), err, tail(p.log))
		case <-tick.C:
		}
	}
}
