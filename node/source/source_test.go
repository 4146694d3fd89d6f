package source

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/node/timing"
)

// TestPoll checks when a source is read: at once, each interval, and soon after a kick, but never twice within the pause,
// however many kicks come.
func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval, pause = 30 * time.Second, time.Second
		ctx, cancel := context.WithCancel(t.Context())
		o := Options{PollInterval: interval, Log: slog.New(slog.DiscardHandler)}
		kicked := make(chan struct{}, 1)
		var mu sync.Mutex
		var all []time.Time
		done := make(chan struct{})
		go func() {
			defer close(done)
			o.poll(ctx, kicked, pause, "", func() error {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, time.Now())
				return nil
			})
		}()
		// reads returns the times of the reads since its last call.
		reads := func() (since []time.Time) {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			since, all = all, nil
			return since
		}
		// expect compares these times, counted from began.
		expect := func(what string, began time.Time, want ...time.Duration) {
			t.Helper()
			var got []time.Duration
			for _, at := range reads() {
				got = append(got, at.Sub(began))
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: reads after %v, expected %v", what, got, want)
			}
		}
		expect("at the start", time.Now(), 0)
		time.Sleep(interval + pause) // the second read may come within the pause, the last one is aligned
		first := reads()
		aligned := first[len(first)-1]

		time.Sleep(time.Until(aligned.Add(interval)))
		expect("an interval later", aligned, interval)
		time.Sleep(pause / 2)
		timing.Kick(kicked)
		time.Sleep(pause / 4)
		timing.Kick(kicked)
		expect("kicks within the pause", aligned)
		time.Sleep(interval / 2)
		expect("after the pause, once", aligned, interval+pause)
		timing.Kick(kicked)
		expect("a kick after the pause", time.Now(), 0)
		cancel()
		<-done
	})
}
