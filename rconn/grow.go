package rconn

import "github.com/rconn/rdma/verbs"

// Rings of the default size begin small, since most connections never need more and registered memory is locked. One that carries bulk
// gets large ones, once, and keeps them: the peer may fill a segment at any time. To register memory takes a while, so it is done beside, and
// the small ring does meanwhile.

// growAfter is how often a ring must have been too small before it is replaced.
const growAfter = 4

// growth is what is known about one ring.
type growth struct {
	size  int // of the ring to come; 0: it stays as it is
	signs int
	ready bool   // the endpoint has the memory
	seen  uint64 // bytes received at the last sign
}

// due counts a sign that the ring is too small, and tells whether it can be replaced now. register is started when it is time for that.
func (g *growth) due(register func(size int)) bool {
	if g.ready {
		g.ready = false
		return true
	}
	if g.size > 0 {
		if g.signs++; g.signs >= growAfter {
			size := g.size
			g.size = 0
			register(size)
		}
	}
	return false
}

// growSend counts a sign that the send ring is too small, and replaces it when that can be. Only the Write in progress calls it: nobody else
// adds to the ring meanwhile.
func (c *Conn) growSend() {
	if c.sendGrowth.due(c.registerSend) {
		mem := c.ep.bigSend.Bytes()
		c.cfg.SendBuffer = len(mem)
		c.stream.GrowSend(mem)
	}
}

// noteSpan takes the size of what is unread, of which a quarter of the ring is a sign that it is too small: once for as much that has arrived, however
// small the pieces in which it is read.
func (c *Conn) noteSpan(n int) {
	least := c.cfg.RecvBuffer / 4
	if n < least {
		return
	}
	if got := c.stream.Stats().BytesReceived; got-c.recvGrowth.seen >= uint64(least) {
		c.recvGrowth.seen = got
		c.growRecv()
	}
}

// growRecv does the same for the receive ring, from the next segment on that the peer gets.
func (c *Conn) growRecv() {
	if c.recvGrowth.due(c.registerRecv) {
		mr := c.ep.bigRecv
		c.cfg.RecvBuffer = len(mr.Bytes())
		c.stream.GrowRecv(mr.Bytes(), mr.Addr(), mr.RKey())
	}
}

func (c *Conn) registerSend(size int) {
	c.registering++
	go c.register(size, verbs.AccessLocalWrite, &c.ep.bigSend, &c.sendGrowth)
}

func (c *Conn) registerRecv(size int) {
	c.registering++
	go c.register(size, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, &c.ep.bigRecv, &c.recvGrowth)
}

// register gets memory for a larger ring. If there is none to be had, that is so for good.
func (c *Conn) register(size int, access verbs.Access, to *verbs.MR, g *growth) {
	mr, err := c.ep.pd.AllocMR(size, access)
	if c.ep.pool.makesRoom(err) {
		mr, err = c.ep.pd.AllocMR(size, access)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		*to, g.ready = mr, true
	} else {
		c.cfg.Logger.Debug("rdma ring stays small", "local", c.laddr, "remote", c.raddr, "bytes", size, "err", err)
	}
	c.registering--
	c.quiet.Broadcast()
	c.turn()
}
