package verbs

import "fmt"

// QPType is the service a queue pair gives.
type QPType uint8

// The QP types. RC, reliable connected, is the default.
const (
	RC QPType = iota
	UC
	UD
)

// String returns the type's name.
func (t QPType) String() string {
	names := [...]string{"RC", "UC", "UD"}
	if int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("QPTYPE(%d)", uint8(t))
}

// QPTypeSet is a set of QP types.
type QPTypeSet uint8

// QPTypes makes a set.
func QPTypes(types ...QPType) QPTypeSet {
	var s QPTypeSet
	for _, t := range types {
		s |= 1 << t
	}
	return s
}

// Has reports whether t is in the set.
func (s QPTypeSet) Has(t QPType) bool { return t < 8 && s&(1<<t) != 0 }

// QPState is a queue pair's state.
type QPState uint8

// The states of a QP, with the values of ibv_qp_state.
const (
	QPReset QPState = iota
	QPInit
	QPRTR
	QPRTS
	QPSQD
	QPSQE
	QPError
)

// String returns the state's name as rdma-core writes it.
func (s QPState) String() string {
	names := [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("QPSTATE(%d)", uint8(s))
}

// QPCap is the size of a queue pair.
type QPCap struct {
	MaxSendWR  int // entries of the send queue
	MaxRecvWR  int // entries of the receive queue
	MaxSendSGE int // scatter/gather entries of a send
	MaxRecvSGE int // scatter/gather entries of a receive
	MaxInline  int // bytes of inline payload
}

// QPOptions describe a queue pair to be made.
type QPOptions struct {
	Type   QPType
	SendCQ CQ
	RecvCQ CQ // may be the same as SendCQ

	// SRQ, if not nil, is where receives come from, instead of a receive queue of the QP's own; the receive part of Cap is
	// not looked at then. It must be of the QP's PD, syscall.EINVAL otherwise.
	SRQ SRQ

	// Cap is what is asked for; the provider may grant more. Beyond the device's limits creation fails with an error
	// that names the limit; Cap.MaxInline alone is lowered to what the device has.
	Cap QPCap

	// SignalAll gives every send work request a completion, signaled or not.
	SignalAll bool
}

// QPAttr are the attributes of a QP that Query reads and Modify writes.
type QPAttr struct {
	State  QPState
	Access Access // what peers may do through the QP, of AccessRemoteRead, AccessRemoteWrite and AccessRemoteAtomic

	Port      int    // the first is 1
	PKeyIndex uint16 // entry of the port's table of partition keys
	QKey      uint32 // UD: only packets with this key are received

	PathMTU     int    // bytes: 256, 512, 1024, 2048 or 4096
	AH          AHAttr // the way to the peer
	DestQPNum   uint32 // the peer's QP
	RQPSN       uint32 // packet sequence number that the peer begins with, 24 bits
	SQPSN       uint32 // the one that this side begins with, 24 bits
	AckTimeout  uint8  // local ack timeout: 4.096 µs × 2^n; 0: infinite
	RetryCount  uint8  // 0 to 7 retries after a lost answer
	RNRRetry    uint8  // 0 to 6 retries after receiver-not-ready, 7: for ever
	MinRNRTimer uint8  // what this side asks its peer to wait after RNR: an encoding, 0 means 655.36 ms, 1 means 10 µs (IBTA table 45)

	MaxRdAtomic     uint8 // READs and atomics outstanding at once: the initiator depth
	MaxDestRdAtomic uint8 // READs and atomics of the peer's answered at once: the responder resources

	NotifyDrained bool // with State QPSQD: EventSQDrained when the send queue has drained. Not read back
}

// QPAttrMask says which attributes Modify writes. The values are this package's own.
type QPAttrMask uint32

// The attributes that can be written.
const (
	AttrState QPAttrMask = 1 << iota
	AttrMinRNRTimer
	AttrAccess
	AttrPort
	AttrPKeyIndex
	AttrQKey
	AttrPathMTU
	AttrAH
	AttrDestQPNum
	AttrRQPSN
	AttrSQPSN
	AttrAckTimeout
	AttrRetryCount
	AttrRNRRetry
	AttrMaxRdAtomic
	AttrMaxDestRdAtomic
	AttrNotifyDrained
)

// QP is a queue pair.
type QP interface {
	// Num is the queue pair number.
	Num() uint32

	// Type is the service it gives.
	Type() QPType

	// Cap is what was granted.
	Cap() QPCap

	// PostSend hands work requests to the send queue, in order, and returns how many it took. Fewer than len(wrs) come
	// with an error about the first not taken: ErrQueueFull, a wrong request, ErrClosed. Results arrive in the send CQ. As many
	// as Cap says fit; a device that works meanwhile may take more, so whoever must not overrun a CQ counts for himself. A QP in
	// the error state flushes what is posted, or refuses it; Linux's software devices may also lose it without a completion.
	PostSend(wrs []SendWR) (int, error)

	// PostRecv hands work requests to the receive queue, as PostSend does. It may be called before the QP is connected, from QPInit
	// on. syscall.EINVAL for a QP with an SRQ.
	PostRecv(wrs []RecvWR) (int, error)

	// Query reads the attributes from the device. What the transport does not have is 0.
	Query() (QPAttr, error)

	// Modify writes the attributes in mask, all or none. Moving to QPError flushes all outstanding work requests to their CQs. A QP
	// that a cm.ID made is moved by its connection, and takes QPError and MinRNRTimer only. One that was made by PD.CreateQP takes
	// the transitions of ibv_modify_qp(3), with the attributes that each needs (ByHand knows them):
	//
	//	to      RC                                               UC                                  UD
	//	INIT    State PKeyIndex Port Access                      the same                            State PKeyIndex Port QKey
	//	RTR     State AH PathMTU DestQPNum RQPSN                 State AH PathMTU DestQPNum RQPSN    State
	//	        MaxDestRdAtomic MinRNRTimer
	//	RTS     State SQPSN AckTimeout RetryCount RNRRetry       State SQPSN                         State SQPSN
	//	        MaxRdAtomic
	//	SQD     State, from RTS: the send queue stops when what is under way is done (EventSQDrained); and back to RTS then. Until
	//	        it is, Linux's Soft-RoCE takes ERR only
	//	ERR     State, from any; on Linux's devices not from RESET
	//	RESET   State, from any: queues are emptied without completions
	//
	// Which others may come along, or be changed within a state (Access and MinRNRTimer in RTS, for instance), is in IBTA vol. 1, 11.2.5.2.
	// What does not fit is syscall.EINVAL.
	Modify(attr QPAttr, mask QPAttrMask) error

	// Close destroys the QP. Once it has returned the device touches no memory on its behalf; completions not yet polled
	// may be gone.
	Close() error
}
