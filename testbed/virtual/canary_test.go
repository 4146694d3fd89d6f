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

// TestStagedInATurn checks that a host which stages in its turn a version that canaryHost has not run does not boot it, also while another policy that
// selects it is invalid.
func TestStagedInATurn(t *testing.T) {
	p := plan(t, "30m policy for=20m mode="+brokenRules)
	inBubble(t, Options{Hosts: 2, Canary: time.Minute, Plan: p}, func(t *testing.T, f *Fleet) {
		f.BlockDrains("n2")
		time.Sleep(time.Minute) // until the pod runs
		f.Start()
		f.Stage(canaryHost, "2.0.0")
		if why := f.Arrive(20*time.Minute, "n2"); why != "" { // it has n2 stage the version that canaryHost runs
			t.Fatal(why)
		}
		time.Sleep(32*time.Minute - time.Since(fleetsBegin))
		if n := turn.FromNode(f.Node("n2")); n.State != v1alpha1.StateDraining || f.exec.Fired()[kindPolicy] != 1 {
			t.Fatalf("n2 is in %s, expected draining; faults: %v", n.State, f.exec.Fired())
		}
		f.Withdraw("n2")
		f.Stage("n2", "2.1.0")
		time.Sleep(time.Minute) // until the host has read it
		f.AllowDrains("n2")
		time.Sleep(10 * time.Minute)
		if is := f.machine("n2").mem.Version(); is == "2.1.0" {
			t.Errorf("n2 runs %s", is)
		}
		f.Stage(canaryHost, "2.1.0")
		if why := f.Arrive(time.Hour); why != "" {
			t.Error(why)
		}
	})
}
