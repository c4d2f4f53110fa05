package softiwarp

import (
	"sync"
	"sync/atomic"

	"github.com/rconn/rdma/verbs"
)

// srq is a shared receive queue. A QP takes the oldest entry for itself when the first segment of a message that needs one is here. The
// room it had in the queue is free again when its completion is polled, as in a QP's own queue.
//
// mu is taken with a qp.mu held, never the other way round.
type srq struct {
	pd   *pd
	refs refs         // QPs
	used atomic.Int64 // entries in the queue, with a QP, or with a completion that was not polled

	mu     sync.Mutex
	queue  recvQueue
	memory lookup
	limit  int // 0: not armed
}

func (p *pd) CreateSRQ(o verbs.SRQOptions) (verbs.SRQ, error) {
	d := p.dev
	sges := max(o.MaxSGE, 1)
	switch {
	case o.MaxWR < 1, o.MaxSGE < 0:
		return nil, misuse("an SRQ of %d entries of %d pieces", o.MaxWR, o.MaxSGE)
	case o.MaxWR > d.attr.MaxSRQWR:
		return nil, &verbs.LimitError{What: "shared receive queue entries", Got: uint64(o.MaxWR), Max: uint64(d.attr.MaxSRQWR)}
	case sges > d.attr.MaxSRQSGE:
		return nil, &verbs.LimitError{
			What: "scatter/gather entries of a shared receive queue", Got: uint64(sges), Max: uint64(d.attr.MaxSRQSGE),
		}
	}
	if err := p.refs.acquire(); err != nil {
		return nil, err
	}
	if err := d.take(&d.open.srqs, d.attr.MaxSRQ, "CreateSRQ"); err != nil {
		p.refs.release()
		return nil, err
	}
	s := &srq{pd: p, memory: lookup{pd: p}}
	s.queue.init(o.MaxWR, sges)
	return s, nil
}

func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refs.open(); err != nil {
		return 0, err
	}
	for i := range wrs {
		freed := s.queue.tail - uint64(s.used.Load())
		if err := s.queue.post(&wrs[i], freed, &s.memory); err != nil {
			return i, err
		}
		s.used.Add(1)
	}
	return len(wrs), nil
}

func (s *srq) Query() (verbs.SRQAttr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refs.open(); err != nil {
		return verbs.SRQAttr{}, err
	}
	return verbs.SRQAttr{MaxWR: len(s.queue.ring), MaxSGE: s.queue.sges, Limit: s.limit}, nil
}

func (s *srq) SetLimit(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refs.open(); err != nil {
		return err
	}
	switch granted := len(s.queue.ring); {
	case n < 0:
		return misuse("an SRQ's limit of %d", n)
	case n > granted:
		return &verbs.LimitError{What: "entries as the limit of a shared receive queue", Got: uint64(n), Max: uint64(granted)}
	}
	s.limit = n
	s.checkLimit()
	return nil
}

// checkLimit tells once that fewer entries are left than was asked for. mu is held.
func (s *srq) checkLimit() {
	if s.limit > 0 && s.queue.tail-s.queue.head < uint64(s.limit) {
		s.limit = 0
		s.pd.dev.async(verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: s})
	}
}

// take moves the oldest entry to the queue of a QP, which is empty. False: there is none.
func (s *srq) take(to *recvQueue) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.queue.first()
	if e == nil {
		return false
	}
	x := to.push(e.id)
	x.segs, x.length, x.bad = append(x.segs, e.segs...), e.length, e.bad
	clear(e.segs)
	s.queue.head++
	s.checkLimit()
	return true
}

func (s *srq) Close() error {
	last, err := s.refs.close()
	if !last {
		return err
	}
	s.mu.Lock()
	s.queue = recvQueue{} // nobody looks at it any more
	s.mu.Unlock()
	s.pd.refs.release()
	s.pd.dev.count(&s.pd.dev.open.srqs, -1)
	return nil
}
