package rconn

import "github.com/rconn/rdma/verbs"

// Rings of the default size begin small, since most connections never need more and registered memory is locked. One that carries bulk
// gets large ones, once, and keeps them: the peer may fill a segment at any time.

// growAfter is how often a ring must have been too small before it is replaced.
const growAfter = 4

// growth is what is known about one ring.
type growth struct {
	size  int // of the ring to come; 0: it stays as it is
	signs int
}

// due counts a sign that the ring is too small, and tells whether it shall grow now.
func (g *growth) due() bool {
	if g.size == 0 {
		return false
	}
	g.signs++
	return g.signs >= growAfter
}

// growSend replaces the send ring. Only the Write in progress calls it: nobody else adds to the ring meanwhile.
func (c *Conn) growSend() {
	if mr := c.register(&c.sendGrowth, verbs.AccessLocalWrite); mr != nil {
		c.ep.bigSend, c.cfg.SendBuffer = mr, len(mr.Bytes())
		c.stream.GrowSend(mr.Bytes())
	}
}

// growRecv replaces the receive ring, from the next segment on that the peer gets.
func (c *Conn) growRecv() {
	if mr := c.register(&c.recvGrowth, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); mr != nil {
		c.ep.bigRecv, c.cfg.RecvBuffer = mr, len(mr.Bytes())
		c.stream.GrowRecv(mr.Bytes(), mr.Addr(), mr.RKey())
	}
}

// register allocates memory for a larger ring, without the lock, since that takes a while. Nil: there is none to be had, and that is so
// for good.
func (c *Conn) register(g *growth, access verbs.Access) verbs.MR {
	size := g.size
	g.size = 0
	c.mu.Unlock()
	mr, err := c.ep.pd.AllocMR(size, access)
	c.mu.Lock()
	if err != nil {
		c.cfg.Logger.Debug("rdma ring stays small", "local", c.laddr, "remote", c.raddr, "bytes", size, "err", err)
		return nil
	}
	return mr
}
