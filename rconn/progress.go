package rconn

import (
	"errors"
	"io"
	"syscall"

	"github.com/rconn/rdma/ring"
	"github.com/rconn/rdma/verbs"
)

// Waiting is leader and followers. Of the calls that wait on a Conn one leads: it waits on the completion channel itself, takes
// completions, feeds the stream and posts, for everyone. The others sleep on their side's wake channel. The leader rouses a
// follower whose turn has come, and when it leaves, the next one to lead. So a completion wakes the
// goroutine that wants it, without a hop through another, and no goroutine is needed while nobody waits.

// wait returns when s is ready or must give up (see over). c.mu is held, but not while sleeping or posting.
func (c *Conn) wait(s *side) {
	if c.leader != nil || c.gone.Load() != nil {
		c.progress()
	} else {
		c.post() // the first thing that a call does that leads is to look for completions
	}
	for !s.ready() && !c.over(s) {
		if c.leader == nil {
			c.lead(s)
			continue
		}
		s.waiting = true
		s.arm()
		c.mu.Unlock()
		<-s.wake
		c.mu.Lock()
		s.disarm()
		s.waiting = false
	}
	if c.leader == nil {
		c.handOver()
	}
}

// handOver has the next call lead. One that was roused to lead and need not must pass that on: others may sleep.
func (c *Conn) handOver() {
	for _, o := range c.sides {
		if o.waiting {
			o.rouse()
			return
		}
	}
	c.attend()
}

// over tells whether a call of s must give up although it is not ready.
func (c *Conn) over(s *side) bool {
	return c.err != nil || s.expired() || c.closed && s != &c.closing
}

// lead waits for completions until s is ready or must give up.
func (c *Conn) lead(s *side) {
	c.leader = s
	for !s.ready() && !c.over(s) {
		s.arm() // each time: progress unlocks c.mu, and the deadline may have been moved
		parks := c.ep.channel.Parks()
		s.waiting = true
		c.unlock(&s.turns, c.keepalive.heard)
		err := c.ep.channel.Wait(c.cfg.Spin)
		c.mu.Lock()
		s.waiting = false
		if err != nil {
			c.fail(err)
		}
		c.progress()
		c.stats.Waits++
		c.stats.Parks += c.ep.channel.Parks() - parks
	}
	s.disarm()
	c.leader = nil
}

// kick makes all calls look at the state again. It needs no lock, so that events and timers may call it.
func (c *Conn) kick() {
	for _, s := range c.sides {
		s.rouse()
	}
	c.ep.channel.Interrupt()
}

// progress takes completions, posts what has become possible, and returns how many completions there were. It is the
// only reaper of the completion queue. It unlocks c.mu to post.
func (c *Conn) progress() (n int) {
	if c.released {
		return 0
	}
	// What the connection manager says counts only after all that had arrived before.
	gone := c.gone.Load()
	n = c.reap()
	if gone != nil {
		n += c.reapAll()
		if !c.stream.Ended() {
			c.fail(eventError(*gone))
		}
	}
	c.collect()
	c.turn()
	c.push()
	return n
}

// reapAll takes completions until there are none.
func (c *Conn) reapAll() (n int) {
	for k := c.reap(); k > 0; k = c.reap() {
		n += k
	}
	return n
}

// reap takes completions, and returns their number. There may be more: what a wait has found and what has come since are two polls.
func (c *Conn) reap() (n int) {
	heard := false
	for {
		k, err := c.ep.cq.Poll(c.ep.wcs[:])
		if err != nil {
			c.fail(err)
			break
		}
		for i := range k {
			heard = c.complete(&c.ep.wcs[i]) || heard
		}
		n += k
		c.stats.Completions += uint64(k)
		if k < len(c.ep.wcs) {
			break
		}
	}
	if heard {
		c.heard()
	}
	return n
}

// turn rouses the calls whose turn has come. Whoever takes completions must: the event of one that a caller in passing has
// taken may never wake the leader.
func (c *Conn) turn() {
	for _, s := range c.sides {
		if s.waiting && (s.ready() || c.over(s)) {
			c.rouse(s)
		}
	}
}

// rouse lets a waiting call look again.
func (c *Conn) rouse(s *side) {
	if s == c.leader {
		c.ep.channel.Interrupt()
	} else {
		s.rouse()
	}
}

// complete takes one completion, and tells whether it is a sign of life from the peer's device.
func (c *Conn) complete(wc *verbs.Completion) (heard bool) {
	if wc.Status != verbs.StatusSuccess {
		// The cause comes before the flush that it leads to; after an orderly end both are expected. Close wants to know
		// in any case: nothing comes after.
		if c.closed || !c.stream.Ended() {
			c.fail(wc.Err())
		}
		return false
	}
	if wc.ID&recvBit == 0 {
		c.stream.Completed(wc.ID)
		return c.ep.acked || wc.Opcode == verbs.WCRDMARead
	}
	c.gated = false
	m, err := c.ep.message(wc)
	if err == nil {
		err = c.stream.Received(m, int(wc.ByteLen))
	}
	if err != nil {
		c.fail(err)
	}
	return true
}

func (c *Conn) iwarp() bool { return c.ep.variant == ring.Separate }

// fail ends the connection with its first error. It rouses all calls that wait: no completion may ever do.
func (c *Conn) fail(err error) {
	if c.err != nil {
		return
	}
	defer c.turn()
	if errors.Is(err, verbs.ErrClosed) {
		c.err = err
		return
	}
	if _, ok := errors.AsType[*brokenError](err); !ok {
		err = broken(syscall.ECONNRESET, err)
	}
	c.err = err
	if _, ok := errors.AsType[*ring.ProtocolError](err); ok {
		c.cfg.warnings.Warn(c.cfg.Logger, "rdma connection ended", "local", c.laddr, "remote", c.raddr, "err", err)
		// Nothing more from this peer may reach our memory.
		_ = c.ep.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState)
	}
}

// readError is what ends reading once everything received was read: nil while there may be more.
func (c *Conn) readError() error {
	if c.stream.EOF() {
		return io.EOF
	}
	return c.failure()
}

// writeError is what forbids writing.
func (c *Conn) writeError() error {
	if c.shutdown || c.stream.PeerDisconnected() {
		return syscall.EPIPE
	}
	return c.failure()
}

// failure is why the connection broke. A flush is only the effect of something: of what the connection manager said, once it
// has.
func (c *Conn) failure() error {
	if gone := c.gone.Load(); gone != nil && errors.Is(c.err, &verbs.CompletionError{Status: verbs.StatusWRFlushErr}) {
		c.err = eventError(*gone)
	}
	return c.err
}
