// Package end is what the example programs on verbs and cm share: one end of a connection, and the objects that it needs. The first
// provider that serves the address makes them: an RDMA device where there is one, else the software device.
package end

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// ErrGone says that the peer has ended the connection, or that it broke.
var ErrGone = errors.New("the connection has ended")

// Parse reads the address of a server.
func Parse(address string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		err = fmt.Errorf("want IP:port, such as 10.9.0.1:7000: %w", err)
	}
	return a, err
}

// Resolve asks the providers in order for a way to remote; one that has no device for it leaves it to the next.
func Resolve(ctx context.Context, remote netip.AddrPort) (id cm.Resolved, err error) {
	err = verbs.ErrNoDevice
	for _, p := range rdma.Providers() {
		if id, err = p.Resolve(ctx, netip.AddrPort{}, remote); !errors.Is(err, verbs.ErrNoDevice) {
			break
		}
	}
	return id, err
}

// Listen asks the providers in order for a listener.
func Listen(local netip.AddrPort) (ln cm.Listener, err error) {
	err = verbs.ErrNoDevice
	for _, p := range rdma.Providers() {
		if ln, err = p.Listen(local, cm.ListenOptions{}); !errors.Is(err, verbs.ErrNoDevice) {
			break
		}
	}
	return ln, err
}

// Need fails if a device lacks one of the operations, with an error that is errors.ErrUnsupported; and if there is no device, which is that
// of a listener on all addresses: memory is registered with one, before anybody has connected.
func Need(dev verbs.Device, ops ...verbs.Opcode) error {
	if dev == nil {
		return errors.New("listen on the address of one device")
	}
	for _, op := range ops {
		if !dev.Attr().Caps.Send.Has(op) {
			return &verbs.UnsupportedError{Device: dev.Name(), What: op.String()}
		}
	}
	return nil
}

// Param is what the examples agree on for a connection, on both ends: a READ or atomic outstanding each way (some iWARP devices
// need that to connect), and senders that wait as long as it takes, 0.64 ms at a time, for a receive to be posted, where the
// device can have them wait.
func Param(private []byte) cm.ConnParam {
	return cm.ConnParam{
		PrivateData: private, ResponderResources: 1, InitiatorDepth: 1, RetryCount: 6, RNRRetryCount: 7, MinRNRTimer: 12,
	}
}

// Conn is a connection and its QP.
type Conn struct {
	ID cm.ID
	QP verbs.QP

	gone context.Context
	end  context.CancelCauseFunc
}

// NewConn makes the QP of a connection. Post receives, then Connect or Accept.
func NewConn(ctx context.Context, id cm.ID, pd verbs.PD, o verbs.QPOptions) (*Conn, error) {
	qp, err := id.CreateQP(pd, o)
	if err != nil {
		return nil, err
	}
	c := &Conn{ID: id, QP: qp}
	c.gone, c.end = context.WithCancelCause(ctx)
	id.Notify(func(e cm.Event) {
		if e.Ends() {
			c.end(ErrGone)
		}
	})
	return c, nil
}

// Gone ends with the connection, for the cause ErrGone, or with the context that the connection was made with.
func (c *Conn) Gone() context.Context { return c.gone }

// Close ends the connection: QP first, then ID.
func (c *Conn) Close() error {
	c.end(ErrGone)
	_ = c.ID.Disconnect() // it may be over
	return errors.Join(c.QP.Close(), c.ID.Close())
}
