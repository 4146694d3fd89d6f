package coordinator

import (
	"testing"
	"time"
)

// paced plays rounds until all waiting reasons are written, and returns how many were written in each second.
func paced(t *testing.T, p *heldPace, now *time.Time, waiting int) (bySecond []int) {
	t.Helper()
	for from := *now; waiting > 0; *now = now.Add(heldPause) {
		second := int(now.Sub(from) / time.Second)
		if second > 300 {
			t.Fatalf("%d reasons still wait after 300 s", waiting)
		}
		for len(bySecond) <= second {
			bySecond = append(bySecond, 0)
		}
		for range p.allow(*now, waiting) {
			p.spend(1)
			waiting--
			bySecond[second]++
		}
	}
	p.allow(*now, 0)
	return bySecond
}

func TestHeldPace(t *testing.T) {
	for _, c := range []struct {
		waiting       int
		first, most   int // in the first second, and in any other
		atLeast, ends int // seconds
	}{
		{waiting: 3, first: 3, ends: 1},
		{waiting: 20, first: 20, ends: 1},
		{waiting: 100, first: 21, most: 2, atLeast: 45, ends: 52},
		{waiting: 1000, first: 33, most: 18, atLeast: 55, ends: 61},
		{waiting: 5000, first: 105, most: 84, atLeast: 55, ends: 61},
	} {
		var p heldPace
		now := time.Unix(1_800_000_000, 0)
		for again := range 2 { // the second time after a minute without writes
			s := paced(t, &p, &now, c.waiting)
			if s[0] > c.first || len(s) < c.atLeast || len(s) > c.ends {
				t.Errorf("%d waiting, %d: %d in the first second, %d seconds", c.waiting, again, s[0], len(s))
			}
			for i, n := range s[1:] {
				if n > c.most {
					t.Errorf("%d waiting, %d: %d in second %d", c.waiting, again, n, i+1)
				}
			}
			now = now.Add(time.Minute)
		}
	}
}

// TestHeldPaceOfAClockSetBack checks that a clock that is set back does not allow more writes.
func TestHeldPaceOfAClockSetBack(t *testing.T) {
	var p heldPace
	now := time.Unix(1_800_000_000, 0)
	for range p.allow(now, 1000) {
		p.spend(1)
	}
	if n := p.allow(now.Add(-time.Hour), 1000); n != 0 {
		t.Errorf("%d allowed", n)
	}
	if n := p.allow(now.Add(-time.Hour+time.Minute), 1000); n > heldAtOnce {
		t.Errorf("%d writes allowed at once", n)
	}
}
