package ring

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// sender is the sending half of a stream: the send ring, what the peer lets us write, and the send queue.
type sender struct {
	ring     ring
	maxWrite int
	batch    int // bytes that need not wait for company; 0: none do

	// Positions in the stream: acked ≤ posted ≤ written.
	acked, posted, written uint64

	// segs are the segments to fill, the first one partly used. The peer may rewrite a table entry as soon as it has seen the
	// last byte of the segment that the entry named, so there are never more than the table has entries.
	segs  [tableEntries]Segment
	nsegs int
	table []byte
	next  int // the entry that the peer writes next

	seq     uint16 // data messages sent
	limit   uint16 // sequence number that must not be reached
	credits uint16 // what the peer granted at first, the largest window there can be
	reserve uint16 // credits left alone, so that control messages find receives

	queue sendQueue
}

// start takes what the peer granted.
func (s *sender) start(h Handshake) {
	s.segs[0], s.nsegs = h.Data, 1
	s.next = 1 // entry 0 came with the handshake
	s.credits, s.limit = h.Credits, h.Credits
	// More than half would stop us for good at a C peer, which grants only after half of its credits were used.
	s.reserve = min(8, h.Credits/2)
}

// writeSpan is the contiguous free part of the ring.
func (s *sender) writeSpan() []byte {
	a := &s.ring.area
	at := a.at(s.written)
	free := len(a.buf) - int(s.written-max(s.acked, a.base))
	return a.buf[at:min(at+free, len(a.buf))]
}

// held tells that the bytes not posted are few, and can wait for company until a completion.
func (s *sender) held() bool {
	n := int(s.written - s.posted)
	return n > 0 && n < s.batch && s.queue.awaited()
}

func (s *sender) window() uint16 { return s.limit - s.seq }

// nextData takes the next write of stream bytes off the ring: where it is, where it goes.
func (s *sender) nextData(op *Op) bool {
	queued := int(s.written - s.posted)
	if queued == 0 || s.nsegs == 0 || s.window() <= s.reserve {
		return false
	}
	seg := &s.segs[0]
	a, room := s.ring.of(s.posted)
	n := min(queued, room, int(seg.Len), maxMessage)
	if s.maxWrite > 0 {
		n = min(n, s.maxWrite)
	}
	op.Off, op.Len, op.Grown = a.at(s.posted), n, s.ring.grown && a == &s.ring.area
	op.Addr, op.RKey = seg.Addr, seg.RKey
	op.Msg = newMessage(kindData, uint32(n))

	// The entry must be given up before the write is posted: the peer may refill it as soon as it sees the data.
	seg.Addr += uint64(n)
	seg.Len -= uint32(n)
	if seg.Len == 0 {
		s.nsegs--
		copy(s.segs[:], s.segs[1:])
	}
	s.posted += uint64(n)
	s.seq++
	return true
}

// grant takes a sequence limit from the peer.
func (s *sender) grant(limit uint16) error {
	window := limit - s.seq
	switch {
	case window > s.credits:
		return protocolError("limit %d leaves %d credits of %d", limit, window, s.credits)
	case window < s.window():
		return protocolError("limit went back from %d to %d at message %d", s.limit, limit, s.seq)
	}
	s.limit = limit
	return nil
}

// arriving tells whether an entry is not there yet. On iWARP the device may be writing it at this moment, so its length, which is
// written last, is looked at before the rest, in one piece.
func arriving(b []byte) bool {
	word := atomic.LoadUint64((*uint64)(unsafe.Pointer(&b[8])))
	var le [8]byte
	binary.NativeEndian.PutUint64(le[:], word)
	return binary.LittleEndian.Uint32(le[4:]) == 0
}

// takeEntry takes the table entry that the peer has written, if there is one. It reads one only: the entry after it may
// be in the middle of being written.
func (s *sender) takeEntry(must bool) error {
	b := s.table[s.next*entrySize:][:entrySize]
	if !must && arriving(b) {
		return nil
	}
	g := entry(b, binary.LittleEndian)
	if err := g.check(); err != nil {
		return err
	}
	if s.nsegs == tableEntries {
		return protocolError("table entry %d written before its segment was filled", s.next)
	}
	clear(b)
	s.segs[s.nsegs] = g
	s.nsegs++
	s.next = (s.next + 1) % tableEntries
	return nil
}
