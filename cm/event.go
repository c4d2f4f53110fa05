package cm

import "fmt"

// EventType is a kind of connection event.
type EventType uint8

// The events of the RDMA CM, with the values of rdma_cm_event_type.
const (
	AddrResolved EventType = iota
	AddrError
	RouteResolved
	RouteError
	ConnectRequest
	ConnectResponse
	ConnectError
	Unreachable
	Rejected
	Established
	Disconnected
	DeviceRemoval
	MulticastJoin
	MulticastError
	AddrChange
	TimewaitExit
	AddrinfoResolved
	AddrinfoError
)

var eventNames = [...]string{
	"ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST", "CONNECT_RESPONSE",
	"CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL", "MULTICAST_JOIN",
	"MULTICAST_ERROR", "ADDR_CHANGE", "TIMEWAIT_EXIT", "ADDRINFO_RESOLVED", "ADDRINFO_ERROR",
}

// String returns the event's name as rdma-core writes it.
func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("EVENT(%d)", uint8(t))
}

// Event is what Notify's function gets: on an established connection Disconnected, DeviceRemoval, AddrChange or
// TimewaitExit, and anything else that the provider did not expect there.
type Event struct {
	Type   EventType
	Status int // the event's status: a negative errno, or a reject reason; 0 if none
}

// Ends reports whether a connection is over after the event.
func (e Event) Ends() bool {
	switch e.Type {
	case AddrChange, TimewaitExit, Established, MulticastJoin, MulticastError:
		return false
	}
	return true
}

// String is for logs.
func (e Event) String() string {
	if e.Status != 0 {
		return fmt.Sprintf("%v (status %d)", e.Type, e.Status)
	}
	return e.Type.String()
}
