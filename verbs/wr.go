package verbs

import "fmt"

// Opcode is the operation of a send work request.
type Opcode uint8

// The operations of RDMA. Not every device has all of them; see Capabilities.
const (
	OpSend Opcode = iota
	OpSendWithImm
	OpSendWithInv
	OpRDMAWrite
	OpRDMAWriteWithImm
	OpRDMARead
	OpAtomicCmpAndSwp
	OpAtomicFetchAndAdd
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
	// Fence holds the request until all earlier READs and atomics are done.
	Fence
)

// SendWR is a work request for a send queue.
type SendWR struct {
	ID     uint64 // comes back in the completion
	Opcode Opcode
	Flags  SendFlags

	// SGL is the payload (or, for a READ, where it goes), in registered memory that must not change before the
	// completion. Empty: no payload.
	SGL []SGE

	// Inline, if not empty, is the payload instead of SGL: any memory, copied before PostSend returns. At most QPCap.MaxInline
	// bytes; for SEND and WRITE, with or without immediate.
	Inline []byte

	// Imm is the immediate data, as a number: it travels most significant byte first.
	Imm uint32

	// RemoteAddr and RKey name the peer's memory, for WRITE, READ and atomics.
	RemoteAddr uint64
	RKey       uint32

	// CompareAdd is what OpAtomicFetchAndAdd adds, and what OpAtomicCmpAndSwp compares with; Swap is what the latter then
	// stores. An atomic works on eight bytes at RemoteAddr, which must be a multiple of 8; what was there before goes to the eight
	// bytes of SGL, both as a number in the byte order of the host that holds it.
	CompareAdd uint64
	Swap       uint64

	// InvalidateRKey is the key of the peer's memory that OpSendWithInv makes invalid there.
	InvalidateRKey uint32
}

// RecvWR is a work request for a receive queue.
type RecvWR struct {
	ID uint64 // comes back in the completion

	// SGL is where the payload of a SEND goes. It may be empty where only WRITE WITH IMM is expected.
	SGL []SGE
}
