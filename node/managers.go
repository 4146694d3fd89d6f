package node

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
	"lockkeeper.dev/lockkeeper/systemd"
	"lockkeeper.dev/lockkeeper/updateengine"
)

// A manager is something else on this host that would reboot it, and what switches it off.
type manager struct{ name, off string }

func (m manager) String() string {
	return fmt.Sprintf("%s would reboot this host too; `%s` switches it off", m.name, m.off)
}

const (
	locksmith = "locksmithd.service"
	rebootmgr = "rebootmgr.service"
	zincati   = "zincati.service"
)

// managerUnits are the reboot managers that run as a unit of their own. One that runs is active, whatever its
// configuration says now: it has read it at its start.
var managerUnits = []string{locksmith, rebootmgr, zincati}

// managersWord is what the last look at the other reboot managers showed.
type managersWord struct {
	active []manager
	seen   bool // there was a look that came to an end
}

// lookAtManagers sees which other reboot managers are active. What it cannot tell is an error, and the word before
// stands.
func (h *Host) lookAtManagers(ctx context.Context) error {
	h.lookingAtManagers.Lock()
	defer h.lookingAtManagers.Unlock()
	h.mu.Lock()
	observe := h.settings.Observe
	h.mu.Unlock()
	active, err := h.activeManagers(ctx, observe)
	if err != nil {
		return fmt.Errorf("looking for other reboot managers: %w", err)
	}
	h.mu.Lock()
	before := h.managers
	h.managers = managersWord{active, true}
	h.mu.Unlock()
	if before.seen && slices.Equal(before.active, active) {
		return nil
	}
	for _, m := range active {
		if !slices.Contains(before.active, m) {
			h.Log.Warn("another reboot manager is active on this host: nothing is committed until it is switched off", "manager", m.name, "off", m.off)
		}
	}
	for _, m := range before.active {
		if !slices.Contains(active, m) {
			h.Log.Info("the other reboot manager is not active any more", "manager", m.name)
		}
	}
	h.wake()
	return nil
}

// activeManagers asks all there are.
func (h *Host) activeManagers(ctx context.Context, observe bool) ([]manager, error) {
	r, err := hostfs.New(h.Root)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var active []manager
	for _, unit := range managerUnits {
		runs, err := h.Units.Runs(ctx, unit)
		if errors.Is(err, systemd.ErrAbsent) {
			break // no systemd, no units
		}
		if err != nil {
			return nil, err
		}
		if runs && !switchedOff(r, unit) {
			active = append(active, manager{unit, "systemctl mask --now " + unit})
		}
	}
	apt, err := automaticReboot(r)
	if err != nil {
		return nil, err
	}
	if apt {
		active = append(active, manager{"unattended-upgrades (Automatic-Reboot)",
			`echo 'Unattended-Upgrade::Automatic-Reboot "false";' >/etc/apt/apt.conf.d/99lockkeeper`})
	}
	if observe {
		return active, nil // whose lock it is can only be seen by trying it
	}
	other, err := h.coordinatorFile.Other()
	if err != nil {
		return nil, err
	}
	if other != "" && !slices.ContainsFunc(active, func(m manager) bool { return strings.HasPrefix(m.name, other+".") }) {
		active = append(active, manager{fmt.Sprintf("%s (it holds %s)", other, updateengine.CoordinatorPath), "systemctl mask --now " + other})
	}
	return active, nil
}

// switchedOff reports whether a manager runs and reboots nothing. rebootmgr is the one that goes on running with its
// strategy off, which `rebootmgrctl set-strategy off` writes to its file. locksmithd ends by itself on
// REBOOT_STRATEGY=off.
func switchedOff(r hostfs.FS, unit string) bool {
	if unit != rebootmgr {
		return false
	}
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

// automaticReboot reports whether unattended-upgrades is installed and told to reboot the host after its work.
func automaticReboot(r hostfs.FS) (bool, error) {
	if _, err := r.Lstat("/usr/bin/unattended-upgrade"); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return false, err
	}
	settings, err := aptSettings(r)
	if err != nil {
		return false, err
	}
	return aptTrue(settings["unattended-upgrade::automatic-reboot"]), nil
}

// managersBound is how long a start waits for the first look at the managers, so that what the host says of itself first
// is not taken back at once.
const managersBound = 2 * time.Second

// managerPause is the least between two looks at the managers.
const managerPause = time.Second

// watchManagers looks at the other reboot managers every poll interval, and when a unit of theirs was started or
// stopped.
func (h *Host) watchManagers(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	hint := make(chan struct{}, 1)
	wg.Go(func() {
		h.Units.WatchJobs(ctx, managerUnits, func() {
			select {
			case hint <- struct{}{}:
			default:
			}
		})
	})
	failed := false
	for {
		err := h.lookAtManagers(ctx)
		if err != nil && !failed && ctx.Err() == nil {
			h.Log.Warn("cannot tell whether another reboot manager is active; what was known before stands, and nothing is committed", "err", err)
		}
		failed = err != nil
		h.lookedAtManagers.Do(func() { close(h.managersKnown) })
		if wait(ctx, nil, managerPause) != nil || wait(ctx, hint, jitter(h.PollInterval)) != nil {
			return
		}
	}
}
