package coordinator

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Names of nodes come and go with an autoscaler: what is remembered of a refusal goes too.
func TestRefusalsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leader{refused: map[string]refusal{}, kick: make(chan struct{}, 1)}
		if next := l.refusals(); next != refusedFor {
			t.Errorf("without a refusal: %v", next)
		}
		l.leave("a", refusedFor, errors.New("no"), false)
		time.Sleep(10 * time.Second)
		l.leave("b", unreadFor, errors.New("no"), true)
		if next := l.refusals(); next != unreadFor || len(l.refused) != 2 {
			t.Errorf("the next in %v, %d remembered", next, len(l.refused))
		}
		time.Sleep(unreadFor)
		if next := l.refusals(); next != refusedFor-10*time.Second-unreadFor || len(l.refused) != 1 {
			t.Errorf("the next in %v, %d remembered", next, len(l.refused))
		}
		time.Sleep(refusedFor)
		l.refusals()
		if len(l.refused) != 0 {
			t.Errorf("%d remembered for ever", len(l.refused))
		}
	})
}
