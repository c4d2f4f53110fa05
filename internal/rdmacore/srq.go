//go:build linux && cgo

package rdmacore

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"sync/atomic"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// srq is a shared receive queue.
type srq struct {
	pd     *pd
	c      *C.struct_rc_srq // of the creation, for QPs that hold a reference
	handle uint64
	refs   refs // QPs
	recv   recvQueue

	granted verbs.SRQAttr
	limit   atomic.Int64 // what was armed last, until its event was seen
}

func (p *pd) CreateSRQ(o verbs.SRQOptions) (verbs.SRQ, error) {
	d := p.dev
	if err := checkSRQOptions(d.name, &d.attr, &o); err != nil {
		return nil, err
	}
	if err := d.check(); err != nil {
		return nil, err
	}
	if err := p.refs.acquire(); err != nil {
		return nil, err
	}
	s := &srq{pd: p}
	s.handle = d.objects.add(s)
	err := d.p.calls.do(func() error {
		d.plugSiw()
		return s.create(o)
	})
	if err != nil {
		d.objects.remove(s.handle)
		p.refs.release()
		return nil, d.orRemoved(err)
	}
	return s, nil
}

func (s *srq) create(o verbs.SRQOptions) error {
	a := C.struct_rc_srq_attr{max_wr: C.int(o.MaxWR), max_sge: C.int(o.MaxSGE)}
	if err := sysErr("ibv_create_srq", int(C.rc_create_srq(s.pd.c, &a, C.uint64_t(s.handle), &s.c))); err != nil {
		return err
	}
	s.recv = recvQueue{dev: s.pd.dev, c: &s.c.rq, maxSGE: int(a.max_sge), ready: true}
	s.granted = verbs.SRQAttr{MaxWR: int(a.max_wr), MaxSGE: int(a.max_sge)}
	if got, err := s.ask(); err == nil { // rxe grants more than creating it tells
		s.granted = got
	}
	return nil
}

func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) { return s.recv.post(wrs) }

func (s *srq) Query() (verbs.SRQAttr, error) {
	s.recv.mu.Lock()
	defer s.recv.mu.Unlock()
	if err := s.recv.mayPost(); err != nil {
		return verbs.SRQAttr{}, err
	}
	a, err := s.ask()
	if errors.Is(err, syscall.EOPNOTSUPP) { // siw's library cannot ask
		a, err = s.granted, nil
		a.Limit = int(s.limit.Load())
	}
	return a, err
}

func (s *srq) ask() (verbs.SRQAttr, error) {
	var a C.struct_rc_srq_attr
	if err := sysErr("ibv_query_srq", int(C.rc_query_srq(s.c, &a))); err != nil {
		return verbs.SRQAttr{}, err
	}
	return verbs.SRQAttr{MaxWR: int(a.max_wr), MaxSGE: int(a.max_sge), Limit: int(a.limit)}, nil
}

func (s *srq) SetLimit(n int) error {
	s.recv.mu.Lock()
	defer s.recv.mu.Unlock()
	if err := s.recv.mayPost(); err != nil {
		return err
	}
	switch {
	case n < 0:
		return sysErr("ibv_modify_srq", int(syscall.EINVAL))
	case n > s.granted.MaxWR:
		return &verbs.LimitError{What: "receives as limit of a shared receive queue", Got: uint64(n), Max: uint64(s.granted.MaxWR)}
	}
	was := s.limit.Swap(int64(n)) // before the event can come
	err := sysErr("ibv_modify_srq", int(C.rc_set_srq_limit(s.c, C.int(n))))
	if err != nil {
		s.limit.Store(was)
	}
	return err
}

func (s *srq) Close() error {
	return s.refs.close(func() error {
		s.recv.set(nil)
		d := s.pd.dev
		err := d.p.closes.do(func() error { return sysErr("ibv_destroy_srq", int(C.rc_destroy_srq(s.c))) })
		if err != nil {
			s.recv.set(&s.c.rq)
			return err
		}
		d.objects.remove(s.handle)
		s.pd.refs.release()
		return nil
	})
}

// ownSRQ checks that a QP's SRQ is of the PD. There may be none.
func (p *pd) ownSRQ(o verbs.SRQ) (*srq, error) {
	if o == nil {
		return nil, nil
	}
	s, ok := o.(*srq)
	switch {
	case !ok || s.pd.dev != p.dev:
		return nil, verbs.ErrForeign
	case s.pd != p:
		return nil, errOtherPD
	}
	return s, nil
}
