package rconn

import (
	"sync"
	"time"
)

// side is one direction of a Conn as its callers see it, or its Close: a call at a time, its deadline, and where the call
// sleeps.
type side struct {
	op sync.Mutex // held through a call, so that calls of one direction do not mix

	// ready tells whether a waiting call has something to do. Guarded by Conn.mu, as is all below.
	ready    func() bool
	deadline time.Time
	waiting  bool // asleep, or about to be

	turns turns

	wake  chan struct{} // capacity 1: a token may be stale, so waiters look again
	timer *time.Timer   // kicks this side at its deadline
}

func (s *side) init(ready func() bool, kick func()) {
	s.ready = ready
	s.wake = make(chan struct{}, 1)
	s.timer = time.AfterFunc(time.Hour, kick)
	s.timer.Stop()
}

// expired tells whether the deadline has passed.
func (s *side) expired() bool { return !s.deadline.IsZero() && !time.Now().Before(s.deadline) }

// arm starts the timer for a sleep, disarm stops it. A tick that comes late does no harm: it only wakes.
func (s *side) arm() {
	if !s.deadline.IsZero() {
		s.timer.Reset(time.Until(s.deadline))
	}
}

func (s *side) disarm() {
	if !s.deadline.IsZero() {
		s.timer.Stop()
	}
}

// rouse lets the side's call look again.
func (s *side) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
