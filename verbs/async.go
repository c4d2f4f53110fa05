package verbs

import "fmt"

// AsyncEventType is a kind of asynchronous event.
type AsyncEventType uint8

// The asynchronous events, with the values of ibv_event_type.
const (
	EventCQErr AsyncEventType = iota
	EventQPFatal
	EventQPReqErr
	EventQPAccessErr
	EventCommEst
	EventSQDrained
	EventPathMig
	EventPathMigErr
	EventDeviceFatal
	EventPortActive
	EventPortErr
	EventLIDChange
	EventPKeyChange
	EventSMChange
	EventSRQErr
	EventSRQLimitReached
	EventQPLastWQEReached
	EventClientReregister
	EventGIDChange
	EventWQFatal
)

// String returns the event's name as rdma-core writes it.
func (t AsyncEventType) String() string {
	names := [...]string{
		"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG", "PATH_MIG_ERR",
		"DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "SRQ_ERR",
		"SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER", "GID_CHANGE", "WQ_FATAL",
	}
	if int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("EVENT(%d)", uint8(t))
}

// AsyncEvent is something a device tells outside of any completion queue.
type AsyncEvent struct {
	Type  AsyncEventType
	Port  int    // for port events, else 0
	QPNum uint32 // for QP events, else 0
	CQ    CQ     // for EventCQErr, else nil; nil too where it is not known any more
	SRQ   SRQ    // for SRQ events, likewise
}
