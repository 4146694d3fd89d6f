package virtual

import (
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// TestWithdrawnWant checks that a host reads its update engine again before it commits: an update is withdrawn after the last poll, which no
// signal reports.
func TestWithdrawnWant(t *testing.T) {
	hook := time.Minute
	inBubble(t, Options{Hosts: 1, Hooks: map[v1alpha1.State]time.Duration{v1alpha1.StateBeforeReboot: hook}}, func(t *testing.T, f *Fleet) {
		time.Sleep(5 * time.Minute)
		for i := range 6 { // the polls come at other times of each turn
			f.Stage("n1", "2.0.0")
			for end := time.Now().Add(10 * time.Minute); turn.FromNode(f.Node("n1")).State != v1alpha1.StateBeforeReboot; time.Sleep(100 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("turn %d has not begun after ten minutes", i+1)
				}
			}
			time.Sleep(hook - mostAge - 2*time.Second)
			f.Withdraw("n1")
			time.Sleep(5*time.Minute + time.Duration(i)*7*time.Second)
		}
		if boots := f.Host(0).mem.Boots(); boots != 1 {
			t.Errorf("%d boots for updates that were withdrawn, expected 1", boots)
		}
	})
}
