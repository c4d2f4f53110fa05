package verbstest

import (
	"os"
	"syscall"
	"time"

	"github.com/rconn/rdma/verbs"
)

// This file is the work queues: how requests get in and completions out.
//
// The functions that a request passes on its way are marked go:norace, here and in the files of the clock and the protocols: they run
// with the fabric's lock held and look at nothing but the fabric's own state, and with the race detector would take several times
// longer. What touches memory of the program is not marked: work requests, completions, registered memory.

// sendReq is a request in the send queue.
type sendReq struct {
	verbs.SendWR
	pos    uint64
	sgl    []verbs.SGE // storage of SGL
	inline []byte      // storage of Inline
	result []byte      // what a READ or atomic has brought
	by     *Device     // that has executed it, whose answer it waits for
	acked  bool        // the answer is here
	done   bool        // it can complete
	status verbs.Status
}

// length is the number of bytes that the request moves.
func (r *sendReq) length() uint64 {
	if len(r.Inline) > 0 {
		return uint64(len(r.Inline))
	}
	return length(r.SGL)
}

// set takes over a work request, in an element of the queue that may have been used before. It is not inlined, so that the
// race detector sees it.
//
//go:noinline
func (r *sendReq) set(wr *verbs.SendWR, pos uint64) {
	sgl, inline, result := append(r.sgl[:0], wr.SGL...), append(r.inline[:0], wr.Inline...), r.result[:0]
	*r = sendReq{SendWR: *wr, pos: pos, sgl: sgl, inline: inline, result: result}
	r.SGL, r.Inline = sgl, inline
}

// recvReq is a request in the receive queue.
type recvReq struct {
	verbs.RecvWR
	pos uint64
}

// set is as sendReq's.
//
//go:noinline
func (r *recvReq) set(wr *verbs.RecvWR, pos uint64) {
	r.ID, r.SGL, r.pos = wr.ID, append(r.SGL[:0], wr.SGL...), pos
}

// brings reports whether an operation brings something back: a READ or an atomic.
func brings(op verbs.Opcode) bool { return op == verbs.OpRDMARead || atomically(op) }

// atomically reports whether an operation is an atomic.
func atomically(op verbs.Opcode) bool {
	return op == verbs.OpAtomicCmpAndSwp || op == verbs.OpAtomicFetchAndAdd
}

// opcodesOf are the operations that a type of QP has.
var opcodesOf = [...]verbs.OpcodeSet{
	verbs.RC: ^verbs.OpcodeSet(0),
	verbs.UC: verbs.Opcodes(verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm),
	verbs.UD: verbs.Opcodes(verbs.OpSend, verbs.OpSendWithImm),
}

// takesRecv reports whether an operation uses up a receive of the peer's.
func takesRecv(op verbs.Opcode) bool { return op != verbs.OpRDMAWrite && !brings(op) }

func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	return post(q.dev.host, PostSend, len(wrs), func(i int) error { return q.postSend(&wrs[i]) })
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	return post(q.dev.host, PostRecv, len(wrs), func(i int) error { return q.postRecv(&wrs[i]) })
}

// post makes n calls with the fabric's lock held; without it if there are hooks, which come before each.
func post(h *Host, op Op, n int, call func(i int) error) (int, error) {
	if len(h.hooks()) > 0 {
		for i := range n {
			err := h.before(op)
			if err == nil {
				h.fab.mu.Lock()
				err = call(i)
				h.fab.mu.Unlock()
			}
			if err != nil {
				return i, err
			}
		}
		return n, nil
	}
	h.fab.mu.Lock()
	defer h.fab.mu.Unlock()
	for i := range n {
		if err := call(i); err != nil {
			h.countCalls(op, i+1)
			return i, err
		}
	}
	h.countCalls(op, n)
	return n, nil
}

//go:norace
func (q *qp) postSend(wr *verbs.SendWR) error {
	if err := q.usable(); err != nil {
		return err
	}
	sge := q.cap.MaxSendSGE
	if brings(wr.Opcode) {
		sge = min(sge, q.dev.attr.MaxSGERead)
	}
	noInline := brings(wr.Opcode) || wr.Opcode == verbs.OpSendWithInv
	switch {
	case !q.dev.attr.Caps.Send.Has(wr.Opcode):
		return &verbs.UnsupportedError{Device: q.dev.cfg.Name, What: wr.Opcode.String()}
	case !opcodesOf[q.typ].Has(wr.Opcode):
		return &verbs.UnsupportedError{Device: q.dev.cfg.Name, What: wr.Opcode.String() + " on a " + q.typ.String() + " queue pair"}
	case len(wr.Inline) > 0 && noInline, atomically(wr.Opcode) && length(wr.SGL) != atomicSize:
		return os.NewSyscallError("ibv_post_send", syscall.EINVAL)
	case len(wr.Inline) > q.cap.MaxInline:
		return &verbs.LimitError{What: "bytes of inline payload", Got: uint64(len(wr.Inline)), Max: uint64(q.cap.MaxInline)}
	case len(wr.Inline) == 0 && len(wr.SGL) > sge:
		return &verbs.LimitError{What: "scatter/gather entries", Got: uint64(len(wr.SGL)), Max: uint64(sge)}
	case q.attr.State < verbs.QPRTS:
		return os.NewSyscallError("ibv_post_send", syscall.EINVAL)
	}
	if q.typ == verbs.UD {
		if err := q.mayAddress(wr); err != nil {
			return err
		}
	}
	switch {
	case q.sqPosted-q.sqFreed >= uint64(q.cap.MaxSendWR):
		return verbs.ErrQueueFull
	}
	q.sq.add().set(wr, q.sqPosted)
	q.sqPosted++
	if q.attr.State == verbs.QPError {
		q.arrived++
		q.late()
		return nil
	}
	// On iWARP, too, memory is read as late as a completion allows.
	q.fab.in(&q.tx, q.fab.delay(), q.arrive)
	return nil
}

// requestArrived is when the packets of the next request are at the peer's device.
//
//go:norace
func (q *qp) requestArrived() {
	q.arrived++
	switch {
	case q.out != nil:
		q.handOver()
	case q.typ != verbs.RC:
		q.emit()
	default:
		q.advance()
	}
}

// mayGo reports whether the next request can be executed, as far as this side's queue goes.
//
//go:norace
func (q *qp) mayGo() bool {
	if !q.operational() || q.halted || q.dev.paused || q.next >= q.sq.len() {
		return false
	}
	r := q.sq.at(q.next)
	return r.pos < q.arrived && (q.attr.State != verbs.QPSQD || r.pos < q.hold) && (r.Flags&verbs.Fence == 0 || q.reads == 0) &&
		(!brings(r.Opcode) || q.reads == 0 || q.reads < int(q.attr.MaxRdAtomic))
}

// check finds what is wrong with a request before it leaves, and takes its payload out of this side's memory. The payload is valid
// until the next call.
//
//go:norace
func (q *qp) check(r *sendReq) (payload []byte, status verbs.Status) {
	ok := true
	switch {
	case brings(r.Opcode):
		if q.attr.MaxRdAtomic == 0 {
			return nil, verbs.StatusLocQPOpErr
		}
	case len(r.Inline) > 0:
		payload = r.Inline
	default:
		payload, ok = q.gather(r.SGL)
	}
	switch {
	case !ok:
		return nil, verbs.StatusLocProtErr
	case r.length() > maxMessage:
		return nil, verbs.StatusLocLenErr
	}
	return payload, verbs.StatusSuccess
}

//go:norace
func (q *qp) postRecv(wr *verbs.RecvWR) error {
	if err := q.usable(); err != nil {
		return err
	}
	switch {
	case q.srq != nil || q.attr.State == verbs.QPReset:
		return os.NewSyscallError("ibv_post_recv", syscall.EINVAL)
	case len(wr.SGL) > q.cap.MaxRecvSGE:
		return &verbs.LimitError{What: "scatter/gather entries", Got: uint64(len(wr.SGL)), Max: uint64(q.cap.MaxRecvSGE)}
	case q.rqPosted-q.rqFreed >= uint64(q.cap.MaxRecvWR):
		return verbs.ErrQueueFull
	}
	q.rq.add().set(wr, q.rqPosted)
	q.rqPosted++
	if q.attr.State == verbs.QPError {
		q.late()
		return nil
	}
	q.tellPeer()
	return nil
}

// tellPeer has the peer look whether what it waits for has come.
//
//go:norace
func (q *qp) tellPeer() {
	if peer := q.peer(); peer != nil {
		peer.peerChanged()
	}
}

// polled frees queue entries: a completion's own, and those of the requests before it that completed silently.
//
//go:norace
func (q *qp) polled(e *cqe) {
	switch {
	case !e.recv:
		q.sqFreed = max(q.sqFreed, e.pos+1)
	case q.srq != nil:
		q.srq.used--
	default:
		q.rqFreed = max(q.rqFreed, e.pos+1)
	}
}

// complete ends the oldest send request.
//
//go:norace
func (q *qp) complete(status verbs.Status) {
	r := q.sq.at(0)
	q.sq.drop(1)
	q.next = max(q.next-1, 0)
	q.checkDrained()
	if status == verbs.StatusSuccess && !q.signalAll && r.Flags&verbs.Signaled == 0 {
		return
	}
	e := cqe{qp: q, pos: r.pos, life: q.life}
	e.ID, e.QPNum, e.Status = r.ID, q.num, status
	if status == verbs.StatusSuccess { // else the rest means nothing
		e.Opcode = wcOpcode(r.Opcode)
		if brings(r.Opcode) {
			e.ByteLen = uint32(r.length())
		}
	}
	q.sendDone.put(&e, q.dev.sendDelay)
}

// receives is where the QP takes its receive requests from.
//
//go:norace
func (q *qp) receives() *fifo[recvReq] {
	if q.srq != nil {
		return &q.srq.rq
	}
	return &q.rq
}

// completeRecv ends the oldest receive request. flags are the sender's.
//
//go:norace
func (q *qp) completeRecv(wc verbs.Completion, flags verbs.SendFlags) {
	rq := q.receives()
	r := rq.at(0)
	rq.drop(1)
	e := cqe{Completion: wc, qp: q, recv: true, solicited: flags&verbs.Solicited != 0, pos: r.pos, life: q.life}
	e.ID, e.QPNum = r.ID, q.num
	q.recvDone.put(&e, q.dev.recvDelay)
	if q.srq != nil {
		q.srq.checkLimit()
	}
}

func wcOpcode(op verbs.Opcode) verbs.WCOpcode {
	switch op {
	case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm:
		return verbs.WCRDMAWrite
	case verbs.OpRDMARead:
		return verbs.WCRDMARead
	case verbs.OpAtomicCmpAndSwp:
		return verbs.WCCompSwap
	case verbs.OpAtomicFetchAndAdd:
		return verbs.WCFetchAdd
	}
	return verbs.WCSend
}

// completions are those of one of a QP's queues on their way to the CQ, in order.
type completions struct {
	lane
	qp     *qp
	cq     *cq
	queue  fifo[cqe]
	arrive func() // the method, bound once
}

func (c *completions) init(q *qp, to *cq) { c.qp, c.cq, c.arrive = q, to, c.arrived }

//go:norace
func (c *completions) put(e *cqe, delay time.Duration) {
	f := c.qp.fab
	if delay == 0 && f.inside && c.queue.len() == 0 && !c.cq.full() {
		c.deliver(e)
		return
	}
	c.cq.coming++
	*c.queue.add() = *e
	f.in(&c.lane, delay, c.arrive)
}

//go:norace
func (c *completions) arrived() {
	e := *c.queue.at(0)
	c.queue.drop(1)
	c.cq.coming--
	c.deliver(&e)
}

//go:norace
func (c *completions) deliver(e *cqe) {
	if e.life == c.qp.life {
		c.cq.push(e)
	} else {
		c.qp.polled(e)
	}
	c.cq.signal()
}

// flush completes whatever is outstanding in a QP in the error state.
//
//go:norace
func (q *qp) flush() {
	for q.sq.len() > 0 {
		q.complete(verbs.StatusWRFlushErr)
	}
	for q.rq.len() > 0 {
		q.completeRecv(verbs.Completion{Status: verbs.StatusWRFlushErr}, 0)
	}
}

// late deals with what was posted in the error state.
//
//go:norace
func (q *qp) late() {
	if !q.dev.cfg.LoseInError {
		q.flush()
	}
}
