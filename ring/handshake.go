package ring

import (
	"encoding/binary"
	"fmt"
	"math"
)

// HandshakeSize is the size of a handshake block in bytes. It travels as private data of the connection request and of
// its answer; whatever follows it there is padding.
const HandshakeSize = 40

// Limits for what a peer may announce. They keep all arithmetic far from overflow and a hostile peer from absurd
// values; no known implementation comes near them.
const (
	maxSegment      = 1 << 30 // bytes
	maxTableEntries = 64
)

const (
	handshakeVersion = 1
	flagBigEndian    = 1 << 0 // the table's owner reads its entries most significant byte first
	flagIOMap        = 1 << 1 // byte 7 holds the size of the table for mapped buffers; we have none
)

// Segment is a piece of a receive ring that its owner lets the peer write.
type Segment struct {
	Addr uint64
	RKey uint32
	Len  uint32 // bytes
}

// check tells whether a segment that a peer sent can be used.
func (g Segment) check() error {
	switch {
	case g.Len == 0:
		return protocolError("segment of 0 bytes")
	case g.Len > maxSegment:
		return protocolError("segment of %d bytes, more than %d", g.Len, maxSegment)
	case g.Addr > math.MaxUint64-uint64(g.Len):
		return protocolError("segment of %d bytes at %#x wraps around", g.Len, g.Addr)
	}
	return nil
}

// Handshake is what each side tells the other when the connection is made.
type Handshake struct {
	// Credits is the number of messages the receiver of this block may send before it is granted more.
	Credits uint16

	// The table where the receiver of this block writes segments of its own ring.
	TableAddr    uint64
	TableRKey    uint32
	TableEntries uint32
	BigEndian    bool // byte order of the entries in that table

	// Data is the first segment to write into.
	Data Segment
}

// Append appends the block to b.
func (h Handshake) Append(b []byte) []byte {
	flags := byte(flagIOMap)
	if h.BigEndian {
		flags |= flagBigEndian
	}
	b = append(b, handshakeVersion, flags)
	b = binary.BigEndian.AppendUint16(b, h.Credits)
	b = append(b, 0, 0, 0, 0) // reserved, and no mapped buffers
	b = binary.BigEndian.AppendUint64(b, h.TableAddr)
	b = binary.BigEndian.AppendUint32(b, h.TableRKey)
	b = binary.BigEndian.AppendUint32(b, h.TableEntries)
	return appendEntry(b, binary.BigEndian, h.Data)
}

// ParseHandshake reads a peer's block from private data, and checks it.
func ParseHandshake(b []byte) (Handshake, error) {
	if len(b) < HandshakeSize {
		return Handshake{}, protocolError("handshake of %d bytes, need %d", len(b), HandshakeSize)
	}
	if b[0] != handshakeVersion {
		return Handshake{}, protocolError("version %d, know %d: the peer does not speak rsocket", b[0], handshakeVersion)
	}
	h := Handshake{
		Credits:      binary.BigEndian.Uint16(b[2:]),
		TableAddr:    binary.BigEndian.Uint64(b[8:]),
		TableRKey:    binary.BigEndian.Uint32(b[16:]),
		TableEntries: binary.BigEndian.Uint32(b[20:]),
		BigEndian:    b[1]&flagBigEndian != 0,
		Data:         entry(b[24:], binary.BigEndian),
	}
	switch {
	case h.Credits == 0:
		return Handshake{}, protocolError("0 credits")
	case h.TableEntries < 2 || h.TableEntries > maxTableEntries:
		return Handshake{}, protocolError("table of %d entries, need 2 to %d", h.TableEntries, maxTableEntries)
	case h.TableAddr > math.MaxUint64-maxTableEntries*entrySize:
		return Handshake{}, protocolError("table at %#x wraps around", h.TableAddr)
	}
	return h, h.Data.check()
}

// entrySize is the size of a segment in a table and in a handshake: address, rkey, length.
const entrySize = 16

func entry(b []byte, order binary.ByteOrder) Segment {
	return Segment{Addr: order.Uint64(b), RKey: order.Uint32(b[8:]), Len: order.Uint32(b[12:])}
}

func appendEntry(b []byte, order binary.AppendByteOrder, g Segment) []byte {
	b = order.AppendUint64(b, g.Addr)
	b = order.AppendUint32(b, g.RKey)
	return order.AppendUint32(b, g.Len)
}

// ProtocolError is a peer's violation of the protocol. The connection cannot go on after it.
type ProtocolError struct {
	Reason string
}

func (e *ProtocolError) Error() string { return "rsocket protocol violated by the peer: " + e.Reason }

func protocolError(format string, args ...any) error {
	return &ProtocolError{Reason: fmt.Sprintf(format, args...)}
}
