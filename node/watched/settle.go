package watched

import "time"

// settling waits until what changes has come to rest.
type settling struct {
	first, last time.Time // of the changes that nobody was told of; zero: there are none
	count       int       // of changes ever told
}

// event notes that something changed. It reports whether it is the first one.
func (s *settling) event(now time.Time) bool {
	s.count++
	first := s.first.IsZero()
	if first {
		s.first = now
	}
	s.last = now
	return first
}

// due is when to look, zero if there is nothing to look for: when nothing has
// changed for quiet, or the first change is longest old.
func (s *settling) due(quiet, longest time.Duration) time.Time {
	if s.first.IsZero() {
		return time.Time{}
	}
	due, bound := s.last.Add(quiet), s.first.Add(longest)
	if due.Before(bound) {
		return due
	}
	return bound
}

// looked notes a look that began when count changes had been told, and whether
// what it saw is now said. What changed since then has to settle anew.
func (s *settling) looked(now time.Time, count int, said bool) {
	switch {
	case s.count == count:
		s.first, s.last = time.Time{}, time.Time{}
	case said:
		s.first = now
	}
}
