package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/node/hostfs"
	"lockkeeper.dev/lockkeeper/node/timing"
	"lockkeeper.dev/lockkeeper/updateengine"
)

// Manager is another program on this host that would reboot it.
type Manager struct {
	Name string
	Off  string // the command that switches it off
}

// String names the manager and how to switch it off.
func (m Manager) String() string {
	return fmt.Sprintf("%s would reboot this host too; `%s` switches it off", m.Name, m.Off)
}

const rebootmgr = "rebootmgr.service"

// managerUnits are the reboot managers that run as a unit of their own. One that runs is
// active, except those that [Managers.switchedOff] knows.
var managerUnits = []string{"locksmithd.service", rebootmgr, zincati}

const (
	// managerPause is the shortest time between two reads of the managers.
	managerPause = time.Second
	// noReboots is the file that stops unattended-upgrades from rebooting.
	noReboots = "/etc/apt/apt.conf.d/99lockkeeper"
)

// managerSystemd is what [Managers] needs of systemd; [systemd.Units] has it.
type managerSystemd interface {
	Running(ctx context.Context, units []string) ([]string, error)
	WatchJobs(ctx context.Context, units []string, f func()) error
}

// Managers are the other reboot managers on this host. All methods may be called from any
// goroutine.
type Managers struct {
	Options
	units managerSystemd
	// owner returns which other program owns coordinator.conf, or "".
	owner func() (string, error)
	// fleetLock is the address of our FleetLock, or "".
	fleetLock string

	reading chan struct{} // holds a value during a read: one at a time, so that the last one counts

	mu      sync.Mutex
	active  []Manager
	read    bool
	failing failing
}

// NewManagers makes Managers. owner returns the name of another program that owns the
// update engine's coordinator.conf, or "". fleetLock is the address at which lockkeeper answers a
// FleetLock client, ADDRESS:PORT, or "": a Zincati that asks there is no other manager.
func NewManagers(o Options, units managerSystemd, owner func() (string, error), fleetLock string) *Managers {
	return &Managers{Options: o, units: units, owner: owner, fleetLock: fleetLock, reading: make(chan struct{}, 1)}
}

// Active returns the managers that were active at the last read.
func (m *Managers) Active() []Manager {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.active
}

// Unread returns why it has been unknown for some time which managers are active, or nil.
func (m *Managers) Unread() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.failing.lasting(); err != nil {
		return fmt.Errorf("other reboot managers: %w", err)
	}
	return nil
}

// Read reads which managers are active. After an error, Active returns what it did before.
func (m *Managers) Read(ctx context.Context) error {
	select {
	case m.reading <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("waiting to look for other reboot managers: %w", context.Cause(ctx))
	}
	defer func() { <-m.reading }()
	active, err := m.find(ctx)
	if err == nil || ctx.Err() == nil { // that the caller gave up says nothing
		m.mu.Lock()
		changed := m.failing.set(err, time.Now())
		m.mu.Unlock()
		if changed {
			m.Changed()
		}
	}
	if err != nil {
		return fmt.Errorf("looking for other reboot managers: %w", err)
	}
	m.mu.Lock()
	before, read := m.active, m.read
	m.active, m.read = active, true
	m.mu.Unlock()
	if read && slices.Equal(before, active) {
		return nil
	}
	for _, a := range active {
		if !slices.Contains(before, a) {
			m.Log.Warn("another reboot manager is active on this host: nothing is committed until it is switched off", "manager", a.Name, "off", a.Off)
		}
	}
	for _, b := range before {
		if !slices.Contains(active, b) {
			m.Log.Info("the other reboot manager is no longer active", "manager", b.Name)
		}
	}
	m.Changed()
	return nil
}

func (m *Managers) find(ctx context.Context) ([]Manager, error) {
	r, err := hostfs.New(m.Root)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var active []Manager
	running, err := m.units.Running(ctx, managerUnits)
	if err != nil {
		return nil, err
	}
	for _, unit := range running {
		off, err := m.switchedOff(r, unit)
		if err != nil {
			return nil, err
		}
		if !off {
			name := unit
			if unit == zincati && m.fleetLock != "" {
				name += " (its configuration does not have it ask http://" + m.fleetLock + "/ first)"
			}
			active = append(active, Manager{name, "systemctl mask --now " + unit})
		}
	}
	apt, err := automaticReboot(r)
	if err != nil {
		return nil, err
	}
	if apt {
		active = append(active, Manager{"unattended-upgrades (Automatic-Reboot)", `echo 'Unattended-Upgrade::Automatic-Reboot "false";' >` + noReboots})
	}
	owner, err := m.owner()
	if err != nil {
		return nil, err
	}
	if owner != "" && !slices.ContainsFunc(active, func(a Manager) bool { return strings.HasPrefix(a.Name, owner+".") }) {
		active = append(active, Manager{fmt.Sprintf("%s (it holds %s)", owner, updateengine.CoordinatorPath), "systemctl mask --now " + owner})
	}
	return active, nil
}

// switchedOff reports whether a manager that runs reboots nothing, or asks lockkeeper first.
// locksmithd is neither: it exits by itself on REBOOT_STRATEGY=off.
func (m *Managers) switchedOff(r hostfs.FS, unit string) (bool, error) {
	switch unit {
	case rebootmgr:
		return rebootmgrOff(r), nil
	case zincati:
		return asksFirst(r, m.fleetLock)
	}
	return false, nil
}

// rebootmgrOff reports whether rebootmgr's strategy is off, which `rebootmgrctl set-strategy off`
// writes to its file. It keeps running then.
func rebootmgrOff(r hostfs.FS) bool {
	text, err := r.Read("/etc/rebootmgr.conf")
	if err != nil {
		return false // its default is not off
	}
	off := false
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, "="); ok && strings.TrimSpace(key) == "strategy" {
			off = strings.Trim(strings.TrimSpace(value), `"'`) == "off"
		}
	}
	return off
}

// automaticReboot reports whether unattended-upgrades is installed and configured to
// reboot the host after it has installed something.
func automaticReboot(r hostfs.FS) (bool, error) {
	if _, err := r.Lstat("/usr/bin/unattended-upgrade"); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return false, err
	}
	return aptAutomaticReboot(r)
}

// Run reads the managers when a unit of theirs is started or stopped, and every poll
// interval, until ctx ends.
func (m *Managers) Run(ctx context.Context) {
	started := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { _ = m.units.WatchJobs(ctx, managerUnits, func() { timing.Kick(started) }) }) // it returns ctx's error
	m.poll(ctx, started, managerPause, "cannot tell whether another reboot manager is active; the last report remains valid, and nothing is committed", func() error { return m.Read(ctx) })
}
