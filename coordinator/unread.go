package coordinator

import (
	"errors"
	"time"

	"lockkeeper.dev/lockkeeper/node/object"
)

const (
	// maxUnread is how long a leader grants by policies that it cannot read again:
	// they are listed anew within that where nothing is wrong. Meanwhile somebody
	// may have paused them, and hosts do not look for that.
	maxUnread = time.Minute
	// readAgainFor is how long they have to be readable before they count as read.
	// The API server's answer is known a moment before what it holds is taken in.
	readAgainFor = 5 * time.Second
)

// unread follows for how long the policies cannot be read again, by the
// monotonic clock. The zero value is that they can.
type unread struct {
	since time.Time // when that began; zero: they can be read
	again time.Time // since when they can be, after that; zero: they cannot
	why   string    // as it was said last
}

// look takes in what is known of reading them now. It returns why nothing is
// granted by what was read last, or "", and how soon that may be another thing
// although nothing happens. That there is no such kind is an answer.
func (u *unread) look(err error) (why string, due time.Duration) {
	now := time.Now()
	switch {
	case errors.Is(err, object.ErrNotServed):
		*u = unread{}
	case err != nil:
		if u.since.IsZero() {
			u.since = now
		}
		u.again, u.why = time.Time{}, err.Error()
	case u.since.IsZero():
	case u.again.IsZero():
		u.again = now
	case now.Sub(u.again) >= readAgainFor:
		*u = unread{}
	}
	if u.since.IsZero() {
		return "", leadRound
	}
	until := now
	due = leadRound
	if !u.again.IsZero() {
		until, due = u.again, readAgainFor-now.Sub(u.again)
	}
	left := maxUnread - until.Sub(u.since)
	switch {
	case left <= 0:
		return u.why, due
	case u.again.IsZero():
		due = min(due, left)
	}
	return "", due
}
