package verbstest

import (
	"container/heap"
	"sync"
	"time"
)

// clock runs functions at their time, one at a time and in order, with the fabric's lock held. What is due at once, which is nearly
// everything on a fabric without latency, goes by a plain queue.
type clock struct {
	mu    *sync.Mutex // the fabric's; held by callers of every method but run and fire
	work  sync.Cond   // tells the idle goroutine to look again
	start time.Time   // when the clock was made; times are counted from there

	due   fifo[event] // in order
	later eventQueue
	spare []*event // for later
	seq   uint64

	timer   *time.Timer
	armed   time.Duration // what the timer is set to
	started bool
	idle    bool
	inside  bool // a function runs
	stopped bool
}

type event struct {
	at  time.Duration
	seq uint64
	f   func()
}

// lane keeps the order of what was put into it, whatever the delays.
type lane struct{ last time.Duration }

func (c *clock) init(mu *sync.Mutex) {
	c.mu, c.start = mu, time.Now()
	c.work.L = mu
}

//go:norace
func (c *clock) now() time.Duration { return time.Since(c.start) }

// after runs f in d.
func (c *clock) after(d time.Duration, f func()) { c.in(&lane{}, d, f) }

// in runs f in d, but not before what was put into l earlier.
//
//go:norace
func (c *clock) in(l *lane, d time.Duration, f func()) {
	now := c.now()
	l.last = max(l.last, now+d)
	c.put(now, l.last, f)
}

// at runs f at t.
func (c *clock) at(t time.Duration, f func()) { c.put(c.now(), t, f) }

//go:norace
func (c *clock) put(now, t time.Duration, f func()) {
	if c.stopped {
		return
	}
	c.seq++
	if t <= now {
		*c.due.add() = event{now, c.seq, f}
	} else {
		var e *event
		if last := len(c.spare) - 1; last >= 0 {
			e, c.spare = c.spare[last], c.spare[:last]
		} else {
			e = new(event)
		}
		*e = event{t, c.seq, f}
		heap.Push(&c.later, e)
	}
	switch {
	case !c.started:
		c.started = true
		go c.run()
	case c.idle && (c.due.len() > 0 || c.later[0].seq == c.seq):
		c.idle = false
		c.work.Signal()
	}
}

//go:norace
func (c *clock) run() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.stopped {
		f := c.take()
		if f == nil {
			c.arm()
			c.idle = true
			c.work.Wait()
			continue
		}
		c.inside = true
		f()
		c.inside = false
		c.mu.Unlock() // anything may happen between two events
		c.mu.Lock()
	}
}

// take is the next function whose time has come.
//
//go:norace
func (c *clock) take() (f func()) {
	if c.due.len() > 0 {
		if e := c.due.at(0); len(c.later) == 0 || e.before(c.later[0]) {
			f, e.f = e.f, nil
			c.due.drop(1)
			return f
		}
	} else if len(c.later) == 0 || c.later[0].at > c.now() {
		return nil
	}
	e := heap.Pop(&c.later).(*event)
	f, e.f = e.f, nil
	c.spare = append(c.spare, e)
	return f
}

// arm sets the timer to the next event.
//
//go:norace
func (c *clock) arm() {
	if len(c.later) == 0 || c.armed == c.later[0].at {
		return
	}
	c.armed = c.later[0].at
	d := c.armed - c.now()
	if c.timer == nil {
		c.timer = time.AfterFunc(d, c.fire)
	} else {
		c.timer.Reset(d)
	}
}

func (c *clock) fire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = 0
	c.idle = false
	c.work.Signal()
}

func (c *clock) stop() {
	c.stopped = true
	c.due.clear()
	c.later = nil
	if c.timer != nil {
		c.timer.Stop()
	}
	c.work.Signal()
}

//go:norace
func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

type eventQueue []*event

func (q eventQueue) Len() int           { return len(q) }
func (q eventQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q eventQueue) Less(i, j int) bool { return q[i].before(q[j]) }
func (q *eventQueue) Push(x any)        { *q = append(*q, x.(*event)) }
func (q *eventQueue) Pop() any {
	old := *q
	last := len(old) - 1
	e := old[last]
	old[last] = nil
	*q = old[:last]
	return e
}
