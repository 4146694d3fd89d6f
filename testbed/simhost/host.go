package simhost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

var (
	// errDown is what comes of asking a host for something while it is down.
	errDown   = errors.New("the host is down")
	errClosed = errors.New("the host was closed")
)

// A Host is a simulated host. Its methods may be called by several goroutines.
type Host struct {
	opts          Options
	cp            *controlplane.ControlPlane
	dir           *workDir
	output        *output
	notify        *notifyListener
	kubeletClient kubernetes.Interface
	engine        *Engine
	logind        *Logind
	units         *Units

	life      context.Context // ends when Close has asked lockkeeper to end
	endLife   context.CancelFunc
	closeOnce sync.Once
	closeErr  error

	eventMu sync.Mutex // events are told one at a time

	// power is held while the host goes up or down, or a part of it is started or stopped; before mu.
	power sync.Mutex

	mu       sync.Mutex
	tasks    sync.WaitGroup
	closing  bool
	closed   bool
	lastLog  string // once closed
	config   Config
	boot     *boot // nil while the host is down
	service  *service
	kubelet  *kubelet
	shutdown *shutdownManager
	next     NextBoot
	version  string
	staged   string // what the next boot boots; "" for the same again
	boots    int
	reboots  int
	changed  chan struct{} // closed and made again when one of these changes
}

// Start makes a host and boots it. It returns when lockkeeper, the kubelet and the rest were started; the Node comes a moment
// later, see [Host.WaitNodeReady]. When ctx ends, also long after that, the host is closed.
func Start(ctx context.Context, cp *controlplane.ControlPlane, opts Options) (*Host, error) {
	h := &Host{opts: opts, cp: cp, changed: make(chan struct{})}
	if err := h.opts.setDefaults(); err != nil {
		return nil, fmt.Errorf("a simulated host %q cannot be: %w", opts.Name, err)
	}
	h.logind, h.units = &Logind{h: h}, &Units{h: h}
	h.life, h.endLife = context.WithCancel(context.Background())
	h.version = h.opts.Version
	if err := h.prepare(); err != nil {
		_ = h.Close() // what went wrong is in err
		return nil, fmt.Errorf("making host %s: %w", opts.Name, err)
	}
	if err := h.powerOn(); err != nil {
		_ = h.Close()
		return nil, fmt.Errorf("booting host %s: %w", opts.Name, err)
	}
	unhook := context.AfterFunc(ctx, func() { _ = h.Close() })
	context.AfterFunc(h.life, func() { unhook() })
	return h, nil
}

// prepare makes what outlives the boots: directory, credentials, configuration, log, notification socket.
func (h *Host) prepare() (err error) {
	if h.dir, err = newWorkDir(h.opts.Dir); err != nil {
		return err
	}
	h.engine = h.newEngine()
	log, err := os.OpenFile(h.LogPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log: %w", err)
	}
	h.output = &output{file: log, line: h.opts.Log}
	if h.notify, err = listenNotify(h.dir.join(notifySocket)); err != nil {
		return err
	}
	kubelet, err := h.cp.NodeConfig(h.opts.Name)
	if err != nil {
		return err
	}
	if h.kubeletClient, err = kubernetes.NewForConfig(kubelet); err != nil {
		return fmt.Errorf("making the kubelet's client: %w", err)
	}
	source := h.opts.Kubeconfig
	if source == "" {
		if source, err = h.cp.NodeKubeconfig(h.opts.Name); err != nil {
			return err
		}
	}
	if err := copyFile(source, h.dir.join("kubelet.kubeconfig")); err != nil {
		return err
	}
	if err := h.SetCoordinator(h.opts.Coordinator); err != nil {
		return err
	}
	h.config = h.defaultConfig()
	return h.Configure(h.opts.Config)
}

// CoordinatorKubeconfig is where the host has the coordinator's kubeconfig, if it has one.
func (h *Host) CoordinatorKubeconfig() string { return h.coordinatorKubeconfig() }

// RenewedToken is where the host keeps the coordinator's renewed token, if it has one.
func (h *Host) RenewedToken() string { return h.rootPath("/var/lib/lockkeeper/coordinator-token.json") }

func (h *Host) coordinatorKubeconfig() string { return h.dir.join("coordinator.kubeconfig") }

// SetCoordinator gives the host the coordinator's kubeconfig, or takes it away.
func (h *Host) SetCoordinator(on bool) error {
	if !on {
		if err := os.Remove(h.coordinatorKubeconfig()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("removing the coordinator's kubeconfig: %w", err)
		}
		return nil
	}
	source := h.opts.CoordinatorKubeconfig
	if source == "" {
		var err error
		if source, err = h.cp.CoordinatorKubeconfig(); err != nil {
			return err
		}
	}
	return copyFile(source, h.coordinatorKubeconfig())
}

// copyFile copies a small secret, appearing whole or not at all.
func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(to+".new", to)
	}
	if err != nil {
		return fmt.Errorf("copying a kubeconfig: %w", err)
	}
	return nil
}

// Close ends the host: lockkeeper is asked to end, the rest is just gone, the Node is deleted unless it is to be kept, the
// temporary directory is removed. It may be called any number of times and returns when nothing is left.
func (h *Host) Close() error {
	h.closeOnce.Do(func() {
		h.mu.Lock()
		h.closing = true
		h.mu.Unlock()
		h.StopLockkeeper()
		h.endLife()
		if b := h.current(); b != nil {
			b.cut() // a shutdown that is under way waits for no one now
		}
		h.tasks.Wait()
		h.power.Lock()
		defer h.power.Unlock()
		h.powerOffLocked()
		if h.notify != nil {
			h.notify.close()
		}
		if !h.opts.KeepNode {
			h.closeErr = h.deleteNode()
		}
		if h.output != nil {
			text := h.Logs()
			h.mu.Lock()
			h.closed, h.lastLog = true, text[max(0, len(text)-1<<20):]
			h.mu.Unlock()
			h.output.file.Close()
		}
		if h.dir != nil {
			h.closeErr = errors.Join(h.closeErr, h.dir.remove())
		}
	})
	return h.closeErr
}

// deleteNode takes the host out of the cluster. A control plane that is gone has taken the Node with it.
func (h *Host) deleteNode() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := h.cp.Client().CoreV1().Nodes().Delete(ctx, h.opts.Name, metav1.DeleteOptions{})
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("deleting Node %s: %w", h.opts.Name, err)
	}
	return nil
}

// task runs f unless the host is being closed, which waits for it.
func (h *Host) task(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closing {
		h.tasks.Go(f)
	}
}

// current is the boot that runs, or nil.
func (h *Host) current() *boot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boot
}

// update changes the host's state and tells who waits for it.
func (h *Host) update(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *Host) countReboot() { h.update(func() { h.reboots++ }) }

// Name of the host and of its Node.
func (h *Host) Name() string { return h.opts.Name }

// Engine is the host's update_engine.
func (h *Host) Engine() *Engine { return h.engine }

// Logind is the host's logind.
func (h *Host) Logind() *Logind { return h.logind }

// Units are the host's units, as its systemd tells of them.
func (h *Host) Units() *Units { return h.units }

// Dir is the directory with everything of this host.
func (h *Host) Dir() string { return h.dir.path }

// Version is what the host runs, or ran last.
func (h *Host) Version() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.version
}

// Staged is what the next boot will boot, "" for the same again. ResetStatus does not change it.
func (h *Host) Staged() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.staged
}

// BootID is that of the running boot, "" while the host is down.
func (h *Host) BootID() string {
	if b := h.current(); b != nil {
		return b.id
	}
	return ""
}

// Boots is how often the host was booted, the first boot included.
func (h *Host) Boots() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boots
}

// Reboots is how many orders to reboot logind has taken.
func (h *Host) Reboots() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reboots
}

// StageUpdate has the engine go through a whole update: afterwards its status is UPDATED_NEED_REBOOT, and the next boot
// boots the version, whatever else happens. It fails when one is pending already.
func (h *Host) StageUpdate(version string) error {
	if err := h.engine.Stage(version); err != nil {
		return fmt.Errorf("staging %s on %s: %w", version, h.opts.Name, err)
	}
	return nil
}

// ResetStatus is the engine's: it is IDLE afterwards, without a signal, and the next boot boots what was staged all the same.
func (h *Host) ResetStatus() error {
	if err := h.engine.Reset(); err != nil {
		return fmt.Errorf("resetting the engine's status on %s: %w", h.opts.Name, err)
	}
	return nil
}
