//go:build linux && cgo

package rdmacore

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"sync"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// qp is a queue pair. Each queue has its lock, because the flat arrays that requests are written into belong to the QP.
type qp struct {
	dev            *device
	owner          owner
	typ            verbs.QPType
	pd             *pd
	sendCQ, recvCQ *cq
	srq            *srq // nil: it has a receive queue of its own
	num            uint32
	cap            verbs.QPCap
	ops            verbs.OpcodeSet
	refs           refs
	free           func() // gives back the references to the parts

	send sendQueue
	recv recvQueue
}

// owner is what a QP belongs to, and what moves it through its states: a cm id, or the program (byHand).
type owner interface {
	// cmID is what librdmacm makes the QP for, or nil.
	cmID() *C.struct_rdma_cm_id

	// modify writes attributes, with the send queue locked.
	modify(q *qp, attr *verbs.QPAttr, mask verbs.QPAttrMask) error

	// mayBegin says whether the send queue takes requests, and READs and atomics among them. Called with the send queue locked, until
	// it says yes.
	mayBegin(q *qp) (sends, reads bool, err error)

	// destroy calls f, which destroys the QP, and gives up the QP if that succeeds.
	destroy(f func() error) error
}

// sendQueue is the send side of a QP.
type sendQueue struct {
	mu    sync.Mutex
	c     *C.struct_rc_qp // nil once the QP is closed
	begun bool            // it takes requests
	reads bool            // READs and atomics may be under way
	held  []*ah           // by the requests that are being posted
}

// parts are the objects that a QP is made from.
type parts struct {
	pd             *pd
	sendCQ, recvCQ *cq
	srq            *srq // may be nil
}

// own checks that the parts of a QP are of this device, and of one PD.
func (d *device) own(call string, p verbs.PD, o *verbs.QPOptions) (parts, error) {
	if p == nil || o.SendCQ == nil || o.RecvCQ == nil {
		return parts{}, sysErr(call, int(syscall.EINVAL))
	}
	pd, ok1 := p.(*pd)
	sendCQ, ok2 := o.SendCQ.(*cq)
	recvCQ, ok3 := o.RecvCQ.(*cq)
	if !ok1 || !ok2 || !ok3 || pd.dev != d || sendCQ.dev != d || recvCQ.dev != d {
		return parts{}, verbs.ErrForeign
	}
	s, err := pd.ownSRQ(o.SRQ)
	return parts{pd, sendCQ, recvCQ, s}, err
}

// acquire takes a reference on each part, and on what else is given.
func (p *parts) acquire(more ...*refs) (release func(), err error) {
	all := append(more, &p.pd.refs, &p.sendCQ.refs, &p.recvCQ.refs)
	if p.srq != nil {
		all = append(all, &p.srq.refs)
	}
	return acquireAll(all...)
}

// newQP makes a QP from parts on which references are held. The QP keeps them if it is made.
func (d *device) newQP(w owner, p parts, free func(), o *verbs.QPOptions) (*qp, error) {
	q := &qp{
		dev: d, owner: w, typ: o.Type, pd: p.pd, sendCQ: p.sendCQ, recvCQ: p.recvCQ, srq: p.srq,
		ops: d.attr.Caps.Send & typeOps(o.Type), free: free,
	}
	var c *C.struct_rc_qp
	if err := d.p.calls.do(func() error { return q.create(&c, o) }); err != nil {
		return nil, err
	}
	q.num = uint32(c.num)
	q.cap = verbs.QPCap{
		MaxSendWR: int(c.cap.send_wr), MaxRecvWR: int(c.cap.recv_wr),
		MaxSendSGE: int(c.cap.send_sge), MaxRecvSGE: int(c.cap.recv_sge),
		MaxInline: int(c.cap.max_inline),
	}
	q.send.c = c
	q.recv = recvQueue{dev: d, c: &c.rq, maxSGE: q.cap.MaxRecvSGE}
	q.receivesUD(true)
	return q, nil
}

// create makes the QP, with less inline payload if the device refuses what was asked for: there is no limit to query. What
// turned out to be too much is remembered.
func (q *qp) create(c **C.struct_rc_qp, o *verbs.QPOptions) error {
	id, call := q.owner.cmID(), "rdma_create_qp"
	if id == nil {
		call = "ibv_create_qp"
	}
	inline := o.Cap.MaxInline
	if limit := int(q.dev.inline.Load()); limit > 0 && inline >= limit {
		inline = limit / 2
	}
	first := inline
	init := C.struct_rc_qp_init{
		send_cq: q.sendCQ.c, recv_cq: q.recvCQ.c,
		cap: C.struct_rc_qp_cap{
			send_wr: C.int(o.Cap.MaxSendWR), recv_wr: C.int(o.Cap.MaxRecvWR),
			send_sge: C.int(o.Cap.MaxSendSGE), recv_sge: C.int(o.Cap.MaxRecvSGE),
		},
		_type: C.int(o.Type),
	}
	if q.srq != nil {
		init.srq = q.srq.c
	}
	if o.SignalAll {
		init.sig_all = 1
	}
	for {
		init.cap.max_inline = C.int(inline)
		err := sysErr(call, int(C.rc_create_qp(id, q.pd.c, &init, c)))
		if err == nil && inline < first {
			q.dev.inline.Store(int64(max(inline*2, 1)))
		}
		if !errors.Is(err, syscall.EINVAL) || inline == 0 {
			return err
		}
		inline /= 2
	}
}

// acquireAll takes a reference on each, or on none.
func acquireAll(all ...*refs) (release func(), err error) {
	for n, r := range all {
		if err := r.acquire(); err != nil {
			for _, r := range all[:n] {
				r.release()
			}
			return nil, err
		}
	}
	return func() {
		for _, r := range all {
			r.release()
		}
	}, nil
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) Type() verbs.QPType { return q.typ }

func (q *qp) Cap() verbs.QPCap { return q.cap }

// mayCall is nil while the QP is open and its device there. Called with the send queue locked.
func (q *qp) mayCall() error {
	if q.send.c == nil {
		return verbs.ErrClosed
	}
	return q.dev.check()
}

func (q *qp) Query() (verbs.QPAttr, error) {
	q.send.mu.Lock()
	defer q.send.mu.Unlock()
	if err := q.mayCall(); err != nil {
		return verbs.QPAttr{}, err
	}
	var a C.struct_rc_qp_attr
	if err := q.query(&a); err != nil {
		return verbs.QPAttr{}, err
	}
	return verbs.QPAttr{
		State:           verbs.QPState(a.state),
		Access:          verbs.Access(a.access),
		Port:            int(a.port),
		PKeyIndex:       uint16(a.pkey_index),
		QKey:            uint32(a.qkey),
		PathMTU:         int(a.path_mtu),
		AH:              ahAttr(&a.ah),
		DestQPNum:       uint32(a.dest_qp_num),
		RQPSN:           uint32(a.rq_psn),
		SQPSN:           uint32(a.sq_psn),
		AckTimeout:      uint8(a.timeout),
		RetryCount:      uint8(a.retry_cnt),
		RNRRetry:        uint8(a.rnr_retry),
		MinRNRTimer:     uint8(a.min_rnr_timer),
		MaxRdAtomic:     uint8(a.max_rd_atomic),
		MaxDestRdAtomic: uint8(a.max_dest_rd_atomic),
	}, nil
}

// query is called with the send queue locked.
func (q *qp) query(a *C.struct_rc_qp_attr) error {
	return sysErr("ibv_query_qp", int(C.rc_query_qp(q.send.c, a)))
}

// state is what a QP of InfiniBand's states may send: an owner's mayBegin.
func (q *qp) state() (sends, reads bool, err error) {
	var a C.struct_rc_qp_attr
	if err := q.query(&a); err != nil {
		return false, false, err
	}
	return verbs.QPState(a.state) >= verbs.QPRTS, a.max_rd_atomic > 0, nil
}

func (q *qp) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := checkAttrs(&q.dev.attr, &attr, mask); err != nil {
		return err
	}
	q.send.mu.Lock()
	defer q.send.mu.Unlock()
	if err := q.mayCall(); err != nil {
		return err
	}
	return q.owner.modify(q, &attr, mask)
}

// write makes the call for an owner.
func (q *qp) write(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	a := C.struct_rc_qp_attr{
		state:              C.int(attr.State),
		access:             C.int(attr.Access),
		port:               C.int(attr.Port),
		pkey_index:         C.int(attr.PKeyIndex),
		qkey:               C.uint32_t(attr.QKey),
		path_mtu:           C.int(attr.PathMTU),
		ah:                 ahToC(&attr.AH),
		dest_qp_num:        C.uint32_t(attr.DestQPNum),
		rq_psn:             C.uint32_t(attr.RQPSN),
		sq_psn:             C.uint32_t(attr.SQPSN),
		timeout:            C.int(attr.AckTimeout),
		retry_cnt:          C.int(attr.RetryCount),
		rnr_retry:          C.int(attr.RNRRetry),
		min_rnr_timer:      C.int(attr.MinRNRTimer),
		max_rd_atomic:      C.int(attr.MaxRdAtomic),
		max_dest_rd_atomic: C.int(attr.MaxDestRdAtomic),
	}
	if attr.NotifyDrained {
		a.notify_drained = 1
	}
	return sysErr("ibv_modify_qp", int(C.rc_modify_qp(q.send.c, &a, C.int(ibvMask(mask)))))
}

func (q *qp) Close() error {
	return q.refs.close(func() error {
		c := q.set(nil)
		return q.owner.destroy(func() error {
			q.receivesUD(false) // before its number can be another QP's
			err := q.dev.p.closes.do(func() error { return sysErr("ibv_destroy_qp", int(C.rc_destroy_qp(c))) })
			if err != nil {
				q.receivesUD(true)
				q.set(c)
				return err
			}
			q.free()
			return nil
		})
	})
}

// receivesUD tells the CQ for receives whether the QP is one whose completions say where a message came from.
func (q *qp) receivesUD(open bool) {
	if q.typ == verbs.UD {
		q.recvCQ.setUD(q.num, open)
	}
}

// set has both queues use c, or none, and returns what they used.
func (q *qp) set(c *C.struct_rc_qp) (was *C.struct_rc_qp) {
	q.send.mu.Lock()
	was, q.send.c = q.send.c, c
	q.send.mu.Unlock()
	var rq *C.struct_rc_rq
	if c != nil {
		rq = &c.rq
	}
	q.recv.set(rq)
	return was
}
