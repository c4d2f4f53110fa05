package ring

// receiver is the receiving half of a stream: the receive ring, what the peer was granted, and the receives owed.
//
// The ring is given out in two segments, in turn. A C peer tells segments apart by nothing but their length: it fills each to the last
// byte.
type receiver struct {
	ring ring

	// Positions in the stream: consumed ≤ received ≤ offered. The last segment offered begins at last.
	consumed, received, offered uint64
	last                        uint64

	seq     uint16 // data messages received
	granted uint16 // sequence limit that the peer has
	credits uint16

	// owed is the number of receives used up and not posted again. Nothing is granted while any is owed: the peer may
	// only be promised what is posted.
	owed int

	discard bool // drop what arrives: nobody will read it
}

func newReceiver(c *Config) receiver {
	r := receiver{
		ring:    ring{area: area{buf: c.Recv, addr: c.RecvAddr, rkey: c.RecvRKey}},
		credits: uint16(c.Credits), granted: uint16(c.Credits),
	}
	r.offer() // segment 0 travels in the handshake
	return r
}

// readSpan is the contiguous part of the ring that holds received bytes.
func (r *receiver) readSpan() []byte {
	a, room := r.ring.of(r.consumed)
	return a.buf[a.at(r.consumed):][:min(int(r.received-r.consumed), room)]
}

// data takes a message about n bytes written behind what was received.
func (r *receiver) data(n uint32) error {
	room := r.offered - r.received
	if r.received < r.last {
		room = r.last - r.received
	}
	switch {
	case n == 0:
		return protocolError("data message of 0 bytes")
	case uint64(n) > room:
		return protocolError("%d bytes written where %d were left of the segment", n, room)
	case r.granted == r.seq:
		return protocolError("more messages than credits")
	}
	r.seq++
	r.received += uint64(n)
	if r.discard {
		r.consumed = r.received
	}
	return nil
}

// offer gives the next segment to the peer.
func (r *receiver) offer() Segment {
	a := &r.ring.area
	g := Segment{Addr: a.addr + uint64(a.at(r.offered)), RKey: a.rkey, Len: uint32(len(a.buf) / 2)}
	r.last = r.offered
	r.offered += uint64(g.Len)
	return g
}

// canOffer tells whether the next segment has been read empty, and the peer's table entry for it is free: the segment that was there,
// two back, has been filled.
func (r *receiver) canOffer() bool {
	size := uint64(len(r.ring.buf))
	return r.received >= r.last && r.offered+size/2-max(r.consumed, r.ring.base) <= size
}

// grantDue tells whether the peer has used up so many messages that it is time for new credits.
func (r *receiver) grantDue() bool {
	used := r.credits - (r.granted - r.seq)
	return used >= max(1, r.credits/2)
}

// grant is a new sequence limit for the peer.
func (r *receiver) grant() uint16 {
	r.granted = r.seq + r.credits
	return r.granted
}
