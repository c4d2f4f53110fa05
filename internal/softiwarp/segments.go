package softiwarp

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/rconn/rdma/verbs"
)

// sender turns requests and responses into FPDUs and those into batches for one writev. It belongs to whoever sends; batches are built
// with qp.mu held.
type sender struct {
	msn [qnCount]uint32 // of the last message

	msg    message // being sent; active is false between messages
	runs   int     // responses in a row
	failed bool    // TCP takes nothing any more; the receiver will find the end

	// The batch. Headers, trailers and short payloads stand in slab, one after the other; longer payloads are referred to.
	slab  []byte
	from  int // what of slab is not in iov yet
	iov   [][]byte
	mrs   []*mr // to be in use while the batch is written
	ends  []uint64
	size  int
	first int // of iov, not written yet

	built, written uint64 // positions in the stream

	bounce []byte // for a response's payload whose CRC must not change

	// For writing, see transmit.go.
	limit   int // bytes of a batch
	vec     vectors
	park    bool               // sleep while TCP takes nothing
	ready   bool               // there is a batch, and all that was written is accounted for
	flat    []byte             // the batch in one piece, where there is no writev
	writeFn func(uintptr) bool // methods, made once so that sending does not allocate
	drainFn func()

	releaseFn func()
}

// message is one that is being cut into segments.
type message struct {
	active bool
	h      header
	segs   []seg // what is left of the payload
	inline []byte
	left   int
	pos    uint64 // of its request
	reply  bool   // it answers the peer's request
	stable bool   // nobody changes the payload meanwhile
	one    [1]seg
}

const (
	slabSize       = 16 << 10
	copyLimit      = 512 // payload bytes that are rather copied than referred to
	batchSize      = 1 << 20
	plainBatchSize = 128 << 10 // where it must be copied
	maxResponses   = 4         // in a row while requests wait

	// segmentRoom is what a segment takes of slab at most, and of iov: its payload in maxSGE pieces, and what stands before.
	segmentRoom = untaggedSize + atomicRequestSize + copyLimit + 8
	segmentIOV  = maxSGE + 2
)

func (t *sender) init(q *qp) {
	t.slab = make([]byte, 0, slabSize)
	t.iov = make([][]byte, 0, maxIOV)
	t.limit = batchSize
	if q.stream.raw == nil {
		t.limit = plainBatchSize
	}
	t.writeFn, t.drainFn, t.releaseFn = q.writeSome, q.drain, q.release
}

// empty tells whether the batch is written.
func (t *sender) empty() bool { return t.first == len(t.iov) }

// build makes a batch of what may be sent now. It reports false if there is nothing. mu is held.
func (q *qp) build() bool {
	t := &q.out
	clear(t.iov)
	t.slab, t.from, t.iov, t.mrs, t.ends, t.size, t.first = t.slab[:0], 0, t.iov[:0], t.mrs[:0], t.ends[:0], 0, 0
	bounced := false
	for len(t.slab)+2*segmentRoom <= cap(t.slab) && len(t.iov)+segmentIOV < maxIOV && t.size < t.limit {
		if !t.msg.active && !q.begin() {
			break
		}
		if !t.msg.active {
			continue // it was one segment, and is built
		}
		if q.withCRC && !t.msg.stable && t.msg.left > copyLimit {
			if bounced {
				break
			}
			bounced = true
		}
		if !q.segment() {
			q.localError()
			break
		}
	}
	t.flushRun()
	return len(t.iov) > 0
}

// localError ends the connection because memory to be sent is gone. Nothing of the batch was written: it is dropped as a whole.
func (q *qp) localError() {
	t := &q.out
	t.slab, t.from, t.iov, t.mrs, t.ends = t.slab[:0], 0, t.iov[:0], t.mrs[:0], t.ends[:0]
	t.built = t.written
	q.stop(ending{fault: &faultLocal})
}

// sendable tells whether begin or an unfinished message has something for the stream. mu is held.
func (q *qp) sendable() bool {
	if q.state != verbs.QPRTS || q.gated || q.out.failed {
		return false
	}
	return q.out.msg.active || q.responses.n > 0 || q.nextSend() != nil
}

// nextSend is the request to be begun, nil if there is none or it must wait.
func (q *qp) nextSend() *sqe {
	s := &q.sq
	if s.next == s.tail || s.halted {
		return nil
	}
	e := s.at(s.next)
	if e.flags&verbs.Fence != 0 && q.reads.n > 0 || answered(e.op) && q.reads.n >= q.ord && e.status == verbs.StatusSuccess {
		return nil
	}
	return e
}

// begin starts the next message, a response or a request. False: there is none.
func (q *qp) begin() bool {
	t := &q.out
	e := q.nextSend()
	if q.responses.n > 0 && (e == nil || t.runs < maxResponses) {
		t.runs++
		q.beginResponse()
		return true
	}
	t.runs = 0
	if e == nil {
		return false
	}
	if e.status != verbs.StatusSuccess {
		q.sq.halted = true
		return false
	}
	q.beginRequest(e)
	return true
}

func (q *qp) beginRequest(e *sqe) {
	t := &q.out
	pos := q.sq.next
	q.sq.next++
	solicited := e.flags&verbs.Solicited != 0
	pick := func(plain, se uint8) uint8 {
		if solicited {
			return se
		}
		return plain
	}
	m := message{active: true, segs: e.segs, inline: e.inline, left: e.length, pos: pos, stable: true}
	switch e.op {
	case verbs.OpSend:
		m.h = header{op: pick(opSend, opSendSE)}
	case verbs.OpSendWithInv:
		m.h = header{op: pick(opSendInv, opSendInvSE), ulp: e.word}
	case verbs.OpSendWithImm:
		m.h = header{op: pick(opSendImm, opSendImmSE), ulp: e.word}
	case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm:
		m.h = header{op: opWrite, tagged: true, stag: e.rkey, to: e.raddr}
	default:
		q.request(e, pos)
		return
	}
	if !m.h.tagged {
		t.msn[qnSend]++
		m.h.msn = t.msn[qnSend]
	}
	t.msg = m
}

// request sends a READ or atomic request, and expects the answer.
func (q *qp) request(e *sqe, pos uint64) {
	t := &q.out
	var body [atomicRequestSize]byte
	b := body[:0]
	h := header{op: opReadRequest, qn: qnRead}
	x := expected{pos: pos, left: e.length}
	switch e.op {
	case verbs.OpRDMARead:
		if e.length > 0 {
			x.stag, x.to = e.segs[0].mr.key, e.segs[0].addr()
		}
		r := readRequest{sinkSTag: x.stag, sinkTO: x.to, size: uint32(e.length), srcSTag: e.rkey, srcTO: e.raddr}
		b = r.append(b)
	default:
		h.op = opAtomicRequest
		x.atomic, x.id = true, uint32(pos)
		r := atomicRequest{op: atomicFetchAdd, id: x.id, stag: e.rkey, to: e.raddr, addSwap: e.values[0]}
		if e.op == verbs.OpAtomicCmpAndSwp {
			r.op, r.compare, r.addSwap = atomicCmpSwap, e.values[0], e.values[1]
			r.compareMask, r.addSwapMask = ^uint64(0), ^uint64(0)
		}
		b = r.append(b)
	}
	q.reads.push(x)
	t.msn[qnRead]++
	h.msn = t.msn[qnRead]
	q.control(h, b)
	e.built, e.end = true, t.built
}

// beginResponse starts the answer to the peer's oldest request.
func (q *qp) beginResponse() {
	t := &q.out
	r := q.responses.pop()
	if r.atomic {
		var body [atomicResponseSize]byte
		binary.BigEndian.PutUint32(body[:], r.id)
		binary.BigEndian.PutUint64(body[4:], r.value)
		t.msn[qnAtomicResponse]++
		q.control(header{op: opAtomicResponse, qn: qnAtomicResponse, msn: t.msn[qnAtomicResponse]}, body[:])
		return
	}
	t.msg = message{
		active: true, reply: true, left: r.size,
		h: header{op: opReadResponse, tagged: true, stag: r.sinkSTag, to: r.sinkTO},
	}
	if r.size > 0 {
		t.msg.one[0] = r.source
		t.msg.segs = t.msg.one[:1]
	}
}

// control builds a message of one segment that stands in the slab.
func (q *qp) control(h header, body []byte) {
	t := &q.out
	h.last, h.payload = true, len(body)
	start := len(t.slab)
	t.slab = h.append(t.slab)
	t.slab = append(t.slab, body...)
	t.slab = sealFPDU(t.slab, start, q.withCRC)
	t.fpdu(len(t.slab) - start)
}

func (t *sender) fpdu(n int) {
	t.size += n
	t.built += uint64(n)
	t.ends = append(t.ends, t.built)
}

// segment builds the message's next segment. False: the memory is gone.
func (q *qp) segment() bool {
	t := &q.out
	m := &t.msg
	n := min(m.left, q.maxPayload)
	m.h.payload, m.h.last = n, n == m.left
	start := len(t.slab)
	t.slab = m.h.append(t.slab)
	size := m.h.size() + n
	if m.inline != nil || n <= copyLimit {
		if !t.copyPayload(m, n) {
			return false
		}
		t.slab = sealFPDU(t.slab, start, q.withCRC)
	} else {
		crc, ok := uint32(0), true
		if q.withCRC {
			crc = crcOf(t.slab[start:])
		}
		if crc, ok = t.refer(m, n, q.withCRC, crc); !ok {
			return false
		}
		t.slab = appendTrailer(t.slab, size, q.withCRC, crc)
	}
	t.fpdu(size + m.h.trailer())
	m.left -= n
	if m.h.tagged {
		m.h.to += uint64(n)
	} else {
		m.h.mo += uint32(n)
	}
	if m.h.last {
		q.messageBuilt()
	}
	return true
}

// messageBuilt ends a message, and sends the immediate after a WRITE that has one.
func (q *qp) messageBuilt() {
	t := &q.out
	pos, reply := t.msg.pos, t.msg.reply
	t.msg = message{}
	if reply {
		return
	}
	e := q.sq.at(pos)
	if e.op == verbs.OpRDMAWriteWithImm {
		var body [immediateSize]byte
		binary.BigEndian.PutUint32(body[:], e.word)
		op := uint8(opImmediate)
		if e.flags&verbs.Solicited != 0 {
			op = opImmediateSE
		}
		t.msn[qnSend]++
		q.control(header{op: op, msn: t.msn[qnSend]}, body[:])
	}
	e.built, e.end = true, t.built
}

// take takes up to n bytes off the message's payload.
func (m *message) take(n int) seg {
	s := &m.segs[0]
	k := min(n, len(s.b))
	g := seg{s.mr, s.b[:k]}
	s.b = s.b[k:]
	if len(s.b) == 0 {
		m.segs = m.segs[1:]
	}
	return g
}

// copyPayload copies n bytes to the slab.
func (t *sender) copyPayload(m *message, n int) bool {
	if m.inline != nil {
		t.slab = append(t.slab, m.inline[:n]...)
		m.inline = m.inline[n:]
		return true
	}
	for n > 0 {
		g := m.take(n)
		if !g.mr.use() {
			return false
		}
		t.slab = append(t.slab, g.b...)
		g.mr.done()
		n -= len(g.b)
	}
	return true
}

// refer puts n bytes of payload into the batch, and into the CRC. What may change meanwhile is copied if there is a CRC.
func (t *sender) refer(m *message, n int, withCRC bool, crc uint32) (uint32, bool) {
	t.flushRun()
	bounce := withCRC && !m.stable
	if bounce {
		t.bounce = t.bounce[:0]
	}
	for n > 0 {
		g := m.take(n)
		n -= len(g.b)
		if withCRC {
			if !g.mr.use() {
				return 0, false
			}
			if bounce {
				at := len(t.bounce)
				t.bounce = append(t.bounce, g.b...)
				crc = crc32.Update(crc, castagnoli, t.bounce[at:])
			} else {
				crc = crc32.Update(crc, castagnoli, g.b)
			}
			g.mr.done()
		}
		if !bounce {
			t.iov = append(t.iov, g.b)
			if k := len(t.mrs); k == 0 || t.mrs[k-1] != g.mr {
				t.mrs = append(t.mrs, g.mr)
			}
		}
	}
	if bounce {
		t.iov = append(t.iov, t.bounce)
	}
	return crc, true
}

// flushRun puts what the slab has got since the last time into the batch.
func (t *sender) flushRun() {
	if t.from < len(t.slab) {
		t.iov = append(t.iov, t.slab[t.from:len(t.slab):len(t.slab)])
		t.from = len(t.slab)
	}
}
