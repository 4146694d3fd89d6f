// Package watched tells which of the files and units that policies name differ
// from what is in effect on this host: the sources File and Unit.
//
// What is in effect is a baseline in the state directory. A path or unit that is
// named for the first time is in effect as it is then; a boot reads everything
// anew, so in a new boot everything is in effect as it is at the first look; and
// the host says when a turn has applied a change ([Watcher.Applied]). Whatever
// differs from that is a change, noticed by inotify and, after a restart or where
// inotify is blind, by a look. What is read is the mode and the content of regular
// files, and where symbolic links lead; owners, times and empty folders do not
// count.
//
// This room must not know what a change costs, of policies, or of turns.
package watched

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Units knows where the files of units are; systemd.Units is one.
type Units interface {
	// UnitFiles gives absolute paths: fragments of which the first that is there
	// counts, and folders of drop-ins (or single ones) of which all *.conf count.
	UnitFiles(ctx context.Context, unit string) (fragments, dropIns []string, err error)
}

// Options are what a Watcher is made of.
type Options struct {
	// Root is where the host's files are, "/" but in tests.
	Root string
	// StateDir is where the baseline and the key of its digests are kept:
	// baseline.json and digest.key, which no other user may read or write. It is not
	// below Root. The Watcher makes it if it is missing.
	StateDir string
	// BootID is this boot's.
	BootID string
	// Units may be nil if none is ever watched.
	Units Units
	// Settle is how long nothing below a path may change before a change is
	// told: 5s if it is 0, at most 1m. After twelve times that it is told all the
	// same.
	Settle time.Duration
	// Poll is how often everything is looked at, whether inotify tells of
	// changes or not: 30s if it is 0.
	Poll time.Duration
	// Log may be nil.
	Log *slog.Logger
}

// The defaults and bounds of Options.
const (
	defaultSettle = 5 * time.Second
	maxSettle     = time.Minute
	settleFactor  = 12
	defaultPoll   = 30 * time.Second
)

// MaxWatched is how many paths and units may be watched together. More are a
// problem each.
const MaxWatched = 500

// Problem is a watched path or unit that cannot be read. What was said of it
// before stands.
type Problem struct {
	// Source is File or Unit; Name is the path or unit that is watched, as a rule
	// names it. Both are empty if it is the baseline that cannot be written: that
	// keeps nothing from being read.
	Source v1alpha1.Source
	Name   string
	Err    error
}

// Covers reports whether the problem is about the source of the change: a change
// said before a restart stands as long as there is such a problem.
func (p Problem) Covers(c v1alpha1.Change) bool {
	return (&rule{source: p.Source, name: p.Name}).covers(c)
}

// Watcher tells what differs. Make it with [New] and run it with [Watcher.Run];
// its methods may be called from any goroutine.
type Watcher struct {
	Options
	kick chan struct{}

	scanning chan struct{} // holds one while somebody looks
	saving   sync.Mutex    // one write at a time

	mu        sync.Mutex
	rules     []*rule  // by key
	key       *hostKey // never changes
	newKey    bool     // it is not in the state directory yet
	published []v1alpha1.Change
	tree      hints // nil: there is none
	asked     bool  // Watch was called
	unsaved   bool
	unwritten error // why the baseline could not be written
	said      said
	notify    func()
}

// said is what Read answers.
type said struct {
	changes  []v1alpha1.Change
	problems []Problem
	complete bool
	unseen   bool // something has neither been read nor has a problem
}

// New makes a Watcher that goes on from the baseline in the state directory.
func New(o Options) *Watcher {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Settle = min(cmp.Or(o.Settle, defaultSettle), maxSettle)
	o.Poll = cmp.Or(o.Poll, defaultPoll)
	w := &Watcher{Options: o, kick: make(chan struct{}, 1), scanning: make(chan struct{}, 1)}
	w.load()
	return w
}

// Published sets the changes on the Node that this boot has published. They stay
// changes if the baseline of this boot is lost: a file or unit among them differs from
// what is in effect until a turn has applied it, or until the next boot. Call Published
// before Watch; after the first Watch it does nothing.
func (w *Watcher) Published(changes []v1alpha1.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.asked {
		w.published = slices.Clone(changes)
	}
}

// Watch says what is to be watched from now on, and nothing else: paths are
// absolute, a file or a folder for everything below it; units are full names.
// What is new is read soon. Of what is not named any more it is kept for a month
// what was in effect, of a hundred paths and units: what has changed when it is named
// again is a change. A path that is named for the first time takes over what those that
// have left within an hour know of its files.
func (w *Watcher) Watch(paths, units []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	named := map[string]*rule{}
	for _, path := range paths {
		r := &rule{source: v1alpha1.SourceFile, name: filepath.Clean(path), named: now}
		named[r.key()] = r
	}
	for _, unit := range units {
		r := &rule{source: v1alpha1.SourceUnit, name: unit, named: now}
		named[r.key()] = r
	}
	news := !w.asked
	w.asked = true
	for _, r := range w.rules {
		_, stays := named[r.key()]
		delete(named, r.key())
		news = news || stays == r.gone
		w.unsaved = r.naming(w.rules, stays, now) || w.unsaved
	}
	for _, r := range named {
		for _, c := range w.published {
			if r.covers(c) {
				r.published = append(r.published, c)
			}
		}
		w.rules = append(w.rules, r)
	}
	w.published = nil
	if !news && len(named) == 0 {
		return
	}
	slices.SortFunc(w.rules, func(a, b *rule) int { return cmp.Compare(a.key(), b.key()) })
	count := 0
	for _, r := range w.rules {
		if r.gone {
			continue
		}
		count++
		if was := r.excess; count > MaxWatched {
			r.excess, r.problem = true, errExcess
		} else if r.excess = false; was {
			r.problem = nil
		}
	}
	w.say()
	w.poke()
}

var errExcess = fmt.Errorf("more than %d paths and units are watched", MaxWatched)

func (w *Watcher) poke() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// Read gives what differs, from memory, in order; what cannot be read; and
// whether the changes are all that there are: every path and unit has been read,
// and the last look at each went well. Before Watch was called nothing is known.
func (w *Watcher) Read() (changes []v1alpha1.Change, problems []Problem, complete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.said.changes), slices.Clone(w.said.problems), w.said.complete
}

// Unseen reports whether something that is named has not been looked at yet: what
// differs of it is not known, and no Problem says so.
func (w *Watcher) Unseen() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.asked || w.said.unseen
}

// Look reads everything once more, for a commit: what is there now counts, settled
// or not. The error says what could not be read.
func (w *Watcher) Look(ctx context.Context) error {
	w.pass(ctx, looking)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("reading the watched files: %w", err)
	}
	_, problems, complete := w.Read()
	var errs []error
	for _, p := range problems {
		if p.Source != "" {
			errs = append(errs, fmt.Errorf("%s %s: %w", p.Source, p.Name, p.Err))
		}
	}
	if !complete && len(errs) == 0 {
		errs = append(errs, errors.New("what is to be watched is not known yet"))
	}
	return errors.Join(errs...)
}

// Rest waits until what is watched for the changes has come to rest, and looks at
// everything then: whoever has applied them sees whether something has changed
// again. It takes Settle at least, from now, and twelve times that at most; no time
// at all if nothing is watched for the changes. The error is Unread's.
func (w *Watcher) Rest(ctx context.Context, changes []v1alpha1.Change) error {
	_, any := w.settles(changes)
	if !any {
		return nil
	}
	until := time.Now().Add(w.Settle)
	bound := time.Now().Add(settleFactor * w.Settle)
	for {
		wait(ctx, nil, time.Until(until))
		now := time.Now()
		due, _ := w.settles(changes)
		if ctx.Err() != nil || !due.After(now) || !bound.After(now) {
			if w.pass(ctx, looking); ctx.Err() != nil {
				return fmt.Errorf("reading the watched files: %w", ctx.Err())
			}
			return w.Unread(changes)
		}
		if until = due; until.After(bound) {
			until = bound
		}
	}
}

// Unread says why something that is watched for the changes cannot be read, or
// nil: whether they are still there, or there again, is not known then.
func (w *Watcher) Unread(changes []v1alpha1.Change) error {
	_, problems, _ := w.Read()
	var errs []error
	for _, p := range problems {
		if p.Source != "" && slices.ContainsFunc(changes, p.Covers) {
			errs = append(errs, fmt.Errorf("%s %s: %w", p.Source, p.Name, p.Err))
		}
	}
	return errors.Join(errs...)
}

// settles gives when what is watched for the changes will have come to rest: a
// time that is over if it has. any is false if nothing is watched for them.
func (w *Watcher) settles(changes []v1alpha1.Change) (due time.Time, any bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.rules {
		if r.gone || r.excess || !slices.ContainsFunc(changes, r.covers) {
			continue
		}
		any = true
		if d := r.settling.due(w.Settle, settleFactor*w.Settle); d.After(due) {
			due = d
		}
	}
	return due, any
}

// Applied takes changes, as Read gave them, as in effect: a turn that was for
// them is done. What has changed again since then stays a change. Changes of
// other sources are passed over. It is to be called while Read is complete. The
// error says that this could not be written down; it holds all the same, as long
// as this process lives, and is written later.
func (w *Watcher) Applied(changes []v1alpha1.Change) error {
	w.mu.Lock()
	for _, c := range w.ofThisKey(changes) {
		w.unsaved = applied(w.rules, c) || w.unsaved
	}
	for _, r := range w.rules {
		r.together = nil // no turn is for it any more; what is told of as one now is noted anew
	}
	w.say()
	w.mu.Unlock()
	err := w.save()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.say()
	return err
}

// ofThisKey returns the changes, and replaces those that were made with another key by
// the present ones: the process that began to apply them had that key, and it is unknown
// whether the file has changed since. It leaves out what is no longer a change.
func (w *Watcher) ofThisKey(changes []v1alpha1.Change) []v1alpha1.Change {
	var all []v1alpha1.Change
	for _, c := range changes {
		if id := v1alpha1.DigestKey(c.Version); id != "" && id != w.key.id && (c.Source == v1alpha1.SourceFile || c.Source == v1alpha1.SourceUnit) {
			i := slices.IndexFunc(w.said.changes, c.Same)
			if i < 0 {
				continue
			}
			c = w.said.changes[i]
		}
		all = append(all, c)
	}
	return all
}

// say settles what Read answers, and tells of it if it is another answer.
func (w *Watcher) say() {
	now := said{changes: changes(w.rules), complete: w.asked}
	for _, r := range w.rules {
		if r.gone {
			continue
		}
		now.complete = now.complete && r.seen != nil && r.problem == nil
		now.unseen = now.unseen || r.seen == nil && r.problem == nil
		if r.problem != nil {
			now.problems = append(now.problems, Problem{r.source, r.name, r.problem})
		}
	}
	if w.unwritten != nil {
		now.problems = append(now.problems, Problem{Err: w.unwritten})
	}
	same := now.complete == w.said.complete && now.unseen == w.said.unseen && slices.Equal(now.changes, w.said.changes) &&
		slices.EqualFunc(now.problems, w.said.problems, func(a, b Problem) bool {
			return a.Source == b.Source && a.Name == b.Name && a.Err.Error() == b.Err.Error()
		})
	w.said = now
	if !same && w.notify != nil {
		w.notify()
	}
}
