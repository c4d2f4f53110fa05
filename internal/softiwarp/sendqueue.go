package softiwarp

import (
	"os"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// sendQueue is the send queue. Positions count requests since the QP was made: head <= next <= tail. Guarded by qp.mu.
type sendQueue struct {
	ring   []sqe
	segs   []seg  // room for the requests' scatter/gather entries
	inline []byte // room for their inline payload
	sges   int
	inlen  int

	head   uint64 // oldest not completed
	next   uint64 // oldest not begun
	tail   uint64
	halted bool // the request at next cannot be executed: it fails when its turn to complete comes
}

// sqe is a send request.
type sqe struct {
	id     uint64
	op     verbs.Opcode
	flags  verbs.SendFlags
	word   uint32 // immediate, or key to invalidate
	raddr  uint64
	rkey   uint32
	values [2]uint64 // of an atomic: CompareAdd, Swap

	segs   []seg
	inline []byte
	length int

	status verbs.Status
	end    uint64 // where in the stream it ends, once it is known
	built  bool
	done   bool // READ and atomics: the answer is here
}

func (s *sendQueue) init(c verbs.QPCap) {
	s.sges, s.inlen = c.MaxSendSGE, c.MaxInline
	s.ring = make([]sqe, c.MaxSendWR)
	s.segs = make([]seg, c.MaxSendWR*s.sges)
	s.inline = make([]byte, c.MaxSendWR*s.inlen)
}

func (s *sendQueue) at(pos uint64) *sqe { return &s.ring[pos%uint64(len(s.ring))] }

func answered(op verbs.Opcode) bool {
	return op == verbs.OpRDMARead || op == verbs.OpAtomicCmpAndSwp || op == verbs.OpAtomicFetchAndAdd
}

func atomicOp(op verbs.Opcode) bool {
	return op == verbs.OpAtomicCmpAndSwp || op == verbs.OpAtomicFetchAndAdd
}

var (
	errInlineResult = misuse("a READ or atomic has no inline payload")
	errAtomicResult = misuse("the result of an atomic goes to one piece of 8 bytes")
	errNotConnected = os.NewSyscallError("PostSend", syscall.ENOTCONN)
)

func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	q.mu.Lock()
	n, err := len(wrs), error(nil)
	for i := range wrs {
		if err = q.postSend(&wrs[i]); err != nil {
			n = i
			break
		}
	}
	if q.state == verbs.QPError {
		q.flush()
	}
	q.startPosted() // unlocks
	return n, err
}

// checkSend refuses what is wrong about a request by itself.
func (q *qp) checkSend(wr *verbs.SendWR) error {
	sges := q.cap.MaxSendSGE
	if wr.Opcode == verbs.OpRDMARead || atomicOp(wr.Opcode) {
		sges = 1
	}
	switch {
	case q.closed:
		return verbs.ErrClosed
	case !q.dev.attr.Caps.Send.Has(wr.Opcode):
		return &verbs.UnsupportedError{Device: DeviceName, What: wr.Opcode.String()}
	case len(wr.Inline) > q.cap.MaxInline:
		return &verbs.LimitError{What: "bytes of inline payload", Got: uint64(len(wr.Inline)), Max: uint64(q.cap.MaxInline)}
	case len(wr.Inline) > 0 && answered(wr.Opcode):
		return errInlineResult
	case len(wr.Inline) == 0 && len(wr.SGL) > sges:
		return &verbs.LimitError{What: "scatter/gather entries", Got: uint64(len(wr.SGL)), Max: uint64(sges)}
	case atomicOp(wr.Opcode) && (len(wr.SGL) != 1 || wr.SGL[0].Length != 8):
		return errAtomicResult
	case atomicOp(wr.Opcode) && wr.RemoteAddr%8 != 0:
		return misuse("the address of an atomic, %#x, is not a multiple of 8", wr.RemoteAddr)
	case q.state != verbs.QPRTS && q.state != verbs.QPError:
		return errNotConnected
	case q.sq.tail-q.sqFreed.Load() >= uint64(q.cap.MaxSendWR):
		return verbs.ErrQueueFull
	}
	return nil
}

func (q *qp) postSend(wr *verbs.SendWR) error {
	s := &q.sq
	if err := q.checkSend(wr); err != nil {
		return err
	}
	i := int(s.tail % uint64(len(s.ring)))
	e := &s.ring[i]
	*e = sqe{
		id: wr.ID, op: wr.Opcode, flags: wr.Flags, word: wr.Imm, raddr: wr.RemoteAddr, rkey: wr.RKey,
		values: [2]uint64{wr.CompareAdd, wr.Swap},
	}
	if wr.Opcode == verbs.OpSendWithInv {
		e.word = wr.InvalidateRKey
	}
	if len(wr.Inline) > 0 {
		e.inline = append(s.inline[i*s.inlen:][:0:s.inlen], wr.Inline...)
		e.length = len(wr.Inline)
	} else {
		q.resolve(e, wr.SGL, i)
	}
	switch {
	case e.status != verbs.StatusSuccess:
	case e.length > maxMessage:
		e.status = verbs.StatusLocLenErr
	case answered(e.op) && q.ord == 0:
		e.status = verbs.StatusLocQPOpErr
	}
	s.tail++
	return nil
}

// resolve turns keys and addresses into memory.
func (q *qp) resolve(e *sqe, sgl []verbs.SGE, i int) {
	access := verbs.Access(0)
	if answered(e.op) {
		access = verbs.AccessLocalWrite
	}
	e.segs = q.sq.segs[i*q.sq.sges:][:0:q.sq.sges]
	for _, s := range sgl {
		g, ok := q.memory.find(s, access)
		if !ok {
			e.status = verbs.StatusLocProtErr
			return
		}
		if len(g.b) > 0 {
			e.segs = append(e.segs, g)
			e.length += len(g.b)
		}
	}
}

// completeSends completes, in order, what is done. mu is held.
func (q *qp) completeSends() {
	s := &q.sq
	for s.head < s.tail && q.state == verbs.QPRTS {
		e := s.at(s.head)
		switch {
		case e.status != verbs.StatusSuccess && s.head == s.next:
			status := e.status
			q.completeSend(e, status)
			q.stop(ending{})
			q.async(verbs.EventQPFatal)
			return
		case !e.built || e.end > q.sent || answered(e.op) && !e.done:
			return
		}
		q.completeSend(e, verbs.StatusSuccess)
	}
}

func (q *qp) completeSend(e *sqe, status verbs.Status) {
	s := &q.sq
	pos := s.head
	clear(e.segs) // nothing is to keep memory that the program has done with
	s.head++
	s.next = max(s.next, s.head)
	if status == verbs.StatusSuccess && !q.signalAll && e.flags&verbs.Signaled == 0 {
		return
	}
	c := cqe{Completion: verbs.Completion{ID: e.id, Status: status}, pos: pos}
	switch e.op {
	case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm:
		c.Opcode = verbs.WCRDMAWrite
	case verbs.OpRDMARead:
		c.Opcode, c.ByteLen = verbs.WCRDMARead, uint32(e.length)
	case verbs.OpAtomicCmpAndSwp:
		c.Opcode, c.ByteLen = verbs.WCCompSwap, 8
	case verbs.OpAtomicFetchAndAdd:
		c.Opcode, c.ByteLen = verbs.WCFetchAdd, 8
	}
	q.complete(q.sendCQ, &c)
}
