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
	"lockkeeper.dev/lockkeeper/testbed/workdir"
)

var (
	// errDown is the error of an operation that needs a running host.
	errDown   = errors.New("the host is down")
	errClosed = errors.New("the host was closed")
)

// Host is a simulated host. Its methods are safe for concurrent use.
type Host struct {
	opts          Options
	cp            *controlplane.ControlPlane
	dir           *workdir.Dir
	log           *os.File
	notify        *notifyListener
	kubeletClient kubernetes.Interface
	engine        *Engine
	logind        *Logind
	units         *Units

	life      context.Context // ends when Close has asked lockkeeper to exit
	endLife   context.CancelFunc
	closeOnce sync.Once
	closeErr  error

	eventMu sync.Mutex // serializes events

	// power is held while the host goes up or down, or while a part of it starts or stops. Lock it before mu.
	power sync.Mutex

	mu       sync.Mutex
	tasks    sync.WaitGroup
	closing  bool
	closed   bool
	lastLog  string // set when the log is closed
	config   Config
	boot     *boot // nil while the host is down
	service  *service
	kubelet  *kubelet
	shutdown *shutdownManager
	next     NextBoot
	version  string
	staged   string // the version for the next boot; "" means the current one
	boots    int
	reboots  int
	changed  chan struct{} // closed and replaced when one of these changes
}

// Start creates a host and boots it. It returns after it has started lockkeeper, the kubelet and the other parts. The
// Node appears a moment later, see [Host.WaitNodeReady]. The host is closed when ctx ends, even after Start has
// returned.
func Start(ctx context.Context, cp *controlplane.ControlPlane, opts Options) (*Host, error) {
	h := &Host{opts: opts, cp: cp, changed: make(chan struct{})}
	if err := h.opts.setDefaults(); err != nil {
		return nil, fmt.Errorf("invalid simulated host %q: %w", opts.Name, err)
	}
	h.logind, h.units = &Logind{h: h}, &Units{h: h}
	h.life, h.endLife = context.WithCancel(context.Background())
	h.version = h.opts.Version
	if err := h.prepare(); err != nil {
		_ = h.Close() // err already describes the failure
		return nil, fmt.Errorf("creating host %s: %w", opts.Name, err)
	}
	if err := h.powerOn(); err != nil {
		_ = h.Close()
		return nil, fmt.Errorf("booting host %s: %w", opts.Name, err)
	}
	unhook := context.AfterFunc(ctx, func() { _ = h.Close() })
	context.AfterFunc(h.life, func() { unhook() })
	return h, nil
}

// prepare creates everything that persists over all boots: directory, credentials, configuration, log, notification
// socket.
func (h *Host) prepare() (err error) {
	if h.dir, err = workdir.New("host", h.opts.Dir); err != nil {
		return err
	}
	h.engine = h.newEngine()
	if h.log, err = os.OpenFile(h.LogPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return fmt.Errorf("opening the log: %w", err)
	}
	socket, err := h.dir.Socket(notifySocket)
	if err != nil {
		return err
	}
	if h.notify, err = listenNotify(socket); err != nil {
		return err
	}
	kubelet, err := h.cp.NodeConfig(h.opts.Name)
	if err != nil {
		return err
	}
	if h.kubeletClient, err = kubernetes.NewForConfig(kubelet); err != nil {
		return fmt.Errorf("creating the kubelet's client: %w", err)
	}
	source := h.opts.Kubeconfig
	if source == "" {
		if source, err = h.cp.NodeKubeconfig(h.opts.Name); err != nil {
			return err
		}
	}
	if err := copyFile(source, h.dir.Join("kubelet.kubeconfig")); err != nil {
		return err
	}
	if err := h.SetCoordinator(h.opts.Coordinator); err != nil {
		return err
	}
	h.config = h.defaultConfig()
	return h.Configure(h.opts.Config)
}

// CoordinatorKubeconfig returns the path of the coordinator's kubeconfig, which exists only if the host has one.
func (h *Host) CoordinatorKubeconfig() string { return h.coordinatorKubeconfig() }

// RenewedToken returns the path of the coordinator's renewed token, which exists only if the host has one.
func (h *Host) RenewedToken() string { return h.rootPath("/var/lib/lockkeeper/coordinator-token.json") }

func (h *Host) coordinatorKubeconfig() string { return h.dir.Join("coordinator.kubeconfig") }

// SetCoordinator gives the coordinator's kubeconfig to the host, or removes it.
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

// copyFile copies a small secret. A reader sees the whole file or no file.
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

// Close ends the host. It asks lockkeeper to exit, ends all other parts without notice, deletes the Node, and removes
// the temporary directory. It returns when nothing is left. It may be called more than once.
func (h *Host) Close() error {
	h.closeOnce.Do(func() {
		h.mu.Lock()
		h.closing = true
		h.mu.Unlock()
		h.StopLockkeeper()
		h.endLife()
		if b := h.current(); b != nil {
			b.cut() // cuts a running shutdown short
		}
		h.tasks.Wait()
		h.power.Lock()
		defer h.power.Unlock()
		h.powerOffLocked()
		if h.notify != nil {
			h.notify.close()
		}
		h.closeErr = h.deleteNode()
		if h.log != nil {
			text := h.Logs()
			h.mu.Lock()
			h.closed, h.lastLog = true, text[max(0, len(text)-1<<20):]
			h.mu.Unlock()
			h.log.Close()
		}
		if h.dir != nil {
			h.closeErr = errors.Join(h.closeErr, h.dir.Remove())
		}
	})
	return h.closeErr
}

// deleteNode deletes the host's Node from the cluster. If the control plane is gone, so is the Node.
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

// task runs f in a goroutine for which Close waits. It does nothing if the host is closing.
func (h *Host) task(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closing {
		h.tasks.Go(f)
	}
}

// current returns the running boot, or nil.
func (h *Host) current() *boot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boot
}

// update changes the host's state and wakes the goroutines that wait for a change.
func (h *Host) update(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *Host) countReboot() { h.update(func() { h.reboots++ }) }

// Name returns the name of the host and of its Node.
func (h *Host) Name() string { return h.opts.Name }

// Engine returns the host's update_engine.
func (h *Host) Engine() *Engine { return h.engine }

// Logind returns the host's logind.
func (h *Host) Logind() *Logind { return h.logind }

// Units returns the host's units, as its systemd reports them.
func (h *Host) Units() *Units { return h.units }

// Dir returns the directory that contains all files of this host.
func (h *Host) Dir() string { return h.dir.Path() }

// Version returns the version that the host runs or, while it is down, ran last.
func (h *Host) Version() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.version
}

// Staged returns the version that the next boot will boot, or "" for the current one. ResetStatus does not change it.
func (h *Host) Staged() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.staged
}

// BusAddress returns the address of its system bus, or "" while the host is down. Each boot has another one.
func (h *Host) BusAddress() string {
	if b := h.current(); b != nil {
		return b.theBus().address
	}
	return ""
}

// BootID returns the ID of the running boot, or "" while the host is down.
func (h *Host) BootID() string {
	if b := h.current(); b != nil {
		return b.id
	}
	return ""
}

// Boots returns how often the host has booted, including the first boot.
func (h *Host) Boots() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boots
}

// Reboots returns how many calls to reboot logind has accepted.
func (h *Host) Reboots() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reboots
}

// StageUpdate makes the engine perform a whole update. Afterwards its status is UPDATED_NEED_REBOOT, and the next boot
// boots the version in any case. StageUpdate fails if an update is already pending.
func (h *Host) StageUpdate(version string) error {
	if err := h.engine.Stage(version); err != nil {
		return fmt.Errorf("staging %s on %s: %w", version, h.opts.Name, err)
	}
	return nil
}

// ResetStatus calls ResetStatus of the engine. The engine is then IDLE and sends no signal. The next boot still boots
// the staged version.
func (h *Host) ResetStatus() error {
	if err := h.engine.Reset(); err != nil {
		return fmt.Errorf("resetting the engine's status on %s: %w", h.opts.Name, err)
	}
	return nil
}
