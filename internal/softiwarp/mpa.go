package softiwarp

import (
	"encoding/binary"
	"errors"
)

// MPA's connection setup (RFC 5044, section 7.1, with the enhancement of RFC 6581): the dialing side sends a request, the accepting
// side a reply; both are a header of 20 bytes and private data.

const (
	mpaHeaderSize   = 20
	mpaEnhancedSize = 4
	mpaMaxPrivate   = 512 // RFC 5044; with the enhanced bytes

	mpaMarkers  = 0x80
	mpaCRC      = 0x40
	mpaReject   = 0x20
	mpaEnhanced = 0x10

	mpaRevision = 2

	// In the word with the IRD, then that with the ORD.
	mpaPeerToPeer = 0x8000
	mpaRTRSend    = 0x4000
	mpaRTRWrite   = 0x8000
	mpaRTRRead    = 0x4000
	mpaDepthMask  = 0x3fff
	mpaNoDepth    = 0x3fff // not negotiated
)

const (
	mpaRequestKey = "MPA ID Req Frame"
	mpaReplyKey   = "MPA ID Rep Frame"
)

var (
	errMPAKey      = errors.New("not an MPA frame")
	errMPARevision = errors.New("MPA revision above 2")
	errMPAWords    = errors.New("MPA frame without the words of RFC 6581 that it announces")
	errMPALength   = errors.New("MPA private data longer than 512 bytes")
)

// mpaFrame is a request or a reply.
type mpaFrame struct {
	flags    uint8
	revision uint8
	private  []byte // of the user

	// With mpaEnhanced: READs this side answers and has outstanding at once, and the ways it offers for the first FPDU.
	ird, ord   uint16
	peerToPeer bool
	rtr        rtrKinds
}

// rtrKinds are the ways in which a peer-to-peer connection may begin (RFC 6581, section 4.3): a message without bytes.
type rtrKinds uint8

const (
	rtrWrite rtrKinds = 1 << iota
	rtrRead
	rtrSend
)

// parseMPAHeader checks the first mpaHeaderSize bytes of a frame and returns the size of what follows.
func (f *mpaFrame) parseHeader(b []byte, key string) (int, error) {
	if string(b[:len(key)]) != key {
		return 0, errMPAKey
	}
	f.flags, f.revision = b[16], b[17]
	n := int(binary.BigEndian.Uint16(b[18:]))
	switch {
	case f.revision > mpaRevision:
		return 0, errMPARevision
	case n > mpaMaxPrivate:
		return 0, errMPALength
	}
	return n, nil
}

// enhanced tells whether the frame has the words of RFC 6581.
func (f *mpaFrame) enhanced() bool { return f.revision >= 2 && f.flags&mpaEnhanced != 0 }

// parsePrivate takes what follows the header. False: the enhanced words are missing.
func (f *mpaFrame) parsePrivate(b []byte) bool {
	f.ird, f.ord = mpaNoDepth, mpaNoDepth
	if !f.enhanced() {
		f.private = b
		return true
	}
	if len(b) < mpaEnhancedSize {
		return false
	}
	ird, ord := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	f.private = b[mpaEnhancedSize:]
	f.ird, f.ord, f.peerToPeer = ird&mpaDepthMask, ord&mpaDepthMask, ird&mpaPeerToPeer != 0
	for _, k := range [...]struct {
		word, bit uint16
		kind      rtrKinds
	}{{ird, mpaRTRSend, rtrSend}, {ord, mpaRTRWrite, rtrWrite}, {ord, mpaRTRRead, rtrRead}} {
		if k.word&k.bit != 0 {
			f.rtr |= k.kind
		}
	}
	return true
}

// append encodes the frame.
func (f *mpaFrame) append(b []byte, key string) []byte {
	n := len(f.private)
	if f.enhanced() {
		n += mpaEnhancedSize
	}
	b = append(b, key...)
	b = append(b, f.flags, f.revision)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	if f.enhanced() {
		ird, ord := f.ird&mpaDepthMask, f.ord&mpaDepthMask
		if f.peerToPeer {
			ird |= mpaPeerToPeer
		}
		if f.rtr&rtrSend != 0 {
			ird |= mpaRTRSend
		}
		if f.rtr&rtrWrite != 0 {
			ord |= mpaRTRWrite
		}
		if f.rtr&rtrRead != 0 {
			ord |= mpaRTRRead
		}
		b = binary.BigEndian.AppendUint16(b, ird)
		b = binary.BigEndian.AppendUint16(b, ord)
	}
	return append(b, f.private...)
}

// choose is the way in which a peer-to-peer connection is to begin, of those offered; without an offer a zero-length WRITE is
// proposed, as Linux's soft-iWARP does.
func (k rtrKinds) choose() rtrKinds {
	for _, kind := range [...]rtrKinds{rtrWrite, rtrRead, rtrSend} {
		if k&kind != 0 {
			return kind
		}
	}
	return rtrWrite
}
