package softiwarp

import (
	"sync"
	"time"
)

// duty is the duty to receive for one QP. It has at most one holder: the QP's own goroutine, the servant, or a goroutine in Wait of
// the QP's completion channel, which then needs no hop through the servant. After a Wait the duty is vacant for a moment, because the
// next Wait is likely to come soon; if none does, the servant takes over. So a process that never waits still answers READs and
// notices the peer's end, and one that does never wakes the servant.
type duty struct {
	mu     sync.Mutex
	holder holder
	solo   bool // only the servant may have it: the stream cannot be read without blocking
	over   bool // the connection is: it is the servant's for good
	used   bool // vacant anew since the timer was set
	ticks  bool // the timer runs
	pace   time.Duration
	timer  *time.Timer
	call   chan struct{} // tells the servant that the duty is his
}

type holder uint8

const (
	servant holder = iota
	waiter
	nobody
)

// The duty is vacant for about vacancy before the servant takes it; while waiter follows waiter the timer slows down, to longVacancy,
// since each tick costs a wake-up.
const (
	vacancy     = time.Millisecond
	longVacancy = 16 * time.Millisecond
)

func (d *duty) init() {
	d.call = make(chan struct{}, 1)
	d.timer = time.AfterFunc(time.Hour, d.tick)
	d.timer.Stop()
}

// start has the servant begin. solo: nobody else may.
func (d *duty) start(solo bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.solo = solo
	d.summon()
}

// take gives the duty to a waiter if it is vacant.
func (d *duty) take() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.holder != nobody || d.over {
		return false
	}
	d.holder = waiter
	return true
}

// free tells whether a waiter could take it.
func (d *duty) free() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.holder == nobody && !d.over
}

// leave is the end of a waiter's turn.
func (d *duty) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.vacate()
}

// giveWay is the servant's leave, if a waiter has slept beside him.
func (d *duty) giveWay(follows bool) bool {
	if !follows {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.solo || d.over {
		return false
	}
	d.vacate()
	return true
}

func (d *duty) vacate() {
	if d.over {
		d.summon()
		return
	}
	d.holder, d.used = nobody, true
	if !d.ticks {
		d.ticks = true
		d.timer.Reset(d.pace)
	}
}

// tick ends a vacancy, unless there was a Wait meanwhile.
func (d *duty) tick() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ticks = false
	switch {
	case d.holder == servant:
	case d.holder == waiter: // his leave sets the timer
		d.pace = min(2*d.pace, longVacancy)
	case d.used:
		d.used, d.ticks = false, true
		d.pace = min(2*d.pace, longVacancy)
		d.timer.Reset(d.pace)
	default:
		d.summon()
	}
}

func (d *duty) summon() {
	d.holder, d.pace = servant, vacancy
	select {
	case d.call <- struct{}{}:
	default:
	}
}

// end gives the duty to the servant for good. Whoever holds it must be interrupted.
func (d *duty) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	if d.holder != waiter {
		d.summon()
	}
}
