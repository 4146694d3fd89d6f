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

	"lockkeeper.dev/lockkeeper/kube"
)

// TestEventWriter checks that an Event that cannot be written is retried with growing pauses for an hour, that the
// other Events keep their order, and that Events beyond the limit are dropped.
func TestEventWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var tries int
		var written []string
		refused := errors.New("no")
		w := newEvents(slog.New(slog.DiscardHandler), "n1", func(_ context.Context, e *event) error {
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
		add := func(note string) { w.add(&event{time: time.Now(), note: note}) }

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

// TestFlush checks that Flush waits for the Events that were queued before, until its context ends, and that an Event that the API
// server will never accept delays no other.
func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written []string
		w := newEvents(slog.New(slog.DiscardHandler), "n1", func(_ context.Context, e *event) error {
			switch e.note {
			case "never":
				return fmt.Errorf("x: %w", kube.ErrEventRefused)
			case "late":
				if time.Since(e.time) < time.Minute {
					return errors.New("not now")
				}
			}
			time.Sleep(100 * time.Millisecond)
			written = append(written, e.note)
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { w.Run(ctx) })
		flush := func(want string, took time.Duration) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			began := time.Now()
			w.Flush(ctx)
			if got := fmt.Sprint(written); got != want || time.Since(began) != took {
				t.Errorf("after %v: %s, expected %v: %s", time.Since(began), got, took, want)
			}
		}
		flush("[]", 0)
		for _, note := range []string{"a", "never", "b"} {
			w.add(&event{time: time.Now(), note: note})
		}
		flush("[a b]", 200*time.Millisecond)
		w.add(&event{time: time.Now(), note: "late"})
		flush("[a b]", 2*time.Second)
		for range maxEvents {
			w.add(&event{time: time.Now(), note: "behind"})
		}
		flush("[a b]", 2*time.Second) // nor does a full queue hold it
		cancel()
		wg.Wait()
	})
}
