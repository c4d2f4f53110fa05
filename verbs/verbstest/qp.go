package verbstest

import (
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/rconn/rdma/verbs"
)

// qp is a queue pair. What is common to the transports stands here, the protocols in roce.go and iwarp.go.
type qp struct {
	fab        *Fabric
	dev        *Device
	id         *id
	pd         *pd
	num        uint32
	send, recv *cq
	cap        verbs.QPCap
	signalAll  bool
	attr       verbs.QPAttr
	initiator  uint8 // READs and atomics that this side may have outstanding
	responder  uint8 // those of the peer that it answers at once
	gone       bool  // the device is through with it
	closed     bool

	sq   fifo[sendReq] // posted and not completed, oldest first
	next int           // the first in sq that was not executed
	rq   fifo[recvReq] // posted and not used up

	// Queue entries are free again when a completion is polled. Positions count requests since the QP was made.
	sqPosted, sqFreed uint64
	rqPosted, rqFreed uint64
	arrived           uint64 // the requests before this position are at the peer's device; on iWARP, it is TCP's turn
	answers           uint64 // those whose answer would be back

	tx, acks             lane
	sendDone, recvDone   completions
	arrive, answerArrive func() // methods, bound once

	halted  bool   // a request has failed and waits for its completion
	stall   *stall // why sq.at(next) waits (roce.go)
	reads   int    // READs and atomics executed and not completed
	scratch []byte // for payloads of several pieces
	result  []byte // for what the peer's READs and atomics bring it

	out *stream // what TCP has taken over (iwarp.go)
}

// CreateQP implements cm.ID.
func (i *id) CreateQP(vpd verbs.PD, o verbs.QPOptions) (verbs.QP, error) {
	d := i.dev
	if err := d.call(CreateQP); err != nil {
		return nil, err
	}
	defer d.fab.mu.Unlock()
	if i.closed {
		return nil, verbs.ErrClosed
	}
	p, ok1 := vpd.(*pd)
	send, ok2 := o.SendCQ.(*cq)
	recv, ok3 := o.RecvCQ.(*cq)
	switch {
	case vpd == nil || o.SendCQ == nil || o.RecvCQ == nil || i.qpMade:
		return nil, os.NewSyscallError("rdma_create_qp", syscall.EINVAL)
	case !ok1 || !ok2 || !ok3 || p.dev != d || send.dev != d || recv.dev != d:
		return nil, verbs.ErrForeign
	case p.closed || send.closed || recv.closed:
		return nil, verbs.ErrClosed
	case o.Type != verbs.RC:
		return nil, &verbs.UnsupportedError{Device: d.cfg.Name, What: "a " + o.Type.String() + " queue pair"}
	}
	capacity, err := d.grant(o.Cap)
	if err != nil {
		return nil, err
	}
	if d.qps >= d.attr.MaxQP {
		return nil, os.NewSyscallError("rdma_create_qp", syscall.ENOMEM)
	}
	d.fab.nextQPNum++
	q := &qp{
		fab: d.fab, dev: d, id: i, pd: p, num: d.fab.nextQPNum, send: send, recv: recv, cap: capacity, signalAll: o.SignalAll,
		attr: verbs.QPAttr{State: verbs.QPInit},
	}
	q.arrive, q.answerArrive = q.requestArrived, q.answered
	q.sendDone.init(q, send)
	q.recvDone.init(q, recv)
	if d.iwarp() {
		q.out = newStream(i)
	}
	i.qp, i.qpMade = q, true
	d.fab.qps[q] = true
	d.qps++
	p.qps++
	send.qps++
	recv.qps++
	d.host.count(&d.host.objects.QPs, 1)
	return q, nil
}

// grant rounds up what is asked of a QP, or names the limit.
func (d *Device) grant(c verbs.QPCap) (verbs.QPCap, error) {
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
			return c, os.NewSyscallError("rdma_create_qp", syscall.EINVAL)
		}
		if l.got > l.max {
			return c, &verbs.LimitError{What: l.what, Got: uint64(l.got), Max: uint64(l.max)}
		}
	}
	return verbs.QPCap{
		MaxSendWR:  granted(c.MaxSendWR, d.attr.MaxQPWR),
		MaxRecvWR:  granted(c.MaxRecvWR, d.attr.MaxQPWR),
		MaxSendSGE: max(c.MaxSendSGE, 1),
		MaxRecvSGE: max(c.MaxRecvSGE, 1),
		MaxInline:  min(max(c.MaxInline, 0), d.attr.Caps.MaxInline),
	}, nil
}

func (q *qp) Num() uint32 { return q.num }

// Type implements verbs.QP.
func (q *qp) Type() verbs.QPType { return verbs.RC }
func (q *qp) Cap() verbs.QPCap   { return q.cap }

// usable says why no call can work.
func (q *qp) usable() error {
	if q.closed {
		return verbs.ErrClosed
	}
	return q.dev.check()
}

func (q *qp) toError() {
	if q.gone || q.attr.State == verbs.QPError {
		return
	}
	q.attr.State = verbs.QPError
	q.stall = nil
	q.next = 0
	q.flush()
	q.tellPeer()
}

// fatal is an error that the device finds by itself.
func (q *qp) fatal(e verbs.AsyncEventType) {
	if !q.gone && q.attr.State != verbs.QPError {
		q.dev.async(verbs.AsyncEvent{Type: e, QPNum: q.num})
		q.toError()
	}
}

// ready makes a connected QP able to send and to receive.
func (q *qp) ready(attr verbs.QPAttr, initiator, responder uint8) {
	if q.gone || q.attr.State != verbs.QPInit {
		return
	}
	q.attr = attr
	q.attr.State = verbs.QPRTS
	q.initiator, q.responder = initiator, responder
	if peer := q.peer(); peer != nil {
		peer.pathChanged() // it may have sent already
	}
}

func (q *qp) operational() bool { return !q.gone && q.attr.State == verbs.QPRTS }

// uses reports whether an outstanding request names a memory region.
func (q *qp) uses(key uint32) bool {
	in := func(sgl []verbs.SGE) bool {
		return slices.ContainsFunc(sgl, func(s verbs.SGE) bool { return s.LKey == key && s.Length > 0 })
	}
	for i := range q.sq.len() {
		if r := q.sq.at(i); len(r.Inline) == 0 && in(r.SGL) {
			return true
		}
	}
	for i := range q.rq.len() {
		if in(q.rq.at(i).SGL) {
			return true
		}
	}
	return false
}

func (q *qp) Query() (verbs.QPAttr, error) {
	if err := q.dev.host.before(Query); err != nil {
		return verbs.QPAttr{}, err
	}
	q.fab.mu.Lock()
	defer q.fab.mu.Unlock()
	if err := q.usable(); err != nil {
		return verbs.QPAttr{}, err
	}
	return q.attr, nil
}

func (q *qp) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := q.dev.host.before(Modify); err != nil {
		return err
	}
	q.fab.mu.Lock()
	defer q.fab.mu.Unlock()
	if err := q.usable(); err != nil {
		return err
	}
	invalid := mask&^(verbs.AttrState|verbs.AttrMinRNRTimer) != 0 ||
		mask&verbs.AttrState != 0 && attr.State != verbs.QPError && attr.State != q.attr.State ||
		mask&verbs.AttrMinRNRTimer != 0 && (attr.MinRNRTimer > 31 || q.attr.State != verbs.QPRTS)
	if invalid {
		return os.NewSyscallError("ibv_modify_qp", syscall.EINVAL)
	}
	if mask&verbs.AttrMinRNRTimer != 0 && !q.dev.iwarp() {
		q.attr.MinRNRTimer = attr.MinRNRTimer
	}
	if mask&verbs.AttrState != 0 && attr.State == verbs.QPError {
		q.toError()
		if q.out != nil {
			q.id.streamEnded()
		}
	}
	return nil
}

func (q *qp) Close() error {
	q.fab.mu.Lock()
	defer q.fab.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	q.destroy()
	q.dev.qps--
	q.pd.qps--
	q.send.qps--
	q.recv.qps--
	q.dev.host.count(&q.dev.host.objects.QPs, -1)
	if q.out != nil {
		q.id.streamEnded()
	}
	return nil
}

// destroy stops the QP without a completion, and takes back those not polled.
func (q *qp) destroy() {
	q.attr.State = verbs.QPError
	q.gone = true
	q.stall = nil
	q.sq.clear()
	q.rq.clear()
	q.next = 0
	q.send.drop(q)
	q.recv.drop(q)
	delete(q.fab.qps, q)
	q.tellPeer()
}

// ackTimeout is the time after which a request is sent again.
func (q *qp) ackTimeout() time.Duration {
	return 4096 * time.Nanosecond << q.attr.AckTimeout
}
