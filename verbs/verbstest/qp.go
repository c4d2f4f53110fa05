package verbstest

import (
	"os"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// qp is a queue pair. What is common to all stands here and in work.go, its states in qpstate.go, the protocols in reliable.go,
// unreliable.go and iwarp.go.
type qp struct {
	fab        *Fabric
	dev        *Device
	id         *id // that made it; nil if it is connected by hand
	pd         *pd
	typ        verbs.QPType
	num        uint32
	send, recv *cq
	srq        *srq // instead of rq
	cap        verbs.QPCap
	signalAll  bool
	attr       verbs.QPAttr // as written
	gone       bool         // the device is through with it
	closed     bool
	life       uint32 // how often the queues were emptied: what comes from an earlier life is dropped

	sq   fifo[sendReq] // posted and not completed, oldest first
	next int           // the first in sq that was not executed
	rq   fifo[recvReq] // posted and not used up

	// Queue entries are free again when a completion is polled. Positions count requests since the QP was made.
	sqPosted, sqFreed uint64
	rqPosted, rqFreed uint64
	arrived           uint64 // the requests before this position are at the peer's device; on iWARP, it is TCP's turn

	tx                 lane
	sendDone, recvDone completions
	arrive             func() // the method, bound once

	halted  bool   // a request has failed and waits for its completion
	reads   int    // READs and atomics executed and not completed
	scratch []byte // for payloads of several pieces
	result  []byte // for what the peer's READs and atomics bring it

	hold     uint64 // in SQD requests from this position on wait
	draining bool   // those before it are not done
	notify   bool   // EventSQDrained when they are

	rc  reliable
	out *stream // what TCP has taken over (iwarp.go)
}

// CreateQP implements cm.ID.
func (i *id) CreateQP(vpd verbs.PD, o verbs.QPOptions) (verbs.QP, error) {
	d := i.dev
	if err := d.call(CreateQP); err != nil {
		return nil, err
	}
	defer d.fab.mu.Unlock()
	p, ok := vpd.(*pd)
	switch {
	case i.closed:
		return nil, verbs.ErrClosed
	case vpd == nil || i.qpMade:
		return nil, os.NewSyscallError("rdma_create_qp", syscall.EINVAL)
	case !ok || p.dev != d:
		return nil, verbs.ErrForeign
	case o.Type != verbs.RC:
		return nil, &verbs.UnsupportedError{Device: d.cfg.Name, What: "a " + o.Type.String() + " queue pair of a connection"}
	}
	q, err := p.newQP("rdma_create_qp", o)
	if err != nil {
		return nil, err
	}
	q.id = i
	q.attr.State = verbs.QPInit
	if d.iwarp() {
		q.out = newStream(i)
	} else {
		q.attr.Port = 1
	}
	i.qp, i.qpMade = q, true
	return q, nil
}

// CreateQP implements verbs.PD.
func (p *pd) CreateQP(o verbs.QPOptions) (verbs.QP, error) {
	if err := p.dev.call(CreateQP); err != nil {
		return nil, err
	}
	defer p.dev.fab.mu.Unlock()
	if !p.dev.attr.Caps.QPTypes.Has(o.Type) {
		return nil, &verbs.UnsupportedError{Device: p.dev.cfg.Name, What: "a " + o.Type.String() + " queue pair connected by hand"}
	}
	q, err := p.newQP("ibv_create_qp", o)
	if err != nil {
		return nil, err
	}
	return q, nil
}

// newQP makes a QP in the state QPReset. call is what it is called in errors.
func (p *pd) newQP(call string, o verbs.QPOptions) (*qp, error) {
	d := p.dev
	send, ok1 := o.SendCQ.(*cq)
	recv, ok2 := o.RecvCQ.(*cq)
	shared, ok3 := o.SRQ.(*srq)
	switch {
	case o.SendCQ == nil || o.RecvCQ == nil:
		return nil, os.NewSyscallError(call, syscall.EINVAL)
	case !ok1 || !ok2 || send.dev != d || recv.dev != d:
		return nil, verbs.ErrForeign
	case o.SRQ != nil && (!ok3 || shared.pd.dev != d):
		return nil, verbs.ErrForeign
	case p.closed || send.closed || recv.closed || shared != nil && shared.closed:
		return nil, verbs.ErrClosed
	case shared != nil && shared.pd != p:
		return nil, os.NewSyscallError(call, syscall.EINVAL)
	}
	if shared != nil {
		o.Cap.MaxRecvWR, o.Cap.MaxRecvSGE = 0, 0
	}
	capacity, err := d.grant(call, o.Cap)
	if err != nil {
		return nil, err
	}
	if d.qps >= d.attr.MaxQP {
		return nil, os.NewSyscallError(call, syscall.ENOMEM)
	}
	d.fab.nextQPNum++
	q := &qp{
		fab: d.fab, dev: d, pd: p, typ: o.Type, num: d.fab.nextQPNum, send: send, recv: recv, srq: shared, cap: capacity,
		signalAll: o.SignalAll,
	}
	if shared != nil {
		q.cap.MaxRecvWR, q.cap.MaxRecvSGE = 0, 0
		shared.qps++
	}
	q.arrive = q.requestArrived
	q.rc.answerArrive = q.answered
	q.sendDone.init(q, send)
	q.recvDone.init(q, recv)
	d.fab.qps[q.num] = q
	d.qps++
	p.qps++
	send.qps++
	recv.qps++
	d.host.count(&d.host.objects.QPs, 1)
	return q, nil
}

// grant rounds up what is asked of a QP, or names the limit.
func (d *Device) grant(call string, c verbs.QPCap) (verbs.QPCap, error) {
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
			return c, os.NewSyscallError(call, syscall.EINVAL)
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
func (q *qp) Type() verbs.QPType { return q.typ }
func (q *qp) Cap() verbs.QPCap   { return q.cap }

// usable says why no call can work.
func (q *qp) usable() error {
	if q.closed {
		return verbs.ErrClosed
	}
	return q.dev.check()
}

// fatal is an error that the device finds by itself.
func (q *qp) fatal(e verbs.AsyncEventType) {
	if !q.gone && q.attr.State != verbs.QPError {
		q.dev.async(verbs.AsyncEvent{Type: e, QPNum: q.num})
		q.toError()
	}
}

// operational reports whether messages are received, and sent if there are any.
//
//go:norace
func (q *qp) operational() bool {
	return !q.gone && q.attr.State >= verbs.QPRTR && q.attr.State <= verbs.QPSQD
}

// peer is the QP that this one is connected to, as far as it knows: nil if there is none. A UD QP has none.
//
//go:norace
func (q *qp) peer() *qp {
	if q.attr.DestQPNum == 0 {
		return nil
	}
	return q.fab.qpAt(&q.attr.AH, q.attr.DestQPNum, q.typ)
}

// qpAt finds a QP by what names it in packets.
//
//go:norace
func (f *Fabric) qpAt(a *verbs.AHAttr, num uint32, typ verbs.QPType) *qp {
	q := f.qps[num]
	if q == nil || q.typ != typ || !q.dev.isAt(a) {
		return nil
	}
	return q
}

// names reports whether packets from a QP are from the one that this is connected to.
//
//go:norace
func (q *qp) names(from *qp) bool { return q.attr.DestQPNum == from.num && from.dev.isAt(&q.attr.AH) }

// uses reports whether an outstanding request names a memory region.
func (q *qp) uses(key uint32) bool {
	for i := range q.sq.len() {
		if r := q.sq.at(i); len(r.Inline) == 0 && listsKey(r.SGL, key) {
			return true
		}
	}
	return receivesInto(&q.rq, key)
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
	if q.srq != nil {
		q.srq.qps--
	}
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
	q.empty()
	delete(q.fab.qps, q.num)
	q.tellPeer()
}
