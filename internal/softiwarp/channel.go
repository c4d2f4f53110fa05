package softiwarp

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rconn/rdma/verbs"
)

var errTwoWaiters = errors.New("another goroutine waits on the RDMA completion channel already")

// channel is a completion channel. A waiter does not merely sleep: if all CQs of the channel serve one QP, it receives for that QP
// itself (see duty), so that what comes in wakes the goroutine that wants it.
type channel struct {
	dev  *device
	num  uint64 // among the device's
	refs refs   // CQs

	waiting     sync.Mutex // held by Wait; for good after Close
	waits       int        // in which its waiter received, since another channel's did; Wait's
	closing     atomic.Bool
	interrupted atomic.Bool
	parks       atomic.Uint64

	armed atomic.Bool        // a waiter sleeps, or is about to: it must be roused
	leads atomic.Pointer[qp] // on whose socket it sleeps; nil: on wake
	wake  chan struct{}      // a token may be stale

	// follows says that a waiter has slept while another goroutine received: that one shall give way.
	follows atomic.Bool

	cqs  atomic.Pointer[[]*cq]
	sole atomic.Pointer[qp] // the only QP, if there is just one

	mu  sync.Mutex
	qps []*qp // one entry for each work queue
}

func (d *device) CreateCompletionChannel() (verbs.CompletionChannel, error) {
	d.count(&d.open.channels, 1)
	c := &channel{dev: d, num: d.lastChannel.Add(1), wake: make(chan struct{}, 1)}
	c.cqs.Store(new([]*cq))
	return c, nil
}

// aloneWaits is how often in a row a channel's waiter must have been the only one of the device who received before he watches the socket
// for a while instead of going to sleep. Each look is a system call, and where many connections are busy their goroutines want the processor.
const aloneWaits = 8

// Wait receives, or sleeps while others do.
func (c *channel) Wait(spin time.Duration) error {
	if !c.waiting.TryLock() {
		if c.closing.Load() {
			return verbs.ErrClosed
		}
		return errTwoWaiters
	}
	defer c.waiting.Unlock()

	for {
		switch {
		case c.closing.Load():
			return verbs.ErrClosed
		case c.interrupted.Load() && c.interrupted.Swap(false), c.completions():
			return nil
		}
		q := c.sole.Load()
		if q != nil {
			q.release()
		}
		switch {
		case q != nil && q.duty.take():
			if !c.alone() {
				spin = 0
			}
			c.lead(q, spin)
			spin = 0
			q.duty.leave()
			q.rouse(c)
		default:
			c.follow(q)
		}
	}
}

// alone counts the times that the waiter receives, and tells whether there have been enough.
func (c *channel) alone() bool {
	if last := &c.dev.lastWaiter; last.Load() != c.num {
		last.Store(c.num)
		c.waits = 0
	}
	c.waits++
	return c.waits > aloneWaits
}

// lead receives for the QP until there is something to return for.
func (c *channel) lead(q *qp, spin time.Duration) {
	q.rx.lead, q.rx.watch = c, spin
	defer func() { q.rx.watch = 0 }()
	for !c.turn() && c.sole.Load() == q {
		c.leads.Store(q)
		c.armed.Store(true)
		alive := c.turn() || q.receive(true)
		c.armed.Store(false)
		c.leads.Store(nil)
		if !alive {
			return
		}
	}
}

// follow sleeps while others receive.
func (c *channel) follow(q *qp) {
	c.armed.Store(true)
	if q != nil {
		c.follows.Store(true)
	}
	if !c.turn() && (q == nil || !q.duty.free()) {
		c.parks.Add(1)
		<-c.wake
	}
	c.armed.Store(false)
}

func (c *channel) Parks() uint64 { return c.parks.Load() }

// turn tells whether Wait has something to return for.
func (c *channel) turn() bool {
	return c.closing.Load() || c.interrupted.Load() || c.completions()
}

func (c *channel) completions() bool {
	for _, q := range *c.cqs.Load() {
		if q.rouses.Load() != 0 {
			return true
		}
	}
	return false
}

// signal rouses a waiter that sleeps.
func (c *channel) signal() {
	if c.armed.Load() && c.armed.Swap(false) {
		select {
		case c.wake <- struct{}{}:
		default:
		}
		if q := c.leads.Load(); q != nil {
			q.stream.interruptRead()
		}
	}
}

func (c *channel) Interrupt() {
	if !c.closing.Load() {
		c.interrupted.Store(true)
		c.signal()
	}
}

func (c *channel) Close() error {
	last, err := c.refs.close()
	if !last {
		return err
	}
	c.closing.Store(true)
	c.signal()
	c.waiting.Lock()
	c.dev.count(&c.dev.open.channels, -1)
	return nil
}

func (c *channel) attach(q *cq) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := append(slices.Clone(*c.cqs.Load()), q)
	c.cqs.Store(&list)
}

func (c *channel) detach(q *cq) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*c.cqs.Load()), func(o *cq) bool { return o == q })
	c.cqs.Store(&list)
}

// join and leave keep the QPs whose completions may come here. A waiter looks again whether it may lead.
func (c *channel) join(q *qp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.qps = append(c.qps, q)
	c.count()
}

func (c *channel) leave(q *qp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.qps, q); i >= 0 {
		c.qps = slices.Delete(c.qps, i, i+1)
	}
	c.count()
}

func (c *channel) count() {
	var sole *qp
	if len(c.qps) > 0 && !slices.ContainsFunc(c.qps, func(q *qp) bool { return q != c.qps[0] }) {
		sole = c.qps[0]
	}
	c.sole.Store(sole)
	c.signal()
}
