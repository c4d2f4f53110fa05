package rconn

import (
	"math"
	"net"
	"time"
)

// SetLinger sets how long Close waits, in seconds, as for a *net.TCPConn: 0 gives up what is under way, a negative number restores
// the default of 3 s.
func (c *Conn) SetLinger(sec int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return c.opError(opSet, net.ErrClosed)
	case sec < 0:
		c.cfg.Linger = defaultLinger
	default:
		c.cfg.Linger = time.Duration(min(sec, math.MaxInt32)) * time.Second
	}
	return nil
}

// Close ends the connection. Calls that wait return net.ErrClosed. What was written before is sent; Close waits until the
// peer's device has it (on iWARP, where a device does not know that: until the peer has disconnected), at most
// for Config.Linger, and for a call of the device that is under way.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError(opClose, net.ErrClosed)
	}
	c.closed = true
	c.stopKeepalive()
	c.mu.Unlock()
	c.kick()

	// The calls that are in progress see closed and leave; later ones come no further, and are not held up.
	for _, s := range []*side{&c.rd, &c.wr, &c.rest} {
		s.op.Lock()
	}
	c.mu.Lock()
	for _, s := range []*side{&c.rd, &c.wr, &c.rest} {
		s.op.Unlock()
	}
	orderly := c.cfg.Linger > 0 && c.linger()
	c.released = true
	for c.posting || c.registering > 0 {
		c.quiet.Wait()
	}
	if c.err != nil || !orderly {
		c.ep.pool = nil // who knows what the peer did, or still does
	}
	c.mu.Unlock()

	c.ep.release(c.cfg)
	c.cfg.Monitor.dropConn(c)
	return nil
}

// linger sends what is left and the end of the stream, and waits until they are there, or the peer has ended its own. False: neither came.
func (c *Conn) linger() bool {
	c.closing.deadline = time.Now().Add(c.cfg.Linger)
	c.stream.Discard() // a peer that still sends must get to see the end
	c.stream.Disconnect()
	c.wait(&c.closing)
	if !c.drained() {
		c.cfg.Logger.Info("rdma connection closed before the peer had everything, or had answered", "local", c.laddr, "remote", c.raddr,
			"linger", c.cfg.Linger)
	}
	return c.stream.Drained() || c.stream.PeerDisconnected()
}

// drained tells whether Close has nothing left to wait for.
func (c *Conn) drained() bool {
	switch {
	case c.err != nil || c.gone.Load() != nil || c.stream.PeerDisconnected():
		return true
	case c.iwarp():
		return false // only the peer's end tells that it has everything
	}
	return c.stream.Drained()
}
