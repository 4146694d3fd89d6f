package virtual

import (
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// TestLeaseDuringALateEviction checks that a host that evicts a pod which came after the drain reads the Lease about every ten seconds
// (docs/safety.md) while the API server refuses the eviction, also in applying.
func TestLeaseDuringALateEviction(t *testing.T) {
	o := Options{
		Hosts: 3, Apply: []v1alpha1.Action{{Type: v1alpha1.ActionRestart, Unit: service}, {Type: v1alpha1.ActionDrain}},
		Plan: Plan{Length: time.Hour, Faults: []Fault{
			{At: Trigger{Process: "n2", Class: "host,create,pods/eviction", N: 1}, Kind: kindRefuse, Mode: "403", Times: 60},
		}},
	}
	inBubble(t, o, func(t *testing.T, f *Fleet) {
		time.Sleep(5 * time.Minute)
		f.Start()
		f.ChangeFile("n2", "a", contentNew)
		late, longest, m := false, time.Duration(0), f.machine("n2")
		for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); {
			pause := time.Millisecond
			switch n := turn.FromNode(f.Node("n2")); {
			case late && n.State == v1alpha1.StateApplying:
				pause = 50 * time.Millisecond
				m.mu.Lock()
				longest = max(longest, time.Since(m.reads.lease))
				m.mu.Unlock()
			case !late && (n.State == v1alpha1.StateApplying || n.State == v1alpha1.StateDraining && n.HasReport(v1alpha1.ReportDone)):
				f.createPod("late-n2", "n2")
				late = true
			}
			time.Sleep(pause)
		}
		if longest == 0 || longest > 13*time.Second {
			t.Errorf("%v without a read of the Lease, expected about 11s", longest)
		}
	})
}
