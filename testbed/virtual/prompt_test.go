package virtual

import (
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// TestPrompt checks that hosts and leaders notice each other's writes at once, and not only with their next poll or round: without pods and
// faults, nothing has to be waited for in draining and uncordoning. [Fleet.Arrive] allows hours for all that faults may delay.
func TestPrompt(t *testing.T) {
	const every, most = 100 * time.Millisecond, 3 * time.Second
	inBubble(t, Options{Hosts: 3}, func(t *testing.T, f *Fleet) {
		f.stageAll("2.0.0")
		took := map[string]time.Duration{}
		for end := time.Now().Add(time.Hour); f.Unfinished() != ""; time.Sleep(every) {
			if time.Now().After(end) {
				t.Fatalf("after an hour: %s", f.Unfinished())
			}
			for _, host := range f.Hosts() {
				obj := f.Node(host)
				if obj == nil {
					continue
				}
				if n := turn.FromNode(obj); n.State == v1alpha1.StateDraining || n.State == v1alpha1.StateUncordoning {
					took[host+" in "+string(n.State)] += every
				}
			}
		}
		for _, m := range f.hosts { // most stages are over before the next look
			if boots := m.mem.Boots(); boots != 2 {
				t.Errorf("%s: %d boots, expected 2", m.name, boots)
			}
		}
		for what, d := range took {
			if t.Logf("%s: %v", what, d); d > most {
				t.Errorf("%s: %v, expected at most %v", what, d, most)
			}
		}
	})
}
