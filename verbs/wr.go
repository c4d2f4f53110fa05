package verbs

import "fmt"

// Opcode is the operation of a send work request.
type Opcode uint8

// The operations of RDMA. Not every device has all of them; see Capabilities. A UC QP has SEND and WRITE, with or without immediate, a
// UD QP has SEND, with or without immediate; another is an UnsupportedError.
//
// Requests of one queue are executed in the order in which they were posted and complete in that order, with one exception: an operation
// may be executed before the result of an earlier READ or atomic is here, unless it has Fence. A READ or atomic sees what WRITEs
// and atomics posted before it have done. Linux's soft-iWARP breaks the rule: what was posted behind a READ may complete before it.
//
// # Completions
//
// The completion of a SEND or WRITE, with or without immediate or invalidate, means that its memory may be used again; on InfiniBand
// (Capabilities.WriteAcked) also that the peer's device has it. Whether it frees the memory of unsignaled requests before it too says
// Capabilities.FreesEarlier. The completion of a READ or atomic means that the result is in its memory.
//
// # What the peer's device refuses
//
// An operation that names memory of the peer that it may not use (an unknown key, one of another PD, bytes outside of the region, an access
// that the region does not have), or that the peer has no answer for, changes nothing and ends the connection:
//
//   - On InfiniBand it completes with StatusRemAccessErr or, where it is not the memory that is wrong, StatusRemInvReqErr; later
//     requests are flushed. The peer's QP goes to the error state: its requests are flushed, and an asynchronous event may tell why.
//   - On iWARP the peer sends a Terminate message and ends the TCP connection. Both QPs go to the error state, both
//     ends get the event cm.Disconnected. A SEND or WRITE may have completed with success before. A READ or atomic completes with an
//     error: that of InfiniBand where the device understands the Terminate message, else StatusWRFlushErr.
//   - On UC and UD nobody answers: the message is dropped, and the sender's completion is a success.
const (
	OpSend Opcode = iota

	// OpSendWithImm is a SEND that brings 32 bits of immediate data besides the payload: the receive completes with WCWithImm.
	OpSendWithImm

	// OpSendWithInv is a SEND that makes a key of the peer's invalid, see SendWR.InvalidateRKey: the receive completes with WCWithInv.
	// If there is no such key to make invalid, the peer's device refuses it, and the receive does not complete with success.
	OpSendWithInv

	OpRDMAWrite

	// OpRDMAWriteWithImm is a WRITE that uses up a receive of the peer's, whose memory stays as it is; the receive
	// completes as WCRecvRDMAWithImm, with WCWithImm and the number of bytes written. On iWARP it is a WRITE followed by an Immediate
	// Data message (RFC 7306), which only peers of our own understand; if the peer has no receive posted, the bytes may be written before the
	// connection ends.
	OpRDMAWriteWithImm

	// OpRDMARead brings bytes from the peer's memory. READs and atomics are limited in number: as many as InitiatorDepth says
	// (cm.ConnParam) are under way at once, the next ones wait in the send queue. Where that is 0, they fail: at the
	// post, or with a completion. More than the peer's ResponderResources are refused by the peer's device. A READ of no
	// bytes succeeds; its address and key are not looked at.
	OpRDMARead

	// OpAtomicCmpAndSwp and OpAtomicFetchAndAdd change a word of the peer's memory in one piece; see SendWR.CompareAdd. No other atomic
	// comes between that the same device executes, whichever QP it comes by; whether that holds for
	// what the peer's processor does at the same time too, says DeviceAttr.Atomic. An address that is not a multiple of 8 is refused, at the post or by the peer's device.
	OpAtomicCmpAndSwp
	OpAtomicFetchAndAdd

	// OpLocalInv and OpBindMW are names only: no device has them.
	OpLocalInv
	OpBindMW
)

var opcodeNames = [...]string{
	OpSend: "SEND", OpSendWithImm: "SEND_WITH_IMM", OpSendWithInv: "SEND_WITH_INV", OpRDMAWrite: "RDMA_WRITE",
	OpRDMAWriteWithImm: "RDMA_WRITE_WITH_IMM", OpRDMARead: "RDMA_READ", OpAtomicCmpAndSwp: "ATOMIC_CMP_AND_SWP",
	OpAtomicFetchAndAdd: "ATOMIC_FETCH_AND_ADD", OpLocalInv: "LOCAL_INV", OpBindMW: "BIND_MW",
}

// String returns the opcode's name as rdma-core writes it.
func (op Opcode) String() string {
	if int(op) < len(opcodeNames) {
		return opcodeNames[op]
	}
	return fmt.Sprintf("OPCODE(%d)", uint8(op))
}

// SendFlags modify a send work request.
type SendFlags uint8

// The send flags.
const (
	// Signaled asks for a completion when the request succeeds. One that fails always completes. Entries of the
	// send queue become free with the next completion of the same queue, so every queue needs some.
	Signaled SendFlags = 1 << iota
	// Solicited marks the receive that this request uses up as worth an event for a CQ that wants only such.
	Solicited
	// Fence holds the request until all earlier READs and atomics of the queue are done: it may use what they brought.
	Fence
)

// SendWR is a work request for a send queue.
type SendWR struct {
	ID     uint64 // comes back in the completion
	Opcode Opcode
	Flags  SendFlags

	// SGL is the payload, in registered memory that must not change before the completion. Empty: no payload. For a READ or
	// atomic it is where the result goes: memory with AccessLocalWrite, at most DeviceAttr.MaxSGERead entries, for an atomic
	// one of 8 bytes.
	SGL []SGE

	// Inline, if not empty, is the payload instead of SGL: any memory, copied before PostSend returns. At most QPCap.MaxInline
	// bytes; for SEND and WRITE, with or without immediate.
	Inline []byte

	// Imm is the immediate data, as a number: it travels most significant byte first.
	Imm uint32

	// RemoteAddr and RKey name the peer's memory, for WRITE, READ and atomics.
	RemoteAddr uint64
	RKey       uint32

	// CompareAdd is what OpAtomicFetchAndAdd adds, modulo 2^64, and what OpAtomicCmpAndSwp compares with; Swap is what the latter then
	// stores if they were equal. An atomic works on the 8 bytes at RemoteAddr, which must be a multiple of 8, in a region with
	// AccessRemoteAtomic; what was there before goes to the 8 bytes of SGL, both as a number in the byte order of the host that holds it.
	CompareAdd uint64
	Swap       uint64

	// InvalidateRKey is the RKey of a region of the peer's, in the PD of its QP, that OpSendWithInv makes invalid: when the receive
	// completes it names nothing any more, for any QP, and requests that use it are refused. Whether the region's LKey still
	// works is not defined; the region is still to be closed.
	InvalidateRKey uint32

	// AH, RemoteQPNum and RemoteQKey say where a SEND of a UD QP goes. Its payload fits in one packet, of the port's MTU. The AH must
	// be of the QP's PD (syscall.EINVAL) and open (ErrClosed).
	AH          AH
	RemoteQPNum uint32
	RemoteQKey  uint32
}

// RecvWR is a work request for a receive queue.
type RecvWR struct {
	ID uint64 // comes back in the completion

	// SGL is where the payload of a SEND goes. It may be empty where only WRITE WITH IMM is expected. On a UD QP the payload comes
	// after GRHSize bytes.
	SGL []SGE
}
