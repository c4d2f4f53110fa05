//go:build linux && cgo

package rdmacore

/*
#cgo noescape rc_post_recv
#cgo nocallback rc_post_recv
#include "shim.h"
*/
import "C"

import (
	"sync"
	"unsafe"

	"github.com/rconn/rdma/verbs"
)

// recvQueue takes receives: the receive side of a QP, or an SRQ.
type recvQueue struct {
	dev    *device
	maxSGE int

	mu    sync.Mutex
	c     *C.struct_rc_rq // nil once closed
	ready bool            // it may be posted to
}

func (r *recvQueue) set(c *C.struct_rc_rq) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.c = c
}

func (r *recvQueue) setReady(ready bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready = ready
}

func (r *recvQueue) mayPost() error {
	if r.c == nil {
		return verbs.ErrClosed
	}
	if err := r.dev.check(); err != nil {
		return err
	}
	if !r.ready {
		return errReset
	}
	return nil
}

// post writes the requests into the queue's flat arrays and posts up to RC_BATCH of them with one crossing.
func (r *recvQueue) post(wrs []verbs.RecvWR) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.mayPost(); err != nil {
		return 0, err
	}
	done := 0
	for done < len(wrs) {
		batch := wrs[done:min(done+C.RC_BATCH, len(wrs))]
		n, bad := r.encode(batch)
		if n > 0 {
			p := C.rc_post_recv(r.c, C.int(n))
			done += int(p.n)
			if p.err != 0 {
				return done, postErr("ibv_post_recv", int(p.err))
			}
		}
		if bad != nil {
			return done, bad
		}
	}
	return done, nil
}

// encode writes requests until one is wrong, and returns how many it wrote and what is wrong with the next.
func (r *recvQueue) encode(wrs []verbs.RecvWR) (int, error) {
	out := unsafe.Slice(r.c.wr, C.RC_BATCH)
	sges := unsafe.Slice((*verbs.SGE)(unsafe.Pointer(r.c.sge)), C.RC_BATCH*r.maxSGE)
	for i := range wrs {
		wr := &wrs[i]
		if err := checkSGL(len(wr.SGL), r.maxSGE); err != nil {
			return i, err
		}
		n := copySGL(sges[i*r.maxSGE:], wr.SGL)
		out[i] = C.struct_rc_recv_wr{id: C.uint64_t(wr.ID), num_sge: C.uint32_t(n)}
	}
	return len(wrs), nil
}
