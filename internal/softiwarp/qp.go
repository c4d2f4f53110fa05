package softiwarp

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
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

	lastLocal *mr // the last region found by a local key

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
	switch {
	case vpd == nil || o.SendCQ == nil || o.RecvCQ == nil || i.qpMade:
		return nil, os.NewSyscallError("CreateQP", syscall.EINVAL)
	case !ok1 || !ok2 || !ok3 || p.dev != d || send.dev != d || recv.dev != d:
		return nil, verbs.ErrForeign
	case o.Type != verbs.RC:
		return nil, &verbs.UnsupportedError{Device: DeviceName, What: "a " + o.Type.String() + " queue pair"}
	}
	capacity, err := d.grant(o.Cap)
	if err != nil {
		return nil, err
	}
	q := &qp{
		dev: d, id: i, pd: p, cap: capacity, signalAll: o.SignalAll, sendCQ: send, recvCQ: recv, state: verbs.QPInit,
		num: d.lastQP.Add(1) & 0xffffff,
	}
	if err := q.acquire(); err != nil {
		return nil, err
	}
	q.quiet.L = &q.mu
	q.sq.init(capacity)
	q.rq.init(capacity)
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
	var held []*refs
	for _, r := range []*refs{&q.pd.refs, &q.sendCQ.refs, &q.recvCQ.refs} {
		if err := r.acquire(); err != nil {
			for _, h := range held {
				h.release()
			}
			q.dev.count(&q.dev.open.qps, -1)
			return err
		}
		held = append(held, r)
	}
	return nil
}

// grant checks what is asked of a QP.
func (d *device) grant(c verbs.QPCap) (verbs.QPCap, error) {
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
			return c, os.NewSyscallError("CreateQP", syscall.EINVAL)
		}
		if l.got > l.max {
			return c, &verbs.LimitError{What: l.what, Got: uint64(l.got), Max: uint64(l.max)}
		}
	}
	return verbs.QPCap{
		MaxSendWR: max(c.MaxSendWR, 1), MaxRecvWR: max(c.MaxRecvWR, 1), MaxSendSGE: max(c.MaxSendSGE, 1), MaxRecvSGE: max(c.MaxRecvSGE, 1),
		MaxInline: min(max(c.MaxInline, 0), maxInline),
	}, nil
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
	return verbs.QPAttr{State: q.state}, nil
}

func (q *qp) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return verbs.ErrClosed
	case mask&^(verbs.AttrState|verbs.AttrMinRNRTimer) != 0,
		mask&verbs.AttrState != 0 && attr.State != verbs.QPError && attr.State != q.state,
		mask&verbs.AttrMinRNRTimer != 0 && (attr.MinRNRTimer > 31 || q.state != verbs.QPRTS):
		return os.NewSyscallError("Modify", syscall.EINVAL)
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
	q.pd.refs.release()
	q.sendCQ.refs.release()
	q.recvCQ.refs.release()
	q.dev.count(&q.dev.open.qps, -1)
	q.id.qpClosed()
	return nil
}

// complete pushes a completion of a work queue. mu is held.
func (q *qp) complete(c *cq, e *cqe) {
	if e.Status != verbs.StatusSuccess {
		e.Completion = verbs.Completion{ID: e.ID, Status: e.Status} // the rest means nothing
	}
	e.QPNum, e.qp = q.num, q
	q.pushed++
	if !q.closed {
		c.push(e)
	}
}

// local finds memory of this side. mu is held.
func (q *qp) local(s verbs.SGE, access verbs.Access) (seg, bool) {
	if s.Length == 0 {
		return seg{}, true
	}
	m := q.lastLocal
	if m == nil || m.key != s.LKey || m.state.Load()&mrClosed != 0 {
		m = q.dev.mrs.find(s.LKey)
	}
	if m == nil || m.pd != q.pd || m.access&access != access {
		return seg{}, false
	}
	b, ok := m.slice(s.Addr, uint64(s.Length))
	q.lastLocal = m
	return seg{m, b}, ok
}

// seg is a piece of registered memory.
type seg struct {
	mr *mr
	b  []byte
}
