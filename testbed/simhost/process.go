package simhost

import (
	"os/exec"
	"syscall"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// process is a child in its own process group. The kernel kills it when this process ends.
type process struct {
	cmd  *exec.Cmd
	gone chan struct{} // closed when the process has ended and been reaped
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	if err := controlplane.StartChild(cmd); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, gone: make(chan struct{})}
	go func() {
		_ = cmd.Wait()                                      // nothing depends on how it ended
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // kill remaining processes of the group
		close(p.gone)
	}()
	return p, nil
}

// running reports whether the process has not been reaped yet.
func (p *process) running() bool {
	select {
	case <-p.gone:
		return false
	default:
		return true
	}
}

// signal sends a signal to the process's whole group. It does nothing if the process has ended.
func (p *process) signal(sig syscall.Signal) {
	if p.running() {
		_ = syscall.Kill(-p.cmd.Process.Pid, sig)
	}
}

// end asks the process to exit. It kills the process after grace, at once if grace is 0, or when hurry is closed. This
// also works for a stopped process. end returns when the process is gone.
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
