package ring

import "fmt"

// OpKind is the kind of work request that an Op stands for.
type OpKind uint8

// The kinds of operation.
const (
	WriteImm OpKind = iota // RDMA WRITE WITH IMM: payload to Addr, Msg as immediate data
	Write                  // RDMA WRITE: payload to Addr
	Send                   // SEND of a payload of 4 bytes, the message
)

// Op is a work request to be posted to the send queue, in the order Next gives them.
type Op struct {
	Kind OpKind

	// Seq is the number of the operation, for Completed. Signal says that its completion is needed; others
	// are done when a later one is.
	Seq    uint64
	Signal bool

	// Off and Len are the payload in the send memory, or in that of GrowSend, which stays as it is until the operation is done.
	Off, Len int
	Grown    bool

	// Addr and RKey are where the payload goes. A write without payload names the peer's table.
	Addr uint64
	RKey uint32

	Msg Message
}

// String is for logs.
func (op Op) String() string {
	names := [...]string{"WRITE_IMM", "WRITE", "SEND"}
	return fmt.Sprintf("%s #%d %d bytes %v", names[op.Kind], op.Seq, op.Len, op.Msg)
}
