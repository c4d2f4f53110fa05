package verbstest

import (
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/rconn/rdma/verbs"
)

type cq struct {
	dev     *Device
	channel *channel
	depth   int
	queue   fifo[cqe]
	coming  int // completions that will be in queue
	qps     int // queues of QPs that use it

	solicitedOnly bool
	wakers        int // completions in queue that end a Wait all the same

	broken bool
	closed bool
}

// cqe is a completion, with what its poll sets free.
type cqe struct {
	verbs.Completion
	qp        *qp
	recv      bool
	solicited bool
	pos       uint64 // of its request in the work queue, without an SRQ
	life      uint32 // the QP's at that time
}

// wakes reports whether a completion is one for a CQ with SolicitedOnly.
//
//go:norace
func (e *cqe) wakes() bool { return e.solicited || e.Status != verbs.StatusSuccess }

// CreateCQ implements verbs.Device.
func (d *Device) CreateCQ(o verbs.CQOptions) (verbs.CQ, error) {
	if err := d.call(CreateCQ); err != nil {
		return nil, err
	}
	defer d.fab.mu.Unlock()
	var ch *channel
	if o.Channel != nil {
		c, ok := o.Channel.(*channel)
		switch {
		case !ok || c.dev != d:
			return nil, verbs.ErrForeign
		case c.closed:
			return nil, verbs.ErrClosed
		}
		ch = c
	}
	switch {
	case o.Depth < 1:
		return nil, os.NewSyscallError("ibv_create_cq", syscall.EINVAL)
	case o.Depth > d.attr.MaxCQE:
		return nil, &verbs.LimitError{What: "completion queue entries", Got: uint64(o.Depth), Max: uint64(d.attr.MaxCQE)}
	case d.cqs >= d.attr.MaxCQ:
		return nil, os.NewSyscallError("ibv_create_cq", syscall.ENOMEM)
	}
	q := &cq{dev: d, channel: ch, depth: granted(o.Depth, d.attr.MaxCQE), solicitedOnly: o.SolicitedOnly}
	if ch != nil {
		ch.cqs = append(ch.cqs, q)
	}
	d.cqs++
	d.host.count(&d.host.objects.CQs, 1)
	return q, nil
}

// granted rounds a size up as devices do.
func granted(n, limit int) int {
	size := 1
	for size < n {
		size *= 2
	}
	return min(size, limit)
}

func (q *cq) Depth() int { return q.depth }

func (q *cq) Poll(wc []verbs.Completion) (int, error) {
	if err := q.dev.host.before(Poll); err != nil {
		return 0, err
	}
	q.dev.fab.mu.Lock()
	defer q.dev.fab.mu.Unlock()
	if q.closed {
		return 0, verbs.ErrClosed
	}
	n := min(len(wc), q.queue.len())
	for i := range n {
		e := q.queue.at(i)
		wc[i] = e.Completion
		q.taken(e)
	}
	q.queue.drop(n)
	switch {
	case n > 0 || len(wc) == 0:
		return n, nil
	case q.broken:
		return 0, os.NewSyscallError("ibv_poll_cq", syscall.EOVERFLOW)
	case q.dev.host.dead:
		return 0, verbs.ErrDeviceRemoved
	}
	return 0, nil // also on a removed device: it is Wait that tells
}

func (q *cq) Close() error {
	q.dev.fab.mu.Lock()
	defer q.dev.fab.mu.Unlock()
	switch {
	case q.closed:
		return nil
	case q.qps > 0:
		q.dev.fab.violate("host %s: CQ closed while a QP uses it", q.dev.host.name)
		return verbs.ErrBusy
	}
	q.closed = true
	q.queue.clear()
	if ch := q.channel; ch != nil {
		ch.cqs = slices.DeleteFunc(ch.cqs, func(o *cq) bool { return o == q })
	}
	q.dev.cqs--
	q.dev.host.count(&q.dev.host.objects.CQs, -1)
	return nil
}

//go:norace
func (q *cq) push(e *cqe) {
	switch {
	case q.broken || q.closed:
		e.qp.polled(e)
	case q.full():
		e.qp.polled(e)
		q.overrun()
	default:
		*q.queue.add() = *e
		if e.wakes() {
			q.wakers++
		}
	}
}

// taken accounts for a completion that is in the queue no more.
//
//go:norace
func (q *cq) taken(e *cqe) {
	if e.wakes() {
		q.wakers--
	}
	e.qp.polled(e)
}

//go:norace
func (q *cq) full() bool { return q.queue.len() >= q.depth }

// overrun breaks the queue and every QP that uses it.
func (q *cq) overrun() {
	q.broken = true
	q.dev.async(verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: q})
	for _, p := range q.dev.fab.sortedQPs() {
		if p.send == q || p.recv == q {
			p.fatal(verbs.EventQPFatal)
		}
	}
}

func (q *cq) signal() {
	if q.channel != nil {
		q.channel.signal()
	}
}

// drop removes the completions of a QP that is destroyed or begins anew.
func (q *cq) drop(p *qp) {
	for n := q.queue.len(); n > 0; n-- {
		e := *q.queue.at(0)
		q.queue.drop(1)
		if e.qp == p {
			q.taken(&e)
		} else {
			*q.queue.add() = e
		}
	}
}

type channel struct {
	dev         *Device
	cqs         []*cq
	wake        chan struct{} // holds one token: look again
	interrupted bool
	parks       uint64
	waiting     bool
	closed      bool
}

// CreateCompletionChannel implements verbs.Device.
func (d *Device) CreateCompletionChannel() (verbs.CompletionChannel, error) {
	if err := d.call(CreateChannel); err != nil {
		return nil, err
	}
	defer d.fab.mu.Unlock()
	c := &channel{dev: d, wake: make(chan struct{}, 1)}
	d.channels[c] = true
	d.host.count(&d.host.objects.Channels, 1)
	return c, nil
}

func (c *channel) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *channel) Parks() uint64 {
	c.dev.fab.mu.Lock()
	defer c.dev.fab.mu.Unlock()
	return c.parks
}

func (c *channel) Interrupt() {
	c.dev.fab.mu.Lock()
	defer c.dev.fab.mu.Unlock()
	c.interrupted = true
	c.signal()
}

// Wait does not spin: here the goroutine that would be watched needs the processor.
func (c *channel) Wait(time.Duration) error {
	if err := c.dev.host.before(Wait); err != nil {
		return err
	}
	mu := &c.dev.fab.mu
	mu.Lock()
	defer mu.Unlock()
	if c.waiting {
		c.dev.fab.violate("host %s: two goroutines in Wait of one channel", c.dev.host.name)
		return os.NewSyscallError("Wait", syscall.EBUSY)
	}
	if !c.closed && c.dev.host.wakeSpuriously() {
		return nil
	}
	c.waiting = true
	defer func() { c.waiting = false }()
	for {
		if done, err := c.ready(); done {
			return err
		}
		c.parks++
		mu.Unlock()
		<-c.wake
		mu.Lock()
	}
}

// ready reports whether Wait ends, and how.
//
//go:norace
func (c *channel) ready() (bool, error) {
	switch {
	case c.closed:
		return true, verbs.ErrClosed
	case c.interrupted:
		c.interrupted = false
		return true, nil
	}
	coming := 0
	for _, q := range c.cqs {
		there := q.queue.len()
		if q.solicitedOnly {
			there = q.wakers
		}
		if there > 0 || q.broken {
			return true, nil
		}
		coming += q.coming
	}
	err := c.dev.check()
	if coming > 0 && !c.dev.host.dead {
		err = nil
	}
	return err != nil, err
}

func (c *channel) Close() error {
	c.dev.fab.mu.Lock()
	defer c.dev.fab.mu.Unlock()
	switch {
	case c.closed:
		return nil
	case len(c.cqs) > 0:
		c.dev.fab.violate("host %s: completion channel closed while %d CQs use it", c.dev.host.name, len(c.cqs))
		return verbs.ErrBusy
	}
	c.closed = true
	delete(c.dev.channels, c)
	c.signal()
	c.dev.host.count(&c.dev.host.objects.Channels, -1)
	return nil
}
