package rollout_test

import (
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/coordinator/rollout"
)

// TestTakeoverKeepsTheTrouble checks that a leader that takes over a turn does not remove the reason why it is stuck: the
// next decision would set it again, and that would be reported as something new.
func TestTakeoverKeepsTheTrouble(t *testing.T) {
	for _, facts := range []string{
		"rebooting grant.epoch=e0 ledago=10s boot=b2 hostboot=b2 ack@b2=rebooting/failed:Unhealthy marked notready held=Failed",
		"rebooting grant.epoch=e0 ledago=10s boot=b2 hostboot=b2 ack@b2=rebooting/seen marked since=3h held=Overdue",
		"uncordoning grant.epoch=e0 ledago=10s ack=uncordoning/seen marked since=3h held=Overdue",
		"draining grant.epoch=e0 ledago=10s ack=draining/seen marked drain=Wait since=3h held=Overdue",
	} {
		s := situation(t, strings.Fields(facts))
		was := s.Nodes[0].Held
		for round := range 2 {
			v := rollout.Decide(s).Verdicts[0]
			if v.Held != was {
				t.Errorf("%s: round %d: held=%q, which was %q", facts, round, v.Held, was)
			}
			if v.Move != nil {
				s.Nodes[0].Grant = v.Move.Grant
			}
			s.Nodes[0].Held = v.Held
		}
		if s.Nodes[0].Grant.Epoch != "e1" {
			t.Errorf("%s: not taken over", facts)
		}
	}
}
