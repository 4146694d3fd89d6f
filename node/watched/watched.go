// Package watched finds out which of the files and units that rules name differ from
// what is in effect on this host: the sources File and Unit.
//
// What is in effect is the baseline: one map from the path of each file to the digest
// that it had, and the roots that the map covers. A root is a file, a directory with
// everything below it, or a unit; rules only name roots. The files of a root that is
// named for the first time are in effect as they are then; in a new boot all files are
// in effect as they are at the first reading; and the host says when a turn has applied
// a change ([Watcher.MarkApplied]). Everything that differs from the baseline is a change,
// for as long as it differs. What counts is the mode and the content of regular files,
// and where symbolic links lead; owners, times and empty directories do not count.
//
// This package must not know what a change costs, of policies, or of turns.
package watched

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Units finds the files of units; systemd.Units is one.
type Units interface {
	// UnitFiles returns absolute paths: fragments, of which the first that exists
	// counts, and directories of drop-ins (or single ones), of which all *.conf count.
	UnitFiles(ctx context.Context, unit string) (fragments, dropIns []string, err error)
}

// Options are the parameters of a Watcher.
type Options struct {
	// Root is the directory with the host's files: "/", except in tests.
	Root string
	// StateDir holds the baseline and the key of its digests: baseline.json and
	// digest.key, which no other user may read or write. It is not below Root. The
	// Watcher makes it if it is missing.
	StateDir string
	// BootID is the ID of this boot.
	BootID string
	// Units may be nil if no unit is ever watched.
	Units Units
	// Settle is how long nothing in a root may change before a change in it is
	// reported: 5s if it is 0. After twelve times that it is reported even if the
	// files still change.
	Settle time.Duration
	// Poll is how often everything is read even if inotify reports no changes: 30s
	// if it is 0.
	Poll time.Duration
	// Log may be nil.
	Log *slog.Logger
}

// The defaults of Options.
const (
	defaultSettle = 5 * time.Second
	settleFactor  = 12
	defaultPoll   = 30 * time.Second
)

// MaxWatched is how many paths and units may be watched together. Each one above that is
// a problem.
const MaxWatched = 500

// Problem is an error that says why a watched path or unit cannot be read. Changes that
// were reported before are still reported.
type Problem struct {
	// Source is File or Unit, and Name the path or unit as a rule names it.
	Source v1alpha1.Source
	Name   string
	Err    error
}

func (p Problem) Error() string { return fmt.Sprintf("%s %s: %v", p.Source, p.Name, p.Err) }
func (p Problem) Unwrap() error { return p.Err }

// Covers reports whether the change is in what cannot be read: while there is such a
// problem, a change that was published before a restart is neither confirmed nor gone.
func (p Problem) Covers(c v1alpha1.Change) bool {
	return p.Source == c.Source && within(c.Name, p.Name)
}

// Report says what differs from what is in effect. It holds all changes there are if
// Unread is false and there are no Problems.
type Report struct {
	Changes  []v1alpha1.Change // by source and name
	Problems []Problem         // by name
	// Unread: a path or unit has neither been read nor has a problem yet, or it is not
	// known yet what is to be watched.
	Unread bool
}

// ProblemsOf joins the problems that cover one of the changes: it is not known whether
// these are still there, or there again. It returns nil if there is no such problem.
func (r Report) ProblemsOf(changes []v1alpha1.Change) error {
	var errs []error
	for _, p := range r.Problems {
		if slices.ContainsFunc(changes, p.Covers) {
			errs = append(errs, p)
		}
	}
	return errors.Join(errs...)
}

// Watcher keeps the baseline and compares the host's files with it. Make it with [New]
// and run it with [Watcher.Run]; its methods may be called from any goroutine.
type Watcher struct {
	Options
	key     *hostKey
	kick    chan struct{}
	reading chan struct{} // holds a value while a goroutine reads files
	saving  sync.Mutex    // one write of the baseline at a time

	mu      sync.Mutex
	digests map[string]string // the baseline, by path; see baselineFile
	roots   map[string]*root  // what digests covers, and what is to be covered
	asked   bool              // Watch was called
	unsaved bool              // the baseline differs from the file
	saveErr error             // why the baseline could not be written
	hints   hints             // nil while Run does not run
	report  Report
	notify  func()
}

// New makes a Watcher that continues from the baseline in the state directory.
func New(o Options) *Watcher {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Settle = cmp.Or(o.Settle, defaultSettle)
	o.Poll = cmp.Or(o.Poll, defaultPoll)
	w := &Watcher{Options: o, kick: make(chan struct{}, 1), reading: make(chan struct{}, 1),
		digests: map[string]string{}, roots: map[string]*root{}, report: Report{Unread: true}}
	w.load()
	return w
}

// Watch sets what is to be watched from now on: absolute paths, of files or directories,
// and full names of units. What is new is read soon. The baseline of what is no longer
// named is kept until the next boot, for a hundred paths and units: if a rule names it
// again, or a path that overlaps it, what has changed in the meantime is a change.
//
// published are the changes that this boot has published on the Node; they count in the
// first call only. They remain changes if the baseline of this boot is lost: a file or unit
// among them differs from what is in effect until a turn has applied it, or until the next
// boot.
func (w *Watcher) Watch(paths, units []string, published []v1alpha1.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	named := map[string]bool{}
	for _, path := range paths {
		named[filepath.Clean(path)] = true
	}
	for _, unit := range units {
		named[unit] = true
	}
	if w.asked {
		published = nil
	}
	news := !w.asked
	w.asked = true
	for i, name := range slices.Sorted(maps.Keys(named)) {
		r := w.roots[name]
		if r == nil {
			r = &root{name: name, private: !filepath.IsAbs(name), published: slices.Clone(published)}
			w.roots[name] = r
		}
		switch excess := i >= MaxWatched; {
		case excess:
			r.problem = errExcess
		case r.problem == errExcess:
			r.problem = nil
		}
		news = news || !r.named
		w.unsaved = w.unsaved || !r.unnamed.IsZero()
		r.named, r.unnamed = true, time.Time{}
	}
	for name, r := range w.roots {
		if !named[name] && r.unnamed.IsZero() {
			r.named, r.unnamed = false, time.Now()
			news, w.unsaved = true, true
		}
	}
	if news {
		w.update()
		w.poke()
	}
}

var errExcess = fmt.Errorf("more than %d paths and units are watched", MaxWatched)

// poke makes Run read what is due.
func (w *Watcher) poke() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// Report returns what was found at the last reading. It reads no file.
func (w *Watcher) Report() Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Report{slices.Clone(w.report.Changes), slices.Clone(w.report.Problems), w.report.Unread}
}

// Refresh reads everything once more, for a commit: what is there now is reported, even
// if it has not settled. The error says what could not be read.
func (w *Watcher) Refresh(ctx context.Context) error {
	w.readRoots(ctx, true, true)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("reading the watched files: %w", err)
	}
	report := w.Report()
	if report.Unread {
		return errors.New("it is not known yet which files are to be watched")
	}
	var errs []error
	for _, p := range report.Problems {
		errs = append(errs, p)
	}
	return errors.Join(errs...)
}

// WaitSettled waits until the paths and units that the changes are in have settled, and
// then reads everything, so that its caller, who has applied the changes, sees whether
// something has changed again. It waits for Settle at least, from now, and for twelve
// times that at most; it returns at once if nothing is watched for the changes. The error
// is that of [Report.ProblemsOf], or ctx's.
func (w *Watcher) WaitSettled(ctx context.Context, changes []v1alpha1.Change) error {
	now := time.Now()
	bound := now.Add(settleFactor * w.Settle)
	until, watched := w.settled(changes)
	if !watched {
		return nil
	}
	if least := now.Add(w.Settle); until.Before(least) {
		until = least
	}
	for now.Before(until) && now.Before(bound) && ctx.Err() == nil {
		wait(ctx, nil, min(until.Sub(now), bound.Sub(now)))
		now = time.Now()
		until, _ = w.settled(changes)
	}
	if w.readRoots(ctx, true, true); ctx.Err() != nil {
		return fmt.Errorf("reading the watched files: %w", ctx.Err())
	}
	return w.Report().ProblemsOf(changes)
}

// settled returns when the roots that the changes are in will have settled; that time has
// passed if they have. watched is false if there is no such root.
func (w *Watcher) settled(changes []v1alpha1.Change) (at time.Time, watched bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.roots {
		p := Problem{Source: r.source(), Name: r.name}
		if !r.watched() || !slices.ContainsFunc(changes, p.Covers) {
			continue
		}
		watched = true
		if due := r.due(w.Settle); due.After(at) {
			at = due
		}
	}
	return at, watched
}

// MarkApplied makes changes, as a Report has them, part of what is in effect: the turn
// that was for them is done. What has changed again since then remains a change. Changes
// of other sources are ignored. The error says that the baseline could not be written;
// the changes are in effect nevertheless, and the Watcher tries to write it again.
func (w *Watcher) MarkApplied(changes []v1alpha1.Change) error {
	w.mu.Lock()
	for _, c := range changes {
		if c.Source != v1alpha1.SourceFile && c.Source != v1alpha1.SourceUnit {
			continue
		}
		if id := v1alpha1.DigestKey(c.Version); id != "" && id != w.key.id {
			// The process that began to apply it had another key, and it is unknown
			// whether the file has changed since.
			i := slices.IndexFunc(w.report.Changes, c.Same)
			if i < 0 {
				continue
			}
			c = w.report.Changes[i]
		}
		w.markApplied(c)
	}
	for _, r := range w.roots {
		r.reported = nil // no turn is for it any more; the next report notes it again
	}
	w.update()
	w.mu.Unlock()
	return w.save()
}

// update makes the report that the present state calls for, and notifies if it is
// another one. The caller holds mu.
func (w *Watcher) update() {
	now := Report{Changes: w.changes(), Unread: !w.asked}
	for _, name := range slices.Sorted(maps.Keys(w.roots)) {
		switch r := w.roots[name]; {
		case !r.named:
		case r.problem != nil:
			now.Problems = append(now.Problems, Problem{r.source(), name, r.problem})
		case r.seen == nil:
			now.Unread = true
		}
	}
	same := now.Unread == w.report.Unread && slices.Equal(now.Changes, w.report.Changes) &&
		slices.EqualFunc(now.Problems, w.report.Problems, func(a, b Problem) bool { return a.Error() == b.Error() })
	w.report = now
	if !same && w.notify != nil {
		w.notify()
	}
}

// within reports whether name is path, or below it.
func within(name, path string) bool {
	rest, ok := strings.CutPrefix(name, path)
	return ok && (rest == "" || rest[0] == '/' || path == "/")
}
