package verbstest

import (
	"time"

	"github.com/rconn/rdma/verbs"
)

// This file is the InfiniBand (and RoCE) protocol: every request is acknowledged by the peer's device, and sent again
// when it is not, or when the peer had no receive posted.

// stall is why the oldest requests of a send queue wait.
type stall struct {
	rnr      bool // no receive posted; otherwise no answer
	since    time.Duration
	step     time.Duration // between two tries
	retrying bool
}

// advance executes what has arrived at the peer, in order.
//
//go:norace
func (q *qp) advance() {
	for q.stall == nil && q.mayGo() {
		r := q.sq.at(q.next)
		peer := q.peer()
		if peer != nil && peer.attr.State == verbs.QPInit {
			return // it has not seen our reply yet; ready() comes
		}
		payload, status := q.check(r)
		switch {
		case status != verbs.StatusSuccess:
			r.local = true
		case peer == nil || !peer.operational() || !q.fab.path(q.dev, peer.dev):
			q.lost()
			return
		case takesRecv(r.Opcode) && peer.rq.len() == 0:
			q.notReady(peer)
			return
		case brings(r.Opcode) && q.reads >= int(peer.responder):
			status = peer.refuse(verbs.EventQPReqErr, verbs.StatusRemInvReqErr)
		default:
			status = peer.serve(&r.SendWR, r.length(), payload, &r.result)
			if status == verbs.StatusSuccess && r.Opcode == verbs.OpRDMAWriteWithImm {
				peer.receiveImm(&r.SendWR, uint32(len(payload)))
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

// answer brings back the acknowledgement of an executed request.
//
//go:norace
func (q *qp) answer(r *sendReq) {
	back := q.fab.delay()
	if r.local {
		back = 0
	}
	q.fab.in(&q.acks, back, q.answerArrive)
}

// answered is when the acknowledgement of the next executed request would be back. The peer's device sends it at once, whatever
// becomes of the queue pair there.
//
//go:norace
func (q *qp) answered() {
	pos := q.answers
	q.answers++
	if !q.operational() {
		return
	}
	r := q.sq.at(int(pos - q.sq.at(0).pos)) // executed, and in its turn
	r.acked = true
	switch {
	case q.stall != nil && !q.stall.rnr:
	case !r.local && !q.fab.path(q.id.peer.dev, q.dev):
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
			if status == verbs.StatusSuccess && !q.pd.scatter(r.SGL, r.result) {
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
	q.stall = s
	if q.attr.RetryCount == forEver {
		return
	}
	q.fab.after(time.Duration(q.attr.RetryCount+1)*s.step, func() {
		switch {
		case q.stall != s:
		case q.reached():
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
	q.stall = s
	if q.attr.RNRRetry == forEver {
		return
	}
	q.fab.after(time.Duration(q.attr.RNRRetry)*s.step, func() {
		switch {
		case q.stall != s:
		case !q.reached() || q.peer().rq.len() > 0:
			q.resume()
		default:
			// Earlier requests may still wait for their acknowledgement, so this one takes its turn.
			q.stall = nil
			q.halted = true
			r := q.sq.at(q.next)
			r.status, r.local = verbs.StatusRNRRetryExcErr, true
			q.next++
			q.answer(r)
		}
	})
}

// reached reports whether there is somebody to answer.
//
//go:norace
func (q *qp) reached() bool {
	peer := q.peer()
	return peer != nil && peer.operational() && q.fab.path(q.dev, peer.dev)
}

// retry ends a stall at the next of its tries. There is no timer for each try: what may end a stall calls this.
//
//go:norace
func (q *qp) retry() {
	s := q.stall
	if s.retrying {
		return
	}
	s.retrying = true
	tries := (q.fab.now()-s.since)/s.step + 1
	q.fab.at(s.since+tries*s.step, func() {
		s.retrying = false
		if q.stall == s && (s.rnr || q.reached()) {
			q.resume()
		}
	})
}

//go:norace
func (q *qp) resume() {
	q.stall = nil
	q.settle()
}

// peerChanged is called when the peer has posted a receive, or will never again.
//
//go:norace
func (q *qp) peerChanged() {
	if q.stall != nil && q.stall.rnr {
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
	case q.stall == nil:
		q.advance()
	case q.stall.rnr != q.reached(): // not ready and now silent, or silent and now there
		q.retry()
	}
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
