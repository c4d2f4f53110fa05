package rconn

import (
	"github.com/rconn/rdma/ring"
	"github.com/rconn/rdma/verbs"
)

// Stats counts what a connection has done.
type Stats struct {
	ring.Stats

	Reads       uint64 // calls of Read that returned bytes
	WriteStalls uint64 // times a Write waited for credits, space at the peer, or the device
	Completions uint64 // work completions taken
	Waits       uint64 // times a call waited for completions: they were there, or it spun or slept
	Parks       uint64 // times it slept for that
	Probes      uint64 // keepalive probes sent
}

// Stats returns the counts up to now. They stay readable after Close.
func (c *Conn) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.statsLocked()
}

func (c *Conn) statsLocked() Stats {
	s := c.stats
	s.Stats = c.stream.Stats()
	return s
}

// add sums up.
func (s *Stats) add(o *Stats) {
	s.BytesSent += o.BytesSent
	s.BytesReceived += o.BytesReceived
	s.DataSent += o.DataSent
	s.DataReceived += o.DataReceived
	s.GrantsSent += o.GrantsSent
	s.GrantsReceived += o.GrantsReceived
	s.SegmentsSent += o.SegmentsSent
	s.Reads += o.Reads
	s.WriteStalls += o.WriteStalls
	s.Completions += o.Completions
	s.Waits += o.Waits
	s.Parks += o.Parks
	s.Probes += o.Probes
}

// Info says what a connection runs on.
type Info struct {
	Device      string          // the device's name
	Transport   verbs.Transport // InfiniBand (RoCE too) or iWARP
	QPNum       uint32
	SendBuffer  int // bytes of the send ring
	RecvBuffer  int // bytes of the receive ring
	Credits     int // messages the peer may send ahead
	PeerCredits int // messages we may send ahead
}

// Info says what the connection runs on.
func (c *Conn) Info() Info {
	dev := c.ep.id.Device()
	c.mu.Lock()
	defer c.mu.Unlock()
	return Info{
		Device: dev.Name(), Transport: dev.Attr().Transport, QPNum: c.ep.qp.Num(), SendBuffer: c.cfg.SendBuffer,
		RecvBuffer: c.cfg.RecvBuffer, Credits: int(c.stream.Handshake().Credits), PeerCredits: c.stream.PeerCredits(),
	}
}
