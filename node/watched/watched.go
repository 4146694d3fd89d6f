// Package watched implements the sources File and Unit: it finds the files and units that
// rules name and that differ from what is in effect on this host.
//
// The baseline describes what is in effect. It consists of roots, and of a map from the path
// of each file in them to its digest. A root is a file, a directory with everything below it,
// or a unit; rules only name roots. The baseline changes in three cases:
//
//   - When a rule names a root for the first time, the root's files are in effect as they are.
//   - In a new boot, all files are in effect as they are at the first read.
//   - When a turn has applied a change, the host calls [Watcher.MarkApplied]. Before that, while
//     it applies the change, what is in effect is unknown: see [Watcher.MarkBegun].
//
// Everything that differs from the baseline is a change, as long as it differs. The digest
// covers the mode and the content of regular files, and the targets of symbolic links. It
// ignores owners, times and empty directories.
//
// This package must not know what a change costs. It must not know of policies or turns.
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
	"lockkeeper.dev/lockkeeper/node/timing"
)

// Units finds the files of units. systemd.Units implements it.
type Units interface {
	// UnitFiles returns absolute paths. Of the fragments, the first that exists is used.
	// dropIns are drop-ins or directories with drop-ins; of a directory, all *.conf are
	// used.
	UnitFiles(ctx context.Context, unit string) (fragments, dropIns []string, err error)
}

// Options are the parameters of a Watcher.
type Options struct {
	// Root is the directory with the host's files: "/", except in tests.
	Root string
	// StateDir holds the baseline and the key of its digests: baseline.json and
	// digest.key, which no other user may read or write. It is not below Root. The
	// Watcher creates it if it does not exist.
	StateDir string
	// BootID is the ID of this boot.
	BootID string
	// Units may be nil if rules name no units.
	Units Units
	// Settle is how long the files of a root have to be unchanged before a change in them
	// is reported; 0 means 5s. After twelve times Settle, the change is reported even if
	// the files still change.
	Settle time.Duration
	// Poll is the interval at which everything is read even if inotify reports no changes;
	// 0 means 30s.
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

// MaxWatched is how many paths and units may be watched together. Each one beyond that is
// reported as a [Problem].
const MaxWatched = 500

// Problem is the error that prevents a watched path or unit from being read. Changes in it that
// were reported before are still reported.
type Problem struct {
	// Source is File or Unit, and Name the path or unit as a rule names it.
	Source v1alpha1.Source
	Name   string
	Err    error
}

func (p Problem) Error() string { return fmt.Sprintf("%s %s: %v", p.Source, p.Name, p.Err) }
func (p Problem) Unwrap() error { return p.Err }

// Covers reports whether the change is in the path or unit that cannot be read. As long as it
// cannot be read, a change that was published before a restart is neither confirmed nor gone.
func (p Problem) Covers(c v1alpha1.Change) bool {
	return p.Source == c.Source && within(c.Name, p.Name)
}

// Report lists the differences from what is in effect. It is complete if Unread is false and
// Problems is empty.
type Report struct {
	Changes  []v1alpha1.Change // by source and name
	Problems []Problem         // by name
	// Unread is true until [Watcher.Watch] has been called and each path and unit has
	// either been read or has a problem.
	Unread bool
}

// ProblemsOf joins the problems that cover one of the changes. It is unknown whether such a
// change still exists. ProblemsOf returns nil if there is no such problem.
func (r Report) ProblemsOf(changes []v1alpha1.Change) error {
	var errs []error
	for _, p := range r.Problems {
		if slices.ContainsFunc(changes, p.Covers) {
			errs = append(errs, p)
		}
	}
	return errors.Join(errs...)
}

// Watcher keeps the baseline and compares the host's files with it. Create it with [New] and run
// it with [Watcher.Run]. Its methods may be called from any goroutine.
type Watcher struct {
	Options
	key     *hostKey
	kick    chan struct{}
	reading chan struct{} // holds a value while a goroutine reads files
	saving  sync.Mutex    // one write of the baseline at a time

	mu      sync.Mutex
	digests map[string]string // the baseline, by path; see baselineFile
	roots   map[string]*root  // the roots that digests covers, and those to be added
	asked   bool              // Watch was called
	unsaved bool              // the baseline differs from the file
	saveErr error             // why the baseline could not be written
	hints   hints             // nil while Run does not run
	hangs   *root             // whose read hangs; usually nil
	report  Report
	notify  func()
}

// New returns a Watcher that continues from the baseline in the state directory.
func New(o Options) *Watcher {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Settle = cmp.Or(o.Settle, defaultSettle)
	o.Poll = cmp.Or(o.Poll, defaultPoll)
	w := &Watcher{Options: o, kick: make(chan struct{}, 1), reading: make(chan struct{}, 1),
		digests: map[string]string{}, roots: map[string]*root{}, report: Report{Unread: true}}
	w.load()
	return w
}

// Watch sets what the Watcher watches: absolute paths of files or directories, and full names of
// units. The Watcher reads new ones soon. It keeps the baseline of up to a hundred paths and
// units that are no longer named, until the next boot. If a rule names one of them again, or a
// path that overlaps it, the differences since then are changes.
//
// published are the changes that this boot has published on the Node. Only the first call uses
// them. They remain changes if the baseline of this boot is lost: each of these files and units
// counts as changed until a turn has applied it, or until the next boot.
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
func (w *Watcher) poke() { timing.Kick(w.kick) }

// Report returns the result of the last read. It reads no file.
func (w *Watcher) Report() Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Report{slices.Clone(w.report.Changes), slices.Clone(w.report.Problems), w.report.Unread}
}

// Refresh reads everything again, for a commit. The report then includes changes that have not
// settled. The error names what could not be read.
func (w *Watcher) Refresh(ctx context.Context) error {
	w.readRoots(ctx, true, true)
	report := w.Report()
	var errs []error
	for _, p := range report.Problems {
		errs = append(errs, p)
	}
	err := errors.Join(errs...)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("reading the watched files: %w", cmp.Or(err, ctx.Err()))
	case report.Unread:
		return errors.New("the files to watch are not known yet")
	}
	return err
}

// WaitSettled waits until the paths and units of the changes have settled, and then reads
// everything. A caller that has applied the changes uses it to see whether something has changed
// again. WaitSettled waits for at least Settle and at most twelve times Settle. It returns at
// once if no watched path or unit contains one of the changes. The error is that of
// [Report.ProblemsOf], or ctx's.
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
		_ = timing.Wait(ctx, nil, min(until.Sub(now), bound.Sub(now)))
		now = time.Now()
		until, _ = w.settled(changes)
	}
	if w.readRoots(ctx, true, true); ctx.Err() != nil {
		return fmt.Errorf("reading the watched files: %w", ctx.Err())
	}
	return w.Report().ProblemsOf(changes)
}

// settled returns when the roots that contain the changes will have settled. The time is in the
// past if they have. watched is false if there is no such root.
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

// MarkBegun records that a turn begins to apply changes from a [Report]. From then on it is
// unknown what is in effect for them. They remain changes until they are marked as applied, or
// until the next boot, even if they are changed back: a unit may have read them meanwhile.
// MarkBegun ignores changes of other sources. It returns an error if the baseline could not be
// written.
func (w *Watcher) MarkBegun(changes []v1alpha1.Change) error {
	w.mu.Lock()
	for _, c := range changes {
		w.markBegun(c)
	}
	w.update()
	w.mu.Unlock()
	return w.save()
}

// MarkApplied adds changes from a [Report] to the baseline, after a turn has applied them. A file
// that has changed again since then remains a change. MarkApplied ignores changes of other
// sources. It returns an error if the baseline could not be written. The changes are in effect
// even then, and the Watcher tries the write again.
func (w *Watcher) MarkApplied(changes []v1alpha1.Change) error {
	w.mu.Lock()
	for _, c := range changes {
		if !c.Watched() {
			continue
		}
		if id := v1alpha1.DigestKey(c.Version); id != "" && id != w.key.id {
			// The change was made with an earlier key, so it is unknown whether the file
			// has changed since.
			i := slices.IndexFunc(w.report.Changes, c.Same)
			if i < 0 {
				continue
			}
			c = w.report.Changes[i]
		}
		w.markApplied(c)
	}
	for _, r := range w.roots {
		r.reported = nil // no turn is for these states any more; update adds the current one
	}
	w.update()
	w.mu.Unlock()
	return w.save()
}

// update computes the report, and calls notify if the report has changed. The caller holds mu.
func (w *Watcher) update() {
	now := Report{Changes: w.changes(), Unread: !w.asked}
	for _, name := range slices.Sorted(maps.Keys(w.roots)) {
		switch r := w.roots[name]; {
		case r == w.hangs: // even if no rule names it any more: no other root is read meanwhile
			now.Problems = append(now.Problems, Problem{r.source(), name, errHangs})
		case !r.named:
		case r.problem != nil:
			now.Problems = append(now.Problems, Problem{r.source(), name, r.problem})
		case r.seen == nil && w.hangs != nil:
			now.Problems = append(now.Problems, Problem{r.source(), name, fmt.Errorf("not read yet, because the read of %s hangs", w.hangs.name)})
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

// within reports whether name is path or is below it.
func within(name, path string) bool {
	rest, ok := strings.CutPrefix(name, path)
	return ok && (rest == "" || rest[0] == '/' || path == "/")
}
