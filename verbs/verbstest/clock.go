package verbstest

import (
	"container/heap"
	"sync"
	"time"
)

// clock runs functions at their time, one at a time and in order, with the fabric's lock held. Its goroutine lives only
// while something is due, so that a test under testing/synctest can end.
type clock struct {
	mu      *sync.Mutex // the fabric's; held by callers of every method but run
	queue   eventQueue
	seq     uint64
	timer   *time.Timer
	running bool
	stopped bool
}

type event struct {
	at  time.Time
	seq uint64
	f   func()
}

// lane keeps the order of what was put into it, whatever the delays.
type lane struct{ last time.Time }

// after runs f in d.
func (c *clock) after(d time.Duration, f func()) { c.at(time.Now().Add(d), f) }

// in runs f in d, but not before what was put into l earlier.
func (c *clock) in(l *lane, d time.Duration, f func()) {
	t := time.Now().Add(d)
	if t.Before(l.last) {
		t = l.last
	}
	l.last = t
	c.at(t, f)
}

func (c *clock) at(t time.Time, f func()) {
	if c.stopped {
		return
	}
	c.seq++
	heap.Push(&c.queue, event{t, c.seq, f})
	if !c.running && c.queue[0].seq == c.seq {
		c.arm()
	}
}

// arm starts the goroutine when the first event is due.
func (c *clock) arm() {
	if len(c.queue) == 0 || c.stopped {
		return
	}
	d := time.Until(c.queue[0].at)
	switch {
	case d <= 0:
		c.running = true
		go c.run()
	case c.timer == nil:
		c.timer = time.AfterFunc(d, c.fire)
	default:
		c.timer.Reset(d)
	}
}

func (c *clock) fire() {
	c.mu.Lock()
	start := !c.running && !c.stopped
	c.running = c.running || start
	c.mu.Unlock()
	if start {
		c.run()
	}
}

func (c *clock) run() {
	for {
		c.mu.Lock()
		if c.stopped || len(c.queue) == 0 || time.Until(c.queue[0].at) > 0 {
			c.running = false
			c.arm()
			c.mu.Unlock()
			return
		}
		heap.Pop(&c.queue).(event).f()
		c.mu.Unlock()
	}
}

func (c *clock) stop() {
	c.stopped = true
	c.queue = nil
	if c.timer != nil {
		c.timer.Stop()
	}
}

type eventQueue []event

func (q eventQueue) Len() int      { return len(q) }
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q eventQueue) Less(i, j int) bool {
	if q[i].at.Equal(q[j].at) {
		return q[i].seq < q[j].seq
	}
	return q[i].at.Before(q[j].at)
}
func (q *eventQueue) Push(x any) { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any {
	old := *q
	last := len(old) - 1
	e := old[last]
	old[last] = event{} // let the closure go
	*q = old[:last]
	return e
}
