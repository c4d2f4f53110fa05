package rconn

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/ring"
	"github.com/rconn/rdma/verbs"
)

// Conn is a connection. It is a net.Conn; all methods may be called from several goroutines.
type Conn struct {
	cfg          Config
	network      string
	laddr, raddr *net.TCPAddr

	ep   *endpoint
	gone atomic.Pointer[cm.Event] // the event that ended the connection, if any

	mu              sync.Mutex // guards all below and the sides' state; never held while sleeping
	stream          *ring.Stream
	rd, wr, closing side
	rest            side     // the goroutine that posts what calls have left
	sides           [4]*side // those four
	leader          *side    // the side whose call waits on the completion channel
	burst           burst

	sendGrowth, recvGrowth growth
	flush, pusher          func()     // flushRest and pushRest, made once: starting them allocates nothing
	quiet                  *sync.Cond // posting or registering has ended
	postTurns              turns
	stats                  Stats
	keepalive              keepalive
	grants                 grants
	err                    error // why the connection broke
	registering            int   // calls of register under way
	closed                 bool  // Close was called
	shutdown               bool  // CloseWrite was called
	deaf                   bool  // CloseRead was called
	writing                bool  // a Write is in progress
	flushing               bool  // flushRest runs, or is about to
	posting                bool  // a goroutine posts what was collected, or is about to
	copying                bool  // the Write in progress has bytes left to copy
	hungUp                 bool  // we answered the peer's disconnect
	gated                  bool  // nothing may be sent yet
	released               bool  // the endpoint is gone, or about to be
}

var _ net.Conn = (*Conn)(nil)

// newConn makes a Conn of an established connection.
func newConn(network string, ep *endpoint) *Conn {
	cfg := ep.cfg
	c := &Conn{
		cfg: cfg, network: network, ep: ep, stream: ep.stream,
		laddr: net.TCPAddrFromAddrPort(ep.id.LocalAddr()), raddr: net.TCPAddrFromAddrPort(ep.id.RemoteAddr()),
	}
	c.sendGrowth.size, c.recvGrowth.size = cfg.growSend, cfg.growRecv
	c.sides = [...]*side{&c.rd, &c.wr, &c.closing, &c.rest}
	c.flush, c.pusher = c.flushRest, c.pushRest
	c.quiet = sync.NewCond(&c.mu)
	c.rd.init(func() bool { return len(c.stream.ReadSpan()) > 0 || c.deaf || c.readError() != nil }, c.kick)
	c.wr.init(func() bool { return c.writable() || c.writeError() != nil }, c.kick)
	c.closing.init(c.drained, c.kick)
	c.rest.init(c.settled, c.kick)
	ep.id.Notify(c.event)
	cfg.announce(c.Device())
	cfg.Logger.Debug("rdma connection", "local", c.laddr, "remote", c.raddr, "device", c.Device().Name(),
		"transport", c.Device().Attr().Transport)

	// Offers the second half of the receive ring at once, instead of with the first read.
	c.mu.Lock()
	if ep.accepted && c.iwarp() {
		c.shut()
	}
	c.post()
	c.startKeepalive()
	c.mu.Unlock()
	return c
}

// event takes what the connection manager says. It must not block.
func (c *Conn) event(ev cm.Event) {
	c.cfg.Logger.Debug("rdma connection event", "local", c.laddr, "remote", c.raddr, "event", ev)
	if ev.Ends() && c.gone.CompareAndSwap(nil, &ev) {
		c.kick()
	}
}

// Read reads into p what has arrived, waiting for at least one byte.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.read(p)
	return n, c.opError(opRead, err)
}

func (c *Conn) read(p []byte) (int, error) {
	c.rd.op.Lock()
	defer c.rd.op.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if len(p) == 0 && !c.closed {
			return 0, nil
		}
		if err := c.callError(&c.rd); err != nil {
			return 0, err
		}
		if c.deaf {
			return 0, io.EOF
		}
		if n := c.take(p); n > 0 {
			c.stats.Reads++
			c.burst.writes = 0 // what is written next may be an answer
			c.attend()
			return n, nil
		}
		if err := c.readError(); err != nil {
			if err == io.EOF {
				c.stream.Discard() // an end that was reported stays: some peers send on behind it
			}
			return 0, err
		}
		c.wait(&c.rd)
	}
}

// take copies received bytes to p and gives their space back: what is there, and no more while the peer sends on, so
// that Close and deadlines need not wait.
func (c *Conn) take(p []byte) (n int) {
	for range 2 { // it may wrap around
		span := c.stream.ReadSpan()
		if len(span) == 0 {
			break
		}
		// Only this call consumes: the span is ours while the lock is not.
		c.mu.Unlock()
		k := copy(p[n:], span)
		c.mu.Lock()
		c.stream.Consume(k)
		n += k
		c.noteSpan(len(span))
	}
	if n > 0 {
		c.post()
	}
	return n
}

// callError is what ends a call before it looks at data or window.
func (c *Conn) callError(s *side) error {
	if c.closed {
		return net.ErrClosed
	}
	if s.expired() {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// CloseWrite ends the sending direction in order: the peer reads what was written, then io.EOF. A Write that still waits fails
// with syscall.EPIPE.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	c.shutdown = true
	c.mu.Unlock()
	c.kick()
	c.wr.op.Lock() // after the Write in progress, which may be copying
	defer c.wr.op.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError(opClose, net.ErrClosed)
	}
	c.stream.Shutdown()
	c.post()
	c.attend()
	return nil
}

// CloseRead ends reading here: Read returns io.EOF, and what the peer still sends is dropped, by a goroutine that lives until the peer or Close
// ends the connection. The protocol has no word for it, the peer is not told.
func (c *Conn) CloseRead() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError(opClose, net.ErrClosed)
	}
	c.deaf = true
	c.mu.Unlock()
	c.kick()
	c.rd.op.Lock() // after the Read in progress, which may be copying
	defer c.rd.op.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stream.Discard()
	c.progress() // drops what has arrived, and grants its space
	c.attend()
	return nil
}

// LocalAddr is the local address, a *net.TCPAddr.
func (c *Conn) LocalAddr() net.Addr { return c.laddr }

// RemoteAddr is the peer's address, a *net.TCPAddr.
func (c *Conn) RemoteAddr() net.Addr { return c.raddr }

// Device is the device that the connection runs on.
func (c *Conn) Device() verbs.Device { return c.ep.id.Device() }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadline(t, &c.rd, &c.wr) }

// SetReadDeadline sets the time after which Read fails, also a Read that waits now. The zero time means never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(t, &c.rd) }

// SetWriteDeadline sets the time after which Write fails, also a Write that waits now. The zero time means never.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, &c.wr) }

func (c *Conn) setDeadline(t time.Time, sides ...*side) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError(opSet, net.ErrClosed)
	}
	if !t.IsZero() {
		// From here on by the monotonic clock, as in package net: the timer runs by it, whatever happens to the time of day.
		t = time.Now().Add(time.Until(t))
	}
	for _, s := range sides {
		s.deadline = t
		if s.waiting {
			s.arm()
			c.rouse(s)
		}
	}
	return nil
}

func (c *Conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return opError(op, c.network, c.laddr, c.raddr, err)
}
