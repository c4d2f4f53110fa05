package softiwarp

import (
	"github.com/rconn/rdma/verbs"
)

// recvQueue is a queue of receives: a QP's own, or an SRQ's. That of a QP with an SRQ has one entry, which it has taken from there for the
// message that is coming in. In a QP a request leaves the queue when it completes. Guarded by the owner's mu.
type recvQueue struct {
	ring []rqe
	segs []seg // room for the requests' scatter/gather entries
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

func (r *recvQueue) init(wrs, sges int) {
	r.sges = sges
	r.ring = make([]rqe, wrs)
	r.segs = make([]seg, wrs*sges)
}

// first is the oldest request, nil if there is none.
func (r *recvQueue) first() *rqe {
	if r.head == r.tail {
		return nil
	}
	return &r.ring[r.head%uint64(len(r.ring))]
}

// push makes room for a request at the end of the queue.
func (r *recvQueue) push(id uint64) *rqe {
	i := int(r.tail % uint64(len(r.ring)))
	e := &r.ring[i]
	*e = rqe{id: id, segs: r.segs[i*r.sges:][:0:r.sges]}
	r.tail++
	return e
}

// post takes a request, if there is room beside those from freed on.
func (r *recvQueue) post(wr *verbs.RecvWR, freed uint64, memory *lookup) error {
	switch {
	case len(wr.SGL) > r.sges:
		return &verbs.LimitError{What: "scatter/gather entries", Got: uint64(len(wr.SGL)), Max: uint64(r.sges)}
	case r.tail-freed >= uint64(len(r.ring)):
		return verbs.ErrQueueFull
	}
	e := r.push(wr.ID)
	for _, s := range wr.SGL {
		g, ok := memory.find(s, verbs.AccessLocalWrite)
		if !ok {
			e.bad = true
			break
		}
		if len(g.b) > 0 {
			e.segs = append(e.segs, g)
			e.length += len(g.b)
		}
	}
	return nil
}

var errHasSRQ = misuse("the queue pair receives from its SRQ: post to that")

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return 0, verbs.ErrClosed
	case q.srq != nil:
		return 0, errHasSRQ
	}
	n, err := len(wrs), error(nil)
	for i := range wrs {
		if err = q.rq.post(&wrs[i], q.rqFreed.Load(), &q.memory); err != nil {
			n = i
			break
		}
	}
	if q.state == verbs.QPError {
		q.flush()
	}
	return n, err
}

// completeRecv completes the oldest request. mu is held.
func (q *qp) completeRecv(wc verbs.Completion, solicited bool) {
	r := &q.rq
	e := r.first()
	wc.ID = e.id
	clear(e.segs)
	pos := r.head
	r.head++
	q.complete(q.recvCQ, &cqe{Completion: wc, recv: true, solicited: solicited, pos: pos})
}
