package softiwarp

import (
	"github.com/rconn/rdma/verbs"
)

// recvQueue is the receive queue. A request leaves it when it completes. Guarded by qp.mu.
type recvQueue struct {
	ring []rqe
	segs []seg
	sges int
	head uint64
	tail uint64
}

// rqe is a receive request.
type rqe struct {
	id     uint64
	segs   []seg
	length int
	bad    bool // it names memory that there is not
}

func (r *recvQueue) init(c verbs.QPCap) {
	r.sges = c.MaxRecvSGE
	r.ring = make([]rqe, c.MaxRecvWR)
	r.segs = make([]seg, c.MaxRecvWR*r.sges)
}

// first is the oldest request, nil if there is none.
func (r *recvQueue) first() *rqe {
	if r.head == r.tail {
		return nil
	}
	return &r.ring[r.head%uint64(len(r.ring))]
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range wrs {
		if err := q.postRecv(&wrs[i]); err != nil {
			return i, err
		}
	}
	return len(wrs), nil
}

func (q *qp) postRecv(wr *verbs.RecvWR) error {
	r := &q.rq
	switch {
	case q.closed:
		return verbs.ErrClosed
	case len(wr.SGL) > r.sges:
		return &verbs.LimitError{What: "scatter/gather entries", Got: uint64(len(wr.SGL)), Max: uint64(r.sges)}
	case r.tail-q.rqFreed.Load() >= uint64(len(r.ring)):
		return verbs.ErrQueueFull
	}
	i := int(r.tail % uint64(len(r.ring)))
	e := &r.ring[i]
	*e = rqe{id: wr.ID, segs: r.segs[i*r.sges:][:0:r.sges]}
	for _, s := range wr.SGL {
		g, ok := q.local(s, verbs.AccessLocalWrite)
		if !ok {
			e.bad = true
			break
		}
		if len(g.b) > 0 {
			e.segs = append(e.segs, g)
			e.length += len(g.b)
		}
	}
	r.tail++
	if q.state == verbs.QPError {
		q.flush()
	}
	return nil
}

// completeRecv completes the oldest request. mu is held.
func (q *qp) completeRecv(wc verbs.Completion) {
	r := &q.rq
	wc.ID = r.first().id
	pos := r.head
	r.head++
	q.complete(q.recvCQ, &cqe{Completion: wc, recv: true, pos: pos})
}
