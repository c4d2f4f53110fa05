package verbstest

import (
	"os"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// srq is a shared receive queue.
type srq struct {
	pd     *pd
	attr   verbs.SRQAttr
	rq     fifo[recvReq] // posted and not taken
	used   int           // entries that are not free: posted, and no completion was polled
	qps    int
	hungry []*qp // that had to turn a message away
	closed bool
}

// CreateSRQ implements verbs.PD.
func (p *pd) CreateSRQ(o verbs.SRQOptions) (verbs.SRQ, error) {
	d := p.dev
	if err := d.call(CreateSRQ); err != nil {
		return nil, err
	}
	defer d.fab.mu.Unlock()
	switch {
	case p.closed:
		return nil, verbs.ErrClosed
	case d.attr.MaxSRQ == 0:
		return nil, &verbs.UnsupportedError{Device: d.cfg.Name, What: "shared receive queues"}
	case o.MaxWR < 1 || o.MaxSGE < 0:
		return nil, os.NewSyscallError("ibv_create_srq", syscall.EINVAL)
	case o.MaxWR > d.attr.MaxSRQWR:
		return nil, &verbs.LimitError{What: "shared receive queue entries", Got: uint64(o.MaxWR), Max: uint64(d.attr.MaxSRQWR)}
	case o.MaxSGE > d.attr.MaxSRQSGE:
		return nil, &verbs.LimitError{
			What: "scatter/gather entries of a shared receive queue", Got: uint64(o.MaxSGE), Max: uint64(d.attr.MaxSRQSGE),
		}
	case len(d.srqs) >= d.attr.MaxSRQ:
		return nil, os.NewSyscallError("ibv_create_srq", syscall.ENOMEM)
	}
	s := &srq{pd: p, attr: verbs.SRQAttr{MaxWR: granted(o.MaxWR, d.attr.MaxSRQWR), MaxSGE: max(o.MaxSGE, 1)}}
	d.srqs[s] = true
	p.srqs++
	d.host.count(&d.host.objects.SRQs, 1)
	return s, nil
}

// usable says why no call can work.
func (s *srq) usable() error {
	if s.closed {
		return verbs.ErrClosed
	}
	return s.pd.dev.check()
}

func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	return post(s.pd.dev.host, PostRecv, len(wrs), func(i int) error { return s.postRecv(&wrs[i]) })
}

//go:norace
func (s *srq) postRecv(wr *verbs.RecvWR) error {
	if err := s.usable(); err != nil {
		return err
	}
	switch {
	case len(wr.SGL) > s.attr.MaxSGE:
		return &verbs.LimitError{What: "scatter/gather entries", Got: uint64(len(wr.SGL)), Max: uint64(s.attr.MaxSGE)}
	case s.used >= s.attr.MaxWR:
		return verbs.ErrQueueFull
	}
	s.rq.add().set(wr, 0)
	s.used++
	for _, q := range s.hungry {
		q.tellPeer()
	}
	s.hungry = s.hungry[:0]
	return nil
}

// turnedAway remembers that a QP found no request for a message, which comes again.
//
//go:norace
func (s *srq) turnedAway(q *qp) {
	for _, h := range s.hungry {
		if h == q {
			return
		}
	}
	s.hungry = append(s.hungry, q)
}

// checkLimit is called when there are fewer entries, or another limit.
//
//go:norace
func (s *srq) checkLimit() {
	if s.rq.len() < s.attr.Limit {
		s.attr.Limit = 0
		s.pd.dev.async(verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: s})
	}
}

func (s *srq) Query() (verbs.SRQAttr, error) {
	if err := s.pd.dev.host.before(Query); err != nil {
		return verbs.SRQAttr{}, err
	}
	s.pd.dev.fab.mu.Lock()
	defer s.pd.dev.fab.mu.Unlock()
	if err := s.usable(); err != nil {
		return verbs.SRQAttr{}, err
	}
	return s.attr, nil
}

func (s *srq) SetLimit(n int) error {
	if err := s.pd.dev.host.before(SetLimit); err != nil {
		return err
	}
	s.pd.dev.fab.mu.Lock()
	defer s.pd.dev.fab.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	switch {
	case n < 0:
		return os.NewSyscallError("ibv_modify_srq", syscall.EINVAL)
	case n > s.attr.MaxWR:
		return &verbs.LimitError{What: "entries as limit", Got: uint64(n), Max: uint64(s.attr.MaxWR)}
	}
	s.attr.Limit = n
	s.checkLimit()
	return nil
}

func (s *srq) Close() error {
	d := s.pd.dev
	d.fab.mu.Lock()
	defer d.fab.mu.Unlock()
	switch {
	case s.closed:
		return nil
	case s.qps > 0:
		d.fab.violate("host %s: SRQ closed while a QP uses it", d.host.name)
		return verbs.ErrBusy
	}
	s.closed = true
	s.rq.clear()
	delete(d.srqs, s)
	s.pd.srqs--
	d.host.count(&d.host.objects.SRQs, -1)
	return nil
}
