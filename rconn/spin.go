package rconn

import "time"

// spinner decides how long to spin before a sleep. It stops for a while when spinning has not helped lately: on few processors
// a spinning waiter keeps away the very work it waits for.
type spinner struct {
	limit  time.Duration
	misses int // spins in a row that ended in a sleep
	skip   int // sleeps to go without a spin
	spun   bool
	start  time.Time
}

const (
	spinMisses = 4
	spinSkips  = 32
)

// next is the time to spin for the sleep that follows.
func (s *spinner) next() time.Duration {
	s.spun = s.limit > 0 && s.skip == 0
	if !s.spun {
		s.skip = max(0, s.skip-1)
		return 0
	}
	s.start = time.Now()
	return s.limit
}

// result takes how the sleep ended, and tells whether the spin was enough.
func (s *spinner) result(completions bool) bool {
	if !s.spun {
		return false
	}
	if completions && time.Since(s.start) <= 2*s.limit {
		s.misses = 0
		return true
	}
	if s.misses++; s.misses >= spinMisses {
		s.misses, s.skip = 0, spinSkips
	}
	return false
}
