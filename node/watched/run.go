package watched

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube/dirwatch"
	"lockkeeper.dev/lockkeeper/node/hostfs"
	"lockkeeper.dev/lockkeeper/node/timing"
	"lockkeeper.dev/lockkeeper/systemd"
)

// Run watches until ctx ends, and calls notify whenever the report has changed. notify must not
// block. Only one call of Run may run at a time.
func (w *Watcher) Run(ctx context.Context, notify func()) {
	d := dirwatch.New(w.hint)
	defer func() { go d.Close() }() // it waits for a read that hangs
	w.run(ctx, d, notify)
}

// hints reports that the files of a root may have changed. [dirwatch.Watcher] implements it.
type hints interface {
	Watch(key, root string, paths []string, below bool) (grew bool, err error)
}

func (w *Watcher) run(ctx context.Context, h hints, notify func()) {
	set := func(h hints, notify func()) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.hints, w.notify = h, notify
	}
	set(h, notify)
	defer set(nil, nil)
	poll := time.Now()
	for ctx.Err() == nil {
		all := !time.Now().Before(poll)
		if all {
			poll = time.Now().Add(systemd.Aligned(w.Poll))
		}
		w.readRoots(ctx, all, false)
		_ = timing.Wait(ctx, w.kick, min(time.Until(w.nextDue()), time.Until(poll)))
	}
}

// hint records that the files of a root may have changed.
func (w *Watcher) hint(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.roots[name]; r != nil && r.changed(time.Now()) {
		w.poke() // later changes only delay the reading that Run waits for
	}
}

// nextDue returns when the first of the roots with changes will have settled.
func (w *Watcher) nextDue() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := time.Now().Add(w.Poll)
	for _, r := range w.roots {
		if due := r.due(w.Settle); r.watched() && !due.IsZero() && due.Before(next) {
			next = due
		}
	}
	return next
}

// readRoots reads the roots that have settled and those that were never read. With all, it reads
// every root. With now, the report includes changes that have not settled. It returns when ctx ends,
// even if a read hangs, as on a network file system without its server. No other read begins then.
func (w *Watcher) readRoots(ctx context.Context, all, now bool) {
	select {
	case w.reading <- struct{}{}:
	case <-ctx.Done():
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { <-w.reading }()
		w.readEach(ctx, all, now)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// readEach is readRoots for a caller that reads alone, and may wait for the file system.
func (w *Watcher) readEach(ctx context.Context, all, now bool) {
	w.mu.Lock()
	names := slices.Sorted(maps.Keys(w.roots))
	w.mu.Unlock()
	for _, name := range names {
		w.readRoot(ctx, name, all, now)
		if ctx.Err() != nil {
			return
		}
	}
	_ = w.save() // save logs errors
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked {
		w.dropUnnamed()
	}
	w.update()
}

// readRoot reads a root if it is due. It stops watching a root that no rule names.
func (w *Watcher) readRoot(ctx context.Context, name string, all, now bool) {
	w.mu.Lock()
	r, h, began := w.roots[name], w.hints, time.Now()
	due := r.due(w.Settle)
	read := r.watched() && (all || r.seen == nil && r.problem == nil || !due.IsZero() && !began.Before(due))
	forget := w.asked && !r.named && (r.seen != nil || r.problem != nil)
	if forget {
		r.seen, r.latest, r.problem, r.firstChange, r.lastChange = nil, nil, nil, time.Time{}, time.Time{}
		w.Log.Info("a path or unit is no longer watched; lockkeeper remembers what is in effect for it", "source", r.source(), "name", name)
	}
	old := r.latest
	if old == nil {
		old = r.seen
	}
	w.mu.Unlock()
	if forget && h != nil {
		_, _ = h.Watch(name, w.Root, nil, true)
	}
	if !read {
		return
	}
	ended := w.expectEnd(r)
	found, grew, blind, err := w.readFiles(ctx, r, h, old)
	w.mu.Lock()
	defer w.mu.Unlock()
	ended()
	if ctx.Err() != nil {
		return
	}
	w.setProblem(r, err)
	if err != nil {
		r.readSince(began)
		return
	}
	w.setBlind(r, h, blind)
	if grew {
		r.changed(time.Now()) // changes in the new directory were not reported
	}
	w.take(r, found, began, now)
}

// hangsAfter is how long the read of a root may take before that is a [Problem].
const hangsAfter = time.Minute

// errHangs is the problem of a root whose read hangs.
var errHangs = fmt.Errorf("its read has not ended within %v; does the server of its file system answer?", hangsAfter)

// expectEnd makes it a problem if the read of a root hangs, until the caller calls ended, with mu held.
func (w *Watcher) expectEnd(r *root) (ended func()) {
	over := false
	timer := time.AfterFunc(hangsAfter, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if over {
			return
		}
		w.hangs = r
		w.Log.Warn("the read of a watched path or unit hangs; lockkeeper reads no other one before it ends", "source", r.source(), "name", r.name)
		w.update()
	})
	return func() {
		timer.Stop()
		over = true
		if w.hangs == nil {
			return
		}
		w.hangs = nil
		w.Log.Info("the read of a watched path or unit that hung has ended", "source", r.source(), "name", r.name)
		w.update()
	}
}

// readFiles reads the files of a root. old is the result of the previous read. grew and blind
// are the results of [dirwatch.Watcher.Watch].
func (w *Watcher) readFiles(ctx context.Context, r *root, h hints, old map[string]entry) (found map[string]entry, grew bool, blind, err error) {
	host, err := hostfs.New(w.Root)
	if err != nil {
		return nil, false, nil, err
	}
	defer host.Close()
	name, unit := r.name, r.source() == v1alpha1.SourceUnit
	if !r.covered {
		private := unit || linked(host, name)
		w.mu.Lock()
		r.private = private
		w.mu.Unlock()
	}
	s := newScan(ctx, host, w.key, r, old)
	paths, fragments, dropIns := []string{name}, []string(nil), []string(nil)
	if unit {
		if fragments, dropIns, err = w.unitFiles(ctx, name); err != nil {
			return nil, false, nil, err
		}
		paths = slices.Concat(fragments, dropIns)
	}
	blind = errors.New("inotify is not in use")
	if h != nil {
		// Watch before reading, so that inotify reports every change that the read misses.
		grew, blind = h.Watch(name, w.Root, paths, true)
	}
	if unit {
		err = s.unit(fragments, dropIns)
	} else {
		err = s.visit(name, true)
	}
	return s.found, grew, blind, err
}

func (w *Watcher) unitFiles(ctx context.Context, name string) (fragments, dropIns []string, err error) {
	switch {
	case strings.Contains(name, "/"):
		return nil, nil, fmt.Errorf("%q is neither an absolute path nor the name of a unit", name)
	case w.Units == nil:
		return nil, nil, errors.New("no systemd to ask for the unit's files")
	}
	return w.Units.UnitFiles(ctx, name)
}

// take processes the files that a read found. began is when the read began. With now, the report
// includes them even if they have not settled.
func (w *Watcher) take(r *root, found map[string]entry, began time.Time, now bool) {
	if !r.covered {
		w.cover(r, found)
		now = true
	}
	if !now && r.seen != nil && !equal(r.seen, found) {
		// Without inotify, two reads with the same result show that the files are quiet.
		if r.firstChange.IsZero() || r.blind != nil && !equal(r.latest, found) {
			r.changed(time.Now())
		}
		if r.latest = found; time.Now().Before(r.due(w.Settle)) {
			return
		}
	}
	r.seen, r.latest = found, nil
	r.readSince(began)
}

// setProblem records whether a root can be read, and logs when that changes.
func (w *Watcher) setProblem(r *root, err error) {
	switch {
	case err != nil && (r.problem == nil || r.problem.Error() != err.Error()):
		w.Log.Warn("cannot read a watched path or unit; changes in it that were reported before remain", "source", r.source(), "name", r.name, "err", err)
	case err == nil && r.problem != nil:
		w.Log.Info("a watched path or unit can be read again", "source", r.source(), "name", r.name)
	}
	r.problem = err
}

// setBlind records whether inotify reports a root's changes, and logs when it no longer does.
func (w *Watcher) setBlind(r *root, h hints, err error) {
	if err != nil && r.blind == nil && h != nil {
		hint := ""
		if errors.Is(err, syscall.ENOSPC) {
			hint = "sysctl fs.inotify.max_user_watches is too small"
		}
		w.Log.Warn("inotify does not report all changes of a watched path or unit; lockkeeper finds them at the poll interval", "source", r.source(), "name", r.name, "err", err, "interval", w.Poll, "hint", hint)
	}
	r.blind = err
}
