package virtual

import (
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/node/turn"
)

// TestHostClock checks that a candidate leads only while its host's clock is right: first both clocks are off, in the middle of a term, and then
// only that of n1.
func TestHostClock(t *testing.T) {
	p := plan(t, "2m host-clock n1 for=20m mode=1h\n2m host-clock n2 for=10m mode=-40s")
	inBubble(t, Options{Hosts: 3, Candidates: 2, Plan: p}, func(t *testing.T, f *Fleet) {
		f.Start()
		time.Sleep(3 * time.Minute)
		f.Stage("n3", "2.0.0")
		time.Sleep(8 * time.Minute)
		if n := turn.FromNode(f.Node("n3")); n.Grant != nil {
			t.Errorf("no candidate's clock is right, and n3 has the grant %+v", n.Grant)
		}
		time.Sleep(100 * time.Second)
		if n := turn.FromNode(f.Node("n3")); n.Grant == nil || !strings.HasPrefix(n.Grant.Epoch, "n2_") {
			t.Errorf("the clock of n2 is right, and n3 has the grant %+v", n.Grant)
		}
		if why := f.Arrive(time.Hour); why != "" {
			t.Error(why)
		}
	})
}
