package virtual

import (
	"testing"
	"time"
)

// TestBeginsByPolicies checks that a leader begins no turn by a policy that it has read to be paused, observing, closed or deleted.
func TestBeginsByPolicies(t *testing.T) {
	for _, mode := range []string{"paused", "observe", "window", "deleted"} {
		t.Run(mode, func(t *testing.T) {
			inBubble(t, Options{Hosts: 2, Plan: plan(t, "1m policy for=20m mode="+mode+"\n")}, func(t *testing.T, f *Fleet) {
				f.Start()
				_ = pause(f.ctx, 2*time.Minute)
				f.Stage("n2", "2.0.0")
				if why := f.Arrive(time.Hour); why != "" {
					t.Error(why)
				}
			})
		})
	}
}
