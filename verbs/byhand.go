package verbs

import (
	"cmp"
	"fmt"
	"os"
	"syscall"
)

// ByHand connects a QP of PD.CreateQP without the RDMA CM, from what two programs tell each other by some other way, a TCP
// connection for instance. The order is:
//
//	Init         the QP takes receives from here on: post them now
//	Local        what to send to the peer's program
//	Connect      with what came from there
//	             tell the peer, and hear from it, that both have come so far: a connected QP drops what comes before Connect
//
// The zero fields of a ByHand stand for what most programs want; but on Ethernet (RoCE) GIDIndex chooses the address, and so the
// protocol, see Device.GIDType. Both ends of an RC or UC QP need the same PathMTU.
type ByHand struct {
	Port     int // 0: 1
	GIDIndex int // entry of the port's GID table
	PathMTU  int // bytes; 0: 1024, what RoCE has on Ethernet's usual 1500; at most PortAttr.MTU of both ports. Not used for UD
	SL       uint8
	HopLimit uint8 // of packets with a global route header; 0: 64

	// PSN is the packet sequence number to begin with, 24 bits. A random one keeps packets of an earlier connection out.
	PSN uint32

	// Access is what the peer may do through the QP.
	Access Access

	// QKey is a UD QP's: only packets with this key are received. With the highest bit set sending by it is privileged.
	QKey uint32

	AckTimeout  uint8 // RC, see QPAttr; 0: 14, which is 67 ms
	RetryCount  uint8 // RC; 0: 6, since some devices take 7 as for ever
	RNRRetry    uint8 // RC; 0: 7, for ever
	MinRNRTimer uint8 // RC; 0: 12, which is 0.64 ms

	// MaxRdAtomic and MaxDestRdAtomic are RC's, see QPAttr. The first must not be more than the second of the peer. 0: 1. On devices that
	// have fewer they are lowered by nobody.
	MaxRdAtomic     uint8
	MaxDestRdAtomic uint8
}

// Endpoint names a QP to another host's program.
type Endpoint struct {
	QPNum uint32
	PSN   uint32 // the packet sequence number it begins with
	LID   uint16 // on InfiniBand
	GID   GID    // zero: packets have no global route header, as within an InfiniBand subnet; both ends have it zero then
}

func (h *ByHand) port() int { return cmp.Or(h.Port, 1) }

// Init moves the QP from QPReset to QPInit.
func (h ByHand) Init(qp QP) error {
	attr := QPAttr{State: QPInit, Port: h.port(), Access: h.Access, QKey: h.QKey}
	mask := AttrState | AttrPort | AttrPKeyIndex | AttrAccess
	if qp.Type() == UD {
		mask = AttrState | AttrPort | AttrPKeyIndex | AttrQKey
	}
	return qp.Modify(attr, mask)
}

// Local is the endpoint of a QP of device d, to be told to the peer.
func (h ByHand) Local(d Device, qp QP) (Endpoint, error) {
	port, err := d.Port(h.port())
	if err != nil {
		return Endpoint{}, err
	}
	gid, err := d.GID(h.port(), h.GIDIndex)
	if err != nil {
		return Endpoint{}, err
	}
	if gid.IsZero() && port.Link == LinkEthernet {
		return Endpoint{}, fmt.Errorf("%w: entry %d of the GID table of %s is empty", syscall.EINVAL, h.GIDIndex, d.Name())
	}
	return Endpoint{QPNum: qp.Num(), PSN: h.PSN & maxPSN, LID: port.LID, GID: gid}, nil
}

const maxPSN = 1<<24 - 1

// Connect moves the QP from QPInit by QPRTR to QPRTS. For a UD QP the peer is not used: an AH names it in every work request.
func (h ByHand) Connect(qp QP, peer Endpoint) error {
	rtr := QPAttr{
		State: QPRTR, AH: h.Path(peer), PathMTU: cmp.Or(h.PathMTU, 1024), DestQPNum: peer.QPNum, RQPSN: peer.PSN & maxPSN,
		MaxDestRdAtomic: cmp.Or(h.MaxDestRdAtomic, 1), MinRNRTimer: cmp.Or(h.MinRNRTimer, 12),
	}
	rts := QPAttr{
		State: QPRTS, SQPSN: h.PSN & maxPSN, AckTimeout: cmp.Or(h.AckTimeout, 14), RetryCount: cmp.Or(h.RetryCount, 6),
		RNRRetry: cmp.Or(h.RNRRetry, 7), MaxRdAtomic: cmp.Or(h.MaxRdAtomic, 1),
	}
	var toRTR, toRTS QPAttrMask
	switch qp.Type() {
	case RC:
		toRTR = AttrState | AttrAH | AttrPathMTU | AttrDestQPNum | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer
		toRTS = AttrState | AttrSQPSN | AttrAckTimeout | AttrRetryCount | AttrRNRRetry | AttrMaxRdAtomic
	case UC:
		toRTR = AttrState | AttrAH | AttrPathMTU | AttrDestQPNum | AttrRQPSN
		toRTS = AttrState | AttrSQPSN
	case UD:
		toRTR = AttrState
		toRTS = AttrState | AttrSQPSN
	default:
		return os.NewSyscallError("ibv_modify_qp", syscall.EINVAL)
	}
	if err := qp.Modify(rtr, toRTR); err != nil {
		return fmt.Errorf("queue pair to RTR: %w", err)
	}
	if err := qp.Modify(rts, toRTS); err != nil {
		return fmt.Errorf("queue pair to RTS: %w", err)
	}
	return nil
}

// Path is the way to a peer: for PD.CreateAH.
func (h ByHand) Path(peer Endpoint) AHAttr {
	return AHAttr{
		Port: h.port(), LID: peer.LID, SL: h.SL,
		Global: !peer.GID.IsZero(), GID: peer.GID, GIDIndex: h.GIDIndex, HopLimit: cmp.Or(h.HopLimit, 64),
	}
}
