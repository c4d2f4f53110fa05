package verbstest

import (
	"time"

	"github.com/rconn/rdma/verbs"
)

// This file is the protocol of RC on InfiniBand and RoCE: every request is acknowledged by the peer's device, and sent again
// when it is not, or when the peer had no receive posted.

// reliable is what a QP needs for it.
type reliable struct {
	stall        *stall       // why the oldest request that was not executed waits
	psn          uint32       // of the next packet sent
	expects      uint32       // of the next packet received
	acks         lane         // of the answers
	executed     fifo[uint64] // positions of requests whose answers are on their way
	answerArrive func()       // the method, bound once
}

// stall is why the oldest requests of a send queue wait.
type stall struct {
	rnr      bool // no receive posted; otherwise no answer
	since    time.Duration
	step     time.Duration // between two tries; 0: there is no other
	retrying bool
}

// advance executes what has arrived at the peer, in order.
//
//go:norace
func (q *qp) advance() {
	for q.rc.stall == nil && q.mayGo() {
		r := q.sq.at(q.next)
		peer := q.peer()
		if peer != nil && peer.id != nil && peer.attr.State == verbs.QPInit {
			return // it has not seen our reply yet; connect() comes
		}
		payload, status := q.check(r)
		r.by = nil
		if status == verbs.StatusSuccess {
			if !q.reaches(peer) {
				q.lost()
				return
			}
			if takesRecv(r.Opcode) && peer.receives().len() == 0 {
				q.notReady(peer)
				return
			}
			status = q.execute(r, peer, payload)
			if !q.operational() {
				return // connected to itself, and refused
			}
		}
		q.next++
		r.status = status
		q.halted = status != verbs.StatusSuccess
		if brings(r.Opcode) {
			q.reads++
		}
		q.answer(r)
	}
}

// execute has the peer do what a request asks for.
//
//go:norace
func (q *qp) execute(r *sendReq, peer *qp, payload []byte) verbs.Status {
	n := r.length()
	r.by = peer.dev
	switch {
	case !peer.permits(r.Opcode), brings(r.Opcode) && q.reads >= int(peer.attr.MaxDestRdAtomic), !q.fits(peer, n):
		return peer.refuse(verbs.EventQPReqErr, verbs.StatusRemInvReqErr)
	}
	packets := uint32(max(1, (n+uint64(q.attr.PathMTU)-1)/uint64(q.attr.PathMTU)))
	q.rc.psn = (q.rc.psn + packets) & maxPSN
	peer.rc.expects = q.rc.psn
	status := peer.serve(&r.SendWR, n, payload, &r.result)
	if status == verbs.StatusSuccess && r.Opcode == verbs.OpRDMAWriteWithImm {
		peer.receiveImm(&r.SendWR, uint32(n))
	}
	return status
}

// permits reports whether peers may use an operation on the QP.
//
//go:norace
func (q *qp) permits(op verbs.Opcode) bool {
	var need verbs.Access
	switch op {
	case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm:
		need = verbs.AccessRemoteWrite
	case verbs.OpRDMARead:
		need = verbs.AccessRemoteRead
	case verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd:
		need = verbs.AccessRemoteAtomic
	}
	return q.attr.Access&need == need
}

// fits reports whether the packets of a message have the size that the peer wants: all but the last are of its path MTU.
//
//go:norace
func (q *qp) fits(peer *qp, n uint64) bool {
	return q.attr.PathMTU == peer.attr.PathMTU || n <= uint64(min(q.attr.PathMTU, peer.attr.PathMTU))
}

// answer brings back the acknowledgement of an executed request.
//
//go:norace
func (q *qp) answer(r *sendReq) {
	back := q.fab.delay()
	if r.by == nil {
		back = 0
	}
	*q.rc.executed.add() = r.pos
	q.fab.in(&q.rc.acks, back, q.rc.answerArrive)
}

// answered is when the acknowledgement of the next executed request would be back. The peer's device sends it at once, whatever
// becomes of the queue pair there.
//
//go:norace
func (q *qp) answered() {
	pos := *q.rc.executed.at(0)
	q.rc.executed.drop(1)
	if !q.operational() || q.sq.len() == 0 || pos < q.sq.at(0).pos {
		return // the queue was emptied meanwhile
	}
	r := q.sq.at(int(pos - q.sq.at(0).pos))
	r.acked = true
	switch {
	case q.rc.stall != nil && !q.rc.stall.rnr:
	case r.by != nil && !q.fab.path(r.by, q.dev):
		q.lost()
	default:
		q.settle()
	}
}

// settle completes what was acknowledged.
//
//go:norace
func (q *qp) settle() {
	for q.operational() && q.next > 0 && q.sq.at(0).acked {
		r := q.sq.at(0)
		status := r.status
		if brings(r.Opcode) {
			q.reads--
			if status == verbs.StatusSuccess && !q.pd.scatter(r.SGL, 0, r.result) {
				status = verbs.StatusLocProtErr
			}
		}
		q.complete(status)
		if status != verbs.StatusSuccess {
			q.toError()
		}
	}
	q.advance() // a fence may have opened
}

const forEver = 7 // as a number of retries

// lost starts the retries of requests that nobody answers.
//
//go:norace
func (q *qp) lost() {
	s := &stall{since: q.fab.now(), step: q.ackTimeout()}
	q.rc.stall = s
	if q.attr.RetryCount == forEver || s.step == 0 {
		return
	}
	q.fab.after(time.Duration(q.attr.RetryCount+1)*s.step, func() {
		switch {
		case q.rc.stall != s:
		case q.reaches(q.peer()):
			q.resume()
		default:
			q.complete(verbs.StatusRetryExcErr)
			q.toError()
		}
	})
}

// notReady starts the retries of a request that found no receive.
//
//go:norace
func (q *qp) notReady(peer *qp) {
	s := &stall{rnr: true, since: q.fab.now(), step: rnrTimer(peer.attr.MinRNRTimer)}
	q.rc.stall = s
	if peer.srq != nil {
		peer.srq.turnedAway(peer)
	}
	if q.attr.RNRRetry == forEver {
		return
	}
	q.fab.after(time.Duration(q.attr.RNRRetry)*s.step, func() {
		switch {
		case q.rc.stall != s:
		case !q.reaches(q.peer()) || q.peer().receives().len() > 0:
			q.resume()
		default:
			// Earlier requests may still wait for their acknowledgement, so this one takes its turn.
			q.rc.stall = nil
			q.halted = true
			r := q.sq.at(q.next)
			r.status, r.by = verbs.StatusRNRRetryExcErr, nil
			q.next++
			q.answer(r)
		}
	})
}

// reaches reports whether the device of the peer takes packets for it, and it answers.
//
//go:norace
func (q *qp) reaches(peer *qp) bool {
	return peer != nil && peer.operational() && peer.names(q) && peer.rc.expects == q.rc.psn && q.fab.path(q.dev, peer.dev)
}

// retry ends a stall at the next of its tries. There is no timer for each try: what may end a stall calls this.
//
//go:norace
func (q *qp) retry() {
	s := q.rc.stall
	if s.retrying || s.step == 0 {
		return
	}
	s.retrying = true
	tries := (q.fab.now()-s.since)/s.step + 1
	q.fab.at(s.since+tries*s.step, func() {
		s.retrying = false
		if q.rc.stall == s && (s.rnr || q.reaches(q.peer())) {
			q.resume()
		}
	})
}

//go:norace
func (q *qp) resume() {
	q.rc.stall = nil
	q.settle()
}

// peerChanged is called when the peer has posted a receive, or will never again.
//
//go:norace
func (q *qp) peerChanged() {
	if q.rc.stall != nil && q.rc.stall.rnr {
		q.retry()
	}
}

// pathChanged is called when packets may get through again, or a pause ends.
//
//go:norace
func (q *qp) pathChanged() {
	switch {
	case q.out != nil:
		q.handOver()
		q.out.deliver()
	case q.typ != verbs.RC:
		q.emit()
	case q.rc.stall == nil:
		q.advance()
	case q.rc.stall.rnr != q.reaches(q.peer()): // not ready and now silent, or silent and now there
		q.retry()
	}
}

// ackTimeout is the time after which a request is sent again. 0: it never is.
//
//go:norace
func (q *qp) ackTimeout() time.Duration {
	if q.attr.AckTimeout == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << q.attr.AckTimeout
}

// rnrTimer decodes a timer of IBTA vol. 1, table 45.
//
//go:norace
func rnrTimer(code uint8) time.Duration {
	steps := [32]time.Duration{
		65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
		256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
	}
	return steps[code&31] * 10 * time.Microsecond
}
