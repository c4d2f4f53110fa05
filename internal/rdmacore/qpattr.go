package rdmacore

import (
	"fmt"
	"math/bits"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// ibvMasks are the bits of ibv_qp_attr_mask, in the order of package verbs. shim_qp.h has the compiler compare them.
var ibvMasks = [...]int{
	1,       // AttrState
	1 << 15, // AttrMinRNRTimer
	1 << 3,  // AttrAccess
	1 << 5,  // AttrPort
	1 << 4,  // AttrPKeyIndex
	1 << 6,  // AttrQKey
	1 << 8,  // AttrPathMTU
	1 << 7,  // AttrAH
	1 << 20, // AttrDestQPNum
	1 << 12, // AttrRQPSN
	1 << 16, // AttrSQPSN
	1 << 9,  // AttrAckTimeout
	1 << 10, // AttrRetryCount
	1 << 11, // AttrRNRRetry
	1 << 13, // AttrMaxRdAtomic
	1 << 17, // AttrMaxDestRdAtomic
	1 << 2,  // AttrNotifyDrained
}

// allAttrs is every attribute there is.
const allAttrs = verbs.QPAttrMask(1<<len(ibvMasks) - 1)

// ibvMask translates a mask, which has known bits only.
func ibvMask(mask verbs.QPAttrMask) int {
	m := 0
	for ; mask != 0; mask &= mask - 1 {
		m |= ibvMasks[bits.TrailingZeros32(uint32(mask))]
	}
	return m
}

const (
	max24    = 1<<24 - 1 // QP numbers and packet sequence numbers
	remote   = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	qpAccess = remote | verbs.AccessLocalWrite // libibverbs lets a QP have it too, without meaning
)

// checkAttrs refuses values that no device takes, by name. What fits the QP's state is for the kernel to say.
func checkAttrs(d *verbs.DeviceAttr, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if mask&^allAttrs != 0 {
		return fmt.Errorf("%w: an attribute that does not exist (mask %#x)", syscall.EINVAL, mask)
	}
	for _, l := range []struct {
		bit  verbs.QPAttrMask
		what string
		got  uint64
		max  uint64
	}{
		{verbs.AttrMinRNRTimer, "RNR timer", uint64(attr.MinRNRTimer), maxRNRTimer},
		{verbs.AttrDestQPNum, "queue pair number", uint64(attr.DestQPNum), max24},
		{verbs.AttrRQPSN, "packet sequence number of the receive queue", uint64(attr.RQPSN), max24},
		{verbs.AttrSQPSN, "packet sequence number of the send queue", uint64(attr.SQPSN), max24},
		{verbs.AttrAckTimeout, "ack timeout", uint64(attr.AckTimeout), 31},
		{verbs.AttrRetryCount, "retries", uint64(attr.RetryCount), 7},
		{verbs.AttrRNRRetry, "RNR retries", uint64(attr.RNRRetry), 7},
		{verbs.AttrMaxRdAtomic, "initiator depth", uint64(attr.MaxRdAtomic), uint64(d.MaxQPInitRdAtom)},
		{verbs.AttrMaxDestRdAtomic, "responder resources", uint64(attr.MaxDestRdAtomic), uint64(d.MaxQPRdAtom)},
	} {
		if mask&l.bit != 0 && l.got > l.max {
			return &verbs.LimitError{What: l.what, Got: l.got, Max: l.max}
		}
	}
	switch {
	case mask&verbs.AttrState != 0 && attr.State > verbs.QPError:
		return fmt.Errorf("%w: no such state: %v", syscall.EINVAL, attr.State)
	case mask&verbs.AttrPort != 0 && (attr.Port < 1 || attr.Port > d.Ports):
		return errNoPort(attr.Port)
	case mask&verbs.AttrPathMTU != 0 && !isMTU(attr.PathMTU):
		return fmt.Errorf("%w: a path MTU of %d: it is 256, 512, 1024, 2048 or 4096", syscall.EINVAL, attr.PathMTU)
	case mask&verbs.AttrAccess != 0 && attr.Access&^qpAccess != 0:
		return fmt.Errorf("%w: access flags %#x of a queue pair", syscall.EINVAL, attr.Access)
	}
	return nil
}

func errNoPort(port int) error { return fmt.Errorf("%w: there is no port %d", syscall.EINVAL, port) }

func isMTU(n int) bool { return n >= 256 && n <= 4096 && n&(n-1) == 0 }

// cmAttrs is what a QP takes that a cm id moves through its states.
const cmAttrs = verbs.AttrState | verbs.AttrMinRNRTimer

func checkCMAttrs(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	switch {
	case mask&^cmAttrs != 0:
		return fmt.Errorf("%w: its connection writes the attributes of the queue pair; AttrState and AttrMinRNRTimer alone can be written",
			syscall.EINVAL)
	case mask&verbs.AttrState != 0 && attr.State != verbs.QPError:
		return fmt.Errorf("%w: its connection moves the queue pair, which can be moved to %v only", syscall.EINVAL, verbs.QPError)
	}
	return nil
}

// checkAH refuses a way that cannot be, by name. The kernel, and the libraries of some devices, which print something, say less.
func checkAH(port *verbs.PortAttr, a *verbs.AHAttr) error {
	switch {
	case !a.Global && port.Link == verbs.LinkEthernet:
		return fmt.Errorf("%w: a way without a global route (AHAttr.Global) on Ethernet", syscall.EINVAL)
	case a.Global && (a.GIDIndex < 0 || a.GIDIndex >= port.GIDs || a.GIDIndex > 255):
		return fmt.Errorf("%w: there is no entry %d in the GID table of port %d", syscall.EINVAL, a.GIDIndex, a.Port)
	case a.Global && a.GID.IsZero():
		return fmt.Errorf("%w: the GID of the destination is missing", syscall.EINVAL)
	case a.SL > 15:
		return &verbs.LimitError{What: "service level", Got: uint64(a.SL), Max: 15}
	case a.FlowLabel > 1<<20-1:
		return &verbs.LimitError{What: "flow label", Got: uint64(a.FlowLabel), Max: 1<<20 - 1}
	}
	return nil
}

// gidType reads the name that the kernel gives to an entry of the GID table; it has one name for two types.
func gidType(name string, link verbs.LinkLayer) verbs.GIDType {
	switch {
	case name == "RoCE v2":
		return verbs.GIDTypeRoCEv2
	case name == "IB/RoCE v1" && link == verbs.LinkEthernet:
		return verbs.GIDTypeRoCEv1
	}
	return verbs.GIDTypeIB
}
