package verbstest

import (
	"github.com/rconn/rdma/verbs"
)

// This file is the iWARP protocol: requests go through TCP. One completes when TCP has taken it over, which says nothing about the
// peer; and an error at the peer, or a SEND that finds no receive posted, ends the connection.

// stream is one direction of a TCP connection: what was taken over and is not at the peer yet. It outlives its QP.
type stream struct {
	fab     *Fabric
	id      *id // the sending end
	lane    lane
	queue   fifo[packet]
	bytes   int
	put     uint64 // packets ever
	arrived uint64 // those whose time has come
	moved   uint64 // those delivered
	arrive  func() // the method, bound once
}

// packet is a message.
type packet struct {
	kind    packetKind
	wr      verbs.SendWR // of a request; memory and inline payload mean nothing here
	n       uint64       // bytes that a request moves
	payload []byte
	pos     uint64
}

type packetKind uint8

const (
	endOfStream packetKind = iota
	request
	result // of the peer's oldest READ or atomic
)

//go:norace
func newStream(i *id) *stream {
	s := &stream{fab: i.fab, id: i}
	s.arrive = s.packetArrived
	return s
}

// handOver gives requests to TCP, as many as there is room for.
//
//go:norace
func (q *qp) handOver() {
	for q.mayGo() {
		r := q.sq.at(q.next)
		if q.out.queue.len() > 0 && q.out.bytes+int(r.length()) > q.dev.cfg.SendBuffer {
			return
		}
		q.next++
		payload, status := q.check(r)
		r.status = status
		if status == verbs.StatusSuccess {
			p := q.out.add(request)
			p.wr, p.n = r.SendWR, r.length()
			p.payload = appendMemory(p.payload, payload)
			q.out.send(p)
			if brings(r.Opcode) {
				q.reads++
				continue
			}
		}
		r.done = true
		q.halted = status != verbs.StatusSuccess
		q.finish()
	}
}

// finish completes, in order, what is done.
//
//go:norace
func (q *qp) finish() {
	for q.operational() && q.next > 0 && q.sq.at(0).done {
		status := q.sq.at(0).status
		q.complete(status)
		if status != verbs.StatusSuccess {
			q.terminate(verbs.EventQPFatal)
		}
	}
}

// add is a packet to be filled and given to send.
//
//go:norace
func (s *stream) add(kind packetKind) *packet {
	p := s.queue.add()
	*p = packet{kind: kind, payload: p.payload[:0], pos: s.put}
	s.put++
	return p
}

//go:norace
func (s *stream) send(p *packet) {
	s.bytes += len(p.payload)
	s.fab.in(&s.lane, s.fab.delay(), s.arrive)
}

// end closes the stream.
//
//go:norace
func (s *stream) end() { s.send(s.add(endOfStream)) }

//go:norace
func (s *stream) packetArrived() {
	s.arrived++
	s.deliver()
}

// deliver brings to the peer what has arrived there.
//
//go:norace
func (s *stream) deliver() {
	for s.queue.len() > 0 && s.queue.at(0).pos < s.arrived {
		peer := s.id.peer
		if peer == nil || peer.state == connecting {
			return // it has not seen our reply yet
		}
		if !s.fab.path(s.id.dev, peer.dev) {
			s.hang()
			return
		}
		p := s.queue.at(0)
		s.queue.drop(1) // nobody adds one meanwhile
		s.bytes -= len(p.payload)
		s.moved++
		if len(s.fab.stuck) > 0 {
			delete(s.fab.stuck, s)
		}
		switch q := peer.qp; {
		case p.kind == endOfStream:
			peer.streamEnded()
		case q == nil || !q.operational():
			// Nobody is there to take it; the end of the peer's stream is on its way.
		case p.kind == result:
			q.resultArrived(p.payload)
		default:
			q.place(p)
		}
	}
	if s.id.qp != nil {
		s.id.qp.handOver()
	}
}

// hang waits for the path, but not longer than TCP does.
//
//go:norace
func (s *stream) hang() {
	if s.fab.stuck[s] {
		return
	}
	s.fab.stuck[s] = true
	moved := s.moved
	s.fab.after(s.id.dev.cfg.TCPTimeout, func() {
		if s.fab.stuck[s] && s.moved == moved {
			s.queue.clear()
			s.bytes = 0
			delete(s.fab.stuck, s)
			s.id.streamEnded()
		}
	})
}

// place does at the peer what a request asks for. Whatever goes wrong ends the connection.
//
//go:norace
func (q *qp) place(p *packet) {
	op := p.wr.Opcode
	noRecv := takesRecv(op) && q.receives().len() == 0
	if noRecv && op != verbs.OpRDMAWriteWithImm {
		q.terminate(verbs.EventQPReqErr)
		return
	}
	q.result = q.result[:0]
	switch status := q.serve(&p.wr, p.n, p.payload, &q.result); {
	case status != verbs.StatusSuccess:
		q.id.streamEnded()
	case brings(op):
		answer := q.out.add(result)
		answer.payload = append(answer.payload, q.result...)
		q.out.send(answer)
	case op == verbs.OpRDMAWriteWithImm && noRecv:
		q.terminate(verbs.EventQPReqErr)
	case op == verbs.OpRDMAWriteWithImm:
		q.receiveImm(&p.wr, uint32(p.n))
	}
}

// resultArrived takes what the oldest READ or atomic brings.
//
//go:norace
func (q *qp) resultArrived(payload []byte) {
	i := 0
	for r := q.sq.at(i); r.done || !brings(r.Opcode); r = q.sq.at(i) {
		i++
	}
	r := q.sq.at(i)
	q.reads--
	r.done = true
	if !q.pd.scatter(r.SGL, 0, payload) {
		r.status = verbs.StatusLocProtErr
		q.halted = true
	}
	q.finish()
	q.handOver() // a fence may have opened
}

// terminate ends the connection because of an error.
//
//go:norace
func (q *qp) terminate(e verbs.AsyncEventType) {
	q.fatal(e)
	q.id.streamEnded()
}
