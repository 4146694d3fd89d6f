package rollout_test

import (
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
)

// TestStageBeginsWithItsOwnClock checks that neither the time nor the pauses of a stage count in the next one.
func TestStageBeginsWithItsOwnClock(t *testing.T) {
	for facts, to := range map[string]v1alpha1.State{
		"draining ack=draining/done marked since=50m frozen-for=40m":                          v1alpha1.StateRebooting,
		"draining ack=draining/committed marked since=50m frozen-for=40m wants=nothing":       v1alpha1.StateUncordoning,
		"rebooting ack@b2=rebooting/done boot=b2 hostboot=b2 marked since=50m frozen-for=40m": v1alpha1.StateUncordoning,
	} {
		m := rollout.Decide(situation(t, strings.Fields(facts))).Verdicts[0].Move
		if m == nil || m.To != to || !m.Grant.StageAt.Equal(atNoon) || m.Grant.PausedFor.Duration != 0 || m.Grant.PausedSince != nil {
			t.Errorf("%s: %+v", facts, m)
		}
	}
}

// TestTakenOverTurnKeepsItsPauses checks that the pauses of a stage, and the time without a leader, do not count after a change
// of leaders.
func TestTakenOverTurnKeepsItsPauses(t *testing.T) {
	s := situation(t, strings.Fields("draining ack=draining/committed marked grant.epoch=e0 since=50m frozen-for=40m"))
	s.LedUntil, s.LedBy = atNoon.Add(-time.Minute), "e0"
	m := rollout.Decide(s).Verdicts[0].Move
	if m == nil || m.To != v1alpha1.StateDraining || m.Grant.Epoch != "e1" || m.Grant.PausedFor.Duration != 41*time.Minute {
		t.Errorf("%+v", m)
	}
}

// TestLeaderThatTookNothingOver checks that the clock of a turn was stopped if the previous leader was not the turn's and did
// not take it over: the Lease does not say until when the turn had a leader.
func TestLeaderThatTookNothingOver(t *testing.T) {
	s := situation(t, strings.Fields("draining ack=draining/committed marked grant.epoch=e0 since=50m frozen-for=10m"))
	s.LedUntil, s.LedBy = atNoon.Add(-time.Minute), "e-between"
	m := rollout.Decide(s).Verdicts[0].Move
	if m == nil || m.To != v1alpha1.StateDraining || m.Grant.Epoch != "e1" || m.Grant.PausedFor.Duration != 50*time.Minute {
		t.Errorf("%+v", m)
	}
	for _, s.LedBy = range []string{"e0", ""} { // the turn's own leader, and one that gave the Lease back
		if m := rollout.Decide(s).Verdicts[0].Move; m == nil || m.Grant.PausedFor.Duration != 11*time.Minute {
			t.Errorf("by %q: %+v", s.LedBy, m)
		}
	}
}
