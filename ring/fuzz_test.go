package ring

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// script reads a fuzzer's bytes; behind their end are zeros.
type script []byte

func (s *script) byte() byte {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return b
}

func (s *script) uint32() uint32 {
	var b [4]byte
	*s = (*s)[copy(b[:], *s):]
	return binary.LittleEndian.Uint32(b[:])
}

// What a hostile peer, and the user of the stream meanwhile, do in a script of FuzzMessages: a byte each, with arguments.
const (
	sayAny     = iota // any word and length
	sayFitting        // a word with the length that belongs to it
	saySeg            // an entry is written into the table
	doConsume
	doWrite
	doComplete
	doEnd
	numDoings
)

// FuzzMessages lets a peer say anything in any order. The stream does not panic; it grants no more than it has, posts nothing that was not
// granted, and refuses what is wrong with a ProtocolError.
func FuzzMessages(f *testing.F) {
	word := func(m Message) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(m)) }
	segment := appendEntry(nil, binary.LittleEndian, Segment{Addr: 1 << 20, RKey: 3, Len: 9})
	for variant := range byte(2) {
		// The variant, a handshake (credits, table entries and byte order, bytes of the segment), then the script.
		start := []byte{variant, 4, 0, 1, 20, 0, 0, 0}
		f.Add(slices.Concat(start, []byte{sayFitting}, word(5), []byte{doConsume, 5, doWrite, 20, doComplete, 0}))
		f.Add(slices.Concat(start, []byte{saySeg, 1}, segment, []byte{sayFitting}, word(newMessage(kindCredit, 4)), []byte{16, doWrite, 50}))
		f.Add(slices.Concat(start, []byte{sayFitting}, word(0xE0000002), []byte{sayFitting}, word(1), []byte{doEnd, 0}))
		f.Add(slices.Concat(start, []byte{sayAny}, word(0x1fffffff), []byte{4, doEnd, 1, sayFitting}, word(0xE0000000)))
		f.Add(slices.Concat(start, []byte{sayAny}, word(0xC0000001), []byte{24}))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := script(b)
		h := newHostile(t, &s)
		for len(s) > 0 && h.do(&s) {
			h.check()
		}
	})
}

// hostile is a stream and what its peer has let it do.
type hostile struct {
	*end
	t        *testing.T
	receives int       // posted
	segments []Segment // that the stream may write
	limit    uint16    // that its messages must not reach
	seq      uint16
	posted   []uint64 // operations not completed
}

func newHostile(t *testing.T, s *script) *hostile {
	e := newEnd(t, "x", Config{Variant: Variant(s.byte() & 1), Credits: 5, SendQueue: MinSendQueue}, 64, 32)
	credits := uint16(s.byte()) | uint16(s.byte())<<8
	table := s.byte()
	first := Segment{Addr: 1 << 30, RKey: 9, Len: s.uint32()}
	peer, err := ParseHandshake(Handshake{
		Credits: credits, TableAddr: 1 << 40, TableRKey: 8, TableEntries: 2 + uint32(table>>1)%63, BigEndian: table&1 != 0, Data: first,
	}.Append(nil))
	if err != nil {
		require.ErrorAs(t, err, new(*ProtocolError))
		*s = nil
		return nil
	}
	e.Start(peer)
	return &hostile{end: e, t: t, receives: e.cfg.Receives(), segments: []Segment{first}, limit: credits}
}

// do takes a step, and tells whether the connection goes on.
func (h *hostile) do(s *script) bool {
	switch s.byte() % numDoings {
	case sayAny:
		return h.say(Message(s.uint32()), int(s.byte()))
	case sayFitting:
		m := Message(s.uint32())
		n := 0
		switch {
		case h.cfg.Variant == Separate:
			n = MessageSize
		case m.kind() == kindData:
			n = int(m.arg())
		case m.kind() == kindCredit:
			n = int(s.byte()) & entrySize // with an entry or without
		}
		return h.say(m, n)
	case saySeg:
		at := h.cfg.Table[int(s.byte()&1)*entrySize:]
		*s = (*s)[copy(at[:entrySize], *s):]
	case doConsume:
		h.Consume(min(int(s.byte()), len(h.ReadSpan())))
	case doWrite:
		h.Commit(min(int(s.byte()), len(h.WriteSpan())))
		h.post()
	case doComplete:
		// Of an operation, the oldest half of the time, or of none at all.
		seq := uint64(s.byte())
		if len(h.posted) > 0 && seq&1 == 0 {
			seq = h.posted[int(seq/2)%len(h.posted)]
		}
		i := slices.Index(h.posted, seq)
		require.Equal(h.t, i >= 0, h.Completed(seq))
		h.posted = slices.Delete(h.posted, 0, i+1)
	case doEnd:
		if s.byte()&1 == 0 {
			h.Shutdown()
		} else {
			h.Disconnect()
		}
		h.post()
	}
	return true
}

// say brings a message, if a receive is posted for it. The receives are posted again at once.
func (h *hostile) say(m Message, byteLen int) bool {
	if h.receives == 0 {
		return true
	}
	h.receives--
	table := slices.Clone(h.cfg.Table)
	taken := h.send.nsegs
	err := h.Received(m, byteLen)
	if err != nil {
		require.ErrorAs(h.t, err, new(*ProtocolError))
		return false
	}
	if h.send.nsegs > taken {
		at := (h.send.next + tableEntries - 1) % tableEntries
		h.segments = append(h.segments, entry(table[at*entrySize:], binary.LittleEndian))
	}
	if m.kind() == kindCredit && !h.peerDisconnect {
		h.limit = m.limit()
	}
	h.receives += h.Owed()
	h.Reposted(h.Owed())
	h.post()
	return true
}

// post takes what the stream has to post, and wants it to be allowed.
func (h *hostile) post() {
	for op := (Op{}); h.Next(&op); op = (Op{}) {
		require.True(h.t, op.Off >= 0 && op.Off+op.Len <= len(h.cfg.Send), "%v outside of the send memory", op)
		h.posted = append(h.posted, op.Seq)
		require.LessOrEqual(h.t, len(h.posted), h.cfg.SendQueue)
		switch {
		case op.Kind == Send || op.Len == 0:
		case op.Msg.kind() == kindData:
			require.True(h.t, slices.ContainsFunc(h.segments, func(g Segment) bool {
				return op.RKey == g.RKey && op.Addr >= g.Addr && op.Addr+uint64(op.Len) <= g.Addr+uint64(g.Len)
			}), "%v was not granted", op)
			require.NotEqual(h.t, h.limit, h.seq, "%v reaches the limit", op)
			h.seq++
		default:
			off := op.Addr - h.Stream.peer.TableAddr
			require.True(h.t, op.RKey == h.Stream.peer.TableRKey && off%entrySize == 0 && off/entrySize < uint64(h.Stream.peer.TableEntries), "%v outside of the table", op)
		}
	}
}

func (h *hostile) check() {
	r := &h.recv
	require.True(h.t, r.consumed <= r.received && r.received <= r.offered && r.offered <= r.consumed+uint64(len(r.ring.buf)), "%+v", r)
	require.LessOrEqual(h.t, r.granted-r.seq, r.credits, "more granted than there are credits")
	require.LessOrEqual(h.t, int(r.granted-r.seq), h.receives, "more granted than is posted")
	require.LessOrEqual(h.t, h.send.window(), h.send.credits)
}

// FuzzEntry lets a peer write anything into the table. What is taken is a segment that can be used, once.
func FuzzEntry(f *testing.F) {
	for _, g := range []Segment{{}, {1 << 20, 3, 100}, {1, 1, math.MaxUint32}, {math.MaxUint64, 1, 2}, {0, 0, maxSegment}, {0, 0, maxSegment + 1}} {
		f.Add(appendEntry(nil, binary.LittleEndian, g), true)
		f.Add(appendEntry(nil, binary.LittleEndian, g), false)
	}
	f.Fuzz(func(t *testing.T, b []byte, must bool) {
		e := started(t, Immediate)
		at := e.cfg.Table[entrySize:][:entrySize]
		copy(at, b)
		g := entry(at, binary.LittleEndian)
		switch err := e.send.takeEntry(must); {
		case err != nil:
			require.ErrorAs(t, err, new(*ProtocolError))
			require.Equal(t, 1, e.send.nsegs)
		case e.send.nsegs == 1:
			require.False(t, must)
			require.Zero(t, g.Len)
		default:
			require.Equal(t, g, e.send.segs[1])
			require.True(t, g.Len >= 1 && g.Len <= maxSegment && g.Addr+uint64(g.Len) > g.Addr, "%+v", g)
			require.Equal(t, make([]byte, entrySize), at, "an entry that was taken is cleared")
			require.Error(t, e.send.takeEntry(true), "none is there")
		}
	})
}
