package simhost

import (
	"context"
	"fmt"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// StartLockkeeper starts lockkeeper; on a host where it runs it is not an error.
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
		old.stop(0, nil) // it may be about to be started again by itself
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

// StopLockkeeper stops lockkeeper as `systemctl stop` does: SIGTERM, SIGKILL after the stop timeout, no restart. It returns
// when it is gone.
func (h *Host) StopLockkeeper() {
	h.mu.Lock()
	s := h.service
	h.mu.Unlock()
	if s != nil {
		s.stop(h.opts.StopTimeout, s.boot.ctx.Done())
	}
}

// Kill sends lockkeeper SIGKILL and returns when it is gone. With RestartDelay in the options it comes back by itself.
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

// Signal sends lockkeeper a signal; it fails when it does not run.
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

// Pause stops lockkeeper's process where it is (SIGSTOP), until Continue.
func (h *Host) Pause() error { return h.Signal(syscall.SIGSTOP) }

// Continue lets a paused lockkeeper continue.
func (h *Host) Continue() error { return h.Signal(syscall.SIGCONT) }

// PID is that of lockkeeper's process, 0 if there is none.
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

// Notify is what lockkeeper has said to its service manager since its last start.
func (h *Host) Notify() Notify {
	n, _ := h.notify.now()
	return n
}

// WaitNotify waits until what lockkeeper said is as cond wants it; what names that for the error.
func (h *Host) WaitNotify(ctx context.Context, what string, cond func(Notify) bool) error {
	for {
		n, changed := h.notify.now()
		if cond(n) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for lockkeeper on %s to be %s: %w; it said %+v; the end of its log:\n%s",
				h.opts.Name, what, context.Cause(ctx), n, h.LogTail(20))
		}
	}
}

// WaitReady waits for lockkeeper's READY=1.
func (h *Host) WaitReady(ctx context.Context) error {
	return h.WaitNotify(ctx, "ready", func(n Notify) bool { return n.Ready })
}

// RestartBus has the host's dbus-daemon crash and come back at the same address, for the length of down. update_engine and
// logind come back with it if they ran; the engine has forgotten the version of a pending update, as after any restart of
// it. Inhibitors stay, they do not hang on the bus.
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

// remanageShutdown has the kubelet listen on a new bus. The real one reconnects by itself.
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

// StartKubelet starts the kubelet again after StopKubelet; a Node that is gone is registered again.
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

// StopKubelet kills the kubelet: it writes nothing any more, and nothing happens to the host's pods.
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

// WaitNodeReady waits until the Node is Ready with the boot id of the running boot.
func (h *Host) WaitNodeReady(ctx context.Context) (*corev1.Node, error) {
	return h.cp.WaitNode(ctx, h.opts.Name, "to be Ready in its present boot", func(n *corev1.Node) bool {
		id := h.BootID()
		return n != nil && id != "" && n.Status.NodeInfo.BootID == id && readyOf(n) == corev1.ConditionTrue
	})
}
