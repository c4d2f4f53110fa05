package softiwarp

import (
	"errors"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/rconn/rdma/internal/backoff"
	"github.com/rconn/rdma/verbs"
)

// receiver takes FPDUs out of the stream. It belongs to whoever has the duty. Headers and short payloads come through buf; the rest
// of a long payload is read to where it belongs.
type receiver struct {
	buf  []byte
	r, w int // buf[r:w] is to be parsed

	// The segment whose payload is being placed.
	h       header
	placing bool
	left    int // payload bytes to come
	skip    int // then pad and CRC
	dst     []seg
	di, do  int // the next byte goes to dst[di].b[do]
	one     [1]seg

	// The messages.
	begun    bool            // an FPDU has come
	msn      [qnCount]uint32 // of the next message
	send     incoming        // the SEND that is coming in
	tagged   uint8           // opcode of the tagged message that is coming in; opCount: none
	writeLen int             // bytes of the WRITE that is coming in, or came last
	wrote    bool            // the last message was a WRITE
	lastMR   *mr             // the last region found by the peer's key

	lead    *channel      // whose waiter has the duty; nil: the servant
	park    bool          // sleep while nothing comes
	watch   time.Duration // before the waiter sleeps the first time
	watches backoff.Gate
	alive   bool
	vec     vectors
	iov     [][]byte
	mrs     []*mr
	readFn  func(uintptr) bool
}

// incoming is an untagged message in parts.
type incoming struct {
	active bool
	op     uint8
	off    int
	e      *rqe
	di, do int
}

const (
	stageSize    = 16 << 10
	crcStageSize = 2 * maxFPDU

	// While a long payload is read to its place, so much of what follows comes along: trailer and next headers, little payload.
	peek      = 512
	peekAbove = 4 << 10

	// readRounds bounds the reads of one call, so that it looks whether it is wanted elsewhere.
	readRounds = 64
)

func (r *receiver) init(q *qp) {
	size := stageSize
	if q.withCRC {
		size = crcStageSize // an FPDU is checked before anything of it is placed
	}
	r.buf = make([]byte, size)
	r.tagged = opCount
	for i := range r.msn {
		r.msn[i] = 1
	}
	r.iov = make([][]byte, 0, maxSGE+1)
	r.mrs = make([]*mr, 0, maxSGE)
	r.readFn = q.readSome
}

// receive takes what has come, after sleeping until there is something if park says so. It returns when something completed, when it
// was interrupted, or when nothing is there. False: the connection is over.
func (q *qp) receive(park bool) bool {
	r := &q.rx
	if q.stream.raw == nil {
		return q.receivePlain()
	}
	r.park, r.alive = park, true
	if err := q.stream.raw.Read(r.readFn); err != nil {
		return q.readFailed(err)
	}
	return r.alive
}

// readFailed tells an interrupt from the end.
func (q *qp) readFailed(err error) bool {
	q.stream.resumeRead()
	q.mu.Lock()
	defer q.mu.Unlock()
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		q.stop(ending{lost: true})
	}
	return q.state == verbs.QPRTS
}

// readSome is called by the runtime when something may have come. False: it shall call again then.
func (q *qp) readSome(fd uintptr) bool {
	r := &q.rx
	for range readRounds {
		before, ok := q.startReceiving()
		if !ok {
			r.alive = false
			return true
		}
		err := r.targets()
		n := 0
		if err == nil {
			n, err = q.read(fd)
			q.stream.afterRead(r.iov, n)
			r.release()
		}
		if r.lead != nil && err == nil {
			r.lead.armed.Store(false) // its waiter is awake
		}
		again := errors.Is(err, errAgain)
		if !again {
			q.take(n, err)
		}
		after, ok := q.endReceiving(n > 0)
		switch {
		case !ok:
			r.alive = false
			return true
		case after != before:
			return true
		case again: // and not when little came: the peer's FIN would wake nobody once more
			return !r.sleep()
		}
	}
	return true
}

// watchSlice is how long a waiter watches before it lets other goroutines run.
const watchSlice = 100 * time.Microsecond

// read takes what has come. If that is nothing, and between messages, a waiter may watch for more, unless it did not help lately: who
// takes a long payload in small pieces as they come does more work for it.
func (q *qp) read(fd uintptr) (int, error) {
	r := &q.rx
	n, err := r.vec.read(fd, r.iov)
	if err != errAgain || r.watch <= 0 || r.left > 0 {
		return n, err
	}
	watch := r.watch
	r.watch = 0
	if !r.watches.Try() {
		return n, err
	}
	r.lead.armed.Store(false) // he is awake
	now := time.Now()
	end, slice := now.Add(watch), now.Add(watchSlice)
	for ; err == errAgain && q.running() && !r.lead.turn(); n, err = r.vec.read(fd, r.iov) {
		switch now = time.Now(); {
		case now.After(end):
			r.watches.Result(false)
			return n, err
		case now.After(slice):
			runtime.Gosched()
			slice = now.Add(watchSlice)
		}
	}
	if n > 0 {
		r.watches.Result(true)
	}
	return n, err
}

// sleep tells whether to sleep until more comes. A waiter must first be ready to be roused.
func (r *receiver) sleep() bool {
	if !r.park {
		return false
	}
	if r.lead != nil {
		r.lead.armed.Store(true)
		if r.lead.turn() {
			return false
		}
		r.lead.parks.Add(1)
		r.watch = 0
	}
	return true
}

func (q *qp) receivePlain() bool {
	r := &q.rx
	free := r.buf[r.w:]
	n, err := q.stream.conn.Read(free)
	q.stream.afterRead([][]byte{free}, n)
	switch {
	case n == 0 && err == nil:
		return q.running()
	case n == 0 && !errors.Is(err, io.EOF):
		return q.readFailed(err)
	}
	if _, ok := q.startReceiving(); !ok {
		return false
	}
	if n > 0 {
		err = nil // it comes again
	}
	q.take(n, err)
	_, ok := q.endReceiving(n > 0)
	return ok
}

// startReceiving and endReceiving enclose what touches memory. They return the number of completions so far.
func (q *qp) startReceiving() (pushed uint64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != verbs.QPRTS {
		return 0, false
	}
	q.receiving = true
	return q.pushed, true
}

func (q *qp) endReceiving(heard bool) (pushed uint64, ok bool) {
	q.mu.Lock()
	if heard {
		q.posts = 0
	}
	q.receiving = false
	pushed = q.pushed
	if q.state != verbs.QPRTS {
		q.flush()
		q.quiet.Broadcast()
		q.mu.Unlock()
		return pushed, false
	}
	q.startSending() // unlocks; answers, and what has waited for one
	return pushed, true
}

// take deals with n bytes that were read, or with the end of the stream.
func (q *qp) take(n int, err error) {
	switch {
	case errors.Is(err, errMemoryGone):
		q.terminate(&faultLocal, nil)
	case err != nil:
		q.mu.Lock()
		q.stop(ending{lost: !errors.Is(err, io.EOF)})
		q.mu.Unlock()
	case n == 0:
		q.mu.Lock()
		q.stop(ending{})
		q.mu.Unlock()
	default:
		if r := &q.rx; r.left > 0 && q.stream.raw != nil {
			k := min(n, r.left)
			r.placed(k)
			n -= k
		}
		q.rx.w += n
		q.parse()
	}
}

// targets prepares a read: the place of the payload in progress, if there is one, and buf.
func (r *receiver) targets() error {
	r.iov, r.mrs = r.iov[:0], r.mrs[:0]
	free := r.buf[r.w:]
	if r.left > 0 { // buf is empty then
		if r.left > peekAbove {
			free = free[:peek]
		}
		left := r.left
		for di, do := r.di, r.do; left > 0; di, do = di+1, 0 {
			s := &r.dst[di]
			b := s.b[do:]
			b = b[:min(len(b), left)]
			if !s.mr.use() {
				r.release()
				return errMemoryGone
			}
			r.mrs = append(r.mrs, s.mr)
			r.iov = append(r.iov, b)
			left -= len(b)
		}
	}
	r.iov = append(r.iov, free)
	return nil
}

func (r *receiver) release() {
	for _, m := range r.mrs {
		m.done()
	}
	r.mrs = r.mrs[:0]
	clear(r.iov)
}

// placed accounts for n bytes of payload.
func (r *receiver) placed(n int) {
	r.left -= n
	r.do += n
	for r.di < len(r.dst) && r.do >= len(r.dst[r.di].b) && r.do > 0 {
		r.do -= len(r.dst[r.di].b)
		r.di++
	}
}

// copyStaged places what buf has of the payload. False: the memory is gone.
func (r *receiver) copyStaged() bool {
	for r.left > 0 && r.r < r.w {
		s := &r.dst[r.di]
		if !s.mr.use() {
			return false
		}
		b := r.buf[r.r:r.w]
		n := copy(s.b[r.do:], b[:min(len(b), r.left)])
		s.mr.done()
		r.r += n
		r.placed(n)
	}
	return true
}

// parse takes all that buf has.
func (q *qp) parse() {
	r := &q.rx
	for q.parseOne() {
	}
	switch {
	case r.r == r.w:
		r.r, r.w = 0, 0
	case r.r > 0 && (r.w-r.r < peek || len(r.buf)-r.w < maxFPDU):
		r.w = copy(r.buf, r.buf[r.r:r.w])
		r.r = 0
	}
}

// parseOne takes a step. False: more bytes are needed, or the connection is over.
func (q *qp) parseOne() bool {
	r := &q.rx
	if r.placing {
		if !r.copyStaged() {
			q.terminate(&faultLocal, nil)
			return false
		}
		if r.left > 0 || r.w-r.r < r.skip {
			return false
		}
		r.r += r.skip
		r.placing = false
		return q.segmentEnd()
	}
	b := r.buf[r.r:r.w]
	if q.withCRC {
		ok, f := r.wholeFPDU(b)
		if f != nil {
			q.terminate(f, nil)
		}
		if !ok {
			return false
		}
	}
	h := &r.h
	n, f := h.parse(b)
	switch {
	case f != nil:
		q.terminate(f, b)
		return false
	case n == 0, formats[h.op].control && len(b) < h.total():
		return false
	}
	if f = q.arrive(h, b[n:]); f != nil {
		q.terminate(f, b)
		return false
	}
	if formats[h.op].control {
		r.r += h.total()
		return q.running()
	}
	r.r += n
	r.placing, r.left, r.skip = true, h.payload, h.trailer()
	return true
}

// wholeFPDU waits until all of an FPDU is there and checks its CRC.
func (r *receiver) wholeFPDU(b []byte) (bool, *fault) {
	if len(b) < lengthSize {
		return false, nil
	}
	n := lengthSize + int(b[0])<<8 + int(b[1])
	n += trailerSize(n)
	switch {
	case len(b) < n:
		return false, nil
	case !checkCRC(b[:n]):
		return false, &faultCRC
	}
	return true, nil
}

// running tells whether the connection goes on.
func (q *qp) running() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.state == verbs.QPRTS
}

// terminate ends the connection because of what the peer sent. segment is that, as far as it is here.
func (q *qp) terminate(f *fault, segment []byte) {
	q.dev.cfg.Logger.Debug("iwarp: stream terminated", "local", q.id.LocalAddr(), "remote", q.id.RemoteAddr(), "err", f)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != verbs.QPRTS {
		return
	}
	keep := append([]byte(nil), segment[:min(len(segment), untaggedSize+readRequestSize)]...)
	q.stop(ending{fault: f, segment: keep})
	event := verbs.EventQPReqErr
	if f.layer != layerLLP && f.etype == 1 {
		event = verbs.EventQPAccessErr
	}
	q.async(event)
}
