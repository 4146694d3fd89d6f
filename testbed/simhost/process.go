package simhost

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// spawner is one goroutine locked to one thread that lives as long as this process: the kernel's parent-death signal comes
// when the thread that forked ends, not the process.
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

// A process is a child in a process group of its own, which the kernel kills when this process is gone.
type process struct {
	cmd  *exec.Cmd
	gone chan struct{} // closed when it has ended and been reaped
	err  error         // how it ended; read after gone
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// A grandchild that keeps the output open must not keep us from seeing that the child is gone.
	cmd.WaitDelay = time.Second
	started := make(chan error, 1)
	spawner() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, gone: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it may have left behind
		close(p.gone)
	}()
	return p, nil
}

// running tells whether the process has not been reaped yet.
func (p *process) running() bool {
	select {
	case <-p.gone:
		return false
	default:
		return true
	}
}

// signal goes to the process's whole group; to no one when it has ended.
func (p *process) signal(sig syscall.Signal) {
	if p.running() {
		_ = syscall.Kill(-p.cmd.Process.Pid, sig)
	}
}

// end asks the process to end, makes it after grace (at once without one) or when hurry is closed, and returns when it is
// gone. A stopped process is made to as well.
func (p *process) end(grace time.Duration, hurry <-chan struct{}) {
	if grace > 0 {
		p.signal(syscall.SIGTERM)
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-p.gone:
		case <-hurry:
		case <-timer.C:
		}
	}
	p.signal(syscall.SIGKILL)
	<-p.gone
}
