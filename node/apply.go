package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/policy"
	"lockkeeper.dev/lockkeeper/systemd"
)

// applyUnits is what applying needs of systemd; [systemd.Units] has it.
type applyUnits interface {
	DaemonReload(ctx context.Context, by time.Time) error
	Reload(ctx context.Context, unit string, by time.Time) (left string, err error)
	Restart(ctx context.Context, unit string, by time.Time) (left string, err error)
	Own(ctx context.Context) (names []string, invocation string, err error)
	Invocation(ctx context.Context, unit string) (string, error)
	ActiveState(ctx context.Context, unit string) (state string, loaded bool, err error)
	Names(ctx context.Context, unit string) ([]string, error)
}

// atRest is what a run waits for when its steps are done.
const atRest = "what the plan was for to come to rest"

const (
	// stepPause is how long a step rests when systemd cannot be talked to.
	stepPause = 2 * time.Second
	// maxTries is how often a step is begun that ends this process.
	maxTries = 3
)

// errand is what a turn's apply has to do.
type errand struct {
	// Changes are in effect when the steps are done.
	Changes []v1alpha1.Change `json:"changes"`
	// Before are all changes that were there when it began.
	Before []v1alpha1.Change `json:"before,omitempty"`
	// Steps are DaemonReload, Reload and Restart, in order.
	Steps []v1alpha1.Action `json:"steps"`
}

// errandOf is the errand of a turn that was granted for changes: what is still
// there of them, as it is now, by the rules as they are now. Changes that came
// since are the next turn's. dearer reports that it costs a reboot by now.
func errandOf(m policy.Match, present, granted []v1alpha1.Change) (e errand, dearer bool) {
	e.Before = present
	for _, c := range present {
		if named(granted, c) {
			e.Changes = append(e.Changes, c)
		}
	}
	for _, s := range m.Plan(e.Changes).Steps {
		switch s.Action.Type {
		case v1alpha1.ActionDaemonReload, v1alpha1.ActionReload, v1alpha1.ActionRestart:
			e.Steps = append(e.Steps, s.Action)
		case v1alpha1.ActionReboot:
			dearer = true
		}
	}
	return e, dearer
}

// apply carries out the units' part of a turn's plan, once. Its methods may be
// called from any goroutine but for start, resume and in, which are the loop's.
//
// A process that is started in the middle of it goes on after the steps that are
// done, by the record that the last one has left.
type apply struct {
	units  applyUnits
	log    *slog.Logger // the loop's: not to be used before the Node is known
	wake   func()
	dir    string // for the record: in memory, and there after a restart of lockkeeper
	bootID string
	// applied takes changes as in effect; it may be called twice for the same.
	// nil: no source on this host remembers what is in effect.
	applied func([]v1alpha1.Change) error
	// rest waits until what is watched for the changes has come to rest, and looks
	// at it. nil: nothing is watched on this host.
	rest func(context.Context, []v1alpha1.Change) error

	mu      sync.Mutex
	run     *applyRun   // the present one, or the last one
	resumed stage       // looked for in the record
	record  applyRecord // the progress of the steps after the last run
}

// applyRun is one run of a turn's steps. The mutex of apply guards it.
type applyRun struct {
	stage  stage
	cancel context.CancelFunc
	over   bool
	off    bool // called off: the host was seen in another stage
	late   bool // it ended before its next step, which needs another read
	ended  chan struct{}

	resting        bool // its changes are taken as in effect, or about to be
	detail, failed string
	record         applyRecord // once it is over
	outlived       string      // what was said of it last
}

// unfinished reports whether the run ended before all steps were done, and another
// run may continue: because the next step needs another read, or because the run was
// called off when a user edited the turn's records, and the coordinator has repaired
// them. It is false for a run that ended with the process: the next process
// continues that one.
func (r *applyRun) unfinished() bool { return (r.off || r.late) && !r.over && isClosed(r.ended) }

// work is what the steps of a stage have come to.
func (a *apply) work(s stage) step.Work {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch r := a.run; {
	case r == nil || r.stage != s || r.unfinished():
		return step.Work{}
	case !r.over:
		return step.Work{Running: true, Detail: r.detail}
	default:
		return step.Work{Done: r.failed == "", Failed: r.failed}
	}
}

// resting reports whether the changes of a stage have been, or are about to be, taken
// as in effect. Who has read the sources and hears that they were not has read the
// changes as they were before that.
func (a *apply) resting(s stage) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.run != nil && a.run.stage == s && a.run.resting
}

// in says which stage the host is in: steps of another one that are still to come
// are not begun any more. A job that is under way is systemd's.
func (a *apply) in(s stage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.run != nil && a.run.stage != s {
		a.run.off = true
		a.run.cancel()
	}
}

// resume takes up, once, that the last process has done all steps of a stage, and
// reports whether it has: the changes are in effect, and are no changes any more,
// unless they have changed again. Every source has to have been read before.
func (a *apply) resume(ctx context.Context, s stage) bool {
	a.mu.Lock()
	looked := a.resumed == s || a.run != nil && a.run.stage == s
	a.resumed = s
	a.mu.Unlock()
	if looked {
		return false
	}
	r, err := readApplied(a.dir)
	if err != nil {
		a.log.Warn("cannot read what was applied before; it is done once more", "err", err)
	}
	if !r.is(s, a.bootID) || !r.finished() {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.begin(ctx, s, func(ctx context.Context, run *applyRun) { a.settle(ctx, run, r) })
}

// begin lets do run for a stage, unless a run of another one has not ended yet.
// mu is held.
func (a *apply) begin(ctx context.Context, s stage, do func(context.Context, *applyRun)) bool {
	if a.run != nil && !isClosed(a.run.ended) {
		return false // whoever comes to an end wakes the loop
	}
	r := &applyRun{stage: s, detail: "the units of its plan", ended: make(chan struct{})}
	ctx, r.cancel = context.WithCancel(ctx)
	a.run = r
	go func() {
		defer a.wake()
		defer close(r.ended)
		defer r.cancel()
		do(ctx, r)
	}()
	return true
}

// effect takes the changes as in effect.
func (a *apply) effect(changes []v1alpha1.Change) {
	if a.applied == nil {
		return
	}
	if err := a.applied(changes); err != nil {
		a.log.Warn("what was applied cannot be written down; after a restart of lockkeeper it will look like a change", "err", err)
	}
}

// start runs the steps of a stage unless they are running or have run. It asks systemd
// for steps only until by: after that, the reads behind the decision are too old. The
// steps that are left wait for the next start.
func (a *apply) start(ctx context.Context, s stage, e errand, by time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.run == nil || a.run.stage != s || a.run.unfinished() {
		a.begin(ctx, s, func(ctx context.Context, r *applyRun) { a.execute(ctx, r, e, by) })
	}
}

// wait returns when no run is left. The context of the runs has ended.
func (a *apply) wait() {
	a.mu.Lock()
	r := a.run
	a.mu.Unlock()
	if r != nil {
		<-r.ended
	}
}

// execute carries out the steps. When ctx ends, what is left is the next process's.
func (a *apply) execute(ctx context.Context, r *applyRun, e errand, by time.Time) {
	log := a.log.With("turn", r.stage.turn, "state", string(r.stage.state))
	rec, err := a.steps(ctx, r, e, by, log)
	a.mu.Lock()
	a.record = rec
	a.mu.Unlock()
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, systemd.ErrTooLate):
		a.mu.Lock()
		r.late = true
		a.mu.Unlock()
	case err != nil:
		log.Error("a unit of the plan failed", "err", err)
		// Nothing is taken as in effect: what cannot be read stays what it was.
		a.say(r, atRest)
		if _ = a.look(ctx, e.Changes); ctx.Err() != nil {
			return
		}
		a.mu.Lock()
		r.over, r.failed = true, cmp.Or(clipTo(err.Error(), maxHookText), "a step failed")
		a.mu.Unlock()
	default:
		log.Info("the plan is carried out", "steps", len(rec.Steps))
		a.settle(ctx, r, rec)
	}
}

// settle takes the changes of a run whose steps are done as in effect, and looks
// what has become of them: before anybody hears that it is done, so that the next
// look at the sources sees them gone, or changed again.
func (a *apply) settle(ctx context.Context, r *applyRun, rec applyRecord) {
	a.mu.Lock()
	r.resting = true
	a.mu.Unlock()
	a.effect(rec.Changes)
	// Whether what cannot be read has changed again is not known. It is looked at until
	// it can be: by the coordinator's clock that is overdue, and a person's retry ends it.
	a.say(r, atRest)
	for said := ""; ; {
		err := a.look(ctx, rec.Changes)
		if err == nil || ctx.Err() != nil {
			break
		}
		if text := err.Error(); text != said {
			said = text
			a.log.Warn("cannot see whether what was applied has changed again; it is looked at until it can be read", "turn", r.stage.turn, "err", err)
		}
		a.say(r, clipTo("what the plan was for to be read: "+said, maxHookText))
		_ = wait(ctx, nil, stepPause)
	}
	if ctx.Err() != nil {
		return
	}
	a.mu.Lock()
	r.over, r.record = true, rec
	a.mu.Unlock()
}

// look sees what is watched for the changes when it has come to rest: whoever
// hears how the run ended hears what there is now. The error says what of it cannot
// be read.
func (a *apply) look(ctx context.Context, changes []v1alpha1.Change) error {
	if a.rest == nil {
		return nil
	}
	return a.rest(ctx, changes)
}

// outlived says what has outlived the plan that a stage has carried out, by the
// changes that there are now, or "".
func (a *apply) outlived(s stage, present []v1alpha1.Change) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.run
	if r == nil || r.stage != s || !r.over || r.failed != "" {
		return ""
	}
	text, beside := step.ChangedAgain(r.record.Changes, r.record.Before, present, r.record.Chain)
	text = clipTo(text, maxHookText)
	log := a.log.With("turn", s.turn, "state", string(s.state))
	if text != "" && text != r.outlived {
		log.Error("a change has outlived its turn", "what", text)
	}
	r.outlived = text
	if !v1alpha1.SameChanges(beside, r.record.Beside) {
		r.record.Beside = beside
		a.note(&r.record, log)
	}
	return text
}

// steps carries out the remaining steps, as far as it can ask systemd for them until
// by. It returns [systemd.ErrTooLate] if some are left.
func (a *apply) steps(ctx context.Context, r *applyRun, e errand, by time.Time, log *slog.Logger) (rec applyRecord, err error) {
	a.mu.Lock()
	rec = a.record
	a.mu.Unlock()
	var names []string
	var own string
	if len(e.Steps) > 0 {
		err := a.insist(ctx, r, by, log, "lockkeeper's own unit", func(ctx context.Context) (err error) {
			if names, own, err = a.units.Own(ctx); err != nil {
				return err
			}
			// Check all steps first: a plan with a refused step does nothing.
			return a.refused(ctx, e.Steps...)
		})
		if err != nil {
			return rec, err
		}
	}
	e.Steps = ownLast(e.Steps, names)
	if !rec.is(r.stage, a.bootID) { // this process has not begun it
		if rec, err = readApplied(a.dir); err != nil {
			log.Warn("cannot read what was applied before; it is done once more", "err", err)
		}
	}
	rec = rec.begin(r.stage, a.bootID, e)
	for !rec.finished() {
		step := rec.Steps[rec.Done]
		done, err := a.wasDone(ctx, r, by, log, &rec, own, names)
		if err == nil && !done {
			done, err = true, a.step(ctx, r, by, log, &rec, own, slices.Contains(names, step.Unit))
		}
		if err != nil {
			return rec, err
		}
		rec.Done, rec.Tries, rec.Run, rec.Own = rec.Done+1, 0, "", ""
		a.note(&rec, log)
	}
	a.note(&rec, log)
	return rec, nil
}

// refused returns an error if one of the steps is for a unit that no plan may touch. It
// checks every name that the unit has on this host: a policy's author may use an alias
// that [policy.Compile] does not know.
func (a *apply) refused(ctx context.Context, steps ...v1alpha1.Action) error {
	for _, s := range steps {
		if s.Unit == "" {
			continue
		}
		names, err := a.units.Names(ctx, s.Unit)
		if err != nil {
			return err
		}
		for _, name := range append([]string{s.Unit}, names...) {
			if g := policy.Refuse(s.Type, name); g != nil {
				text := fmt.Sprintf("%s is refused: on this host the unit is %s, which %s", s, name, g.Why)
				return &systemd.JobError{Unit: s.Unit, Text: clipTo(text, maxHookText)}
			}
		}
	}
	return nil
}

// ownLast puts the restart of our own unit last: it ends this process.
func ownLast(steps []v1alpha1.Action, names []string) []v1alpha1.Action {
	steps = slices.Clone(steps)
	slices.SortStableFunc(steps, func(x, y v1alpha1.Action) int {
		last := func(s v1alpha1.Action) int {
			if s.Type == v1alpha1.ActionRestart && slices.Contains(names, s.Unit) {
				return 1
			}
			return 0
		}
		return last(x) - last(y)
	})
	return steps
}

func (a *apply) note(rec *applyRecord, log *slog.Logger) {
	if err := rec.write(a.dir); err != nil {
		log.Warn("cannot note how far the plan is carried out; after a restart of lockkeeper it is begun anew", "err", err)
	}
}

// wasDone reports whether the step that the last process had begun was done: it
// was a restart, of lockkeeper's own unit or of one that took lockkeeper with it,
// and it was carried out.
func (a *apply) wasDone(ctx context.Context, r *applyRun, by time.Time, log *slog.Logger, rec *applyRecord, own string, names []string) (bool, error) {
	step := rec.Steps[rec.Done]
	if rec.Tries == 0 || step.Type != v1alpha1.ActionRestart || rec.Own == "" || rec.Own == own {
		return false, nil
	}
	if slices.Contains(names, step.Unit) {
		return true, nil
	}
	done := false
	err := a.insist(ctx, r, by, log, step.String(), func(ctx context.Context) error {
		run, err := a.units.Invocation(ctx, step.Unit)
		if err != nil {
			return err
		}
		state, _, err := a.units.ActiveState(ctx, step.Unit)
		done = run != rec.Run && state == "active"
		return err
	})
	return done, err
}

// step carries out one step. The record of it comes first: without that, a step
// that ends this process would be begun again and again.
func (a *apply) step(ctx context.Context, r *applyRun, by time.Time, log *slog.Logger, rec *applyRecord, own string, itself bool) error {
	step := rec.Steps[rec.Done]
	if rec.Tries >= maxTries {
		return fmt.Errorf("%s: lockkeeper was ended %d times in the middle of it: journalctl -u lockkeeper", step, maxTries)
	}
	var left string
	noted := false
	err := a.insist(ctx, r, by, log, step.String(), func(ctx context.Context) (err error) {
		// Check again: a DaemonReload of this plan may have added an alias.
		if err := a.refused(ctx, step); err != nil {
			return err
		}
		if !noted {
			if rec.Own, rec.Run = own, ""; step.Type == v1alpha1.ActionRestart {
				if rec.Run, err = a.units.Invocation(ctx, step.Unit); err != nil {
					return err
				}
			}
			if time.Now().After(by) {
				return systemd.ErrTooLate
			}
			rec.Tries++
			switch err := rec.write(a.dir); {
			case err != nil && itself:
				return &systemd.JobError{Unit: step.Unit, Text: "lockkeeper does not restart itself, it would not know afterwards that it has: " + err.Error()}
			case err != nil:
				log.Warn("after a restart of lockkeeper the plan is begun anew", "err", err)
			}
			noted = true
			log.Info("carrying out a step of the plan", "step", step.String())
		}
		switch step.Type {
		case v1alpha1.ActionDaemonReload:
			return a.units.DaemonReload(ctx, by)
		case v1alpha1.ActionReload:
			left, err = a.units.Reload(ctx, step.Unit, by)
		default:
			left, err = a.units.Restart(ctx, step.Unit, by)
		}
		return err
	})
	if errors.Is(err, systemd.ErrTooLate) && noted {
		rec.Tries-- // this process lives: it was not ended by the step
	}
	if err == nil && left != "" {
		log.Info("a unit of the plan does not run, and is left alone", "step", step.String(), "unit", step.Unit, "is", left)
	}
	return err
}

// insist does something with systemd until that answers: the bus may be away, and
// be what is restarted. It gives up when systemd reports an error of a unit. After by
// it returns [systemd.ErrTooLate].
func (a *apply) insist(ctx context.Context, r *applyRun, by time.Time, log *slog.Logger, what string, do func(context.Context) error) error {
	a.say(r, what)
	for {
		err := do(ctx)
		_, word := errors.AsType[*systemd.JobError](err)
		switch {
		case err == nil || word || errors.Is(err, systemd.ErrTooLate):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w", what, ctx.Err())
		case time.Now().Add(stepPause).After(by):
			return fmt.Errorf("%s: %w: %w", what, systemd.ErrTooLate, err)
		}
		log.Warn("systemd does not answer", "for", what, "err", err, "again_in", stepPause)
		a.say(r, fmt.Sprintf("systemd, for %s: %v", what, err))
		_ = wait(ctx, nil, stepPause) // the next try finds out that it is over
	}
}

// say is what the host is at work on, for people.
func (a *apply) say(r *applyRun, detail string) {
	a.mu.Lock()
	r.detail = detail
	a.mu.Unlock()
	a.wake()
}
