package watched

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/dirwatch"
	"lockkeeper.dev/lockkeeper/node/hostfs"
)

// Run watches until ctx ends, and calls notify, which must not block, whenever
// Read has another answer. Only one may run.
func (w *Watcher) Run(ctx context.Context, notify func()) {
	var wg sync.WaitGroup
	defer wg.Wait()
	tree, err := dirwatch.NewTree(w.event)
	if err != nil {
		w.Log.Warn("watched files are looked at only every poll interval", "err", err, "interval", w.Poll)
	} else {
		defer tree.Close()
		wg.Go(func() {
			if err := tree.Run(); err != nil {
				w.Log.Warn("watched files are looked at only every poll interval", "err", err, "interval", w.Poll)
			}
		})
	}
	if tree == nil {
		w.run(ctx, nil, notify)
	} else {
		w.run(ctx, tree, notify)
	}
}

// hints are what tells that something has changed; a [dirwatch.Tree] is.
type hints interface {
	Watch(key, root string, paths []string) error
}

func (w *Watcher) run(ctx context.Context, tree hints, notify func()) {
	w.mu.Lock()
	w.tree, w.notify = tree, notify
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.tree, w.notify = nil, nil
	}()
	poll := time.Now()
	for ctx.Err() == nil {
		why := settled
		if !time.Now().Before(poll) {
			why = polling
			poll = time.Now().Add(w.Poll - w.Poll/10 + rand.N(w.Poll/5))
		}
		w.pass(ctx, why)
		wait(ctx, w.kick, min(time.Until(w.next()), time.Until(poll)))
	}
}

// wait waits for a kick or for d, whichever is first.
func wait(ctx context.Context, kick <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-kick:
	case <-t.C:
	}
}

// event is told by inotify that something changed under a rule.
func (w *Watcher) event(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.rules {
		if r.key() == key && r.settling.event(time.Now()) {
			w.poke() // later ones only put off what is waited for
		}
	}
}

// next is when the first rule will have settled.
func (w *Watcher) next() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := time.Now().Add(w.Poll)
	for _, r := range w.rules {
		if due := r.settling.due(w.Settle, settleFactor*w.Settle); !r.gone && !r.excess && !due.IsZero() && due.Before(next) {
			next = due
		}
	}
	return next
}

// why is why there is a look.
type why int

const (
	settled why = iota // only at what has settled, or was never read
	polling            // at everything; what is new has to settle
	looking            // at everything, and what is there counts
)

// pass reads what is to be read, and forgets what nobody names.
func (w *Watcher) pass(ctx context.Context, why why) {
	select {
	case w.scanning <- struct{}{}:
		defer func() { <-w.scanning }()
	case <-ctx.Done():
		return
	}
	w.mu.Lock()
	rules := slices.Clone(w.rules)
	w.mu.Unlock()
	for _, r := range rules {
		if w.isDue(r, why) {
			w.look(ctx, r, why)
		}
		if ctx.Err() != nil {
			return
		}
	}
	w.forget()
	_ = w.save() // what came of it is said
	w.mu.Lock()
	defer w.mu.Unlock()
	w.say()
}

func (w *Watcher) isDue(r *rule, why why) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	due := r.settling.due(w.Settle, settleFactor*w.Settle)
	switch {
	case r.gone || r.excess:
		return false
	case why != settled || r.seen == nil && r.problem == nil:
		return true
	}
	return !due.IsZero() && !time.Now().Before(due)
}

// look reads one rule.
func (w *Watcher) look(ctx context.Context, r *rule, why why) {
	w.mu.Lock()
	count, old, tree := r.settling.count, r.read, w.tree
	w.mu.Unlock()
	paths, unit, err := []string{r.name}, r.source == v1alpha1.SourceUnit, error(nil)
	var fragments, dropIns []string
	switch {
	case unit && w.Units == nil:
		err = errors.New("there is no systemd to ask")
	case unit:
		fragments, dropIns, err = w.Units.UnitFiles(ctx, r.name)
		paths = slices.Concat(fragments, dropIns)
	case !filepath.IsAbs(r.name):
		err = fmt.Errorf("%q is no absolute path", r.name)
	}
	var found map[string]entry
	blind := errNoTree
	if err == nil {
		if tree != nil {
			// The watch first: what changes after it is told, what changed before is seen.
			blind = tree.Watch(r.key(), w.Root, paths)
		}
		found, err = w.scan(ctx, old, func(s *scan) error {
			if unit {
				return s.unit(fragments, dropIns)
			}
			_, err := s.path(r.name)
			return err
		})
	}
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if tree != nil && err == nil {
		w.sight(r, blind)
	}
	w.troubled(r, err)
	if err != nil {
		r.settling.looked(time.Now(), count, true)
		return
	}
	w.take(r, found, why, count, blind == nil)
}

var errNoTree = errors.New("no inotify")

func (w *Watcher) scan(ctx context.Context, old map[string]entry, read func(*scan) error) (map[string]entry, error) {
	h, err := hostfs.New(w.Root)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	s := newScan(ctx, h, w.key, old)
	err = read(s)
	return s.found, err
}

// take takes in what a look has found that began when count changes had been
// told.
func (w *Watcher) take(r *rule, found map[string]entry, why why, count int, sighted bool) {
	now := time.Now()
	r.read = found
	stands := func() {
		r.seen, r.waiting = found, ""
		r.settling.looked(now, count, true)
	}
	switch {
	case r.base == nil:
		r.base, w.unsaved = baseline(w.rules, r, found), true
		w.Log.Info("watched for the first time: what is there now is in effect", "source", r.source, "name", r.name, "files", len(found), "still_changes", len(r.published))
		r.published = nil
		stands()
	case r.seen == nil, why == looking, equal(r.seen, found):
		stands()
	case why == polling:
		// Nobody was told of it, or it has not settled.
		if r.settling.first.IsZero() {
			r.settling.event(now)
			r.waiting = whole(found, all)
		}
	default:
		version := whole(found, all)
		over := now.Sub(r.settling.first) >= settleFactor*w.Settle
		if over || r.settling.count == count && (sighted || version == r.waiting) {
			stands()
			return
		}
		r.waiting = version
		if !sighted {
			r.settling.event(now)
		}
	}
}

// troubled notes whether a rule can be read, and logs when that changes.
func (w *Watcher) troubled(r *rule, err error) {
	switch {
	case err != nil && (r.problem == nil || r.problem.Error() != err.Error()):
		w.Log.Warn("cannot read what is watched; what was seen before stands", "source", r.source, "name", r.name, "err", err)
	case err == nil && r.problem != nil:
		w.Log.Info("what is watched can be read again", "source", r.source, "name", r.name)
	}
	r.problem = err
}

// sight notes whether the kernel tells of a rule's changes, and logs when that
// changes.
func (w *Watcher) sight(r *rule, blind error) {
	if blind != nil && r.blind == nil {
		hint := ""
		if errors.Is(blind, syscall.ENOSPC) {
			hint = "sysctl fs.inotify.max_user_watches is too small"
		}
		w.Log.Warn("inotify does not tell of all that is watched; it is looked at every poll interval", "source", r.source, "name", r.name, "err", blind, "interval", w.Poll, "hint", hint)
	}
	r.blind = blind
}

// forget looks no more at what nobody names, and drops what need not be kept of it,
// once everything that is named has been read: until then what is known of it may be
// what a new rule takes over.
func (w *Watcher) forget() {
	w.mu.Lock()
	var keys []string
	for _, r := range w.rules {
		if r.gone && !r.idle && w.asked {
			r.idle, r.seen, r.read, r.together, r.problem = true, nil, nil, nil, nil
			keys = append(keys, r.key())
			w.Log.Info("not watched any more; what was in effect is kept", "source", r.source, "name", r.name)
		}
	}
	unread := func(r *rule) bool { return !r.gone && r.base == nil && r.problem == nil }
	if w.asked && !slices.ContainsFunc(w.rules, unread) {
		drop := surplus(w.rules, time.Now())
		w.rules = slices.DeleteFunc(w.rules, func(r *rule) bool {
			if drop[r] {
				w.unsaved = true
				w.Log.Info("it is not kept any more what was in effect", "source", r.source, "name", r.name)
			}
			return drop[r]
		})
	}
	tree := w.tree
	w.mu.Unlock()
	for _, key := range keys {
		if tree != nil {
			_ = tree.Watch(key, w.Root, nil)
		}
	}
}
