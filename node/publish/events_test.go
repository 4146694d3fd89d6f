package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestEventWriter checks that an Event that cannot be written is retried with growing pauses for an hour, that the
// other Events keep their order, and that Events beyond the limit are dropped.
func TestEventWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var tries int
		var written []string
		refused := errors.New("no")
		w := newEvents(slog.New(slog.DiscardHandler), func(_ context.Context, e *event) error {
			mu.Lock()
			defer mu.Unlock()
			tries++
			if refused == nil {
				written = append(written, e.note)
			}
			return refused
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { w.Run(ctx) })
		add := func(note string) { w.add(event{time: time.Now(), note: note}) }

		add("first")
		elapse(time.Second)
		add("second")
		elapse(29 * time.Minute)
		if tries < 8 || tries > 15 { // 5 s, 10 s, 20 s, …, and then every 5 min
			t.Errorf("%d tries in half an hour", tries)
		}
		mu.Lock()
		refused = nil
		mu.Unlock()
		elapse(6 * time.Minute)
		if got := fmt.Sprint(written); got != "[first second]" {
			t.Errorf("written: %s", got)
		}

		mu.Lock()
		refused, written = errors.New("no"), nil
		mu.Unlock()
		for i := range maxEvents + 2 {
			add(fmt.Sprint(i))
			elapse(time.Second)
		}
		elapse(2 * time.Hour)
		tries = 0
		elapse(2 * time.Hour)
		if tries != 0 {
			t.Errorf("%d tries for Events of four hours ago", tries)
		}
		mu.Lock()
		refused = nil
		mu.Unlock()
		add("last")
		elapse(time.Second)
		if got := fmt.Sprint(written); got != "[last]" {
			t.Errorf("written: %s", got)
		}
		cancel()
		wg.Wait()
	})
}
