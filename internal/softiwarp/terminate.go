package softiwarp

import (
	"encoding/binary"
	"fmt"
)

// The layers that a Terminate message names.
const (
	layerRDMAP = iota
	layerDDP
	layerLLP // MPA
)

// fault is why a stream is terminated: layer, error type and code of RFC 5040, section 4.8, and how much of the offending
// segment goes along.
type fault struct {
	layer, etype, code uint8
	segment            bool // the DDP header goes along
	request            bool // the READ request's RDMAP header too
}

func (f *fault) Error() string {
	layer := [...]string{"RDMAP", "DDP", "MPA"}
	name := "unknown layer"
	if int(f.layer) < len(layer) {
		name = layer[f.layer]
	}
	return fmt.Sprintf("iWARP stream terminated: %s error, type %d, code %#02x", name, f.etype, f.code)
}

// The faults, see spec RFC 5040, section 4.8; RFC 5041, section 7; RFC 5044, section 8.
var (
	faultTaggedSTag    = fault{layer: layerDDP, etype: 1, code: 0, segment: true}
	faultTaggedBounds  = fault{layer: layerDDP, etype: 1, code: 1, segment: true}
	faultTaggedPD      = fault{layer: layerDDP, etype: 1, code: 2, segment: true}
	faultTaggedWrap    = fault{layer: layerDDP, etype: 1, code: 3, segment: true}
	faultTaggedVersion = fault{layer: layerDDP, etype: 1, code: 4}

	faultQN              = fault{layer: layerDDP, etype: 2, code: 1, segment: true}
	faultNoBuffer        = fault{layer: layerDDP, etype: 2, code: 2, segment: true}
	faultMSN             = fault{layer: layerDDP, etype: 2, code: 3, segment: true}
	faultMO              = fault{layer: layerDDP, etype: 2, code: 4, segment: true}
	faultTooLong         = fault{layer: layerDDP, etype: 2, code: 5, segment: true}
	faultUntaggedVersion = fault{layer: layerDDP, etype: 2, code: 6}

	faultWriteAccess   = fault{layer: layerRDMAP, etype: 1, code: 2, segment: true}
	faultRequestSTag   = fault{layer: layerRDMAP, etype: 1, code: 0, segment: true, request: true}
	faultRequestBounds = fault{layer: layerRDMAP, etype: 1, code: 1, segment: true, request: true}
	faultRequestAccess = fault{layer: layerRDMAP, etype: 1, code: 2, segment: true, request: true}
	faultRequestPD     = fault{layer: layerRDMAP, etype: 1, code: 3, segment: true, request: true}
	faultRequestWrap   = fault{layer: layerRDMAP, etype: 1, code: 4, segment: true, request: true}
	faultInvalidate    = fault{layer: layerRDMAP, etype: 1, code: 9, segment: true}

	faultLocal = fault{layer: layerDDP, etype: 0, code: 0} // our own memory is gone

	faultRDMAPVersion = fault{layer: layerRDMAP, etype: 2, code: 5}
	faultOpcode       = fault{layer: layerRDMAP, etype: 2, code: 6}
	faultUnspecified  = fault{layer: layerRDMAP, etype: 2, code: 0xff, segment: true}

	faultCRC   = fault{layer: layerLLP, etype: 0, code: 2}
	faultStart = fault{layer: layerLLP, etype: 0, code: 3}
)

const (
	terminateSize = 4
	maxTerminate  = terminateSize + 2 + untaggedSize - lengthSize + atomicRequestSize

	terminateM = 0x80 // the DDP segment length is valid
	terminateD = 0x40 // the DDP header is there
	terminateR = 0x20 // the RDMAP header is there
)

// appendTerminate encodes a Terminate message as one FPDU. segment is the offending FPDU from its length field on, as much of it as is
// known.
func (f *fault) appendTerminate(b, segment []byte, withCRC bool) []byte {
	control := [terminateSize]byte{f.layer<<4 | f.etype, f.code}
	var length, ddp, rdma []byte
	if f.segment && len(segment) >= untaggedSize {
		size := untaggedSize
		if segment[2]&flagTagged != 0 {
			size = taggedSize
		}
		length, ddp = segment[:lengthSize], segment[lengthSize:size]
		control[2] |= terminateM | terminateD
		if f.request && segment[3]&0x0f == opReadRequest && len(segment) >= size+readRequestSize {
			rdma = segment[size : size+readRequestSize]
			control[2] |= terminateR
		}
	}
	h := header{
		op: opTerminate, last: true, qn: qnTerminate, msn: 1,
		payload: len(control) + len(length) + len(ddp) + len(rdma),
	}
	start := len(b)
	b = h.append(b)
	for _, part := range [][]byte{control[:], length, ddp, rdma} {
		b = append(b, part...)
	}
	return sealFPDU(b, start, withCRC)
}

// sealFPDU adds the trailer to the FPDU that begins at start.
func sealFPDU(b []byte, start int, withCRC bool) []byte {
	n := len(b) - start
	if !withCRC {
		return appendTrailer(b, n, false, 0)
	}
	return appendTrailer(b, n, true, crcOf(b[start:]))
}

// parseTerminate decodes a Terminate message's control word. Linux's soft-iWARP sends it with the bits of each byte in the other order on
// little-endian hosts: error type and layer are swapped, and the flags are in the low bits.
func parseTerminate(b []byte) (f fault, raw uint32) {
	raw = binary.BigEndian.Uint32(b)
	rfc := fault{layer: b[0] >> 4, etype: b[0] & 0x0f, code: b[1]}
	swapped := fault{layer: rfc.etype, etype: rfc.layer, code: rfc.code}
	switch {
	case b[2]&0x1f != 0:
		return swapped, raw
	case b[2]&0xe0 != 0:
		return rfc, raw
	case rfc.registered():
		return rfc, raw
	}
	return swapped, raw
}

// registered tells whether the code exists (IANA RDDP registry) and can come in full operation: MPA's codes from 5 on belong to
// connection setup.
func (f *fault) registered() bool {
	switch [2]uint8{f.layer, f.etype} {
	case [2]uint8{layerRDMAP, 0}, [2]uint8{layerDDP, 0}:
		return f.code == 0
	case [2]uint8{layerRDMAP, 1}:
		return f.code <= 4 || f.code == 9 || f.code == 0xff
	case [2]uint8{layerRDMAP, 2}:
		return f.code >= 5 && f.code <= 9 || f.code == 0xff
	case [2]uint8{layerDDP, 1}:
		return f.code <= 4
	case [2]uint8{layerDDP, 2}:
		return f.code >= 1 && f.code <= 6
	case [2]uint8{layerLLP, 0}:
		return f.code >= 1 && f.code <= 4
	}
	return false
}
