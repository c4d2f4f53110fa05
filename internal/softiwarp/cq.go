package softiwarp

import (
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// cq is a completion queue.
type cq struct {
	dev       *device
	channel   *channel // nil: only polled
	solicited bool     // only notable completions rouse a waiter
	refs      refs     // queues of QPs

	// A look without the lock: completions in the ring, and those that rouse a waiter; one more when broken.
	ready, rouses atomic.Int32

	mu     sync.Mutex
	ring   []cqe
	head   int
	n      int
	quiet  int // of n: they rouse nobody
	qps    []*qp
	broken bool
}

// cqe is a completion, with what its poll sets free: entries of a QP's own queue up to pos, or one of its SRQ.
type cqe struct {
	verbs.Completion
	qp        *qp
	recv      bool
	solicited bool
	pos       uint64
}

// free sets free what the completion's request took up in its queue.
func (e *cqe) free() {
	switch q := e.qp; {
	case !e.recv:
		q.sqFreed.Store(e.pos + 1)
	case q.srq == nil:
		q.rqFreed.Store(e.pos + 1)
	default:
		q.srq.used.Add(-1)
	}
}

// notable tells whether the completion concerns a waiter who wants to be told of few.
func (e *cqe) notable() bool { return e.solicited || e.Status != verbs.StatusSuccess }

func (d *device) CreateCQ(o verbs.CQOptions) (verbs.CQ, error) {
	var ch *channel
	if o.Channel != nil {
		c, ok := o.Channel.(*channel)
		if !ok || c.dev != d {
			return nil, verbs.ErrForeign
		}
		ch = c
	}
	switch {
	case o.Depth < 1:
		return nil, misuse("a CQ of %d entries", o.Depth)
	case o.Depth > d.attr.MaxCQE:
		return nil, &verbs.LimitError{What: "completion queue entries", Got: uint64(o.Depth), Max: uint64(d.attr.MaxCQE)}
	}
	if ch != nil {
		if err := ch.refs.acquire(); err != nil {
			return nil, err
		}
	}
	if err := d.take(&d.open.cqs, d.attr.MaxCQ, "CreateCQ"); err != nil {
		if ch != nil {
			ch.refs.release()
		}
		return nil, err
	}
	q := &cq{dev: d, channel: ch, solicited: o.SolicitedOnly, ring: make([]cqe, o.Depth)}
	if ch != nil {
		ch.attach(q)
	}
	return q, nil
}

func (q *cq) Depth() int { return len(q.ring) }

func (q *cq) Poll(wc []verbs.Completion) (int, error) {
	if q.ready.Load() == 0 {
		return 0, q.refs.open()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(wc), q.n)
	for i := range n {
		e := &q.ring[q.head]
		wc[i] = e.Completion
		e.free()
		e.qp = nil
		if q.solicited && !e.notable() {
			q.quiet--
		}
		if q.head++; q.head == len(q.ring) {
			q.head = 0
		}
	}
	q.n -= n
	q.look()
	if n == 0 && len(wc) > 0 && q.broken {
		if err := q.refs.open(); err != nil {
			return 0, err
		}
		return 0, os.NewSyscallError("Poll", syscall.EOVERFLOW)
	}
	return n, nil
}

// look updates ready and rouses.
func (q *cq) look() {
	n := q.n
	if q.broken {
		n++
	}
	q.ready.Store(int32(n))
	q.rouses.Store(int32(n - q.quiet))
}

func (q *cq) Close() error {
	last, err := q.refs.close()
	if !last {
		return err
	}
	q.mu.Lock()
	q.n, q.quiet = 0, 0
	q.broken = false
	q.look()
	q.mu.Unlock()
	if q.channel != nil {
		q.channel.detach(q)
		q.channel.refs.release()
	}
	q.dev.count(&q.dev.open.cqs, -1)
	return nil
}

// push adds a completion. An overrun breaks the queue and all its QPs.
func (q *cq) push(e *cqe) {
	q.mu.Lock()
	quiet := false
	switch {
	case q.broken:
		e.free()
	case q.n == len(q.ring):
		e.free()
		q.broken = true
		qps := slices.Clone(q.qps)
		go q.overrun(qps)
	default:
		if q.n == 0 {
			q.head = 0 // where the processor's cache has it
		}
		at := q.head + q.n
		if at >= len(q.ring) {
			at -= len(q.ring)
		}
		q.ring[at] = *e
		q.n++
		if quiet = q.solicited && !e.notable(); quiet {
			q.quiet++
		}
	}
	q.look()
	q.mu.Unlock()
	if q.channel != nil && !quiet {
		q.channel.signal()
	}
}

// overrun runs without locks: whoever completes something holds his QP's.
func (q *cq) overrun(qps []*qp) {
	q.dev.async(verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: q})
	for _, p := range qps {
		p.fail(verbs.EventQPFatal)
	}
}

// join and leave keep the list of QPs, one entry for each of their queues.
func (q *cq) join(p *qp) {
	q.mu.Lock()
	q.qps = append(q.qps, p)
	q.mu.Unlock()
	if q.channel != nil {
		q.channel.join(p)
	}
}

func (q *cq) leave(p *qp) {
	q.mu.Lock()
	if i := slices.Index(q.qps, p); i >= 0 {
		q.qps = slices.Delete(q.qps, i, i+1)
	}
	q.drop(p)
	q.mu.Unlock()
	if q.channel != nil {
		q.channel.leave(p)
	}
}

// drop takes back the completions of a QP that is destroyed.
func (q *cq) drop(p *qp) {
	kept := 0
	for i := range q.n {
		e := q.ring[(q.head+i)%len(q.ring)]
		if e.qp != p {
			q.ring[(q.head+kept)%len(q.ring)] = e
			kept++
			continue
		}
		e.free()
		if q.solicited && !e.notable() {
			q.quiet--
		}
	}
	for i := kept; i < q.n; i++ {
		q.ring[(q.head+i)%len(q.ring)] = cqe{}
	}
	q.n = kept
	q.look()
}
