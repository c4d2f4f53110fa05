//go:build linux && cgo

package rdmacore

/*
#cgo noescape rc_post_send
#cgo nocallback rc_post_send
#cgo noescape rc_post_recv
#cgo nocallback rc_post_recv
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"syscall"
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
		n, bad := q.encodeSends(batch)
		if n > 0 {
			r := C.rc_post_send(q.send.c, C.int(n))
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
	q.recv.mu.Lock()
	defer q.recv.mu.Unlock()
	if err := q.mayPost(&q.recv); err != nil {
		return 0, err
	}
	done := 0
	for done < len(wrs) {
		batch := wrs[done:min(done+C.RC_BATCH, len(wrs))]
		n, bad := q.encodeRecvs(batch)
		if n > 0 {
			r := C.rc_post_recv(q.recv.c, C.int(n))
			done += int(r.n)
			if r.err != 0 {
				return done, postErr("ibv_post_recv", int(r.err))
			}
		}
		if bad != nil {
			return done, bad
		}
	}
	return done, nil
}

func (q *qp) mayPost(s *queue) error {
	if s.c == nil {
		return verbs.ErrClosed
	}
	return q.id.dev.check()
}

// maySend refuses requests before the connection is made. The libraries of Linux's software devices put them into the queue first and ask the
// kernel then, which says EINVAL, and later sends them all the same.
func (q *qp) maySend() error {
	if err := q.mayPost(&q.send); err != nil || q.connected {
		return err
	}
	if q.id.dev.attr.Transport == verbs.TransportIWARP { // siw tells no state
		q.connected = q.id.m.begun()
		q.reads = q.depth.Load() > 0
	} else {
		var a C.struct_rc_qp_attr
		if err := sysErr("ibv_query_qp", int(C.rc_query_qp(q.send.c, &a))); err != nil {
			return err
		}
		q.connected = verbs.QPState(a.state) >= verbs.QPRTS
		q.reads = a.max_rd_atomic > 0
	}
	if !q.connected {
		return errNotConnected
	}
	return nil
}

var errNotConnected = fmt.Errorf("%w: PostSend before the connection is made", syscall.EINVAL)

// errNoReads is said here because Linux's Soft-RoCE lets such a READ wait for ever.
var errNoReads = fmt.Errorf("%w: a READ on a connection whose InitiatorDepth is 0", syscall.EINVAL)

// encodeSends writes requests until one is wrong, and returns how many it wrote and what is wrong with the next.
func (q *qp) encodeSends(wrs []verbs.SendWR) (int, error) {
	c := q.send.c
	out := unsafe.Slice(c.send, C.RC_BATCH)
	sges := unsafe.Slice((*verbs.SGE)(unsafe.Pointer(c.send_sge)), C.RC_BATCH*q.cap.MaxSendSGE)
	inline := unsafe.Slice((*byte)(c.inline_data), C.RC_BATCH*q.cap.MaxInline)
	for i := range wrs {
		wr := &wrs[i]
		if err := checkSend(q.id.dev.name, q.ops, &q.cap, wr); err != nil {
			return i, err
		}
		if wr.Opcode == verbs.OpRDMARead && !q.reads {
			return i, errNoReads
		}
		sgl := wr.SGL
		if len(wr.Inline) > 0 {
			sgl = nil
			copy(inline[i*q.cap.MaxInline:], wr.Inline)
		}
		copy(sges[i*q.cap.MaxSendSGE:], sgl)
		out[i] = C.struct_rc_send_wr{
			id:          C.uint64_t(wr.ID),
			remote_addr: C.uint64_t(wr.RemoteAddr),
			rkey:        C.uint32_t(wr.RKey),
			imm:         C.uint32_t(wr.Imm),
			inline_len:  C.uint32_t(len(wr.Inline)),
			num_sge:     C.uint16_t(len(sgl)),
			opcode:      C.uint8_t(wr.Opcode),
			flags:       C.uint8_t(wr.Flags),
		}
	}
	return len(wrs), nil
}

func (q *qp) encodeRecvs(wrs []verbs.RecvWR) (int, error) {
	c := q.recv.c
	out := unsafe.Slice(c.recv, C.RC_BATCH)
	sges := unsafe.Slice((*verbs.SGE)(unsafe.Pointer(c.recv_sge)), C.RC_BATCH*q.cap.MaxRecvSGE)
	for i := range wrs {
		wr := &wrs[i]
		if err := checkSGL(len(wr.SGL), q.cap.MaxRecvSGE); err != nil {
			return i, err
		}
		copy(sges[i*q.cap.MaxRecvSGE:], wr.SGL)
		out[i] = C.struct_rc_recv_wr{id: C.uint64_t(wr.ID), num_sge: C.uint32_t(len(wr.SGL))}
	}
	return len(wrs), nil
}
