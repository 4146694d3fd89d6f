package node

import (
	"context"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/updateengine"
)

// engineUnit is update_engine's on Flatcar.
const engineUnit = "update-engine.service"

// goneFor is how long systemd's word on the engine's unit is believed.
const goneFor = 10 * time.Second

// engineWord is systemd's last word on whether the update engine is gone for good.
type engineWord struct {
	gone bool
	at   time.Time
}

// engineGone reports whether nobody will ever say again that the update which this boot published is there or not: the
// engine is not on the bus, and its unit is masked or has no file. It asks systemd only where that matters. If systemd
// cannot say, the engine is not gone: its update is neither taken back nor committed to.
func (h *Host) engineGone(ctx context.Context, published []v1alpha1.Change) bool {
	if h.Engine == nil || h.Engine.Latest().Presence != updateengine.Absent || !v1alpha1.Has(published, v1alpha1.SourceOSUpdate) {
		return false
	}
	if time.Since(h.engineUnit.at) >= goneFor {
		gone, err := h.Units.Gone(ctx, engineUnit)
		h.engineUnit = engineWord{gone && err == nil, time.Now()}
	}
	return h.engineUnit.gone
}

// engineSays is what a reading of the update engine means for the plan.
type engineSays struct {
	changes []v1alpha1.Change
	// read: the engine has answered in this boot, or is known not to run.
	read bool
	// confirmed: the engine, asked last, has said so itself. Otherwise the
	// changes are what it said before, and nothing is committed by them.
	confirmed bool
	err       error // why it was not read
}

// engineChange is what a reading of the update engine means, before being what
// this boot has published of it and gone whether the engine is gone for good.
func engineChange(r updateengine.Reading, before []v1alpha1.Change, gone bool) engineSays {
	switch pending, ok := r.RebootPending(); {
	case r.Presence == updateengine.Absent && (gone || len(before) == 0):
		// No engine on this host is no error. One that an admin took off the host
		// takes its update with it: there is nobody whose word could be waited for.
		return engineSays{read: true, confirmed: true}
	case r.Presence == updateengine.Absent:
		// One that went away during the turn has not said that its update is gone, nor
		// that it still stands.
		return engineSays{changes: before, read: true}
	case !ok:
		return engineSays{changes: before, err: r.Err}
	case !pending:
		return engineSays{read: true, confirmed: true}
	case r.VersionUnknown && len(before) > 0:
		// The engine was restarted and has forgotten what it staged. It is
		// the same change as before, not a new one.
		return engineSays{changes: before, read: true, confirmed: true}
	}
	return engineSays{changes: []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: r.Version}}, read: true, confirmed: true}
}
