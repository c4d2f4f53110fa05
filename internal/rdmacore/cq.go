//go:build linux && cgo

package rdmacore

/*
#cgo noescape rc_poll
#cgo nocallback rc_poll
#include "shim.h"
*/
import "C"

import (
	"sync"
	"syscall"
	"unsafe"

	"github.com/rconn/rdma/verbs"
)

// cq is a completion queue.
type cq struct {
	dev     *device
	channel *channel // nil: only polled
	depth   int
	handle  uint64
	refs    refs // QPs

	mu sync.Mutex // polling, by the user or by the channel's Wait
	c  *C.struct_rc_cq
	ud map[uint32]bool // the UD QPs that receive by it
}

func (d *device) CreateCQ(o verbs.CQOptions) (verbs.CQ, error) {
	if o.Depth < 1 {
		return nil, sysErr("ibv_create_cq", int(syscall.EINVAL))
	}
	if o.Depth > d.attr.MaxCQE {
		return nil, &verbs.LimitError{What: "completion queue entries", Got: uint64(o.Depth), Max: uint64(d.attr.MaxCQE)}
	}
	q := &cq{dev: d}
	var cc *C.struct_rc_channel
	if o.Channel != nil {
		c, ok := o.Channel.(*channel)
		if !ok || c.dev != d {
			return nil, verbs.ErrForeign
		}
		if err := c.refs.acquire(); err != nil {
			return nil, err
		}
		q.channel, cc = c, c.c
	}
	var solicited C.int
	if o.SolicitedOnly && !d.isSiw() { // which would never tell
		solicited = 1
	}
	q.handle = d.objects.add(q)
	err := d.acquire()
	if err == nil {
		err = d.p.calls.do(func() error {
			d.plugSiw()
			var depth C.int
			errno := C.rc_create_cq(d.ctx, C.int(o.Depth), cc, solicited, C.uint64_t(q.handle), &q.c, &depth)
			q.depth = int(depth)
			return sysErr("ibv_create_cq", int(errno))
		})
		if err == nil {
			if err = q.channel.attach(q); err == nil {
				return q, nil
			}
			C.rc_destroy_cq(q.c)
		}
		d.release()
	}
	d.objects.remove(q.handle)
	if q.channel != nil {
		q.channel.refs.release()
	}
	return nil, err
}

func (q *cq) Depth() int { return q.depth }

func (q *cq) Poll(wc []verbs.Completion) (int, error) {
	if len(wc) == 0 {
		return 0, q.refs.open()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.c == nil {
		return 0, verbs.ErrClosed
	}
	if q.c.n > 0 {
		return q.unstash(wc), nil
	}
	n := int(C.rc_poll(q.c, (*C.struct_rc_wc)(unsafe.Pointer(&wc[0])), C.int(len(wc))))
	if n > 0 {
		q.dropSources(wc[:n])
		return n, nil
	}
	if err := q.dev.check(); err != nil {
		return 0, err
	}
	return 0, sysErr("ibv_poll_cq", -n)
}

// unstash takes what a Wait has found, without a call into C. What has completed since is for the next Poll.
func (q *cq) unstash(wc []verbs.Completion) int {
	stash := unsafe.Slice((*verbs.Completion)(unsafe.Pointer(&q.c.stash)), C.RC_STASH)
	n := copy(wc, stash[q.c.head:][:q.c.n])
	q.c.head += C.int(n)
	q.c.n -= C.int(n)
	q.dropSources(wc[:n])
	return n
}

// setUD notes a UD QP that receives by the CQ.
func (q *cq) setUD(num uint32, open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ud == nil {
		q.ud = make(map[uint32]bool)
	}
	if open {
		q.ud[num] = true
	} else {
		delete(q.ud, num)
	}
	q.c.ud = C.int(len(q.ud))
}

// dropSources is for a CQ that QPs of other types use too: what their completions say about the sender means nothing.
func (q *cq) dropSources(wc []verbs.Completion) {
	if len(q.ud) == 0 {
		return
	}
	for i := range wc {
		if c := &wc[i]; !q.ud[c.QPNum] {
			c.Flags &^= verbs.WCGRH
			c.SrcQPNum, c.SLID, c.SL, c.SrcPathBits = 0, 0, 0, 0
		}
	}
}

func (q *cq) Close() error {
	return q.refs.close(func() error {
		q.channel.detach(q)
		q.mu.Lock()
		c := q.c
		q.c = nil
		q.mu.Unlock()
		err := q.dev.p.calls.do(func() error { return sysErr("ibv_destroy_cq", int(C.rc_destroy_cq(c))) })
		if err != nil {
			q.mu.Lock()
			q.c = c
			q.mu.Unlock()
			q.channel.attach(q)
			return err
		}
		q.dev.objects.remove(q.handle)
		if q.channel != nil {
			q.channel.refs.release()
		}
		q.dev.release()
		return nil
	})
}
