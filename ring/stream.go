package ring

import "encoding/binary"

// Stream is one end of a connection.
type Stream struct {
	cfg  Config
	send sender
	recv receiver
	peer Handshake

	updates uint64 // segments written to the peer's table
	stats   Stats

	// The second half of a message on iWARP.
	half    Message
	hasHalf bool
	halfCtl bool

	// What the user wants, and what has been posted of it.
	shutdown, disconnect             bool
	shutdownPosted, disconnectPosted bool
	endSeq                           uint64 // the last operation of the shutdown or disconnect

	// What the peer has said.
	peerShutdown, peerDisconnect bool
}

// New makes a stream on the memory that cfg names.
func New(cfg Config) (*Stream, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	size := len(cfg.Send) - cfg.SendQueue*slotSize
	s := &Stream{cfg: cfg, recv: newReceiver(&cfg)}
	s.send = sender{
		ring: ring{area: area{buf: cfg.Send[:size:size]}}, maxWrite: cfg.MaxWrite, table: cfg.Table,
		queue: newSendQueue(cfg.SendQueue, size),
	}
	return s, nil
}

// Handshake is what the peer must be told. The receives must be posted before it is.
func (s *Stream) Handshake() Handshake {
	return Handshake{
		Credits: uint16(s.cfg.Credits), TableAddr: s.cfg.TableAddr, TableRKey: s.cfg.TableRKey, TableEntries: tableEntries,
		Data: Segment{Addr: s.cfg.RecvAddr, RKey: s.cfg.RecvRKey, Len: uint32(len(s.cfg.Recv) / 2)},
	}
}

// GrowSend has what is written from now on lie in mem, a larger send ring. The first one stays in use: for the operations under way, and
// for what is no stream data. Once.
func (s *Stream) GrowSend(mem []byte) {
	s.send.ring.grow(mem, 0, 0, s.send.written)
	s.send.queue.grow(len(mem))
}

// GrowRecv has the segments from the next one on lie in mem, a larger receive ring, of an even number of bytes, which the peer knows
// by addr and rkey. The peer fills those it has: the first ring stays in use for them. Once.
func (s *Stream) GrowRecv(mem []byte, addr uint64, rkey uint32) {
	s.recv.ring.grow(mem, addr, rkey, s.recv.offered)
}

// Start takes the peer's handshake. Before it, Next has nothing to do.
func (s *Stream) Start(peer Handshake) {
	s.peer = peer
	s.send.start(peer)
}

// WriteSpan is room for bytes to send, contiguous, empty when there is none. Fill from its start, then Commit. It stays
// valid, and nobody else's, until Commit.
func (s *Stream) WriteSpan() []byte { return s.send.writeSpan() }

// Commit adds the first n bytes of WriteSpan to the stream.
func (s *Stream) Commit(n int) { s.send.written += uint64(n) }

// ReadSpan is what was received and not consumed, as far as it is contiguous. It stays valid until Consume.
func (s *Stream) ReadSpan() []byte { return s.recv.readSpan() }

// Consume gives the first n bytes of ReadSpan back.
func (s *Stream) Consume(n int) { s.recv.consumed += uint64(n) }

// Discard drops what is and what will be received, so that a peer that still sends is not held up.
func (s *Stream) Discard() {
	s.recv.discard = true
	s.recv.consumed = s.recv.received
}

// Shutdown ends the sending direction behind what was written: the peer reads an orderly end.
func (s *Stream) Shutdown() { s.shutdown = true }

// Disconnect ends both directions behind what was written.
func (s *Stream) Disconnect() { s.disconnect = true }

// EndPending tells that Shutdown or Disconnect was called and that Next has not given the message out.
func (s *Stream) EndPending() bool {
	return s.disconnect && !s.disconnectPosted || s.shutdown && !s.shutdownPosted && !s.disconnect
}

// EOF tells that the peer has ended its direction in order and that everything was consumed.
func (s *Stream) EOF() bool {
	return (s.peerShutdown || s.peerDisconnect) && s.recv.received == s.recv.consumed
}

// PeerShutdown tells that the peer has ended its direction; what is unread came before.
func (s *Stream) PeerShutdown() bool { return s.peerShutdown }

// PeerDisconnected tells that the peer has ended both directions: what we send would go nowhere.
func (s *Stream) PeerDisconnected() bool { return s.peerDisconnect }

// Ended tells that both sides have ended their directions, or one has ended both: no message is sent any more, but for a
// disconnect on iWARP, and what still fails on the connection is no error.
func (s *Stream) Ended() bool {
	return s.peerDisconnect || s.disconnectPosted || s.shutdownPosted && s.peerShutdown
}

// Drained tells, after Shutdown or Disconnect, that everything written and the end behind it have been completed. With a
// disconnected peer there is nothing to wait for.
func (s *Stream) Drained() bool {
	ended := s.disconnectPosted || s.shutdownPosted && (!s.disconnect || s.Ended())
	return s.peerDisconnect || ended && !s.hasHalf && s.send.queue.done > s.endSeq
}

// Batch has bytes wait for company while what was posted before them is under way: they leave when there are size of them, when that
// has completed, or with the end. So many small writes become few messages. 0, as at first: all leaves at once.
func (s *Stream) Batch(size int) { s.send.batch = size }

// Held tells that bytes wait for company. Somebody must take the completions, and then call Next.
func (s *Stream) Held() bool { return s.send.held() && !s.shutdown && !s.disconnect }

// Unposted is the number of bytes written that Next has not given out.
func (s *Stream) Unposted() int { return int(s.send.written - s.send.posted) }

// Withdraw takes back of the last most bytes written those that Next has not given out, and returns their number.
func (s *Stream) Withdraw(most int) int {
	n := min(s.Unposted(), most)
	s.send.written -= uint64(n)
	s.send.ring.base = min(s.send.ring.base, s.send.written) // nothing has left a ring that grew in the middle of what is taken back
	return n
}

// Owed is the number of receives to post again. Nothing is granted to the peer before that.
func (s *Stream) Owed() int { return s.recv.owed }

// Granting tells that there is something to grant once nothing is owed. Else a few receives, up to half of ReceiveReserve, may be owed for
// a while.
func (s *Stream) Granting() bool {
	return !s.peerShutdown && !s.peerDisconnect && (s.recv.canOffer() || s.recv.grantDue())
}

// Reposted says that n receives were posted.
func (s *Stream) Reposted(n int) { s.recv.owed -= n }

// Completed says that operation seq has completed, and so all before it. It reports whether seq was in flight.
func (s *Stream) Completed(seq uint64) bool {
	pos, ok := s.send.queue.complete(seq)
	if ok {
		s.send.acked = pos
	}
	return ok
}

// Received takes a message, and the number of bytes that the device says came with it: those written on InfiniBand and RoCE,
// those of the message itself on iWARP. The error, if any, is final.
func (s *Stream) Received(m Message, byteLen int) error {
	s.recv.owed++
	if s.peerDisconnect {
		return nil // nothing counts after DISCONNECT
	}
	if s.cfg.Variant == Separate && byteLen != MessageSize {
		return protocolError("%v in a message of %d bytes", m, byteLen)
	}
	imm := s.cfg.Variant == Immediate
	switch m.kind() {
	case kindData:
		// A difference would be bytes announced and never written: someone else's, left in memory.
		if imm && byteLen != int(m.arg()) {
			return protocolError("%v came with %d bytes", m, byteLen)
		}
		s.stats.DataReceived++
		return s.recv.data(m.arg())
	case kindCredit:
		if imm && byteLen != 0 && byteLen != entrySize {
			return protocolError("%v came with %d bytes", m, byteLen)
		}
		if !imm || byteLen == entrySize {
			if err := s.send.takeEntry(imm); err != nil {
				return err
			}
		}
		s.stats.GrantsReceived++
		return s.send.grant(m.limit())
	case kindControl:
		if imm && byteLen != 0 {
			return protocolError("%v came with %d bytes", m, byteLen)
		}
		s.control(m.arg())
		return nil
	}
	return protocolError("unexpected %v", m)
}

func (s *Stream) control(code uint32) {
	switch code {
	case controlShutdown:
		s.peerShutdown = true
	case controlDisconnect:
		s.peerDisconnect = true
	}
}

// Stats counts messages and bytes.
type Stats struct {
	BytesSent, BytesReceived   uint64 // of the stream
	DataSent, DataReceived     uint64 // messages that announce bytes
	GrantsSent, GrantsReceived uint64 // messages about space and credits
	SegmentsSent               uint64 // pieces of the receive ring given back to the peer
}

// Stats returns the counts up to now.
func (s *Stream) Stats() Stats {
	st := s.stats
	st.BytesSent, st.BytesReceived = s.send.posted, s.recv.received
	st.SegmentsSent = s.updates
	return st
}

// PeerCredits is the number of messages that the peer let us send ahead.
func (s *Stream) PeerCredits() int { return int(s.peer.Credits) }

// CreditsLeft is how many of those messages may be sent now. The last few are kept for messages without data.
func (s *Stream) CreditsLeft() int { return int(s.send.window()) }

// Unread is the number of bytes received and not consumed.
func (s *Stream) Unread() int { return int(s.recv.received - s.recv.consumed) }

// Next gives the next operation to post, in order; false when there is none now. An operation given must be posted.
func (s *Stream) Next(op *Op) bool {
	*op = Op{}
	if s.peer.Credits == 0 || s.peerDisconnect {
		return false
	}
	if s.hasHalf {
		s.nextHalf(op)
		return true
	}
	need := s.opsPerMessage()
	switch {
	case s.send.queue.room() < need:
		return false
	case s.Ended():
		// On iWARP a completion is no acknowledgement: only the answer to a disconnect tells that the peer has everything.
		return s.cfg.Variant == Separate && !s.disconnectPosted && s.send.queue.control < controlReserve && s.nextEnd(op)
	}
	if s.send.queue.control < controlReserve && s.nextUpdate(op) {
		return true
	}
	// Room stays for the messages other than data that may still come. Those under way have theirs: to keep it for them twice would hold data
	// up for as long as grants follow each other.
	reserve := controlReserve - s.send.queue.control
	if s.send.queue.room() >= need*(1+reserve) && !s.Held() && s.send.nextData(op) {
		s.stats.DataSent++
		s.emit(op, false)
		return true
	}
	return s.send.queue.control < controlReserve && s.nextEnd(op)
}

// Probe gives a write of no bytes and without message, whose completion tells that the peer's device lives. Not while the send queue
// is full, or at the end.
func (s *Stream) Probe(op *Op) bool {
	if s.peer.Credits == 0 || s.hasHalf || s.Ended() || s.send.queue.room() == 0 {
		return false
	}
	*op = Op{Kind: Write, Addr: s.peer.TableAddr, RKey: s.peer.TableRKey}
	s.send.queue.push(op, s.send.posted, false, true)
	return true
}

func (s *Stream) opsPerMessage() int {
	if s.cfg.Variant == Separate {
		return 2
	}
	return 1
}

// nextUpdate gives the peer a segment or credits.
func (s *Stream) nextUpdate(op *Op) bool {
	if s.recv.owed > 0 || s.peerShutdown {
		return false
	}
	switch {
	case s.recv.canOffer():
		s.updates++
		index := s.updates % uint64(s.peer.TableEntries)
		op.Addr, op.RKey = s.peer.TableAddr+index*entrySize, s.peer.TableRKey
		op.Off, op.Len = s.slot(), entrySize
		s.putEntry(s.cfg.Send[op.Off:][:0], s.recv.offer())
	case s.recv.grantDue():
	default:
		return false
	}
	op.Msg = newMessage(kindCredit, uint32(s.recv.grant()))
	s.stats.GrantsSent++
	s.emit(op, true)
	return true
}

// putEntry encodes a segment as the peer reads it.
func (s *Stream) putEntry(b []byte, g Segment) {
	if s.peer.BigEndian {
		appendEntry(b, binary.BigEndian, g)
	} else {
		appendEntry(b, binary.LittleEndian, g)
	}
}

// nextEnd ends the sending direction, or both, once all data is posted.
func (s *Stream) nextEnd(op *Op) bool {
	if s.send.posted != s.send.written {
		return false
	}
	switch {
	case s.disconnect:
		s.disconnectPosted = true
		op.Msg = newMessage(kindControl, controlDisconnect)
	case s.shutdown && !s.shutdownPosted:
		s.shutdownPosted = true
		op.Msg = newMessage(kindControl, controlShutdown)
	default:
		return false
	}
	s.emit(op, true)
	s.endSeq = op.Seq
	return true
}

// emit makes an operation of a message whose payload, target and word stand in op.
func (s *Stream) emit(op *Op, control bool) {
	switch {
	case s.cfg.Variant == Immediate:
		op.Kind = WriteImm
		if op.Len == 0 {
			// The device may look at the target of an empty write: the table is always a good one.
			op.Addr, op.RKey = s.peer.TableAddr, s.peer.TableRKey
		}
		s.send.queue.push(op, s.send.posted, control, s.wantsSignal(op.Msg))
	case op.Len == 0:
		s.half, s.halfCtl = op.Msg, control
		s.nextHalf(op)
	default:
		op.Kind = Write
		s.half, s.halfCtl, s.hasHalf = op.Msg, control, true
		s.send.queue.push(op, s.send.posted, false, false) // the SEND behind it counts for both
	}
}

// nextHalf gives the SEND that carries a message on iWARP.
func (s *Stream) nextHalf(op *Op) {
	s.hasHalf = false
	*op = Op{Kind: Send, Off: s.slot(), Len: MessageSize, Msg: s.half}
	binary.LittleEndian.PutUint32(s.cfg.Send[op.Off:], uint32(s.half))
	s.send.queue.push(op, s.send.posted, s.halfCtl, s.wantsSignal(s.half))
}

// wantsSignal tells whether the completion of a message is waited for: nothing may follow an end, and what is held waits for what is
// under way.
func (s *Stream) wantsSignal(m Message) bool { return m.kind() == kindControl || s.send.batch > 0 }

// slot is the offset of the memory that the next operation may use beside the ring. It is free again when the operation has
// completed, and so is its number modulo the depth of the queue.
func (s *Stream) slot() int {
	q := &s.send.queue
	return len(s.cfg.Send) - s.cfg.SendQueue*slotSize + int(q.posted%uint64(len(q.inFlight)))*slotSize
}
