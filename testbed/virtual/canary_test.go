package virtual

import (
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// TestDeletedTotal checks that the judge knows that the canary's node gets its turn next to one of the other policy after that policy, and
// with it the limit of both, was deleted.
func TestDeletedTotal(t *testing.T) {
	p := plan(t, "30m policy for=30m mode=deleted")
	inBubble(t, Options{Hosts: 2, Canary: time.Minute, Plan: p}, func(t *testing.T, f *Fleet) {
		f.BlockDrains("n2")
		time.Sleep(time.Minute) // until the pod runs
		f.Start()
		f.Stage(canaryHost, "2.0.0")
		if why := f.Arrive(20*time.Minute, "n2"); why != "" { // it has n2 stage the version that canaryHost runs
			t.Fatal(why)
		}
		time.Sleep(32*time.Minute - time.Since(fleetsBegin))
		f.Stage(canaryHost, "2.1.0")
		if why := f.Arrive(20*time.Minute, "n2"); why != "" {
			t.Error(why)
		}
		if n := turn.FromNode(f.Node("n2")); n.State != v1alpha1.StateDraining {
			t.Errorf("n2 is in %s, expected draining", n.State)
		}
		f.AllowDrains("n2")
	})
}
