package systemd

import (
	"math/rand/v2"
	"time"
)

// began is a moment before this process began, and another one on each host.
var began = time.Now().Add(-rand.N(time.Hour))

// Aligned returns the time until the next multiple of d since a moment that is the same for the
// whole process, and random: more than 0, and d at most. Waits that end by it end together, so an
// idle process wakes once for all of them; those of different hosts do not.
func Aligned(d time.Duration) time.Duration {
	return d - (time.Since(began)%d+d)%d // a test's clock may be before began
}
