package softiwarp

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rconn/rdma/verbs"
)

const maxSGE = 16

var errAgain = errors.New("would block")

// qp is a queue pair. Its send half is in sendqueue.go, segments.go and transmit.go, its receive half in recvqueue.go, receive.go and
// place.go.
//
// mu guards the queues and the state, never while a system call moves data. Two tokens say who moves data: the duty to receive, whose
// holder owns rx, and sending, whose holder owns out. The tokens outlive the error state for a moment: what they touch is flushed by
// them, last.
type qp struct {
	dev        *device
	id         *id
	pd         *pd
	srq        *srq // nil: a receive queue of its own
	num        uint32
	cap        verbs.QPCap
	signalAll  bool
	sendCQ     *cq
	recvCQ     *cq
	stream     *stream // nil before the connection is made
	withCRC    bool
	maxPayload int
	ird, ord   int

	sqFreed, rqFreed atomic.Uint64 // entries whose completion was polled

	mu     sync.Mutex
	quiet  sync.Cond // a token was put down
	state  verbs.QPState
	closed bool
	end    ending
	pushed uint64 // completions ever
	sent   uint64 // what of the stream is with TCP

	sq        sendQueue
	rq        recvQueue
	drained   bool // with an SRQ: the last receive has completed, and that was told
	responses responseQueue
	reads     readQueue
	gated     bool // the accepting side must not send yet
	gate      *time.Timer
	rtr       rtrKinds      // how a peer-to-peer connection begins
	opened    chan struct{} // closed when the first FPDU has come
	ended     chan struct{} // closed when the connection is over
	sending   bool          // somebody holds out
	receiving bool          // the holder of the duty is at work

	posts int         // PostSends since the peer was heard
	held  atomic.Bool // requests wait for release; set with mu held

	memory lookup // by local keys

	duty duty
	rx   receiver
	out  sender
}

// ending is how a connection ended.
type ending struct {
	fault   *fault // what a Terminate message tells the peer; nil: none
	segment []byte // the offending FPDU, as far as known
	lost    bool   // nothing more can be sent
	rest    []byte // what completes a half-sent FPDU
	torn    bool   // an FPDU is half-sent and cannot be completed
}

func (i *id) CreateQP(vpd verbs.PD, o verbs.QPOptions) (verbs.QP, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	d := i.dev
	if i.closed {
		return nil, verbs.ErrClosed
	}
	p, ok1 := vpd.(*pd)
	send, ok2 := o.SendCQ.(*cq)
	recv, ok3 := o.RecvCQ.(*cq)
	shared, ok4 := o.SRQ.(*srq)
	switch {
	case vpd == nil || o.SendCQ == nil || o.RecvCQ == nil:
		return nil, misuse("a queue pair needs a PD and two CQs")
	case i.qpMade:
		return nil, misuse("the connection has had its queue pair")
	case !ok1 || !ok2 || !ok3 || p.dev != d || send.dev != d || recv.dev != d, o.SRQ != nil && (!ok4 || shared.pd.dev != d):
		return nil, verbs.ErrForeign
	case o.Type != verbs.RC:
		return nil, d.lacks("a " + o.Type.String() + " queue pair")
	case shared != nil && shared.pd != p:
		return nil, misuse("the SRQ is of another PD")
	}
	capacity, err := d.grant(o.Cap, shared != nil)
	if err != nil {
		return nil, err
	}
	q := &qp{
		dev: d, id: i, pd: p, srq: shared, cap: capacity, signalAll: o.SignalAll, sendCQ: send, recvCQ: recv, state: verbs.QPInit,
		memory: lookup{pd: p}, num: d.lastQP.Add(1) & 0xffffff,
	}
	if err := q.acquire(); err != nil {
		return nil, err
	}
	q.quiet.L = &q.mu
	q.sq.init(capacity)
	if shared != nil {
		q.rq.init(1, shared.queue.sges)
	} else {
		q.rq.init(capacity.MaxRecvWR, capacity.MaxRecvSGE)
	}
	q.duty.init()
	send.join(q)
	recv.join(q)
	i.qp, i.qpMade = q, true
	return q, nil
}

// acquire counts the QP with all it is made of.
func (q *qp) acquire() error {
	if err := q.dev.take(&q.dev.open.qps, q.dev.attr.MaxQP, "CreateQP"); err != nil {
		return err
	}
	parts := q.parts()
	for i, r := range parts {
		if err := r.acquire(); err != nil {
			release(parts[:i])
			q.dev.count(&q.dev.open.qps, -1)
			return err
		}
	}
	return nil
}

// parts are what cannot be closed before the QP.
func (q *qp) parts() []*refs {
	parts := []*refs{&q.pd.refs, &q.sendCQ.refs, &q.recvCQ.refs}
	if q.srq != nil {
		parts = append(parts, &q.srq.refs)
	}
	return parts
}

func release(parts []*refs) {
	for _, r := range parts {
		r.release()
	}
}

// grant checks what is asked of a QP. With an SRQ the receive part does not matter.
func (d *device) grant(c verbs.QPCap, shared bool) (verbs.QPCap, error) {
	if shared {
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
	}
	for _, l := range []struct {
		what     string
		got, max int
	}{
		{"send queue entries", c.MaxSendWR, d.attr.MaxQPWR},
		{"receive queue entries", c.MaxRecvWR, d.attr.MaxQPWR},
		{"scatter/gather entries of a send", c.MaxSendSGE, d.attr.MaxSGE},
		{"scatter/gather entries of a receive", c.MaxRecvSGE, d.attr.MaxSGE},
	} {
		if l.got < 0 {
			return c, misuse("%d %s", l.got, l.what)
		}
		if l.got > l.max {
			return c, &verbs.LimitError{What: l.what, Got: uint64(l.got), Max: uint64(l.max)}
		}
	}
	c.MaxSendWR, c.MaxSendSGE = max(c.MaxSendWR, 1), max(c.MaxSendSGE, 1)
	if !shared {
		c.MaxRecvWR, c.MaxRecvSGE = max(c.MaxRecvWR, 1), max(c.MaxRecvSGE, 1)
	}
	c.MaxInline = min(max(c.MaxInline, 0), maxInline)
	return c, nil
}

func (q *qp) Num() uint32        { return q.num }
func (q *qp) Type() verbs.QPType { return verbs.RC }
func (q *qp) Cap() verbs.QPCap   { return q.cap }

func (q *qp) Query() (verbs.QPAttr, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return verbs.QPAttr{}, verbs.ErrClosed
	}
	a := verbs.QPAttr{State: q.state}
	if q.stream != nil { // the depths are agreed on
		a.Access = verbs.AccessRemoteWrite
		if q.ird > 0 {
			a.Access = remoteAccess
		}
		a.MaxRdAtomic, a.MaxDestRdAtomic = uint8(q.ord), uint8(q.ird)
	}
	return a, nil
}

func (q *qp) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return verbs.ErrClosed
	case mask&^(verbs.AttrState|verbs.AttrMinRNRTimer) != 0, mask&verbs.AttrState != 0 && attr.State != verbs.QPError && attr.State != q.state:
		return misuse("its connection moves the queue pair, which can be moved to %v only", verbs.QPError)
	case mask&verbs.AttrMinRNRTimer != 0 && (attr.MinRNRTimer > 31 || q.state != verbs.QPRTS):
		return misuse("an RNR timer of %d in the state %v", attr.MinRNRTimer, q.state)
	case mask&verbs.AttrState != 0 && attr.State == verbs.QPError:
		q.stop(ending{})
	}
	return nil
}

// Close returns when nobody touches memory for the QP any more; the TCP connection ends in the background.
func (q *qp) Close() error {
	q.release()
	q.mu.Lock()
	first := !q.closed
	q.closed = true
	q.stop(ending{})
	for q.sending || q.receiving {
		q.quiet.Wait()
	}
	q.mu.Unlock()
	if !first {
		return nil
	}
	q.sendCQ.leave(q)
	q.recvCQ.leave(q)
	release(q.parts())
	q.dev.count(&q.dev.open.qps, -1)
	q.id.qpClosed()
	return nil
}

// async tells of something about the QP.
func (q *qp) async(t verbs.AsyncEventType) {
	q.dev.async(verbs.AsyncEvent{Type: t, QPNum: q.num})
}

// complete pushes a completion of a work queue. mu is held.
func (q *qp) complete(c *cq, e *cqe) {
	if e.Status != verbs.StatusSuccess {
		e.Completion = verbs.Completion{ID: e.ID, Status: e.Status} // the rest means nothing
	}
	e.QPNum, e.qp = q.num, q
	q.pushed++
	if q.closed {
		e.free()
	} else {
		c.push(e)
	}
}
