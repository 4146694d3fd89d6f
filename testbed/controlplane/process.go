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

// spawner is one goroutine that is locked to one thread for the life of this process. The kernel sends the parent-death signal when the
// thread that forked ends. With an ordinary goroutine it would kill the children whenever Go ends that thread.
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

// StartChild starts cmd in its own process group, because this process itself passes a Ctrl-C on in order. The kernel kills the child when
// this process ends.
func StartChild(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	spawner() <- func() { started <- cmd.Start() }
	return <-started
}

// process is one run of a component.
type process struct {
	name Component
	cmd  *exec.Cmd
	log  string        // path of the log file
	gone chan struct{} // closed when the process has ended and been reaped
	err  error         // how the process ended; read it only after gone is closed

	unwanted atomic.Bool // set before we tell the process to end
}

// startProcess starts a component and appends its output to the file log.
func startProcess(name Component, env []string, log string, path string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", name, err)
	}
	defer out.Close() // the child process has its own copy
	cmd := exec.Command(path, args...)
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = out, out
	if err := StartChild(cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, log: log, gone: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.gone)
	}()
	return p, nil
}

// stop asks the process to end and kills it after grace, or at once if grace is 0. It returns when the process is gone.
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
	case <-p.gone: // another process may have its PID now
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, sig)
	}
}

// errDied is in every error about a component that ended unexpectedly.
var errDied = errors.New("ended unexpectedly")

// died describes an unexpected end with the last output of the component.
func (p *process) died() error {
	return fmt.Errorf("%s %w (%v); the end of its log:\n%s", p.name, errDied, p.err, tail(p.log))
}

// waitReady calls probe until it succeeds, the process ends or ctx ends. Each probe may take five seconds. A server that is not up yet
// cannot be watched, so waitReady polls.
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
