package virtual

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// TestMissedStop checks that a turn is not overdue (the rule Overdue) after a stop that its leader could not record on the Node, because
// the outcome of that write was unknown until after the stop.
func TestMissedStop(t *testing.T) {
	p := plan(t, "*#1:coordinator,patch,nodes,state,draining>coordinator,patch,nodes lost mode=silent times=23\n*#1:coordinator,patch,nodes,state,draining+30s stop for=4m mode=annotation")
	inBubble(t, Options{Hosts: 2, Workloads: 1, Plan: p, Policy: func(s *v1alpha1.DisruptionPolicySpec) {
		s.Drain.Timeout.Duration = 4 * time.Minute
	}}, func(t *testing.T, f *Fleet) {
		f.BlockDrains("n1")
		time.Sleep(time.Minute) // until the pod runs
		f.Start()
		f.Stage("n1", "2.0.0")
		time.Sleep(8 * time.Minute)
		if n := turn.FromNode(f.Node("n1")); n.State != v1alpha1.StateDraining || n.Grant.PausedSince != nil || n.Grant.PausedFor.Duration < 4*time.Minute {
			t.Errorf("it is in %s by %+v, expected draining and a pause of the clock that is over and was at least 4m", n.State, n.Grant)
		}
		f.AllowDrains("n1")
		if why := f.Arrive(time.Hour); why != "" {
			t.Error(why)
		}
	})
}

// TestBlankedLease checks that a turn is not overdue (the rule Overdue) after its leader crashed and the Lease was blanked: it does not say
// any more until when that leader led.
func TestBlankedLease(t *testing.T) {
	const draining = "*#1:coordinator,patch,nodes,state,draining"
	p := plan(t, draining+"+20s crash n1 for=5m30s\n"+draining+"+1m stop for=3m mode=annotation\n"+draining+"+5m lease mode=steal\n"+draining+"+5m10s lease mode=blank")
	inBubble(t, Options{Hosts: 2, Candidates: 1, Workloads: 1, Plan: p, Policy: func(s *v1alpha1.DisruptionPolicySpec) {
		s.Drain.Timeout.Duration = 6 * time.Minute
		s.Rollout.MaxUnavailable = intstr.FromInt32(2) // n1 is not Ready when it leads again
	}}, func(t *testing.T, f *Fleet) {
		f.BlockDrains("n2")
		time.Sleep(time.Minute) // until the pod runs
		f.Start()
		f.Stage("n2", "2.0.0")
		time.Sleep(12 * time.Minute)
		if n := turn.FromNode(f.Node("n2")); n.State != v1alpha1.StateDraining {
			t.Errorf("it is in %s, expected draining", n.State)
		}
		f.AllowDrains("n2")
		if why := f.Arrive(time.Hour); why != "" {
			t.Error(why)
		}
	})
}
