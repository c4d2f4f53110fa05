package verbstest

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rconn/rdma/verbs"
)

// This file is the InfiniBand (and RoCE) protocol: every request is acknowledged by the peer's device, and sent again
// when it is not, or when the peer had no receive posted.

// stall is why the oldest requests of a send queue wait.
type stall struct {
	rnr      bool // no receive posted; otherwise no answer
	since    time.Time
	step     time.Duration // between two tries
	retrying bool
}

// advance executes what has arrived at the peer, in order.
func (q *qp) advance() {
	for q.operational() && q.stall == nil && !q.halted && !q.dev.paused && q.next < len(q.sq) {
		r := q.sq[q.next]
		if !r.arrived || r.Flags&verbs.Fence != 0 && q.reads > 0 {
			return
		}
		peer := q.peer()
		if peer != nil && peer.attr.State == verbs.QPInit {
			return // it has not seen our reply yet; ready() comes
		}
		payload, ok := q.collect(r)
		switch {
		case !ok:
			r.status, r.local = verbs.StatusLocProtErr, true
		case r.length() > maxMessage:
			r.status, r.local = verbs.StatusLocLenErr, true
		case r.Opcode == verbs.OpRDMARead && q.initiator == 0:
			r.status, r.local = verbs.StatusLocQPOpErr, true
		case peer == nil || !peer.operational() || !q.fab.path(q.dev, peer.dev):
			q.lost()
			return
		case peer.needsRecv(r.Opcode) && len(peer.rq) == 0:
			q.notReady(peer)
			return
		default:
			r.status = peer.serve(r, payload)
		}
		q.next++
		q.halted = r.status != verbs.StatusSuccess
		if r.Opcode == verbs.OpRDMARead {
			q.reads++
		}
		back := q.fab.delay()
		if r.local {
			back = 0
		}
		q.fab.in(&q.acks, back, func() { q.answered(r) })
	}
}

// collect takes the payload out of the sender's memory.
func (q *qp) collect(r *sendReq) ([]byte, bool) {
	if r.Opcode == verbs.OpRDMARead {
		return nil, true
	}
	if len(r.Inline) > 0 {
		return r.payload, true
	}
	return q.pd.gather(r.SGL)
}

func (q *qp) needsRecv(op verbs.Opcode) bool {
	return op != verbs.OpRDMAWrite && op != verbs.OpRDMARead
}

// serve does at the responder what a request asks for, and returns what the requester learns.
func (q *qp) serve(r *sendReq, payload []byte) verbs.Status {
	n := uint64(len(payload))
	switch r.Opcode {
	case verbs.OpRDMARead:
		if q.responder == 0 {
			q.fatal(verbs.EventQPReqErr)
			return verbs.StatusRemInvReqErr
		}
		n = r.length()
		from := q.pd.remote(r.RKey, r.RemoteAddr, n, verbs.AccessRemoteRead)
		if from == nil && n > 0 {
			q.fatal(verbs.EventQPAccessErr)
			return verbs.StatusRemAccessErr
		}
		r.payload = slices.Clone(from)

	case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm:
		if n > 0 { // without payload the address is not looked at
			to := q.pd.remote(r.RKey, r.RemoteAddr, n, verbs.AccessRemoteWrite)
			if to == nil {
				q.fatal(verbs.EventQPAccessErr)
				return verbs.StatusRemAccessErr
			}
			place(to, payload)
		}
		if r.Opcode == verbs.OpRDMAWriteWithImm {
			q.completeRecv(verbs.Completion{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, ByteLen: uint32(n), Imm: r.Imm})
		}

	default:
		return q.receive(payload)
	}
	return verbs.StatusSuccess
}

// place writes a payload to registered memory. Small ones in whole words, as a device would: some protocols look at memory that is
// being written.
func place(to, payload []byte) {
	if len(payload) != 16 || uintptr(unsafe.Pointer(&to[0]))%8 != 0 {
		copy(to, payload)
		return
	}
	for i := 0; i < len(payload); i += 8 {
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&to[i])), binary.NativeEndian.Uint64(payload[i:]))
	}
}

// receive puts the payload of a SEND into the oldest receive request.
func (q *qp) receive(payload []byte) verbs.Status {
	sgl := q.rq[0].SGL
	switch {
	case uint64(len(payload)) > length(sgl):
		q.completeRecv(verbs.Completion{Status: verbs.StatusLocLenErr})
		q.fatal(verbs.EventQPReqErr)
		return verbs.StatusRemInvReqErr
	case !q.pd.scatter(sgl, payload):
		q.completeRecv(verbs.Completion{Status: verbs.StatusLocProtErr})
		q.fatal(verbs.EventQPFatal)
		return verbs.StatusRemOpErr
	}
	q.completeRecv(verbs.Completion{ByteLen: uint32(len(payload))})
	return verbs.StatusSuccess
}

// answered is when the acknowledgement of an executed request would be back. The peer's device sends it at once, whatever
// becomes of the queue pair there.
func (q *qp) answered(r *sendReq) {
	r.acked = true
	switch {
	case !q.operational() || q.stall != nil && !q.stall.rnr:
	case !r.local && !q.fab.path(q.id.peer.dev, q.dev):
		q.lost()
	default:
		q.settle()
	}
}

// settle completes what was acknowledged.
func (q *qp) settle() {
	for q.operational() && q.next > 0 && q.sq[0].acked {
		r := q.sq[0]
		if r.Opcode == verbs.OpRDMARead {
			q.reads--
			if r.status == verbs.StatusSuccess && !q.pd.scatter(r.SGL, r.payload) {
				r.status = verbs.StatusLocProtErr
			}
		}
		q.complete(r.status)
		if r.status != verbs.StatusSuccess {
			q.toError()
		}
	}
	q.advance() // a fence may have opened
}

const forEver = 7 // as a number of retries

// lost starts the retries of requests that nobody answers.
func (q *qp) lost() {
	s := &stall{since: time.Now(), step: q.ackTimeout()}
	q.stall = s
	if q.attr.RetryCount == forEver {
		return
	}
	q.fab.after(time.Duration(q.attr.RetryCount+1)*s.step, func() {
		switch {
		case q.stall != s:
		case q.answers():
			q.resume()
		default:
			q.complete(verbs.StatusRetryExcErr)
			q.toError()
		}
	})
}

// notReady starts the retries of a request that found no receive.
func (q *qp) notReady(peer *qp) {
	s := &stall{rnr: true, since: time.Now(), step: rnrTimer(peer.attr.MinRNRTimer)}
	q.stall = s
	if q.attr.RNRRetry == forEver {
		return
	}
	q.fab.after(time.Duration(q.attr.RNRRetry)*s.step, func() {
		switch {
		case q.stall != s:
		case !q.answers() || len(q.peer().rq) > 0:
			q.resume()
		default:
			// Earlier requests may still wait for their acknowledgement, so this one takes its turn.
			q.stall = nil
			q.halted = true
			r := q.sq[q.next]
			r.status, r.local = verbs.StatusRNRRetryExcErr, true
			q.next++
			q.fab.in(&q.acks, 0, func() { q.answered(r) })
		}
	})
}

// answers reports whether there is somebody to answer.
func (q *qp) answers() bool {
	peer := q.peer()
	return peer != nil && peer.operational() && q.fab.path(q.dev, peer.dev)
}

// retry ends a stall at the next of its tries. There is no timer for each try: what may end a stall calls this.
func (q *qp) retry() {
	s := q.stall
	if s.retrying {
		return
	}
	s.retrying = true
	tries := time.Since(s.since)/s.step + 1
	q.fab.at(s.since.Add(tries*s.step), func() {
		s.retrying = false
		if q.stall == s && (s.rnr || q.answers()) {
			q.resume()
		}
	})
}

func (q *qp) resume() {
	q.stall = nil
	q.settle()
}

// peerChanged is called when the peer has posted a receive, or will never again.
func (q *qp) peerChanged() {
	if q.stall != nil && q.stall.rnr {
		q.retry()
	}
}

// pathChanged is called when packets may get through again, or a pause ends.
func (q *qp) pathChanged() {
	switch {
	case q.out != nil:
		q.handOver()
		q.out.deliver()
	case q.stall == nil:
		q.advance()
	case q.stall.rnr != q.answers(): // not ready and now silent, or silent and now there
		q.retry()
	}
}

// rnrTimer decodes a timer of IBTA vol. 1, table 45.
func rnrTimer(code uint8) time.Duration {
	steps := [32]time.Duration{
		65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
		256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
	}
	return steps[code&31] * 10 * time.Microsecond
}
