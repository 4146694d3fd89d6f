package systemd

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestAligned checks that waits which begin at different moments end together, after their time at most, and go on in steps of it.
func TestAligned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d = 30 * time.Second
		first := time.Now().Add(Aligned(d))
		for range 40 {
			wait := Aligned(d)
			if wait <= 0 || wait > d {
				t.Fatalf("waits %v", wait)
			}
			if end := time.Now().Add(wait); end.Sub(first)%d != 0 {
				t.Errorf("ends %v after the first end", end.Sub(first))
			}
			time.Sleep(7 * time.Second)
		}
		time.Sleep(time.Until(first) % d)
		time.Sleep(Aligned(d))
		if wait := Aligned(d); wait != d {
			t.Errorf("right after an end it waits %v", wait)
		}
	})
}
