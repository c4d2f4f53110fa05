package cm

import (
	"context"
	"net"
	"net/netip"

	"github.com/rconn/rdma/verbs"
)

// Provider makes connections on the devices it knows.
type Provider interface {
	// Name is a short fixed name: "system", "software".
	Name() string

	// Devices lists the devices present now, in a fresh slice. Without any it returns verbs.ErrNoDevice, wrapped in
	// a text that says what is missing.
	Devices() ([]verbs.Device, error)

	// Resolve finds the device and the route for a connection from local (which may be the zero AddrPort, or have port 0) to
	// remote.
	Resolve(ctx context.Context, local, remote netip.AddrPort) (Resolved, error)

	// Listen waits for connections to local. Port 0 picks a free one. An unspecified address means all devices for
	// that IP family alone; for both families take two listeners.
	Listen(local netip.AddrPort, o ListenOptions) (Listener, error)
}

// ListenOptions are the choices for a listener. The zero value is usable.
type ListenOptions struct {
	// Backlog is how many requests may wait for Accept; more are rejected. 0: 128.
	Backlog int

	// TCP is a listener from which a provider that runs on TCP sockets accepts, instead of its own. Others
	// ignore it.
	TCP net.Listener
}

// DefaultBacklog is the Backlog that 0 stands for.
const DefaultBacklog = 128

// Listener gives out connection requests.
type Listener interface {
	// Addr is the local address, with the real port.
	Addr() netip.AddrPort

	// Device is the device that serves the address; nil when the address is unspecified, which any may serve.
	Device() verbs.Device

	// Accept waits for the next request, until ctx is done or the listener is closed (verbs.ErrClosed).
	Accept(ctx context.Context) (Request, error)

	// Close stops listening. Requests not yet accepted are rejected, those accepted go on.
	Close() error
}

// ID is one end of a connection, from before it is made until after its end. Close its QP first.
type ID interface {
	// Device is the device that serves the connection, never nil.
	Device() verbs.Device

	// LocalAddr and RemoteAddr are the ends of the connection. Link-local IPv6 addresses have a zone.
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort

	// CreateQP makes the connection's QP, once, ready for PostRecv. pd and the CQs must come from Device().
	CreateQP(pd verbs.PD, o verbs.QPOptions) (verbs.QP, error)

	// Notify has f called for each event after the connection was made or failed, including those that came before
	// the call. Calls come one at a time, in order; f must not block, and must not wait for a call of the
	// provider. A call may still be running when Close returns. Only one f is kept, the last.
	Notify(f func(Event))

	// Disconnect starts the end of the connection: the QP goes to the error state and flushes, the peer sees Disconnected.
	// It does not wait for the peer. Disconnecting what is not connected is harmless.
	Disconnect() error

	// Close frees the ID, disconnecting first if need be. ErrBusy while its QP is open. After a Connect that was
	// given up it waits for the kernel to let go, see Resolved.
	Close() error
}

// Resolved is the dialing end.
type Resolved interface {
	ID

	// Connect sends the request and waits for the answer; it returns what the peer sent with it. CreateQP comes first. A
	// Connect that failed or was given up is final: close QP and ID.
	//
	// When ctx ends, Connect returns at once, but where the kernel itself blocks in connect (Linux's iWARP devices) Close of the QP
	// and the ID wait for it, at worst as long as TCP tries to connect; whoever cannot wait closes in another
	// goroutine. How many such connects there may be at once is bounded; beyond it Connect waits its turn, and
	// fails with ErrTooManyConnects when ctx ends before.
	Connect(ctx context.Context, p ConnParam) (ConnParam, error)
}

// Request is the accepting end: a connection that a peer asks for.
type Request interface {
	ID

	// Param is what the peer sent with its request. On InfiniBand and RoCE the private data is always 56 bytes, padded with
	// zeros. ResponderResources and InitiatorDepth are as seen from this end: ready to be copied into Accept's, if the
	// device has as many.
	Param() ConnParam

	// Accept agrees and waits until the connection is established. CreateQP comes first. An Accept that failed is
	// final: close QP and ID.
	Accept(ctx context.Context, p ConnParam) error

	// Reject refuses, with private data for the peer; close the ID then.
	Reject(private []byte) error
}

// ConnParam goes with a request or its answer.
type ConnParam struct {
	// PrivateData is for the peer. At most MaxRequestData bytes in a request, MaxReplyData in an answer;
	// on InfiniBand and RoCE the peer sees it padded with zeros to the full size.
	PrivateData []byte

	// ResponderResources is how many READs and atomics of the peer this side answers at once, InitiatorDepth how many it has
	// outstanding itself: at most DeviceAttr.MaxQPRdAtom and MaxQPInitRdAtom (a *verbs.LimitError otherwise), and no
	// more than the peer answers. 0: none.
	ResponderResources uint8
	InitiatorDepth     uint8

	// RetryCount is how often (0 to 7) a request without answer is sent again; some devices take 7 as for ever. The answer's
	// is ignored: both sides use the request's.
	RetryCount uint8

	// RNRRetryCount is how often the peer tries again (0 to 6; 7: for ever) when it finds no receive posted here.
	RNRRetryCount uint8

	// AckTimeout is how long this side's device waits for an acknowledgement: 4.096 µs × 2^n, 1 to 31. 0: the kernel's
	// default (on Linux about two seconds). Not used on iWARP.
	AckTimeout uint8

	// MinRNRTimer is set on the QP once it is connected, see verbs.QPAttr. 0 leaves it as the kernel made it,
	// which on Linux means 655.36 ms. Not used on iWARP.
	MinRNRTimer uint8
}

// How much private data every transport carries.
const (
	MaxRequestData = 56  // IBTA: 92 bytes, of which the RDMA CM takes 36
	MaxReplyData   = 196 // IBTA vol. 1, 12.6.8
	MaxRejectData  = 148 // IBTA vol. 1, 12.6.7
)
