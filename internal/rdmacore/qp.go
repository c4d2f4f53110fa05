//go:build linux && cgo

package rdmacore

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// qp is a queue pair. Each queue has its lock, because the flat arrays that requests are written into belong to the QP.
type qp struct {
	id             *id
	pd             *pd
	sendCQ, recvCQ *cq
	num            uint32
	cap            verbs.QPCap
	ops            verbs.OpcodeSet
	refs           refs

	send      queue
	recv      queue
	depth     atomic.Uint32 // the initiator depth that was asked for
	connected bool          // the send queue takes requests; guarded by send.mu
	reads     bool          // READs may be under way; guarded by send.mu
}

// queue is one side of a QP.
type queue struct {
	mu sync.Mutex
	c  *C.struct_rc_qp // nil once the QP is closed
}

func (q *queue) set(c *C.struct_rc_qp) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.c = c
}

func (q *qp) Type() verbs.QPType { return verbs.RC }

// CreateQP makes the id's QP. librdmacm moves it through its states when the connection is made.
func (i *id) CreateQP(p verbs.PD, o verbs.QPOptions) (verbs.QP, error) {
	pd, sendCQ, recvCQ, err := i.own(p, o)
	if err != nil {
		return nil, err
	}
	if err := checkQPOptions(i.dev.name, &i.dev.attr, &o); err != nil {
		return nil, err
	}
	q := &qp{id: i, pd: pd, sendCQ: sendCQ, recvCQ: recvCQ, ops: i.dev.attr.Caps.Send}
	i.op.Lock()
	defer i.op.Unlock()
	if err := i.mayCreateQP(); err != nil {
		return nil, err
	}
	release, err := acquireAll(&i.refs, &pd.refs, &sendCQ.refs, &recvCQ.refs)
	if err != nil {
		return nil, err
	}
	var c *C.struct_rc_qp
	if err := i.p.calls.do(func() error { return q.create(&c, o) }); err != nil {
		release()
		if i.m.now() == stateRequested {
			err = acceptErr(err)
		}
		return nil, i.dev.orRemoved(err)
	}
	q.num = uint32(c.num)
	q.cap = verbs.QPCap{
		MaxSendWR: int(c.cap.send_wr), MaxRecvWR: int(c.cap.recv_wr),
		MaxSendSGE: int(c.cap.send_sge), MaxRecvSGE: int(c.cap.recv_sge),
		MaxInline: int(c.cap.max_inline),
	}
	q.send.c, q.recv.c = c, c
	i.setQP(q)
	return q, nil
}

// own checks that the parts of a QP are of this device.
func (i *id) own(p verbs.PD, o verbs.QPOptions) (*pd, *cq, *cq, error) {
	pd, ok1 := p.(*pd)
	sendCQ, ok2 := o.SendCQ.(*cq)
	recvCQ, ok3 := o.RecvCQ.(*cq)
	switch {
	case p == nil || o.SendCQ == nil || o.RecvCQ == nil:
		return nil, nil, nil, sysErr("rdma_create_qp", int(syscall.EINVAL))
	case !ok1 || !ok2 || !ok3, pd.dev != i.dev, sendCQ.dev != i.dev, recvCQ.dev != i.dev:
		return nil, nil, nil, verbs.ErrForeign
	}
	return pd, sendCQ, recvCQ, nil
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

// create makes the QP, with less inline payload if the device refuses what was asked for: there is no limit to query. What
// turned out to be too much is remembered.
func (q *qp) create(c **C.struct_rc_qp, o verbs.QPOptions) error {
	dev := q.id.dev
	inline := o.Cap.MaxInline
	if limit := int(dev.inline.Load()); limit > 0 && inline >= limit {
		inline = limit / 2
	}
	first := inline
	var sigAll C.int
	if o.SignalAll {
		sigAll = 1
	}
	for {
		want := C.struct_rc_qp_cap{
			send_wr: C.int(o.Cap.MaxSendWR), recv_wr: C.int(o.Cap.MaxRecvWR),
			send_sge: C.int(o.Cap.MaxSendSGE), recv_sge: C.int(o.Cap.MaxRecvSGE),
			max_inline: C.int(inline),
		}
		err := sysErr("rdma_create_qp", int(C.rc_create_qp(q.id.c, q.pd.c, q.sendCQ.c, q.recvCQ.c, &want, sigAll, c)))
		if err == nil && inline < first {
			dev.inline.Store(int64(max(inline*2, 1)))
		}
		if !errors.Is(err, syscall.EINVAL) || inline == 0 {
			return err
		}
		inline /= 2
	}
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) Cap() verbs.QPCap { return q.cap }

func (q *qp) Query() (verbs.QPAttr, error) {
	q.send.mu.Lock()
	defer q.send.mu.Unlock()
	if q.send.c == nil {
		return verbs.QPAttr{}, verbs.ErrClosed
	}
	if err := q.id.dev.check(); err != nil {
		return verbs.QPAttr{}, err
	}
	var a C.struct_rc_qp_attr
	if err := sysErr("ibv_query_qp", int(C.rc_query_qp(q.send.c, &a))); err != nil {
		return verbs.QPAttr{}, err
	}
	return verbs.QPAttr{
		State:       verbs.QPState(a.state),
		PathMTU:     int(a.path_mtu),
		AckTimeout:  uint8(a.timeout),
		RetryCount:  uint8(a.retry_cnt),
		RNRRetry:    uint8(a.rnr_retry),
		MinRNRTimer: uint8(a.min_rnr_timer),
		DestQPNum:   uint32(a.dest_qp_num),
		SQPSN:       uint32(a.sq_psn),
		RQPSN:       uint32(a.rq_psn),
	}, nil
}

func (q *qp) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := checkModify(&attr, mask); err != nil {
		return err
	}
	q.send.mu.Lock()
	defer q.send.mu.Unlock()
	if q.send.c == nil {
		return verbs.ErrClosed
	}
	if err := q.id.dev.check(); err != nil {
		return err
	}
	if mask&verbs.AttrMinRNRTimer != 0 && q.id.dev.attr.Caps.RNR {
		if err := sysErr("ibv_modify_qp", int(C.rc_set_min_rnr_timer(q.send.c, C.int(attr.MinRNRTimer)))); err != nil {
			return err
		}
	}
	if mask&verbs.AttrState != 0 {
		return sysErr("ibv_modify_qp", int(C.rc_set_qp_state(q.send.c, C.int(attr.State))))
	}
	return nil
}

// Close waits for a connect that still blocks in the kernel, which uses the QP.
func (q *qp) Close() error {
	return q.refs.close(func() error {
		c := q.send.c
		q.send.set(nil)
		q.recv.set(nil)
		q.id.op.Lock()
		defer q.id.op.Unlock()
		q.id.p.cm.detachQP(q.id)
		err := q.id.p.closes.do(func() error { return sysErr("ibv_destroy_qp", int(C.rc_destroy_qp(c))) })
		if err != nil {
			q.send.set(c)
			q.recv.set(c)
			return err
		}
		q.pd.refs.release()
		q.sendCQ.refs.release()
		q.recvCQ.refs.release()
		q.id.setQP(nil)
		return nil
	})
}
