package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// stopGrace returns how long a component may take to end. The API server has nothing to write, and would wait a minute for its watchers.
func stopGrace(name Component) time.Duration {
	if name == APIServer {
		return 500 * time.Millisecond
	}
	return 5 * time.Second
}

// errStopped is the error of a call after Stop.
var errStopped = errors.New("the control plane was stopped")

// Process is one process of the control plane.
type Process struct {
	Component Component
	PID       int
}

// Processes returns the processes that run now.
func (cp *ControlPlane) Processes() []Process {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	var ps []Process
	for name, p := range cp.procs {
		select {
		case <-p.gone:
		default:
			ps = append(ps, Process{Component: name, PID: p.cmd.Process.Pid})
		}
	}
	slices.SortFunc(ps, func(a, b Process) int { return a.PID - b.PID })
	return ps
}

// StopAPIServer kills the API server, which stays down until [ControlPlane.StartAPIServer]. The other components continue and retry. It
// does nothing if the API server is already stopped.
func (cp *ControlPlane) StopAPIServer() error {
	return cp.alone(context.Background(), func(context.Context) error {
		if p := cp.process(APIServer); p != nil {
			p.stop(0)
		}
		return nil
	})
}

// StartAPIServer starts the API server again, at the same address and with the same data, and returns when it is ready. It does nothing if
// the API server runs.
func (cp *ControlPlane) StartAPIServer(ctx context.Context) error {
	return cp.alone(ctx, func(ctx context.Context) error {
		if cp.process(APIServer) != nil {
			return nil
		}
		if err := cp.startAPIServer(ctx); err != nil {
			return fmt.Errorf("starting the API server again: %w", err)
		}
		return nil
	})
}

// RestartAPIServer stops the API server and starts it again with these flags appended to [Options.APIServerFlags]. The flags apply until
// the next RestartAPIServer. It returns when the API server is ready.
func (cp *ControlPlane) RestartAPIServer(ctx context.Context, flags ...string) error {
	return cp.alone(ctx, func(ctx context.Context) error {
		if p := cp.process(APIServer); p != nil {
			p.stop(0)
		}
		cp.moreFlags = flags
		if err := cp.startAPIServer(ctx); err != nil {
			return fmt.Errorf("starting the API server with %q: %w", flags, err)
		}
		return nil
	})
}

func (cp *ControlPlane) flags() []string { return slices.Concat(cp.opts.APIServerFlags, cp.moreFlags) }

// RestartEtcd kills etcd and starts it again with the same data. No acknowledged write is lost, because the machine keeps running. It
// returns when etcd is ready and, if it runs, the API server is ready too.
func (cp *ControlPlane) RestartEtcd(ctx context.Context) error {
	return cp.alone(ctx, func(ctx context.Context) error {
		if p := cp.process(Etcd); p != nil {
			p.stop(0)
		}
		if err := cp.startEtcd(ctx); err != nil {
			return fmt.Errorf("starting etcd again: %w", err)
		}
		p := cp.process(APIServer)
		if p == nil {
			return nil
		}
		return p.waitReady(ctx, cp.readyz)
	})
}

// alone runs one fault at a time, and no fault after Stop. Stop also cancels a running one.
func (cp *ControlPlane) alone(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(cp.life, func() { cancel(errStopped) })()
	cp.faultMu.Lock()
	defer cp.faultMu.Unlock()
	if cp.life.Err() != nil {
		return errStopped
	}
	return f(ctx)
}

// process returns the running process of a component, or nil.
func (cp *ControlPlane) process(name Component) *process {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	p := cp.procs[name]
	if p == nil {
		return nil
	}
	select {
	case <-p.gone:
		return nil
	default:
		return p
	}
}

// stopAll ends all processes: first the writers, last the store. It returns the errors of the processes that had ended unexpectedly.
func (cp *ControlPlane) stopAll() error {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	var errs []error
	for _, p := range cp.procs {
		select {
		case <-p.gone:
			if !p.unwanted.Load() {
				errs = append(errs, p.died())
			}
		default:
		}
	}
	for _, stage := range [][]Component{{Pods, Ballast, Scheduler, ControllerManager}, {APIServer}, {Etcd}} {
		var wg sync.WaitGroup
		for _, name := range stage {
			if p := cp.procs[name]; p != nil {
				wg.Go(func() { p.stop(stopGrace(name)) })
			}
		}
		wg.Wait()
	}
	return errors.Join(errs...)
}

// BackUp keeps a copy of the store as it is now, for [ControlPlane.Restore]. It restarts etcd.
func (cp *ControlPlane) BackUp(ctx context.Context) error {
	return cp.alone(ctx, func(ctx context.Context) error {
		return cp.replaceStore(ctx, func() error {
			if err := os.RemoveAll(cp.dir.Join("etcd.backup")); err != nil {
				return err
			}
			return os.CopyFS(cp.dir.Join("etcd.backup"), os.DirFS(cp.dir.Join("etcd")))
		})
	})
}

// Restore resets the store to the copy of [ControlPlane.BackUp], as an administrator does after a disaster. The API server is stopped in
// the meantime. All later writes are lost, and resourceVersions are used again.
func (cp *ControlPlane) Restore(ctx context.Context) error {
	return cp.alone(ctx, func(ctx context.Context) error {
		if p := cp.process(APIServer); p != nil {
			p.stop(0)
		}
		err := cp.replaceStore(ctx, func() error {
			if err := os.RemoveAll(cp.dir.Join("etcd")); err != nil {
				return err
			}
			return os.CopyFS(cp.dir.Join("etcd"), os.DirFS(cp.dir.Join("etcd.backup")))
		})
		if err != nil {
			return err
		}
		return cp.startAPIServer(ctx)
	})
}

// replaceStore calls do, which changes etcd's data, while etcd is stopped.
func (cp *ControlPlane) replaceStore(ctx context.Context, do func() error) error {
	if p := cp.process(Etcd); p != nil {
		p.stop(stopGrace(Etcd))
	}
	if err := do(); err != nil {
		return fmt.Errorf("replacing etcd's data: %w", err)
	}
	if err := cp.startEtcd(ctx); err != nil {
		return fmt.Errorf("starting etcd again: %w", err)
	}
	if p := cp.process(APIServer); p != nil {
		return p.waitReady(ctx, cp.readyz)
	}
	return nil
}
