package node

import (
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/publish"
	"lockkeeper.dev/lockkeeper/node/step"
)

// resume takes over the times that the process before this one has published, so that
// what the host waits for and what blocks it keep their times over a restart. It does so
// once, as soon as this process knows what is published and has read every source, or
// has tried to for [publish.FirstReads]. From then on the host publishes. waits is the reason
// for which the host waits at present.
//
// The times of another boot are not taken over.
func (h *Host) resume(o *step.Observation, waits v1alpha1.Reason) {
	n := &o.Node
	if h.settled || h.hostUpdate == nil || n.UID == "" {
		return
	}
	prev, known := h.hostUpdate.Published()
	if known.IsZero() || !h.readAll(o) && time.Since(known) < publish.FirstReads {
		return
	}
	h.settled = true
	now := time.Now()
	if prev == nil || string(prev.BootID) != h.self.bootID {
		return
	}
	turnID := ""
	if prev.Turn != nil {
		turnID = string(prev.Turn.ID)
	}
	if string(prev.State) == n.State.String() && turnID == n.Turn && string(prev.Waits) == string(waits) &&
		prev.Since != nil && prev.Since.Time.Before(now) {
		h.since = waiting{state: n.State, turn: n.Turn, reason: waits, since: prev.Since.Time}
	}
	if turnID == n.Turn {
		h.blockers.resume(prev.Blockers, now)
	}
}

// readAll is whether this process has read every source of changes, or failed to, and
// knows its part in the election.
func (h *Host) readAll(o *step.Observation) bool {
	_, hooks := h.hookUnits.Stages()
	engine := h.Engine == nil || !h.Engine.Latest().At.IsZero()
	return o.Sources.Complete && engine && hooks && h.Coordinator().Role != ""
}
