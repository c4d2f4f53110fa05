package verbs

// AHAttr describes the way to a port: of an AH, and of a QP that is connected by hand.
type AHAttr struct {
	Port        int    // the local port, the first is 1
	LID         uint16 // the destination's, on InfiniBand
	SL          uint8  // service level
	SrcPathBits uint8  // low bits of the local LID
	StaticRate  uint8  // 0: the port's

	// Global says that packets have a global route header, which the rest describes. On Ethernet (RoCE) they must.
	Global       bool
	GID          GID // the destination's
	GIDIndex     int // of the local port's GID table, see Device.GID
	FlowLabel    uint32
	HopLimit     uint8
	TrafficClass uint8
}

// AH is an address handle: where a SEND of a UD QP goes.
type AH interface {
	// Close destroys the handle. Work requests that name it must have completed.
	Close() error
}

// GRHSize is the number of bytes that a UD receive holds before its payload: space for the global route header, in which it
// is if the completion has WCGRH. On RoCE over IPv4 the IP header is in the last 20 bytes.
const GRHSize = 40
