package realhost

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

const (
	// rebootStatus is the exit status of systemd-nspawn when its container requested a reboot.
	rebootStatus = 133
	// firstVersion is the VERSION_ID that a host has first.
	firstVersion = "4.1.0"
	// downTime is the time between the end of a boot and the next boot.
	downTime = time.Second
)

//go:embed files/start.sh
var startScript string

// errDown is the error of an operation that needs a running host.
var errDown = errors.New("the host is down")

// Host is a real host. Its methods are safe for concurrent use.
type Host struct {
	opts      Options
	lab       *Lab
	cp        *controlplane.ControlPlane
	parts     parts
	tree      string // root of its operating system, read-only
	dir       string
	machine   string // its name for systemd-nspawn
	machineID string
	addr      netip.Addr
	cgroups   []string

	life    context.Context // ends with Close
	end     context.CancelFunc
	stopped chan struct{} // closed when the supervisor is gone
	eventMu sync.Mutex    // held during the delivery of an event

	mu       sync.Mutex
	boot     *boot // nil while the host is down
	next     NextBoot
	version  string
	boots    int
	reboots  int
	cut      bool // from the network
	power    bool // false: the host stays down
	crashing bool
	failed   error         // why the host could not boot
	changed  chan struct{} // closed and replaced when one of these changes
}

// boot is one run of the host's systemd.
type boot struct {
	pid int // PID of the host's systemd on the machine
	id  string
	ctx context.Context // ends with the boot
}

// newHost creates a host in the lab and boots it. ctx bounds the build of its tree, not the host's life.
func newHost(ctx context.Context, l *Lab, cp *controlplane.ControlPlane, p parts, opts Options) (*Host, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, fmt.Errorf("invalid host %q: %w", opts.Name, err)
	}
	tree, err := Tree(ctx, l.log, opts.Release)
	if err != nil {
		return nil, fmt.Errorf("creating host %s: %w", opts.Name, err)
	}
	h := &Host{opts: opts, lab: l, cp: cp, parts: p, tree: tree, version: firstVersion, power: true, changed: make(chan struct{}), stopped: make(chan struct{})}
	number, err := l.add(h)
	if err != nil {
		return nil, fmt.Errorf("creating host %s: %w", opts.Name, err)
	}
	h.machine = fmt.Sprintf("%s-%d", l.tag, number)
	h.dir = filepath.Join(l.dir, opts.Name)
	h.addr = netip.AddrFrom4([4]byte{10, 213, byte(l.n), byte(10 + number)})
	h.life, h.end = context.WithCancel(context.Background())
	if err = h.install(); err == nil {
		h.cgroups, err = makeCgroups(filepath.Join(l.tag, opts.Name))
	}
	if err != nil {
		close(h.stopped)
		h.stop()
		return nil, fmt.Errorf("creating host %s: %w", opts.Name, err)
	}
	go h.supervise()
	return h, nil
}

// supervise boots the host again and again until it is closed.
func (h *Host) supervise() {
	defer close(h.stopped)
	for {
		next, ok := h.waitPower()
		if !ok {
			return
		}
		err := h.prepareBoot(next)
		if err == nil {
			err = h.runBoot()
		}
		if h.life.Err() != nil {
			return
		}
		if err != nil {
			h.lab.printf("%s: booting: %v", h.opts.Name, err)
			h.update(func() { h.power, h.failed = false, err })
			continue
		}
		h.update(func() {
			if h.next.StayDown {
				h.power, h.next.StayDown = false, false
			}
		})
		select {
		case <-h.life.Done():
		case <-time.After(downTime):
		}
	}
}

// waitPower waits until the host has power, and takes the configuration of its next boot.
func (h *Host) waitPower() (next NextBoot, ok bool) {
	err := h.wait(h.life, func() bool { return h.power })
	h.update(func() { next, h.next = h.next, NextBoot{} })
	return next, err == nil
}

// runBoot runs one boot, from power-on to power-off. It fails only if the host cannot boot; the end of a boot is not an
// error.
func (h *Host) runBoot() error {
	console, err := os.OpenFile(h.ConsoleLog(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("opening the console's log: %w", err)
	}
	defer console.Close()
	cmd := exec.Command("unshare", h.bootCommand()...)
	cmd.Stdout, cmd.Stderr = console, console
	cmd.WaitDelay = time.Second
	if h.opts.Release != Bookworm {
		// systemd 257 refuses to boot with cgroups version 1, which the machine may use.
		cmd.Env = append(os.Environ(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1")
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting systemd-nspawn: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	pid, err := h.findInit(cmd.Process.Pid, ended)
	if err != nil {
		_ = cmd.Process.Kill()
		return fmt.Errorf("%w; the end of the console:\n%s", err, h.console())
	}
	ctx, cancel := context.WithCancel(h.life)
	b := &boot{pid: pid, ctx: ctx, id: bootIDOf(pid)}
	defer context.AfterFunc(h.life, func() { b.kill() })()
	if err := h.applyCut(); err != nil {
		h.lab.printf("%s: %v", h.opts.Name, err)
	}
	h.update(func() { h.boot, h.boots, h.failed = b, h.boots+1, nil })
	h.emit(Booted, b.id, h.Version())
	watcher := make(chan struct{})
	go func() {
		defer close(watcher)
		h.watchLogind(b)
	}()
	how := h.judge(<-ended)
	cancel()
	<-watcher
	h.update(func() { h.boot = nil })
	h.emit(ShutdownDone, b.id, how)
	return nil
}

// judge interprets the exit of systemd-nspawn, and removes the power if the host has powered itself off.
func (h *Host) judge(err error) (how string) {
	h.update(func() {
		exit, _ := errors.AsType[*exec.ExitError](err)
		switch {
		case h.crashing:
			how = "crash"
		case exit != nil && exit.ExitCode() == rebootStatus:
			how, h.reboots = "reboot", h.reboots+1
		case err == nil:
			how, h.power = "poweroff", false
		default:
			how = fmt.Sprintf("crash (%v)", err)
		}
		h.crashing = false
	})
	return how
}

func (h *Host) bootCommand() []string {
	args := []string{"--mount", "--propagation", "private", "sh", "-c", startScript, "start", h.tree, h.dir, fmt.Sprint(len(h.cgroups))}
	args = append(args, h.cgroups...)
	args = append(args, "systemd-nspawn", "--quiet", "--boot", "--directory="+filepath.Join(h.dir, "root"),
		"--machine="+h.machine, "--hostname="+h.opts.Name, "--uuid="+h.machineID,
		"--register=no", "--keep-unit", "--settings=no", "--link-journal=no", "--resolv-conf=off", "--timezone=off", "--console=pipe",
		"--network-bridge="+h.lab.tag,
		"--bind=/dev/null:/dev/kmsg", // the kubelet requires one, and must not read the machine's
		"--bind-ro="+h.parts.kubelet+":/usr/bin/kubelet", "--bind-ro="+h.parts.hostparts+":/usr/bin/hostparts")
	for inside, outside := range h.opts.Binds {
		args = append(args, "--bind-ro="+escapeBind(outside)+":"+escapeBind(inside))
	}
	return args
}

func escapeBind(path string) string { return strings.NewReplacer(`\`, `\\`, ":", `\:`).Replace(path) }

// update changes the host's state and wakes the goroutines that wait for a change.
func (h *Host) update(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	close(h.changed)
	h.changed = make(chan struct{})
}

// wait waits until cond returns true. It calls cond with mu held.
func (h *Host) wait(ctx context.Context, cond func() bool) error {
	for {
		h.mu.Lock()
		ok, changed := cond(), h.changed
		h.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-h.life.Done():
			return errors.New("the host was closed")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (h *Host) current() *boot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boot
}

// stop removes the power and returns when nothing of the host runs. The lab's janitor removes the rest.
func (h *Host) stop() {
	h.end()
	<-h.stopped
	h.lab.mu.Lock()
	delete(h.lab.hosts, h)
	h.lab.mu.Unlock()
}

// Name returns the name of the host and of its Node.
func (h *Host) Name() string { return h.opts.Name }

// Address returns the host's address in its lab's network.
func (h *Host) Address() netip.Addr { return h.addr }

// Dir returns the host's directory on the machine. Its subdirectory up contains the differences from the tree. Change
// it only while the host is down.
func (h *Host) Dir() string { return h.dir }

// ConsoleLog returns the path of everything that systemd has written on the console, over all boots.
func (h *Host) ConsoleLog() string { return filepath.Join(h.dir, "console.log") }

func (h *Host) console() string {
	text, err := os.ReadFile(h.ConsoleLog())
	if err != nil {
		return err.Error()
	}
	return controlplane.LastLines(string(text), 20)
}

// Version returns the VERSION_ID that the host runs or, while it is down, ran last.
func (h *Host) Version() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.version
}

func (h *Host) setVersion(version string) {
	h.update(func() { h.version = strings.TrimSpace(version) })
}

// BootID returns the id of the running boot, or "" while the host is down.
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

// Reboots returns the number of clean reboots, whether through logind or by systemd alone.
func (h *Host) Reboots() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reboots
}
