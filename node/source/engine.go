package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/updateengine"
)

// engineUnit is the unit of update_engine on Flatcar.
const engineUnit = "update-engine.service"

// goneFor is how long systemd's answer about the engine's unit is used.
const goneFor = 10 * time.Second

// engineSystemd is what [Engine] needs of systemd; [systemd.Units] has it.
type engineSystemd interface {
	Gone(ctx context.Context, unit string) (bool, error)
}

// Engine is the update engine as a source of changes. A nil Engine reports no change. Its
// methods are not safe for use by several goroutines.
type Engine struct {
	source *updateengine.Source
	units  engineSystemd

	gone   bool // what systemd answered about the unit
	goneAt time.Time

	failing failing // its answers, or the lack of them, as Read takes them
}

// NewEngine makes an Engine, nil for a nil source.
func NewEngine(source *updateengine.Source, units engineSystemd) *Engine {
	if source == nil {
		return nil
	}
	return &Engine{source: source, units: units}
}

// Report returns the update that waits for a reboot. published are the changes that the
// host has published in this boot. With an error, the engine has not confirmed the
// changes: they are those that were published.
func (e *Engine) Report(ctx context.Context, published []v1alpha1.Change) ([]v1alpha1.Change, error) {
	if e == nil {
		return nil, nil
	}
	var before []v1alpha1.Change
	for _, c := range published {
		if c.Source == v1alpha1.SourceOSUpdate {
			before = append(before, c)
		}
	}
	r := e.source.Latest()
	gone := r.Presence == updateengine.Absent && len(before) > 0 && e.isGone(ctx)
	return engineReport(r, before, gone)
}

// isGone reports whether systemd says that the engine's unit is masked or has no file. If
// systemd does not answer, the engine is not gone.
func (e *Engine) isGone(ctx context.Context) bool {
	if time.Since(e.goneAt) >= goneFor {
		gone, err := e.units.Gone(ctx, engineUnit)
		e.gone, e.goneAt = gone && err == nil, time.Now()
	}
	return e.gone
}

// engineReport returns what [Engine.Report] does. before are the published changes of the
// engine; gone is set if the engine is gone for good.
func engineReport(r updateengine.Reading, before []v1alpha1.Change, gone bool) ([]v1alpha1.Change, error) {
	switch pending, known := r.RebootPending(); {
	case r.Presence == updateengine.Absent && (gone || len(before) == 0):
		// A host without an engine is not an error. If an admin removed the engine, its
		// update is gone too: nothing will ever report about it.
		return nil, nil
	case r.Presence == updateengine.Absent:
		return before, errors.New("it does not run")
	case !known && r.Presence == updateengine.Present:
		return before, unknownOperation(r)
	case !known:
		return before, cmp.Or(r.Err, errors.New("not read yet"))
	case !pending:
		return nil, nil
	case r.VersionUnknown && len(before) > 0:
		// The engine was restarted and no longer knows what it staged. It is the same
		// change as before.
		return before, nil
	}
	return []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: r.Version}}, nil
}

func unknownOperation(r updateengine.Reading) error {
	return fmt.Errorf("it is in operation %q, which is not known", r.Operation)
}

// Unread returns why [Engine.Read] has failed for some time, or nil.
func (e *Engine) Unread() error {
	if e == nil {
		return nil
	}
	r := e.source.Latest()
	if r.At.IsZero() {
		return nil // it was not asked yet
	}
	err := r.Err
	if _, known := r.RebootPending(); r.Presence == updateengine.Present && !known {
		err = unknownOperation(r)
	}
	e.failing.set(err, r.At)
	if err := e.failing.lasting(); err != nil {
		return fmt.Errorf("update_engine: %w", err)
	}
	return nil
}

// Read asks the engine once more. It returns an error if the engine does not answer, or
// answers what is not known. An engine that is not on the bus is not an error here:
// Report says what that means.
func (e *Engine) Read(ctx context.Context) error {
	if e == nil {
		return nil
	}
	r, err := e.source.Read(ctx)
	if err == nil && r.Presence == updateengine.Present && !r.Operation.Known() {
		err = unknownOperation(r)
	}
	if err != nil {
		return fmt.Errorf("reading update_engine: %w", err)
	}
	return nil
}
