// Package memhost simulates the services of one host in memory, over all its boots: logind, systemd's units and
// update_engine, on a bus of package membus. Everything happens in the clock of the bubble that a test of testing/synctest
// runs in. Package simhost is its counterpart with processes and a real bus.
//
// The host must not know of lockkeeper: the owner of a Host runs lockkeeper, connects it with [Host.Dial], stops it when the
// host goes down, and boots the host again.
package memhost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/testbed/engine"
	"lockkeeper.dev/lockkeeper/testbed/membus"
	"lockkeeper.dev/lockkeeper/testbed/referee"
)

// The kinds of events that the referee does not judge, in addition to its own RebootCalled and RebootRefused.
const (
	// CallerGone means that logind refused a call whose caller had closed its connection before the call arrived.
	CallerGone referee.Kind = "CallerGone"
	// Shutdown means that something else than a call on the bus began a shutdown; see [Logind.Shutdown].
	Shutdown referee.Kind = "Shutdown"
	// ShutdownCanceled means that a shutdown was called off before the host went down.
	ShutdownCanceled referee.Kind = "ShutdownCanceled"
	// Crashed means that the host lost power.
	Crashed referee.Kind = "Crashed"
	// ShutdownDone means that the host is down after a shutdown.
	ShutdownDone referee.Kind = "ShutdownDone"
	// Booted means that the host has booted; Detail is the version.
	Booted referee.Kind = "Booted"
)

// ErrDown is the error of an operation that needs a running host.
var ErrDown = errors.New("the host is down")

// Options describe a host. Name and Root are required.
type Options struct {
	// Name is the name of the host and of its Node.
	Name string
	// Root is the directory that lockkeeper uses as / on this host.
	Root string
	// Version is the version that the host boots first; "" is 4.1.0.
	Version string

	// ShutdownTakes is the time from the release of the last delay inhibitor until the host is down; BootTakes is the time that
	// Boot takes.
	ShutdownTakes, BootTakes time.Duration
	// InhibitDelayMax bounds the wait for delay inhibitors; 0 is logind's default, 5 s.
	InhibitDelayMax time.Duration
	// CoreOS has the host run Fedora CoreOS, whose os-release names its image by OSTREE_VERSION, and not Flatcar. It has no
	// update_engine: see [Host.StageNext].
	CoreOS bool

	// Event, if set, is called with each event of the host, from several goroutines. logind waits for the end of the call before
	// it answers and before the shutdown begins. Event may call the host's methods, except Boot, StopBus and StartBus.
	Event func(referee.HostEvent)
	// Stopping, if set, is called when systemd begins to stop the services of a host that shuts down. The owner then asks
	// lockkeeper to exit.
	Stopping func()
	// Rebooted, if set, is called when the host is down after a shutdown, with the version that the next boot will run. The
	// owner then ends the processes of the old boot, if they still run, and calls Boot.
	Rebooted func(version string)
	// Fault, if set, is the Fault of the bus of every boot.
	Fault func(membus.Transit) membus.Verdict
}

// attempt is one call of Boot. A crash ends it.
type attempt struct{ _ byte }

// Host is the services of a host. Its methods are safe for concurrent use.
type Host struct {
	o      Options
	logind *Logind
	units  *Units
	engine *engine.Engine

	power gate // held while services start or stop; take it before mu

	mu      sync.Mutex
	booting *attempt // nil unless Boot runs
	boot    *boot    // nil while the host is down
	version string
	staged  string // for the next boot; "" is the present version
	boots   int
	reboots int
	ids     int // that newID has made
}

// gate is a mutex in whose wait the clock of a bubble continues.
type gate chan struct{}

func (g gate) lock()   { g <- struct{}{} }
func (g gate) unlock() { <-g }

// boot is the time from the end of Boot until the host is down.
type boot struct {
	id    string
	began time.Time
	over  context.Context
	end   context.CancelFunc

	without *services // those that ran when the bus went down; nil while it is up; power guards it

	mu  sync.Mutex
	bus *membus.Bus // StartBus replaces it
}

// services are those that may be missing on a bus.
type services struct{ engine, logind bool }

func (b *boot) theBus() *membus.Bus {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bus
}

// New returns a host that is down; see [Host.Boot]. A test with a bubble calls it there.
func New(o Options) *Host {
	o.Version, o.InhibitDelayMax = cmp.Or(o.Version, "4.1.0"), cmp.Or(o.InhibitDelayMax, 5*time.Second)
	h := &Host{o: o, version: o.Version, power: make(gate, 1)}
	h.logind, h.units = newLogind(h), newUnits(h)
	h.engine = engine.New(engine.Options{
		Root:    o.Root,
		Connect: func() (*dbus.Conn, error) { return h.connect() },
		Staged: func(version string) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.staged = version
			return nil
		},
	})
	return h
}

// Boot starts the bus and the services under a new boot ID, with the version that was staged, if any. It returns after
// BootTakes. It fails if the host runs, boots, or is crashed meanwhile.
func (h *Host) Boot() error {
	attempt := new(attempt)
	h.mu.Lock()
	if h.boot != nil || h.booting != nil {
		h.mu.Unlock()
		return fmt.Errorf("booting %s: it runs already", h.o.Name)
	}
	h.booting = attempt
	h.mu.Unlock()
	if h.o.BootTakes > 0 {
		time.Sleep(h.o.BootTakes)
	}
	b, version, err := h.powerOn(attempt)
	if err != nil {
		return fmt.Errorf("booting %s: %w", h.o.Name, err)
	}
	h.emit(Booted, b.id, version)
	return nil
}

// powerOn ends an attempt to boot.
func (h *Host) powerOn(a *attempt) (b *boot, version string, err error) {
	h.power.lock()
	defer h.power.unlock()
	h.mu.Lock()
	crashed := h.booting != a
	if !crashed {
		h.booting = nil
	}
	version = cmp.Or(h.staged, h.version)
	h.mu.Unlock()
	if crashed {
		return nil, "", errors.New("it lost power")
	}
	b = &boot{id: h.newBootID(), began: time.Now(), bus: h.newBus()}
	b.over, b.end = context.WithCancel(context.Background())
	if err := h.writeBootFiles(b.id, version); err != nil {
		return nil, "", err
	}
	h.mu.Lock()
	h.boot, h.version, h.staged = b, version, ""
	h.boots++
	h.mu.Unlock()
	h.units.reset(b)
	if err := h.start(b, !h.o.CoreOS, !h.logind.removed.Load()); err != nil {
		h.down(b)
		return nil, "", err
	}
	return b, version, nil
}

func (h *Host) newBus() *membus.Bus {
	bus := membus.New()
	bus.Fault = h.o.Fault
	bus.Activate = func(name string) bool {
		starts := name == loginName && !h.logind.removed.Load()
		if starts {
			go h.logind.activate()
		}
		return starts
	}
	return bus
}

// start starts the services on the boot's bus. The caller must hold power.
func (h *Host) start(b *boot, withEngine, withLogind bool) error {
	if err := h.units.start(b); err != nil {
		return err
	}
	if withLogind {
		if err := h.logind.start(b); err != nil {
			return err
		}
	}
	if withEngine {
		return h.engine.Start()
	}
	return nil
}

// StageNext sets the version of the next boot, as a program does that updates the host without update_engine.
func (h *Host) StageNext(version string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.staged = version
}

// Crash cuts the power: the bus and the services are gone at once, and a Boot that runs fails. The staged version is still
// what the next boot runs. Crash does nothing if the host is down.
func (h *Host) Crash() {
	h.mu.Lock()
	h.booting = nil
	b := h.boot
	h.mu.Unlock()
	if b == nil {
		return
	}
	h.emit(Crashed, b.id, "")
	b.end()
	b.theBus().Close()
	h.power.lock()
	defer h.power.unlock()
	h.down(b)
}

// down ends a boot, and reports whether it was the present one. The caller must hold power.
func (h *Host) down(b *boot) bool {
	h.mu.Lock()
	first := h.boot == b
	if first {
		h.boot = nil
	}
	h.mu.Unlock()
	if !first {
		return false
	}
	b.end()
	b.theBus().Close()
	h.engine.Stop()
	h.logind.stop()
	h.units.stop()
	h.units.powerLost()
	return true
}

// goDown ends a boot after a shutdown.
func (h *Host) goDown(b *boot) {
	h.power.lock()
	first := b.over.Err() == nil && h.down(b) // otherwise the host has crashed meanwhile
	h.power.unlock()
	if !first {
		return
	}
	h.emit(ShutdownDone, b.id, "")
	if h.o.Rebooted != nil {
		h.mu.Lock()
		version := cmp.Or(h.staged, h.version)
		h.mu.Unlock()
		h.o.Rebooted(version)
	}
}

// StopBus has the bus's daemon crash, and with it the services lose their names. Inhibitors and the states of units stay. It does nothing
// if the bus is down already.
func (h *Host) StopBus() error {
	h.power.lock()
	defer h.power.unlock()
	b := h.current()
	switch {
	case b == nil:
		return fmt.Errorf("stopping the bus of %s: %w", h.o.Name, ErrDown)
	case b.without != nil:
		return nil
	}
	_, withEngine := h.engine.Status()
	b.without = &services{engine: withEngine, logind: h.logind.runs()}
	b.theBus().Close()
	h.engine.Stop()
	h.logind.stop()
	h.units.stop()
	return nil
}

// StartBus starts the bus again after [Host.StopBus], and the services that ran then. The engine has forgotten the version of a pending
// update, as after any restart. It does nothing if the bus runs.
func (h *Host) StartBus() error {
	h.power.lock()
	defer h.power.unlock()
	b := h.current()
	switch {
	case b == nil:
		return fmt.Errorf("starting the bus of %s: %w", h.o.Name, ErrDown)
	case b.without == nil:
		return nil
	}
	ran := b.without
	b.without = nil
	b.mu.Lock()
	b.bus = h.newBus()
	b.mu.Unlock()
	select {
	case <-time.After(systemdReturns):
	case <-b.over.Done():
		return fmt.Errorf("starting the bus of %s: %w", h.o.Name, ErrDown)
	}
	return h.start(b, ran.engine, ran.logind)
}

// systemdReturns is how long after a start of the bus its services are back on it. systemd 252 took 0.3 s on a host that did nothing else. Until
// then, clients that have connected again do not find them.
const systemdReturns = time.Second

// Dial connects to the bus of the present boot, for systemd.Bus.Dial.
func (h *Host) Dial(ctx context.Context) (net.Conn, error) {
	if bus := h.Bus(); bus != nil {
		return bus.Dial(ctx)
	}
	return nil, ErrDown
}

// Bus returns the bus of the present boot, nil while the host is down.
func (h *Host) Bus() *membus.Bus {
	if b := h.current(); b != nil {
		return b.theBus()
	}
	return nil
}

func (h *Host) connect(opts ...dbus.ConnOption) (*dbus.Conn, error) {
	if bus := h.Bus(); bus != nil {
		return bus.Connect(opts...)
	}
	return nil, fmt.Errorf("connecting to the bus: %w", ErrDown)
}

// BootID returns the ID of the present boot, "" while the host is down.
func (h *Host) BootID() string {
	if b := h.current(); b != nil {
		return b.id
	}
	return ""
}

// Version returns the version that the host runs or, while it is down, ran last.
func (h *Host) Version() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.version
}

// Boots returns how often the host has booted.
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

// Logind returns the host's logind.
func (h *Host) Logind() *Logind { return h.logind }

// Units returns the host's units.
func (h *Host) Units() *Units { return h.units }

// Engine returns the host's update_engine. It cannot start while the host is down.
func (h *Host) Engine() *engine.Engine { return h.engine }

// current returns the present boot, or nil.
func (h *Host) current() *boot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boot
}

func (h *Host) emit(kind referee.Kind, bootID, detail string) {
	if h.o.Event != nil {
		h.o.Event(referee.HostEvent{Time: time.Now(), Host: h.o.Name, Kind: kind, BootID: bootID, Detail: detail})
	}
}
