package softiwarp

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"github.com/rconn/rdma/verbs"
)

// arrive looks at a header before anything of its payload is placed, and finds the place. A control message is done in one: body is
// what follows its header.
func (q *qp) arrive(h *header, body []byte) *fault {
	r := &q.rx
	rtr := rtrKinds(0)
	if !r.begun {
		r.begun = true
		rtr = q.firstFPDU()
	}
	wrote := r.wrote
	r.wrote = false
	switch h.op {
	case opWrite:
		return q.arriveWrite(h)
	case opReadResponse:
		return q.arriveReadResponse(h)
	case opReadRequest, opAtomicRequest:
		if f := r.count(h); f != nil {
			return f
		}
		if h.op == opAtomicRequest {
			return q.arriveAtomic(body)
		}
		return q.arriveReadRequest(body, rtr == rtrRead)
	case opAtomicResponse:
		if f := r.count(h); f != nil {
			return f
		}
		return q.arriveAtomicResponse(body)
	case opTerminate:
		q.peerTerminated(body)
		return nil
	case opImmediate, opImmediateSE:
		return q.arriveImmediate(h, body, wrote)
	}
	if rtr == rtrSend && h.op == opSend && h.payload == 0 && h.last && h.msn == 1 && h.mo == 0 {
		r.send = incoming{active: true, op: opSend} // it completes nothing
		r.dst = nil
		return nil
	}
	return q.arriveSend(h)
}

// count checks an untagged message of one segment.
func (r *receiver) count(h *header) *fault {
	switch {
	case h.msn != r.msn[h.qn]:
		return &faultMSN
	case h.mo != 0:
		return &faultMO
	case !h.last:
		return &faultUnspecified
	}
	r.msn[h.qn]++
	return nil
}

// Why memory cannot be reached by a key.
const (
	reached = iota
	noSTag
	outOfBounds
	noAccess
	wrongPD
	wraps
	reachCount
)

var (
	writeFaults   = [reachCount]*fault{nil, &faultTaggedSTag, &faultTaggedBounds, &faultWriteAccess, &faultTaggedPD, &faultTaggedWrap}
	requestFaults = [reachCount]*fault{
		nil, &faultRequestSTag, &faultRequestBounds, &faultRequestAccess, &faultRequestPD, &faultRequestWrap,
	}
)

// reach finds memory for the peer.
func (q *qp) reach(stag uint32, to uint64, n int, access verbs.Access) (seg, int) {
	m := q.rx.lastMR
	if m == nil || m.key != stag || m.state.Load()&mrClosed != 0 {
		if m = q.dev.mrs.find(stag); m == nil {
			return seg{}, noSTag
		}
		if m.pd == q.pd {
			q.rx.lastMR = m
		}
	}
	switch {
	case m.pd != q.pd:
		return seg{}, wrongPD
	case m.revoked.Load():
		return seg{}, noSTag
	case m.access&access != access:
		return seg{}, noAccess
	case to+uint64(n) < to:
		return seg{}, wraps
	}
	b, ok := m.slice(to, uint64(n))
	if !ok {
		return seg{}, outOfBounds
	}
	return seg{m, b}, reached
}

// interleaved checks that tagged messages of different kinds are not mixed.
func (r *receiver) interleaved(h *header) bool {
	if r.tagged != opCount && r.tagged != h.op {
		return true
	}
	if r.tagged == opCount {
		r.writeLen = 0
	}
	r.tagged = h.op
	if h.last {
		r.tagged = opCount
	}
	return false
}

func (r *receiver) into(s seg) {
	r.one[0] = s
	r.dst, r.di, r.do = r.one[:], 0, 0
}

func (q *qp) arriveWrite(h *header) *fault {
	r := &q.rx
	if r.interleaved(h) {
		return &faultOpcode
	}
	r.writeLen += h.payload
	r.wrote = h.last
	if h.payload == 0 {
		return nil // the key does not matter
	}
	s, why := q.reach(h.stag, h.to, h.payload, verbs.AccessRemoteWrite)
	r.into(s)
	return writeFaults[why]
}

func (q *qp) arriveReadResponse(h *header) *fault {
	r := &q.rx
	if r.interleaved(h) {
		return &faultOpcode
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	x := q.reads.first()
	switch {
	case x == nil, x.atomic:
		return &faultOpcode
	case h.stag != x.stag:
		return &faultTaggedSTag
	case h.to != x.to, h.payload > x.left, h.last != (h.payload == x.left):
		return &faultTaggedBounds
	}
	x.to += uint64(h.payload)
	x.left -= h.payload
	if h.payload > 0 {
		s := q.sq.at(x.pos).segs[0]
		done := len(s.b) - x.left - h.payload
		r.into(seg{s.mr, s.b[done:][:h.payload]})
	}
	return nil
}

func (q *qp) arriveReadRequest(body []byte, rtr bool) *fault {
	var x readRequest
	x.parse(body)
	if x.size > maxMessage {
		return &faultRequestBounds
	}
	s := seg{}
	if x.size > 0 {
		var why int
		if s, why = q.reach(x.srcSTag, x.srcTO, int(x.size), verbs.AccessRemoteRead); why != reached {
			return requestFaults[why]
		}
	}
	if x.sinkTO+uint64(x.size) < x.sinkTO {
		return &faultUnspecified
	}
	return q.respond(response{sinkSTag: x.sinkSTag, sinkTO: x.sinkTO, size: int(x.size), source: s}, rtr)
}

// respond queues an answer. rtr says that it is owed whatever was agreed on.
func (q *qp) respond(x response, rtr bool) *fault {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.responses.n >= q.ird && !rtr {
		return &faultNoBuffer
	}
	q.responses.push(x)
	return nil
}

// arriveAtomic executes an atomic at once. Those of all QPs, and of this process by package sync/atomic, exclude each other.
func (q *qp) arriveAtomic(body []byte) *fault {
	var x atomicRequest
	x.parse(body)
	if x.op != atomicFetchAdd && x.op != atomicCmpSwap || x.to%8 != 0 {
		return &faultUnspecified
	}
	s, why := q.reach(x.stag, x.to, 8, verbs.AccessRemoteAtomic)
	switch {
	case why != reached:
		return requestFaults[why]
	case uintptr(unsafe.Pointer(&s.b[0]))%8 != 0: // of a region whose addresses begin at 0
		return &faultUnspecified
	}
	q.mu.Lock()
	full := q.responses.n >= q.ird
	q.mu.Unlock()
	if full {
		return &faultNoBuffer
	}
	if !s.mr.use() {
		return &faultRequestSTag
	}
	word := (*uint64)(unsafe.Pointer(&s.b[0]))
	old := atomic.LoadUint64(word)
	for !atomic.CompareAndSwapUint64(word, old, x.apply(old)) {
		old = atomic.LoadUint64(word)
	}
	s.mr.done()
	return q.respond(response{atomic: true, id: x.id, value: old}, false)
}

func (q *qp) arriveAtomicResponse(body []byte) *fault {
	id, value := binary.BigEndian.Uint32(body), binary.BigEndian.Uint64(body[4:])
	q.mu.Lock()
	defer q.mu.Unlock()
	x := q.reads.first()
	if x == nil || !x.atomic || x.id != id {
		return &faultOpcode
	}
	e := q.sq.at(x.pos)
	s := e.segs[0]
	if !s.mr.use() {
		return &faultLocal
	}
	binary.NativeEndian.PutUint64(s.b, value)
	s.mr.done()
	q.answered()
	return nil
}

// answered ends the oldest READ or atomic. mu is held.
func (q *qp) answered() {
	q.sq.at(q.reads.first().pos).done = true
	q.reads.pop()
	q.completeSends()
}

// arriveSend looks at a segment of any kind of SEND.
func (q *qp) arriveSend(h *header) *fault {
	r := &q.rx
	s := &r.send
	switch {
	case h.msn != r.msn[qnSend]:
		return &faultMSN
	case s.active && s.op != h.op:
		return &faultOpcode
	case int(h.mo) != s.off:
		return &faultMO
	}
	if !s.active {
		if f := q.beginReceive(h.op); f != nil {
			return f
		}
	}
	if h.payload > s.e.length-s.off {
		q.failReceive(verbs.StatusLocLenErr)
		return &faultTooLong
	}
	s.off += h.payload
	r.dst, r.di, r.do = s.e.segs, s.di, s.do
	return nil
}

// beginReceive finds the oldest receive for a message.
func (q *qp) beginReceive(op uint8) *fault {
	q.mu.Lock()
	e := q.rq.first()
	if e == nil && q.srq != nil && q.state == verbs.QPRTS && q.srq.take(&q.rq) {
		e = q.rq.first()
	}
	q.mu.Unlock()
	switch {
	case e == nil:
		return &faultNoBuffer
	case e.bad:
		q.failReceive(verbs.StatusLocProtErr)
		return &faultLocal
	}
	q.rx.send = incoming{active: true, op: op, e: e}
	return nil
}

func (q *qp) failReceive(status verbs.Status) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == verbs.QPRTS {
		q.completeRecv(verbs.Completion{Status: status}, false)
	}
}

// arriveImmediate is an Immediate Data message: the end of a WRITE WITH IMM.
func (q *qp) arriveImmediate(h *header, body []byte, wrote bool) *fault {
	r := &q.rx
	if r.send.active {
		return &faultOpcode
	}
	if f := r.count(h); f != nil {
		return f
	}
	if f := q.beginReceive(h.op); f != nil {
		return f
	}
	r.send = incoming{}
	wc := verbs.Completion{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, Imm: binary.BigEndian.Uint32(body)}
	if wrote {
		wc.ByteLen = uint32(r.writeLen)
	}
	q.received(wc, h.op == opImmediateSE)
	return nil
}

// received completes the oldest receive.
func (q *qp) received(wc verbs.Completion, solicited bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == verbs.QPRTS {
		q.completeRecv(wc, solicited)
	}
}

// segmentEnd is called when a segment's payload is in place. False: the connection is over.
func (q *qp) segmentEnd() bool {
	r := &q.rx
	r.one[0] = seg{}
	switch h := &r.h; {
	case h.op == opWrite:
		return true
	case h.op == opReadResponse:
		if h.last {
			q.mu.Lock()
			defer q.mu.Unlock()
			if q.state == verbs.QPRTS {
				q.answered()
			}
		}
		return true
	case !h.last:
		r.send.di, r.send.do = r.di, r.do
		return true
	}
	return q.sendEnd()
}

// sendEnd delivers a SEND.
func (q *qp) sendEnd() bool {
	r := &q.rx
	s := r.send
	r.send = incoming{}
	r.msn[qnSend]++
	if s.e == nil {
		return true // it only opened the connection
	}
	wc := verbs.Completion{Opcode: verbs.WCRecv, ByteLen: uint32(s.off)}
	solicited := false
	switch r.h.op {
	case opSendSE, opSendImmSE, opSendInvSE:
		solicited = true
	}
	switch r.h.op {
	case opSendImm, opSendImmSE:
		wc.Flags, wc.Imm = verbs.WCWithImm, r.h.ulp
	case opSendInv, opSendInvSE:
		m := q.dev.mrs.find(r.h.ulp)
		if m == nil || m.pd != q.pd || m.access&remoteAccess == 0 || m.revoked.Swap(true) {
			q.terminate(&faultInvalidate, nil)
			return false
		}
		wc.Flags, wc.InvalidatedRKey = verbs.WCWithInv, r.h.ulp
	}
	q.received(wc, solicited)
	return true
}
