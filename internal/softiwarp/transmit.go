package softiwarp

import (
	"errors"

	"github.com/rconn/rdma/verbs"
)

var errMemoryGone = errors.New("a memory region was closed while it was in use")

// A program that posts one small request after the other, and hears nothing from the peer meanwhile, is better served by fewer and
// longer writes: its requests are left to a goroutine, which sends whatever there is when it gets to run, unless so many have come
// together that the poster sends them himself, or he waits.
const (
	streamPosts   = 8  // in a row without a word from the peer: from here on
	maxTogether   = 16 // requests
	togetherBytes = copyLimit
)

// startPosted is startSending for requests that were just posted.
func (q *qp) startPosted() {
	s := &q.sq
	if q.posts++; q.posts > streamPosts && s.tail > s.head && s.tail-s.next < maxTogether && s.at(s.tail-1).length <= togetherBytes &&
		!q.sending && q.sendable() && q.stream.raw != nil {
		if !q.held.Swap(true) {
			go q.out.releaseFn()
		}
		q.mu.Unlock()
		return
	}
	q.startSending()
}

// release sends what startPosted has held back.
func (q *qp) release() {
	if q.held.Load() {
		q.mu.Lock()
		q.held.Store(false)
		q.startSending()
	}
}

// sendRounds bounds the batches that one call sends: others may post without end.
const sendRounds = 8

// startSending sends what there is to send, unless somebody does already. It does not block: what TCP does not take is left to a
// goroutine that lives until all is sent. It unlocks mu.
func (q *qp) startSending() {
	if q.sending || !q.sendable() {
		q.mu.Unlock()
		return
	}
	q.sending = true
	if q.stream.raw == nil {
		q.mu.Unlock()
		go q.out.drainFn()
		return
	}
	// The first batch is built at once: to lock again for it costs more.
	t := &q.out
	t.park, t.ready = false, q.prepare()
	q.mu.Unlock()
	if !t.ready {
		return
	}
	if err := q.stream.raw.Write(q.out.writeFn); err != nil {
		q.stopSending()
	}
}

// drain sends the rest.
func (q *qp) drain() {
	t := &q.out
	if q.stream.raw == nil {
		q.drainPlain()
		return
	}
	t.park = true
	if err := q.stream.raw.Write(t.writeFn); err != nil {
		q.stopSending()
	}
}

// writeSome is called by the runtime when TCP may take something. False: it shall call again then.
func (q *qp) writeSome(fd uintptr) bool {
	t := &q.out
	for rounds := 0; t.ready || q.more(); rounds++ {
		t.ready = false
		n, err := 0, error(errAgain)
		if t.park || rounds < sendRounds {
			n, err = q.writev(fd)
		}
		switch {
		case err == nil:
			t.advance(n)
		case !errors.Is(err, errAgain):
			q.sendFailed(err)
		case t.park:
			return false
		default:
			go t.drainFn()
			return true
		}
	}
	return true
}

func (q *qp) drainPlain() {
	t := &q.out
	for q.more() {
		err := t.flatten()
		if err == nil {
			q.stream.beforeWrite([][]byte{t.flat})
			var n int
			n, err = q.stream.conn.Write(t.flat)
			t.advance(n)
		}
		if err != nil {
			q.sendFailed(err)
		}
	}
}

// more accounts for what was written and sees to it that there is a batch. False: there is nothing to do, and the caller does not send
// any more.
func (q *qp) more() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sent = q.out.written
	q.completeSends()
	return q.prepare()
}

// prepare is the second half of more. mu is held.
func (q *qp) prepare() bool {
	t := &q.out
	for q.state == verbs.QPRTS && !t.failed {
		if !t.empty() || q.build() {
			if q.state == verbs.QPRTS {
				return true
			}
			break
		}
		q.completeSends() // one that cannot be sent may fail now
		if !q.sendable() {
			break
		}
	}
	q.putDownSending()
	return false
}

// stopSending is the end of a write that stop has interrupted, or that failed in another way.
func (q *qp) stopSending() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == verbs.QPRTS {
		q.out.failed = true
	}
	q.out.ready = false
	q.putDownSending()
}

func (q *qp) putDownSending() {
	q.sending = false
	if q.state == verbs.QPError {
		q.cut()
		q.flush()
	}
	q.quiet.Broadcast()
}

// sendFailed notes that the stream takes nothing any more. What the peer sent before is still to be received, so it is the
// receiver who finds the connection's end. In the error state it is stop that has interrupted the write, and a goodbye may follow.
func (q *qp) sendFailed(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case errors.Is(err, errMemoryGone):
		q.stop(ending{fault: &faultLocal})
	case q.state == verbs.QPRTS:
		q.out.failed = true
	}
}

// cut keeps what is missing of a half-sent FPDU, so that a Terminate message can follow it, and drops the rest of the batch.
func (q *qp) cut() {
	t := &q.out
	if t.empty() {
		return
	}
	whole := t.built - uint64(t.size) // up to here FPDUs are complete
	for _, end := range t.ends {
		if t.written < end {
			if t.written > whole && t.flatten() == nil {
				q.end.rest = t.flat[:end-t.written]
			}
			q.end.torn = t.written > whole && q.end.rest == nil
			break
		}
		whole = end
	}
	t.iov, t.mrs, t.first = t.iov[:0], t.mrs[:0], 0
}

// use keeps the batch's memory mapped until done.
func (t *sender) use() bool {
	for i, m := range t.mrs {
		if !m.use() {
			for _, m := range t.mrs[:i] {
				m.done()
			}
			return false
		}
	}
	return true
}

func (t *sender) done() {
	for _, m := range t.mrs {
		m.done()
	}
}

func (q *qp) writev(fd uintptr) (int, error) {
	t := &q.out
	if !t.use() {
		return 0, errMemoryGone
	}
	q.stream.beforeWrite(t.iov[t.first:])
	n, err := t.vec.write(fd, t.iov[t.first:])
	t.done()
	return n, err
}

// flatten copies what is left of the batch to flat.
func (t *sender) flatten() error {
	if !t.use() {
		return errMemoryGone
	}
	t.flat = t.flat[:0]
	for _, b := range t.iov[t.first:] {
		t.flat = append(t.flat, b...)
	}
	t.done()
	return nil
}

// advance takes what was written off the batch.
func (t *sender) advance(n int) {
	t.written += uint64(n)
	for n > 0 {
		b := t.iov[t.first]
		if n < len(b) {
			t.iov[t.first] = b[n:]
			return
		}
		n -= len(b)
		t.first++
	}
}
