package rconn

import "time"

// spinner decides how long to spin before a sleep. It stops for a while when spinning has not helped lately, and for longer each time
// that the next try has not helped either: on few processors a spinning waiter keeps away the very work it waits for.
type spinner struct {
	limit  time.Duration
	misses int // spins in a row that ended in a sleep
	pause  int // sleeps without a spin after the next miss
	skip   int // of these, how many are to come
	spun   bool
}

const (
	spinMisses   = 4 // in a row, before there is a pause
	spinMaxPause = 64
)

// next is the time to spin for the sleep that follows.
func (s *spinner) next() time.Duration {
	s.spun = s.limit > 0 && s.skip == 0
	if !s.spun {
		s.skip = max(0, s.skip-1)
		return 0
	}
	return s.limit
}

// result takes whether the spin was enough.
func (s *spinner) result(enough bool) {
	switch {
	case !s.spun:
	case enough:
		s.misses, s.pause = 0, 0
	default:
		if s.misses++; s.misses >= spinMisses {
			s.pause = min(max(1, 2*s.pause), spinMaxPause)
			s.skip = s.pause
		}
	}
}
