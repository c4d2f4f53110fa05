package rconn

import (
	"net"
	"time"
)

// Small writes that come close together travel together. The first of them leave at once, as a lone one does. Those that follow wait in
// the send ring until what is under way has completed, or until there are enough for a message of their own: on most devices a
// message costs more than its bytes. Whoever takes the completion posts them: a call that waits, or else a goroutine that lives until
// they are posted.

const (
	// batchSize is a message that need not wait for company, in bytes.
	batchSize = minPiece

	// burstWrites is the number of small writes in a row, with nothing read between, that leave at once. After a pause of burstGap they are
	// counted anew; the first few do not look for one.
	burstWrites = 4
	burstGap    = time.Millisecond
)

// burst counts small writes in a row.
type burst struct {
	off    bool // SetNoDelay
	writes int
	last   time.Time // when the last of them returned
	batch  int       // bytes that need not wait for company; 0: none do
}

// SetNoDelay has every Write leave at once, as a message of its own. Without it only the first few of many small writes in a row do; the
// others may travel together while those before them are under way, which on most devices is several times faster. The last of them then
// leave when a call of this connection waits, or else when the scheduler gives a goroutine its turn: on processors that are all busy
// that may take some milliseconds.
func (c *Conn) SetNoDelay(noDelay bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError(opSet, net.ErrClosed)
	}
	c.burst = burst{off: noDelay}
	return nil
}

// pace decides whether the Write that begins may wait for company.
func (c *Conn) pace(bufs [][]byte) {
	size := 0
	for _, b := range bufs {
		size += len(b)
	}
	b := &c.burst
	if b.off || size >= batchSize {
		b.writes = 0
	} else if b.writes++; b.writes >= burstWrites && time.Since(b.last) > burstGap {
		b.writes = 1
	}
	b.batch = 0
	if b.writes > burstWrites {
		b.batch = min(batchSize, c.cfg.SendBuffer/4)
	}
	c.stream.Batch(b.batch)
}

// paced ends what pace began. A gap is the caller's pause, not the time that a Write takes: some devices do all their work in the call that posts.
func (c *Conn) paced() {
	if b := &c.burst; b.writes >= burstWrites-1 { // no clock for the others
		b.last = time.Now()
	}
}

// crowded tells that small writes have become a message of the largest size that the send ring allows.
func (c *Conn) crowded() bool { return c.burst.batch > 0 && c.stream.Unposted() >= c.burst.batch }

// settled tells whether calls may leave the connection alone: no bytes wait to be posted, nor the end, and nothing comes that must be dropped.
func (c *Conn) settled() bool {
	s := c.stream
	posted := s.Unposted() == 0 && !s.EndPending()
	return s.PeerDisconnected() || posted && (!c.deaf || s.EOF())
}

// grantDelay is how long space that Read has freed behind as many grants as may be under way is left to the next call. A goroutine that waited for
// their completions at once came between a busy reader and its own, and cost a fifth of the rate on Soft-RoCE.
const grantDelay = 10 * time.Millisecond

// grants is the timer that looks after what Read could not grant.
type grants struct {
	timer *time.Timer
	due   bool // grant is about to run
	delay time.Duration
}

// attend sees to it that what is left is posted, where nobody waits who would.
func (c *Conn) attend() {
	if c.writing || c.leader != nil || c.over(&c.rest) {
		return
	}
	switch {
	case !c.rest.ready() && !c.flushing:
		c.flushing = true
		go c.flush()
	case c.stream.Granting() && !c.gated && !c.grants.due:
		c.grants.due = true
		if c.grants.timer == nil {
			c.grants.delay = grantDelay
			c.grants.timer = time.AfterFunc(c.grants.delay, c.grant)
		} else {
			c.grants.timer.Reset(c.grants.delay)
		}
	}
}

// grant grants what Read could not. While the completions do not come, as from a peer that is dead, it looks less and less often.
func (c *Conn) grant() {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := &c.grants
	g.due = false
	c.progress()
	if c.stream.Granting() {
		g.delay = min(2*g.delay, time.Second)
	} else {
		g.delay = grantDelay
	}
	c.attend()
}

func (c *Conn) flushRest() {
	c.rest.op.Lock()
	defer c.rest.op.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wait(&c.rest)
	c.flushing = false
}
