package softiwarp

import (
	"encoding/binary"
	"hash/crc32"
)

// An FPDU (RFC 5044) is a DDP segment (RFC 5041) with its RDMAP header (RFC 5040), as it travels in the TCP stream:
//
//	ULPDU_Length (2) | DDP and RDMAP headers | payload | pad to a multiple of 4 | CRC32C (4)
//
// The length counts headers and payload. The CRC covers all before it; without CRCs the field is there all the same.

// The RDMAP opcodes. Those from opImmediate on are of RFC 7306, the last two our own: a SEND whose immediate travels in the
// header's ULP word, where SEND with invalidate has the STag. A peer that does not know an opcode terminates.
const (
	opWrite = iota
	opReadRequest
	opReadResponse
	opSend
	opSendInv
	opSendSE
	opSendInvSE
	opTerminate
	opImmediate
	opImmediateSE
	opAtomicRequest
	opAtomicResponse
	opSendImm
	opSendImmSE
	opCount
)

// The queue numbers of untagged messages.
const (
	qnSend = iota
	qnRead // READ requests and atomic requests
	qnTerminate
	qnAtomicResponse
	qnCount
)

const (
	lengthSize   = 2
	taggedSize   = lengthSize + 14 // header of a tagged segment, with the length
	untaggedSize = lengthSize + 18
	crcSize      = 4

	readRequestSize    = 28 // what follows the DDP header
	atomicRequestSize  = 52
	atomicResponseSize = 12
	immediateSize      = 8

	maxULPDU = 1<<16 - 1
	maxFPDU  = lengthSize + maxULPDU + 3 + crcSize

	flagTagged  = 0x80 // of the DDP control byte
	flagLast    = 0x40
	ddpVersion  = 0x01
	rdmaVersion = 0x40 // of the RDMAP control byte
)

// format is what an opcode's segments must look like. For a control message the payload's size is fixed.
type format struct {
	tagged   bool
	qn       uint32
	min, max int // payload bytes
	control  bool
}

var formats = [opCount]format{
	opWrite:          {tagged: true, max: maxULPDU},
	opReadRequest:    {qn: qnRead, min: readRequestSize, max: readRequestSize, control: true},
	opReadResponse:   {tagged: true, max: maxULPDU},
	opSend:           {max: maxULPDU},
	opSendInv:        {max: maxULPDU},
	opSendSE:         {max: maxULPDU},
	opSendInvSE:      {max: maxULPDU},
	opTerminate:      {qn: qnTerminate, min: terminateSize, max: maxTerminate, control: true},
	opImmediate:      {min: immediateSize, max: immediateSize, control: true},
	opImmediateSE:    {min: immediateSize, max: immediateSize, control: true},
	opAtomicRequest:  {qn: qnRead, min: atomicRequestSize, max: atomicRequestSize, control: true},
	opAtomicResponse: {qn: qnAtomicResponse, min: atomicResponseSize, max: atomicResponseSize, control: true},
	opSendImm:        {max: maxULPDU},
	opSendImmSE:      {max: maxULPDU},
}

// header is that of one segment.
type header struct {
	op      uint8
	last    bool
	tagged  bool
	payload int // bytes

	stag uint32 // tagged
	to   uint64

	ulp, qn, msn, mo uint32 // untagged
}

func (h *header) size() int {
	if h.tagged {
		return taggedSize
	}
	return untaggedSize
}

// trailer is the number of bytes after the payload.
func (h *header) trailer() int { return trailerSize(h.size() + h.payload) }

// trailerSize is pad and CRC after n bytes from the length field on.
func trailerSize(n int) int { return -n&3 + crcSize }

// total is the FPDU's size.
func (h *header) total() int { return h.size() + h.payload + h.trailer() }

// parse reads a header, with all checks that need no state. Without enough bytes it returns 0 and no fault.
func (h *header) parse(b []byte) (int, *fault) {
	if len(b) < 4 {
		return 0, nil
	}
	length := int(binary.BigEndian.Uint16(b))
	ddp, rdma := b[2], b[3]
	h.tagged, h.last, h.op = ddp&flagTagged != 0, ddp&flagLast != 0, rdma&0x0f
	switch {
	case length < taggedSize-lengthSize:
		return 0, &faultStart
	case ddp&0x03 != ddpVersion && h.tagged:
		return 0, &faultTaggedVersion
	case ddp&0x03 != ddpVersion:
		return 0, &faultUntaggedVersion
	case rdma&0xc0 != rdmaVersion:
		return 0, &faultRDMAPVersion
	case h.op >= opCount || formats[h.op].tagged != h.tagged:
		return 0, &faultOpcode
	}
	f := &formats[h.op]
	h.payload = length + lengthSize - h.size()
	if h.payload < f.min || h.payload > f.max {
		return 0, &faultStart
	}
	if len(b) < h.size() {
		return 0, nil
	}
	if h.tagged {
		h.stag, h.to = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint64(b[8:])
		return taggedSize, nil
	}
	h.ulp, h.qn = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	h.msn, h.mo = binary.BigEndian.Uint32(b[12:]), binary.BigEndian.Uint32(b[16:])
	if h.qn != f.qn {
		return 0, &faultQN
	}
	return untaggedSize, nil
}

// append encodes the header.
func (h *header) append(b []byte) []byte {
	ddp := byte(ddpVersion)
	if h.last {
		ddp |= flagLast
	}
	if h.tagged {
		ddp |= flagTagged
	}
	b = binary.BigEndian.AppendUint16(b, uint16(h.size()-lengthSize+h.payload))
	b = append(b, ddp, rdmaVersion|h.op)
	if h.tagged {
		b = binary.BigEndian.AppendUint32(b, h.stag)
		return binary.BigEndian.AppendUint64(b, h.to)
	}
	b = binary.BigEndian.AppendUint32(b, h.ulp)
	b = binary.BigEndian.AppendUint32(b, h.qn)
	b = binary.BigEndian.AppendUint32(b, h.msn)
	return binary.BigEndian.AppendUint32(b, h.mo)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendTrailer pads what follows n bytes and puts the CRC there, which so far is crc.
func appendTrailer(b []byte, n int, withCRC bool, crc uint32) []byte {
	start := len(b)
	for range -n & 3 {
		b = append(b, 0)
	}
	if !withCRC {
		return append(b, 0, 0, 0, 0)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Update(crc, castagnoli, b[start:]))
}

// checkCRC checks a whole FPDU.
func checkCRC(b []byte) bool {
	n := len(b) - crcSize
	return crc32.Checksum(b[:n], castagnoli) == binary.LittleEndian.Uint32(b[n:])
}

// readRequest is a READ request behind its DDP header.
type readRequest struct {
	sinkSTag uint32
	sinkTO   uint64
	size     uint32
	srcSTag  uint32
	srcTO    uint64
}

func (r *readRequest) parse(b []byte) {
	r.sinkSTag, r.sinkTO = binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:])
	r.size = binary.BigEndian.Uint32(b[12:])
	r.srcSTag, r.srcTO = binary.BigEndian.Uint32(b[16:]), binary.BigEndian.Uint64(b[20:])
}

func (r *readRequest) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, r.sinkSTag)
	b = binary.BigEndian.AppendUint64(b, r.sinkTO)
	b = binary.BigEndian.AppendUint32(b, r.size)
	b = binary.BigEndian.AppendUint32(b, r.srcSTag)
	return binary.BigEndian.AppendUint64(b, r.srcTO)
}

// The atomic operations of RFC 7306.
const (
	atomicFetchAdd = 0
	atomicCmpSwap  = 2
)

// atomicRequest is an atomic request behind its DDP header (RFC 7306, section 5.1).
type atomicRequest struct {
	op                   uint8 // the lowest 4 bits of a word
	id                   uint32
	stag                 uint32
	to                   uint64
	addSwap, addSwapMask uint64
	compare, compareMask uint64
}

func (r *atomicRequest) parse(b []byte) {
	r.op, r.id, r.stag = b[3]&0x0f, binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	for i, p := range []*uint64{&r.to, &r.addSwap, &r.addSwapMask, &r.compare, &r.compareMask} {
		*p = binary.BigEndian.Uint64(b[12+8*i:])
	}
}

func (r *atomicRequest) append(b []byte) []byte {
	b = append(b, 0, 0, 0, r.op)
	b = binary.BigEndian.AppendUint32(b, r.id)
	b = binary.BigEndian.AppendUint32(b, r.stag)
	for _, v := range [...]uint64{r.to, r.addSwap, r.addSwapMask, r.compare, r.compareMask} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

// apply computes what the atomic leaves in memory that held old. The masks are as in RFC 7306: a set bit of a FetchAdd's marks
// the highest bit of a field, out of which nothing is carried; CmpSwap compares and swaps where its masks have ones.
func (r *atomicRequest) apply(old uint64) uint64 {
	if r.op == atomicCmpSwap {
		if (old^r.compare)&r.compareMask != 0 {
			return old
		}
		return old&^r.addSwapMask | r.addSwap&r.addSwapMask
	}
	if r.addSwapMask == 0 {
		return old + r.addSwap
	}
	// The sum without the fields' highest bits cannot carry out of a field; those are added without carry.
	m := r.addSwapMask
	return (old&^m + r.addSwap&^m) ^ (old^r.addSwap)&m
}

func crcOf(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }
