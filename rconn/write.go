package rconn

import (
	"io"
	"net"
	"sync"
	"time"

	"github.com/rconn/rdma/ring"
)

// Write sends p. It returns when all of it is with the device, or about to be in a call of another goroutine, or, as one of many small
// writes, waits to travel with others (see SetNoDelay); else with the number of bytes that are. A Write of nothing tells whether the
// connection can be written to, as far as is known.
func (c *Conn) Write(p []byte) (int, error) {
	one := [...][]byte{p}
	n, err := c.write(one[:])
	return int(n), c.opError(opWrite, err)
}

// WriteBuffers sends the buffers as one Write of all their bytes would: no other Write comes between, and small ones travel
// together. It takes what was sent off v, as net.Buffers.WriteTo does.
func (c *Conn) WriteBuffers(v *net.Buffers) (int64, error) {
	n, err := c.write(*v)
	consume(v, n)
	return n, c.opError(opWrite, err)
}

// consume takes the first n bytes off v.
func consume(v *net.Buffers, n int64) {
	for len(*v) > 0 && int64(len((*v)[0])) <= n {
		n -= int64(len((*v)[0]))
		(*v)[0] = nil
		*v = (*v)[1:]
	}
	if n > 0 {
		(*v)[0] = (*v)[0][n:]
	}
}

func (c *Conn) write(bufs [][]byte) (n int64, err error) {
	c.wr.op.Lock()
	defer c.wr.op.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing = true
	defer func() {
		c.writing = false
		c.paced()
		c.attend()
	}()
	c.pace(bufs)
	var buf []byte // what is left of the buffer being copied
	if c.gone.Load() != nil || c.stream.EOF() {
		c.progress() // a writer that finds room would not learn of the end, and behind the peer's nobody reads
	}
	for {
		if err = c.callError(&c.wr); err == nil {
			err = c.writeError()
		}
		if err != nil {
			return n - int64(c.stream.Withdraw(int(min(n, ring.MaxRing)))), err
		}
		copied := 0
		copied, buf, bufs = c.put(buf, bufs)
		n += int64(copied)
		c.copying = len(buf) > 0
		switch {
		case !c.copying && c.writable() && c.err == nil:
			return n, nil // even if the peer ended meanwhile: it may have it all
		case copied > 0:
		default:
			c.stats.WriteStalls++
			c.wait(&c.wr)
		}
	}
}

// minPiece is the least that is worth a message of its own while more is to be sent: half of a large send ring travels while the
// other half is filled.
const minPiece = 64 << 10

// maxPiece is enough to make the cost of a message not count.
const maxPiece = 512 << 10

// put copies bytes to the send ring, as many as there is room for, and posts them.
func (c *Conn) put(buf []byte, bufs [][]byte) (int, []byte, [][]byte) {
	n := 0
	for {
		piece := min(max(c.cfg.SendBuffer/2, minPiece), maxPiece)
		for len(buf) == 0 && len(bufs) > 0 {
			buf, bufs = bufs[0], bufs[1:]
		}
		span := c.stream.WriteSpan()
		if len(span) == 0 && len(buf) > 0 {
			c.growSend()
			span = c.stream.WriteSpan()
		}
		// Room may come as fast as it is filled: Close and deadlines must not wait for that.
		if len(buf) == 0 || len(span) == 0 || c.callError(&c.wr) != nil {
			break
		}
		now := c.keepalive.heard
		if len(buf) >= minPiece {
			now = time.Now() // it took long to get here, if pieces were posted before
		}
		// Only this call commits: the span is ours while the lock is not.
		c.unlock(&c.wr.turns, now)
		k := copy(span, buf[:min(len(buf), piece)])
		c.mu.Lock()
		c.stream.Commit(k)
		n, buf = n+k, buf[k:]
		if k == piece {
			c.post()
		}
	}
	if n > 0 {
		if c.crowded() {
			c.growSend()
		}
		c.post()
	}
	return n, buf, bufs
}

// writable tells whether the Write in progress can go on: all that it copied is posted, or held, and there is room for what is left. Or
// there is a larger ring.
func (c *Conn) writable() bool {
	return c.copying && c.sendGrowth.ready || (c.stream.Unposted() == 0 || c.stream.Held()) && (!c.copying || len(c.stream.WriteSpan()) > 0)
}

// copyBuffers are for ReadFrom and WriteTo: larger messages than io.Copy makes.
var copyBuffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// copyThrough copies in pieces of half a ring at most, so that one half travels while the other is filled.
func copyThrough(w io.Writer, r io.Reader, ring int) (int64, error) {
	buf := copyBuffers.Get().(*[256 << 10]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(w, r, buf[:max(1, min(ring/2, len(buf)))])
}

// ReadFrom sends what r has until its end. It does not hold other Writes up while r has nothing.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	return copyThrough(struct{ io.Writer }{c}, r, max(c.ep.cfg.SendBuffer, c.ep.cfg.growSend))
}

// WriteTo writes to w what the peer sends until its end.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	return copyThrough(w, struct{ io.Reader }{c}, max(c.ep.cfg.RecvBuffer, c.ep.cfg.growRecv))
}
