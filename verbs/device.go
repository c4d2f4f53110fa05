package verbs

import "fmt"

// Transport is the protocol family below the verbs. It decides what the wire looks like, for instance whether WRITE
// WITH IMM exists.
type Transport uint8

// The transports. RoCE is TransportIB on a port whose LinkLayer is Ethernet.
const (
	TransportUnknown Transport = iota
	TransportIB
	TransportIWARP
)

// String returns the transport's usual name.
func (t Transport) String() string {
	switch t {
	case TransportIB:
		return "InfiniBand"
	case TransportIWARP:
		return "iWARP"
	}
	return fmt.Sprintf("transport %d", uint8(t))
}

// Device is an RDMA device. It belongs to its provider, is shared by the whole process and has no Close.
type Device interface {
	// Name is the device's name on this host, such as "mlx5_0" or "rxe0".
	Name() string

	// Attr returns the attributes read when the device was opened.
	Attr() DeviceAttr

	// Port reads the present attributes of a port; the first is 1.
	Port(num int) (PortAttr, error)

	// GID reads one entry of a port's GID table. An empty entry is the zero GID, an index past the table
	// syscall.EINVAL.
	GID(port, index int) (GID, error)

	// GIDType says what packets look like that are sent by an entry of a port's GID table. syscall.EINVAL as for GID.
	GIDType(port, index int) (GIDType, error)

	// AllocPD makes a protection domain.
	AllocPD() (PD, error)

	// CreateCompletionChannel makes a channel on which the events of CQs arrive.
	CreateCompletionChannel() (CompletionChannel, error)

	// CreateCQ makes a completion queue.
	CreateCQ(CQOptions) (CQ, error)

	// Watch calls f for each asynchronous event of the device from now until stop is called. Calls come one at a time, in
	// order; f must not block. A call may still be running when stop returns.
	Watch(f func(AsyncEvent)) (stop func())
}

// DeviceAttr describes a device. Limits are upper bounds: an object may still be refused for lack of resources.
type DeviceAttr struct {
	Transport Transport
	Caps      Capabilities

	Firmware     string
	NodeGUID     uint64
	SysImageGUID uint64
	VendorID     uint32
	VendorPartID uint32
	HWVersion    uint32
	Ports        int

	MaxQP           int    // queue pairs
	MaxQPWR         int    // entries of a send or a receive queue
	MaxSGE          int    // scatter/gather entries of a work request
	MaxSGERead      int    // the same for READ
	MaxCQ           int    // completion queues
	MaxCQE          int    // entries of a completion queue
	MaxMR           int    // memory regions
	MaxMRSize       uint64 // bytes of one memory region
	MaxPD           int    // protection domains
	MaxQPRdAtom     int    // READs and atomics a QP answers at once (responder resources)
	MaxQPInitRdAtom int    // READs and atomics a QP has outstanding at once (initiator depth)
	MaxSRQ          int    // shared receive queues; 0: none
	MaxSRQWR        int    // entries of a shared receive queue
	MaxSRQSGE       int    // scatter/gather entries of a receive of a shared receive queue
	MaxAH           int    // address handles; 0: none

	Atomic AtomicCap
}

// AtomicCap says who respects the atomics that a device executes, with the values of ibv_atomic_cap.
type AtomicCap uint8

// How far atomics are atomic.
const (
	AtomicNone AtomicCap = iota // there are none
	AtomicHCA                   // among those of the same device
	AtomicGlob                  // the processors and other devices of the host too
)

// String returns the name as rdma-core writes it.
func (a AtomicCap) String() string {
	names := [...]string{"NONE", "HCA", "GLOB"}
	if int(a) < len(names) {
		return names[a]
	}
	return fmt.Sprintf("ATOMIC_CAP(%d)", uint8(a))
}

// Capabilities tells what a device can do beyond its limits. Asking for what is missing gives an error that is
// errors.ErrUnsupported.
type Capabilities struct {
	// Send is the set of opcodes that PostSend takes.
	Send OpcodeSet

	// QPTypes is the set of types that PD.CreateQP makes. A cm.ID makes RC on every device.
	QPTypes QPTypeSet

	// MaxInline is an upper bound in bytes for inline payload, as far as it is known before a QP is made; what a QP
	// grants is in its QPCap. 0: not known.
	MaxInline int

	// RNR says whether a SEND or WRITE WITH IMM that finds no receive posted is retried. Without it (iWARP) the
	// connection breaks.
	RNR bool

	// WriteAcked says whether the completion of a WRITE means that the peer's device has it, and will place it before what comes
	// behind. Without it (iWARP) a completion only means that the memory may be reused.
	WriteAcked bool

	// FreesEarlier says whether a completion means that the memory of SENDs and WRITEs posted to the same queue before may be reused
	// too, of those that were not Signaled. If not, signal every request whose memory will change, or wait until the peer has answered.
	//
	// It does not on Linux's soft-iWARP (siw_qp_tx.c in 6.1): such a request of a page or more goes to TCP without a copy, and TCP sends, and
	// sends again, what it finds there then. Signaled requests are copied.
	FreesEarlier bool

	// LocksMemory says whether registered memory is locked: it takes up RAM from registration on, and counts against RLIMIT_MEMLOCK.
	LocksMemory bool
}

// OpcodeSet is a set of opcodes.
type OpcodeSet uint32

// Opcodes makes a set.
func Opcodes(ops ...Opcode) OpcodeSet {
	var s OpcodeSet
	for _, op := range ops {
		s |= 1 << op
	}
	return s
}

// Has reports whether op is in the set.
func (s OpcodeSet) Has(op Opcode) bool { return op < 32 && s&(1<<op) != 0 }

// LinkLayer is what a port is cabled with.
type LinkLayer uint8

// The link layers.
const (
	LinkUnknown LinkLayer = iota
	LinkInfiniBand
	LinkEthernet
)

// String returns the link layer's usual name.
func (l LinkLayer) String() string {
	switch l {
	case LinkInfiniBand:
		return "InfiniBand"
	case LinkEthernet:
		return "Ethernet"
	}
	return "unknown"
}

// PortState is a port's logical state.
type PortState uint8

// The port states, with the values of the InfiniBand specification.
const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

// String returns the state's name as rdma-core writes it.
func (s PortState) String() string {
	names := [...]string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("PORT_STATE(%d)", uint8(s))
}

// PortAttr describes a port at the moment of the query.
type PortAttr struct {
	State      PortState
	Link       LinkLayer
	MTU        int // active path MTU in bytes
	MaxMTU     int // bytes
	LID        uint16
	SMLID      uint16
	GIDs       int // size of the GID table
	MaxMsgSize uint32
	Netdev     string // the port's network interface, where it has one
}

// GID is a port's global identifier: an IPv6 address, on RoCE derived from the interface's addresses.
type GID [16]byte

// GIDType is what packets look like that are sent by a GID.
type GIDType uint8

// The types of GID, with the values of ibv_gid_type.
const (
	GIDTypeIB     GIDType = iota // InfiniBand, or no packets of its own (iWARP)
	GIDTypeRoCEv1                // an Ethernet type of its own: not routed by IP
	GIDTypeRoCEv2                // UDP port 4791
)

// String returns the type's usual name.
func (t GIDType) String() string {
	names := [...]string{"IB", "RoCE v1", "RoCE v2"}
	if int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("GID_TYPE(%d)", uint8(t))
}

// IsZero reports whether the table entry is empty.
func (g GID) IsZero() bool { return g == GID{} }

// String writes the GID as rdma-core does, in eight groups.
func (g GID) String() string {
	s := make([]byte, 0, 39)
	for i := 0; i < len(g); i += 2 {
		if i > 0 {
			s = append(s, ':')
		}
		s = fmt.Appendf(s, "%02x%02x", g[i], g[i+1])
	}
	return string(s)
}
