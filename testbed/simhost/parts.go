package simhost

import (
	"context"
	"fmt"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// StartLockkeeper starts lockkeeper. It does nothing if lockkeeper already runs.
func (h *Host) StartLockkeeper() error {
	h.power.Lock()
	defer h.power.Unlock()
	b := h.current()
	if b == nil {
		return fmt.Errorf("starting lockkeeper on %s: %w", h.opts.Name, errDown)
	}
	return h.startLockkeeperLocked(b)
}

func (h *Host) startLockkeeperLocked(b *boot) error {
	h.mu.Lock()
	old, closing := h.service, h.closing
	h.mu.Unlock()
	if closing {
		return errClosed
	}
	if old != nil {
		if old.process() != nil {
			return nil
		}
		old.stop(0, nil) // it may be about to restart
	}
	s, err := h.startService(b)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.service = s
	h.mu.Unlock()
	return nil
}

// StopLockkeeper stops lockkeeper as `systemctl stop` does: it sends SIGTERM, and SIGKILL after the stop timeout, and prevents a restart.
// It returns when the process is gone.
func (h *Host) StopLockkeeper() {
	h.mu.Lock()
	s := h.service
	h.mu.Unlock()
	if s != nil {
		s.stop(h.opts.StopTimeout, s.boot.ctx.Done())
	}
}

// Kill sends SIGKILL to lockkeeper and returns when the process is gone. If RestartDelay is set in the options, lockkeeper restarts.
func (h *Host) Kill() {
	h.mu.Lock()
	s := h.service
	h.mu.Unlock()
	if s == nil {
		return
	}
	if p := s.process(); p != nil {
		p.end(0, nil)
	}
}

// Signal sends a signal to lockkeeper. It fails if lockkeeper does not run.
func (h *Host) Signal(sig syscall.Signal) error {
	h.mu.Lock()
	s := h.service
	h.mu.Unlock()
	if s != nil {
		if p := s.process(); p != nil {
			p.signal(sig)
			return nil
		}
	}
	return fmt.Errorf("lockkeeper does not run on %s", h.opts.Name)
}

// Pause stops lockkeeper's process with SIGSTOP, until Continue.
func (h *Host) Pause() error { return h.Signal(syscall.SIGSTOP) }

// Continue resumes a paused lockkeeper.
func (h *Host) Continue() error { return h.Signal(syscall.SIGCONT) }

// PID returns the PID of lockkeeper's process, or 0.
func (h *Host) PID() int {
	h.mu.Lock()
	s := h.service
	h.mu.Unlock()
	if s != nil {
		if p := s.process(); p != nil {
			return p.cmd.Process.Pid
		}
	}
	return 0
}

// Notify returns what lockkeeper has sent to its service manager since its last start.
func (h *Host) Notify() Notify {
	n, _ := h.notify.now()
	return n
}

// WaitNotify waits until cond returns true for what lockkeeper has sent to its service manager. The error quotes what, which describes the
// condition.
func (h *Host) WaitNotify(ctx context.Context, what string, cond func(Notify) bool) error {
	for {
		n, changed := h.notify.now()
		if cond(n) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for lockkeeper on %s to be %s: %w; it sent %+v; the end of its log:\n%s",
				h.opts.Name, what, context.Cause(ctx), n, h.LogTail(20))
		}
	}
}

// WaitReady waits for lockkeeper's READY=1.
func (h *Host) WaitReady(ctx context.Context) error {
	return h.WaitNotify(ctx, "ready", func(n Notify) bool { return n.Ready })
}

// RestartBus lets the host's dbus-daemon crash and restarts it at the same address after down. update_engine and logind return with it if
// they ran before. As after any restart, the engine has forgotten the version of a pending update. Inhibitors remain, because they do not
// depend on the bus.
func (h *Host) RestartBus(ctx context.Context, down time.Duration) error {
	h.power.Lock()
	defer h.power.Unlock()
	b := h.current()
	if b == nil {
		return fmt.Errorf("restarting the bus of %s: %w", h.opts.Name, errDown)
	}
	_, engine := h.engine.Status()
	logind := h.logind.runs()
	b.theBus().stop(0)
	h.engine.Stop()
	h.logind.Stop()
	h.units.stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	if !pause(ctx, down) {
		return fmt.Errorf("restarting the bus of %s: %w", h.opts.Name, context.Cause(ctx))
	}
	fresh, err := startBus(ctx, h.dir)
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.bus = fresh
	b.mu.Unlock()
	if err := h.units.start(b); err != nil {
		return err
	}
	if logind {
		if err := h.logind.start(b); err != nil {
			return err
		}
	}
	if engine {
		if err := h.engine.Start(); err != nil {
			return err
		}
	}
	return h.remanageShutdown(b)
}

// remanageShutdown connects the kubelet to a new bus. The real kubelet reconnects without help.
func (h *Host) remanageShutdown(b *boot) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kubelet == nil || h.shutdown == nil || !h.logind.runs() {
		return nil
	}
	h.shutdown.stop()
	var err error
	h.shutdown, err = manageShutdown(b.ctx, b.theBus(), h.kubelet.prepareForShutdown)
	return err
}

// StartKubelet starts the kubelet again after StopKubelet. The kubelet registers its Node again if the Node is gone.
func (h *Host) StartKubelet() error {
	h.power.Lock()
	defer h.power.Unlock()
	b := h.current()
	if b == nil {
		return fmt.Errorf("starting the kubelet on %s: %w", h.opts.Name, errDown)
	}
	return h.startKubeletLocked(b)
}

func (h *Host) startKubeletLocked(b *boot) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kubelet != nil || h.closing {
		return nil
	}
	k := h.newKubelet(b.id)
	if !h.opts.Kubelet.Silent {
		m, err := manageShutdown(b.ctx, b.theBus(), k.prepareForShutdown)
		if err != nil {
			k.stop()
			return err
		}
		h.shutdown = m
	}
	h.kubelet = k
	return nil
}

// StopKubelet kills the kubelet. The kubelet writes nothing more, and the host's pods do not change.
func (h *Host) StopKubelet() {
	h.power.Lock()
	defer h.power.Unlock()
	h.mu.Lock()
	runs := h.kubelet != nil
	h.mu.Unlock()
	if runs {
		h.stopKubeletLocked()
		h.holdPods(h.life)
	}
}

func (h *Host) stopKubeletLocked() {
	h.mu.Lock()
	k, m := h.kubelet, h.shutdown
	h.kubelet, h.shutdown = nil, nil
	h.mu.Unlock()
	if m != nil {
		m.stop()
	}
	if k != nil {
		k.stop()
	}
}

// WaitNodeReady waits until the Node is Ready with the ID of the running boot.
func (h *Host) WaitNodeReady(ctx context.Context) (*corev1.Node, error) {
	return h.cp.WaitNode(ctx, h.opts.Name, "to be Ready in its present boot", func(n *corev1.Node) bool {
		id := h.BootID()
		return n != nil && id != "" && n.Status.NodeInfo.BootID == id && readyOf(n) == corev1.ConditionTrue
	})
}
