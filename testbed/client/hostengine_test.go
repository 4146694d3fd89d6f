package client

import (
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// updateAtCommit stages an OS update and promotes the host, which wants it, to rebooting while an inhibitor blocks the
// commit. The returned function removes the inhibitor.
func (h *host) updateAtCommit(edit func(*v1alpha1.Grant)) (unblock func()) {
	h.t.Helper()
	unblock = h.sim.Logind().Hold(simhost.Inhibitor{What: "shutdown", Who: "test", Why: "a test", Mode: "block"})
	must(h.t, h.sim.StageUpdate("4.2.0"))
	h.wants("reboot")
	h.promote("rebooting", func(g *v1alpha1.Grant) {
		onlyNode(g)
		g.Changes = []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "4.2.0"}}
		if edit != nil {
			edit(g)
		}
	})
	h.says("Inhibited")
	return unblock
}

// TestVanishedEngineHoldsTheCommit checks that a host waits at the commit until its update engine answers, because
// without an answer the update may be gone.
func TestVanishedEngineHoldsTheCommit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		back func(h *host)
		word string
	}{
		"it is back with its update": {func(h *host) { must(h.t, h.sim.Engine().Start()) }, "rebooting/committed"},
		"it was taken back meanwhile": {func(h *host) {
			must(h.t, h.sim.RemoveFile("/run/update_engine_autoupdate_completed"))
			must(h.t, h.sim.Engine().Start())
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := startHost(t, nil)
			unblock := h.updateAtCommit(nil)
			h.sim.Engine().Stop()
			unblock()
			h.says("SourceUnreadable (update_engine: it reported")
			never(t, "the host committed without an answer from the engine", 3*time.Second, func() bool { return len(h.commits()) > 0 })
			if wants := h.node().Labels["lockkeeper.dev/wants"]; wants != "reboot" {
				t.Errorf("the host wants %s although the engine gave no answer", wants)
			}
			c.back(h)
			if c.word == "" {
				h.wants("nothing")
				h.says("WantGone")
				if len(h.commits()) > 0 {
					t.Error("committed to an update that was withdrawn")
				}
				return
			}
			h.acks(c.word)
			h.isCommit(h.commits()[0])
		})
	}
}

// TestVanishedEngineHoldsNoOtherChange checks that the host does not wait for a stopped engine if another change
// justifies the turn.
func TestVanishedEngineHoldsNoOtherChange(t *testing.T) {
	h := startHost(t, nil)
	h.want()
	unblock := h.updateAtCommit(nil)
	h.sim.Engine().Stop()
	unblock()
	h.acks("rebooting/committed")
}

// TestMaskedEngineTakesItsUpdateBack checks that a masked engine withdraws its update, but an engine that is only
// stopped does not.
func TestMaskedEngineTakesItsUpdateBack(t *testing.T) {
	h := startHost(t, nil)
	must(t, h.sim.Units().Set("update-engine.service", simhost.Unit{Load: "loaded", Active: "active"}))
	unblock := h.updateAtCommit(nil)
	h.sim.Engine().Stop()
	must(t, h.sim.Units().Set("update-engine.service", simhost.Unit{Load: "loaded"}))
	unblock()
	h.says("SourceUnreadable (update_engine: it reported")
	must(t, h.sim.Units().Set("update-engine.service", simhost.Unit{Load: "masked"}))
	h.wants("nothing")
	h.says("WantGone")
	if len(h.commits()) > 0 {
		t.Error("the host committed")
	}
}
