package effect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/timing"
	"lockkeeper.dev/lockkeeper/policy"
	"lockkeeper.dev/lockkeeper/systemd"
)

// ApplySystemd is what applying needs of systemd; [systemd.Units] has it.
type ApplySystemd interface {
	DaemonReload(ctx context.Context, by time.Time) error
	Reload(ctx context.Context, unit string, by time.Time) (left string, err error)
	Restart(ctx context.Context, unit string, by time.Time) (left string, err error)
	Own(ctx context.Context) (names []string, invocation string, err error)
	Invocation(ctx context.Context, unit string) (string, error)
	ActiveState(ctx context.Context, unit string) (state string, loaded bool, err error)
	Names(ctx context.Context, unit string) ([]string, error)
}

// Watched is what applying needs of the watched files and units.
type Watched interface {
	// MarkBegun makes it unknown what is in effect for changes: they remain changes until
	// they are marked as applied, even if they are changed back. It may be called twice for
	// the same changes.
	MarkBegun(changes []v1alpha1.Change) error
	// MarkApplied makes changes part of what is in effect. It may be called twice for the
	// same changes.
	MarkApplied(changes []v1alpha1.Change) error
	// WaitSettled waits until what is watched for the changes has settled, and reads it.
	WaitSettled(ctx context.Context, changes []v1alpha1.Change) error
}

// Settling is what a run does when its steps are done.
const Settling = "the check whether what it applied has changed again"

// Unread ends the detail of a check that cannot read what it checks.
const Unread = ", which cannot be read"

// maxTries is how often a step that ends this process is begun.
const maxTries = 3

// PlanApply returns what a turn applies: the steps of the plan that the host published
// for it, and those of its changes that are still present, in the version of now. Changes
// that came since belong to the next turn.
func PlanApply(plan *v1alpha1.Host, present []v1alpha1.Change) ApplyPlan {
	p := ApplyPlan{Before: present}
	for _, c := range present {
		if plan.Names(c) {
			p.Changes = append(p.Changes, c)
		}
	}
	for _, s := range plan.Steps {
		switch s.Type {
		case v1alpha1.ActionDaemonReload, v1alpha1.ActionReload, v1alpha1.ActionRestart:
			p.Steps = append(p.Steps, s)
		}
	}
	return p
}

// Apply carries out the steps of a turn's plan, once. Start, Resume and Leave are for the
// loop's goroutine.
//
// A process that starts in the middle of a plan continues after the steps that are done,
// by the record that the process before it left.
type Apply struct {
	runner
	units   ApplySystemd
	watched Watched
	dir     string // for the record: in memory, and still there after a restart of lockkeeper
	bootID  string
	log     *slog.Logger

	// mu guards the rest.
	resumed Stage  // for which Resume has read the record
	record  record // the progress of the last run
	logged  string // what ChangedAgain logged last
}

// NewApply returns an Apply that keeps its record in dir. wake must not block.
func NewApply(units ApplySystemd, watched Watched, dir, bootID string, log *slog.Logger, wake func()) *Apply {
	return &Apply{runner: runner{wake: wake}, units: units, watched: watched, dir: dir, bootID: bootID, log: log}
}

// Work returns the progress of a stage's steps. It is zero if the next step needs another
// read.
func (a *Apply) Work(s Stage) step.Work {
	if w := a.work(s); !w.Late {
		return w
	}
	return step.Work{}
}

// Leave tells Apply which stage the host is in: it begins no more steps of another stage.
// A job that is under way is systemd's.
func (a *Apply) Leave(s Stage) { a.leave(s) }

// Resume reports whether an earlier process has done all steps of a stage, and if so waits
// in the background until the changes have settled. It reads the record once for each
// stage. The caller has read every source before.
func (a *Apply) Resume(ctx context.Context, s Stage) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.resumed == s || a.last != nil && a.last.stage == s || a.last.running() {
		return false
	}
	a.resumed = s
	rec, err := readRecord(a.dir)
	if err != nil {
		a.log.Warn("lockkeeper does the steps of the plan once more, because it cannot read which are done", "err", err)
	}
	if !rec.is(s, a.bootID) || !rec.finished() {
		return false
	}
	a.record = rec
	a.beginLocked(ctx, s, Settling, func(ctx context.Context) error { return a.settle(ctx, s) })
	return true
}

// Start carries out the steps of a stage unless they run, or have ended. It asks systemd
// for steps only until by: after that, the reads behind the decision are too old. The
// steps that are left wait for the next Start.
func (a *Apply) Start(ctx context.Context, s Stage, p ApplyPlan, by time.Time) {
	if a.Work(s) == (step.Work{}) {
		a.begin(ctx, s, "the units of its plan", func(ctx context.Context) error { return a.execute(ctx, s, p, by) })
	}
}

// execute carries out the steps. If ctx ends, the next process continues.
func (a *Apply) execute(ctx context.Context, s Stage, p ApplyPlan, by time.Time) error {
	x := execution{Apply: a, by: by, log: a.log.With("turn", s.Turn, "state", string(s.State))}
	err := x.run(ctx, s, p)
	a.mu.Lock()
	a.record = x.rec
	a.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, systemd.ErrTooLate):
		return err
	case err != nil:
		x.log.Error("a step of the plan failed", "err", err)
		// The changes are not marked as applied: after another read, the host reports
		// what there is now together with the failure.
		a.report(Settling)
		_ = a.watched.WaitSettled(ctx, p.Changes) // what cannot be read stays as it was
		return err
	}
	x.log.Info("the plan is carried out", "steps", len(x.rec.Steps))
	return a.settle(ctx, s)
}

// settle marks the changes of a run whose steps are done as applied, and waits until they
// have settled. Only then is the run done: so the next read of the sources shows that they
// are gone, or that they have changed again.
func (a *Apply) settle(ctx context.Context, s Stage) error {
	a.mu.Lock()
	changes := a.record.Changes
	a.mu.Unlock()
	if err := a.watched.MarkApplied(changes); err != nil {
		a.log.Warn("cannot record what was applied; after a restart of lockkeeper it looks like a change again", "err", err)
	}
	a.report(Settling)
	// While it cannot be read, it is unknown whether it has changed again. The host waits
	// until it can. The coordinator reports the stage as overdue, and an admin's retry
	// ends it.
	for logged := ""; ; {
		err := a.watched.WaitSettled(ctx, changes)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if text := err.Error(); text != logged {
			logged = text
			a.log.Warn("cannot read whether what was applied has changed again; lockkeeper tries again until it can", "turn", s.Turn, "err", err)
		}
		a.report(clip(Settling + Unread + ": " + logged))
		_ = timing.Wait(ctx, nil, retryPause)
	}
}

// ChangedAgain returns what has changed again since a stage's steps were carried out, so
// that the turn fails, or "". present are the changes that there are now.
func (a *Apply) ChangedAgain(s Stage, present []v1alpha1.Change) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.last; x == nil || x.stage != s || x.running() || x.err != nil {
		return ""
	}
	text, others := step.ChangedAgain(a.record.Changes, a.record.Before, present, a.record.Streak)
	text = clip(text)
	log := a.log.With("turn", s.Turn, "state", string(s.State))
	if key := s.Turn + " " + text; text != "" && key != a.logged {
		a.logged = key
		log.Error("a change came back while its turn applied it", "change", text)
	}
	if !v1alpha1.SameChanges(others, a.record.Others) {
		a.record.Others = others
		a.save(&a.record, log)
	}
	return text
}

// save writes the record.
func (a *Apply) save(rec *record, log *slog.Logger) {
	if err := rec.write(a.dir); err != nil {
		log.Warn("cannot record how far the plan is carried out; a restart of lockkeeper begins it again", "err", err)
	}
}

// execution is one run of the steps of a plan.
type execution struct {
	*Apply
	by  time.Time // until when systemd may be asked for a step
	log *slog.Logger
	// names are the names of lockkeeper's own unit, own is its present invocation.
	names []string
	own   string
	rec   record
}

// run carries out the remaining steps. It returns [systemd.ErrTooLate] if some are left
// when x.by has passed.
func (x *execution) run(ctx context.Context, s Stage, p ApplyPlan) error {
	x.mu.Lock()
	x.rec = x.record
	x.mu.Unlock()
	if len(p.Steps) > 0 {
		err := x.insist(ctx, "the check of its plan", func(ctx context.Context) (err error) {
			if x.names, x.own, err = x.units.Own(ctx); err != nil {
				return err
			}
			// Check all steps first: a plan with a refused step does nothing.
			return x.refused(ctx, p.Steps...)
		})
		if err != nil {
			return err
		}
	}
	p.Steps = ownLast(p.Steps, x.names)
	if !x.rec.is(s, x.bootID) { // this process has not begun it
		var err error
		if x.rec, err = readRecord(x.dir); err != nil {
			x.log.Warn("lockkeeper does the steps of the plan once more, because it cannot read which are done", "err", err)
		}
	}
	x.rec = x.rec.begin(s, x.bootID, p)
	for !x.rec.finished() {
		done, err := x.wasDone(ctx)
		if err == nil && !done {
			err = x.step(ctx)
		}
		if err != nil {
			return err
		}
		x.rec.Done, x.rec.Tries, x.rec.Run, x.rec.Own = x.rec.Done+1, 0, "", ""
		x.save(&x.rec, x.log)
	}
	x.save(&x.rec, x.log)
	return nil
}

// refused returns an error if one of the steps is for a unit that no plan may touch. It
// checks every name that the unit has on this host: a policy's author may use an alias
// that [policy.Compile] does not know.
func (x *execution) refused(ctx context.Context, steps ...v1alpha1.Action) error {
	for _, s := range steps {
		if s.Unit == "" {
			continue
		}
		names, err := x.units.Names(ctx, s.Unit)
		if err != nil {
			return err
		}
		for _, name := range append([]string{s.Unit}, names...) {
			if g := policy.Refuse(s.Type, name); g != nil {
				text := fmt.Sprintf("%s is refused: on this host the unit is %s, which %s", s, name, g.Why)
				return &systemd.JobError{Text: clip(text)}
			}
		}
	}
	return nil
}

// ownLast puts the restart of lockkeeper's own unit last: it ends this process.
func ownLast(steps []v1alpha1.Action, own []string) []v1alpha1.Action {
	isOwn := func(s v1alpha1.Action) bool { return s.Type == v1alpha1.ActionRestart && slices.Contains(own, s.Unit) }
	return append(slices.DeleteFunc(slices.Clone(steps), isOwn),
		slices.DeleteFunc(slices.Clone(steps), func(s v1alpha1.Action) bool { return !isOwn(s) })...)
}

// wasDone reports whether an earlier process has done the present step: it was a restart,
// of lockkeeper's own unit or of one whose restart ended lockkeeper as well.
func (x *execution) wasDone(ctx context.Context) (done bool, err error) {
	rec, step := &x.rec, x.rec.Steps[x.rec.Done]
	if rec.Tries == 0 || step.Type != v1alpha1.ActionRestart || rec.Own == "" || rec.Own == x.own {
		return false, nil
	}
	if slices.Contains(x.names, step.Unit) {
		return true, nil
	}
	err = x.insist(ctx, step.String(), func(ctx context.Context) error {
		run, err := x.units.Invocation(ctx, step.Unit)
		if err != nil {
			return err
		}
		state, _, err := x.units.ActiveState(ctx, step.Unit)
		done = run != rec.Run && state == "active"
		return err
	})
	return done, err
}

// step carries out the present step. It writes the record first: otherwise a step that
// ends this process would be begun again and again.
func (x *execution) step(ctx context.Context) error {
	step := x.rec.Steps[x.rec.Done]
	if x.rec.Tries >= maxTries {
		return fmt.Errorf("%s: lockkeeper ended %d times during this step: journalctl -u lockkeeper", step, maxTries)
	}
	var left string
	recorded := false
	err := x.insist(ctx, step.String(), func(ctx context.Context) (err error) {
		// Check again: a DaemonReload of this plan may have added an alias.
		if err := x.refused(ctx, step); err != nil {
			return err
		}
		if !recorded {
			if err := x.recordBegin(ctx, step); err != nil {
				return err
			}
			recorded = true
			x.log.Info("carrying out a step of the plan", "step", step.String())
		}
		switch step.Type {
		case v1alpha1.ActionDaemonReload:
			return x.units.DaemonReload(ctx, x.by)
		case v1alpha1.ActionReload:
			left, err = x.units.Reload(ctx, step.Unit, x.by)
		default:
			left, err = x.units.Restart(ctx, step.Unit, x.by)
		}
		return err
	})
	if errors.Is(err, systemd.ErrTooLate) && recorded {
		x.rec.Tries-- // this process is alive: the step did not end it
	}
	if err == nil && left != "" {
		x.log.Info("a unit of the plan does not run and stays as it is", "step", step.String(), "unit", step.Unit, "active_state", left)
	}
	return err
}

// recordBegin writes the record before a step.
func (x *execution) recordBegin(ctx context.Context, step v1alpha1.Action) (err error) {
	rec := &x.rec
	if rec.Own, rec.Run = x.own, ""; step.Type == v1alpha1.ActionRestart {
		if rec.Run, err = x.units.Invocation(ctx, step.Unit); err != nil {
			return err
		}
	}
	if rec.Done == 0 {
		// From here on, a unit may run with the new content. If the plan fails or is cut
		// off, and the file is changed back, the unit still has to be restarted for it.
		if err := x.watched.MarkBegun(rec.Changes); err != nil {
			x.log.Warn("cannot record that the plan has begun; if lockkeeper restarts before the plan is carried out, it does not restart units for a file that has been changed back meanwhile", "err", err)
		}
	}
	if time.Now().After(x.by) {
		return systemd.ErrTooLate
	}
	rec.Tries++
	switch err := rec.write(x.dir); {
	case err != nil && slices.Contains(x.names, step.Unit):
		return &systemd.JobError{Text: "lockkeeper does not restart itself, because afterwards it would not know that it did: " + err.Error()}
	case err != nil:
		x.log.Warn("a restart of lockkeeper begins the plan again, because its progress cannot be recorded", "err", err)
	}
	return nil
}

// insist calls do until systemd answers: the bus may be away, or may be what is restarted.
// It returns the error if systemd reports one of a unit, and [systemd.ErrTooLate] when
// x.by has passed. what describes do to a person.
func (x *execution) insist(ctx context.Context, what string, do func(context.Context) error) error {
	x.report(what)
	for {
		err := do(ctx)
		left := time.Until(x.by)
		_, answered := errors.AsType[*systemd.JobError](err)
		switch {
		case err == nil || answered || errors.Is(err, systemd.ErrTooLate):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w", what, ctx.Err())
		case left <= 0:
			return fmt.Errorf("%s: %w: %w", what, systemd.ErrTooLate, err)
		}
		pause := min(retryPause, left) // an earlier end would have the loop begin again at once
		x.log.Warn("systemd does not answer; lockkeeper tries again", "for", what, "err", err, "again_in", pause)
		x.report(fmt.Sprintf("%s; systemd does not answer: %v", what, err))
		_ = timing.Wait(ctx, nil, pause) // the next attempt notices that ctx ended
	}
}
