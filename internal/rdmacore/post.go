//go:build linux && cgo

package rdmacore

/*
#cgo noescape rc_post_send
#cgo nocallback rc_post_send
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"github.com/rconn/rdma/verbs"
)

// PostSend writes the requests into the QP's flat arrays and posts up to RC_BATCH of them with one crossing.
func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	q.send.mu.Lock()
	defer q.send.mu.Unlock()
	if err := q.maySend(); err != nil {
		return 0, err
	}
	done := 0
	for done < len(wrs) {
		batch := wrs[done:min(done+C.RC_BATCH, len(wrs))]
		n, bad := q.encode(batch)
		if n > 0 {
			r := C.rc_post_send(q.send.c, C.int(n))
			q.letGo()
			done += int(r.n)
			if r.err != 0 {
				return done, postErr("ibv_post_send", int(r.err))
			}
		}
		if bad != nil {
			return done, bad
		}
	}
	return done, nil
}

// PostRecv does the same for receives.
func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if q.srq != nil {
		return 0, errHasSRQ
	}
	return q.recv.post(wrs)
}

// maySend refuses requests before the connection is made. The libraries of Linux's software devices put them into the queue first and ask the
// kernel then, which says EINVAL, and later sends them all the same.
func (q *qp) maySend() error {
	if err := q.mayCall(); err != nil || q.send.begun {
		return err
	}
	var err error
	q.send.begun, q.send.reads, err = q.owner.mayBegin(q)
	if err == nil && !q.send.begun {
		err = errNotConnected
	}
	return err
}

// encode writes requests until one is wrong, and returns how many it wrote and what is wrong with the next.
func (q *qp) encode(wrs []verbs.SendWR) (int, error) {
	c := q.send.c
	out := unsafe.Slice(c.send, C.RC_BATCH)
	sges := unsafe.Slice((*verbs.SGE)(unsafe.Pointer(c.send_sge)), C.RC_BATCH*q.cap.MaxSendSGE)
	inline := unsafe.Slice((*byte)(c.inline_data), C.RC_BATCH*q.cap.MaxInline)
	for i := range wrs {
		wr := &wrs[i]
		if err := q.check(wr); err != nil {
			return i, err
		}
		if err := q.encodeTarget(&out[i], wr); err != nil {
			return i, err
		}
		sgl := wr.SGL
		if len(wr.Inline) > 0 {
			sgl = nil
			copy(inline[i*q.cap.MaxInline:], wr.Inline)
		}
		n := copySGL(sges[i*q.cap.MaxSendSGE:], sgl)
		o := &out[i]
		o.id = C.uint64_t(wr.ID)
		o.imm = C.uint32_t(wr.Imm)
		o.inline_len = C.uint32_t(len(wr.Inline))
		o.num_sge = C.uint16_t(n)
		o.opcode = C.uint8_t(wr.Opcode)
		o.flags = C.uint8_t(wr.Flags)
	}
	return len(wrs), nil
}

func (q *qp) check(wr *verbs.SendWR) error {
	if !q.ops.Has(wr.Opcode) {
		return noOpcode(q.dev.name, q.typ, q.dev.attr.Caps.Send, wr.Opcode)
	}
	if !q.send.reads && answered.Has(wr.Opcode) {
		return errNoReads
	}
	return checkSend(&q.cap, q.dev.attr.MaxSGERead, wr)
}

// encodeTarget writes where a request goes. It comes last of what may fail: an AH is held until the request was posted.
func (q *qp) encodeTarget(o *C.struct_rc_send_wr, wr *verbs.SendWR) error {
	if q.typ == verbs.UD {
		h, err := q.hold(wr)
		if err != nil {
			return err
		}
		o.ah = h.c
		o.remote_qpn = C.uint32_t(wr.RemoteQPNum)
		o.remote_qkey = C.uint32_t(wr.RemoteQKey)
		return nil
	}
	o.remote_addr = C.uint64_t(wr.RemoteAddr)
	o.rkey = C.uint32_t(wr.RKey)
	switch wr.Opcode {
	case verbs.OpSendWithInv:
		o.rkey = C.uint32_t(wr.InvalidateRKey)
	case verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd:
		o.compare_add = C.uint64_t(wr.CompareAdd)
		o.swap = C.uint64_t(wr.Swap)
	}
	return nil
}
