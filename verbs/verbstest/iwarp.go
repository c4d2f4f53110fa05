package verbstest

import (
	"slices"

	"github.com/rconn/rdma/verbs"
)

// This file is the iWARP protocol: requests go through TCP. One completes when TCP has taken it over, which says nothing about the
// peer; and an error at the peer, or a SEND that finds no receive posted, ends the connection.

// stream is one direction of a TCP connection: what was taken over and is not at the peer yet. It outlives its QP.
type stream struct {
	fab   *Fabric
	id    *id // the sending end
	lane  lane
	queue []*packet
	bytes int
	moved int // packets delivered
}

type packet struct {
	req     *sendReq // nil: the end of the stream
	answer  bool     // to req, a READ of the peer's
	payload []byte
	arrived bool
}

// handOver gives requests to TCP, as many as there is room for.
func (q *qp) handOver() {
	for q.operational() && !q.halted && !q.dev.paused && q.next < len(q.sq) {
		r := q.sq[q.next]
		full := len(q.out.queue) > 0 && q.out.bytes+int(r.length()) > q.dev.cfg.SendBuffer
		if !r.arrived || full || r.Flags&verbs.Fence != 0 && q.reads > 0 {
			return
		}
		q.next++
		payload, ok := q.collect(r)
		switch {
		case !ok:
			r.status = verbs.StatusLocProtErr
		case r.length() > maxMessage:
			r.status = verbs.StatusLocLenErr
		case r.Opcode == verbs.OpRDMARead && q.initiator == 0:
			r.status = verbs.StatusLocQPOpErr
		default:
			q.out.put(&packet{req: r, payload: slices.Clone(payload)})
		}
		if r.Opcode == verbs.OpRDMARead && r.status == verbs.StatusSuccess {
			q.reads++
			continue
		}
		r.done = true
		q.halted = r.status != verbs.StatusSuccess
		q.finish()
	}
}

// finish completes, in order, what is done.
func (q *qp) finish() {
	for q.operational() && q.next > 0 && q.sq[0].done {
		status := q.sq[0].status
		q.complete(status)
		if status != verbs.StatusSuccess {
			q.terminate(verbs.EventQPFatal)
		}
	}
}

func (s *stream) put(p *packet) {
	s.queue = append(s.queue, p)
	s.bytes += len(p.payload)
	s.fab.in(&s.lane, s.fab.delay(), func() { p.arrived = true; s.deliver() })
}

// deliver brings to the peer what has arrived there.
func (s *stream) deliver() {
	for len(s.queue) > 0 && s.queue[0].arrived {
		peer := s.id.peer
		if peer == nil || peer.state == connecting {
			return // it has not seen our reply yet
		}
		if !s.fab.path(s.id.dev, peer.dev) {
			s.hang()
			return
		}
		p := s.queue[0]
		s.queue = s.queue[1:]
		s.bytes -= len(p.payload)
		s.moved++
		delete(s.fab.stuck, s)
		switch q := peer.qp; {
		case p.req == nil:
			peer.streamEnded()
		case q == nil || !q.operational():
			// Nobody is there to take it; the end of the peer's stream is on its way.
		case p.answer:
			q.readDone(p)
		default:
			q.place(p)
		}
	}
	if s.id.qp != nil {
		s.id.qp.handOver()
	}
}

// hang waits for the path, but not longer than TCP does.
func (s *stream) hang() {
	if s.fab.stuck[s] {
		return
	}
	s.fab.stuck[s] = true
	moved := s.moved
	s.fab.after(s.id.dev.cfg.TCPTimeout, func() {
		if s.fab.stuck[s] && s.moved == moved {
			s.queue, s.bytes = nil, 0
			delete(s.fab.stuck, s)
			s.id.streamEnded()
		}
	})
}

// place does at the peer what a request asks for.
func (q *qp) place(p *packet) {
	r := p.req
	if r.Opcode == verbs.OpSend {
		switch {
		case len(q.rq) == 0:
			q.terminate(verbs.EventQPReqErr)
		case q.receive(p.payload) != verbs.StatusSuccess:
			q.id.streamEnded()
		}
		return
	}
	switch status := q.serve(r, p.payload); {
	case status != verbs.StatusSuccess:
		q.id.streamEnded()
	case r.Opcode == verbs.OpRDMARead:
		q.out.put(&packet{req: r, answer: true, payload: r.payload})
	}
}

// readDone takes the answer to a READ.
func (q *qp) readDone(p *packet) {
	r := p.req
	q.reads--
	r.done = true
	if !q.pd.scatter(r.SGL, p.payload) {
		r.status = verbs.StatusLocProtErr
		q.halted = true
	}
	q.finish()
	q.handOver() // a fence may have opened
}

// terminate ends the connection because of an error.
func (q *qp) terminate(e verbs.AsyncEventType) {
	q.fatal(e)
	q.id.streamEnded()
}
