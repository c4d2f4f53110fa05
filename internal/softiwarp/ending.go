package softiwarp

import (
	"errors"
	"io"
	"time"

	"github.com/rconn/rdma/verbs"
)

// closeTime bounds the end of a TCP connection: sending what completes an FPDU and a Terminate message, then waiting for the peer's
// FIN, so that it sees ours and not a reset.
const closeTime = 2 * time.Second

// stop ends the connection: the QP is in the error state, all requests flush, and the servant closes the stream. mu is held.
func (q *qp) stop(e ending) {
	if q.state == verbs.QPError {
		return
	}
	connected := q.state == verbs.QPRTS
	q.state = verbs.QPError
	q.end = e
	q.flush()
	if !connected {
		return
	}
	close(q.ended)
	q.duty.end()
	q.stream.interruptRead()
	if q.sending {
		q.stream.interruptWrite()
	}
	q.id.disconnected()
}

// flush ends the requests of a QP in the error state whose memory nobody touches any more: answers to READs are received. The rest
// is for the holders of the tokens, when they put them down. mu is held.
func (q *qp) flush() {
	if q.receiving {
		return
	}
	if !q.sending {
		for q.sq.head < q.sq.tail {
			q.completeSend(q.sq.at(q.sq.head), verbs.StatusWRFlushErr)
		}
	}
	for q.rq.first() != nil {
		q.completeRecv(verbs.Completion{Status: verbs.StatusWRFlushErr}, false)
	}
	if q.srq != nil && !q.drained && !q.closed {
		q.drained = true
		q.async(verbs.EventQPLastWQEReached)
	}
}

// fail ends the connection because of something that the device finds by itself.
func (q *qp) fail(t verbs.AsyncEventType) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != verbs.QPError {
		q.async(t)
		q.stop(ending{})
	}
}

// peerTerminated takes the peer's Terminate message. If a READ or an atomic waits, it is most likely what the peer did not like.
func (q *qp) peerTerminated(body []byte) {
	f, raw := parseTerminate(body)
	q.dev.cfg.Logger.Info("iwarp: peer terminated the stream", "local", q.id.LocalAddr(), "remote", q.id.RemoteAddr(), "err", &f,
		"word", raw)
	q.mu.Lock()
	defer q.mu.Unlock()
	if x := q.reads.first(); x != nil && x.pos == q.sq.head && q.state == verbs.QPRTS {
		status := verbs.StatusRemOpErr
		switch {
		case f.layer == layerRDMAP && f.etype == 1:
			status = verbs.StatusRemAccessErr
		case f.layer == layerRDMAP && f.etype == 2, f.layer == layerDDP && f.etype == 2:
			status = verbs.StatusRemInvReqErr
		}
		q.completeSend(q.sq.at(x.pos), status)
	}
	q.stop(ending{})
}

// serve is the servant: he receives while nobody else does, and closes the stream in the end.
func (q *qp) serve() {
	defer q.dev.count(&q.dev.open.streams, -1)
	for alive := true; alive; {
		<-q.duty.call
		for {
			q.rx.lead = nil
			if alive = q.receive(true); !alive {
				break
			}
			if q.duty.giveWay(q.followed()) {
				q.rouse(nil)
				break
			}
		}
	}
	q.closeStream()
}

// followed tells whether a waiter has slept meanwhile.
func (q *qp) followed() bool {
	if q.duty.solo {
		return false
	}
	found := false
	for _, c := range [...]*channel{q.sendCQ.channel, q.recvCQ.channel} {
		if c != nil && c.sole.Load() == q && c.follows.Load() && c.follows.Swap(false) {
			found = true
		}
	}
	return found
}

// rouse has waiters look for the duty, but not that of one channel.
func (q *qp) rouse(but *channel) {
	for _, c := range [...]*channel{q.sendCQ.channel, q.recvCQ.channel} {
		if c != nil && c != but {
			c.signal()
		}
	}
}

// closeStream says goodbye in the order of RFC 5040, section 6: Terminate message, FIN, the peer's FIN.
func (q *qp) closeStream() {
	conn := q.stream.conn
	// For a net.Conn that does not know deadlines.
	last := time.AfterFunc(2*closeTime, func() { _ = conn.Close() })
	defer last.Stop()

	q.mu.Lock()
	for q.sending {
		q.quiet.Wait()
	}
	end := q.end
	lost := end.lost || q.out.failed
	q.mu.Unlock()
	_ = conn.SetDeadline(time.Now().Add(closeTime))

	if !lost && !end.torn {
		goodbye := end.rest
		if end.fault != nil {
			goodbye = end.fault.appendTerminate(goodbye, end.segment, q.withCRC)
		}
		if len(goodbye) > 0 {
			_, err := conn.Write(goodbye)
			lost = err != nil
		}
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok && !lost && !errors.Is(half.CloseWrite(), io.ErrClosedPipe) {
		for {
			if _, err := conn.Read(q.rx.buf); err != nil {
				break
			}
		}
	}
	_ = conn.Close()
}
