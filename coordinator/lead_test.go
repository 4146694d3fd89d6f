package coordinator

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// Names of nodes come and go with an autoscaler: what is remembered of a refusal goes too.
func TestRefusalsAreForgotten(t *testing.T) {
	const shortly = 2 * time.Second
	synctest.Test(t, func(t *testing.T) {
		l := &leader{refused: map[string]refusal{}, kick: make(chan struct{}, 1)}
		if next := l.refusals(); next != refusedFor {
			t.Errorf("without a refusal: %v", next)
		}
		l.leaveAlone("a", refusedFor, errors.New("no"), false)
		time.Sleep(10 * time.Second)
		l.leaveAlone("b", shortly, errors.New("no"), true)
		if next := l.refusals(); next != shortly || len(l.refused) != 2 {
			t.Errorf("the next in %v, %d remembered", next, len(l.refused))
		}
		time.Sleep(shortly)
		if next := l.refusals(); next != refusedFor-10*time.Second-shortly || len(l.refused) != 1 {
			t.Errorf("the next in %v, %d remembered", next, len(l.refused))
		}
		time.Sleep(refusedFor)
		l.refusals()
		if len(l.refused) != 0 {
			t.Errorf("%d remembered indefinitely", len(l.refused))
		}
	})
}

// What blocks a candidate is told although the words for it are those that its
// term ended with: only then does its line in systemctl status have them.
func TestBlockerIsReported(t *testing.T) {
	var said []Status
	c := &candidate{Options: Options{Report: func(s Status) { said = append(said, s) }}, log: slog.New(slog.DiscardHandler)}
	for _, blocked := range []bool{false, true, true} {
		c.say(Status{Candidate: true, Why: "this host's clock is off", Blocked: blocked})
	}
	if len(said) != 2 || said[0].Blocked || !said[1].Blocked {
		t.Errorf("said %+v", said)
	}
}
