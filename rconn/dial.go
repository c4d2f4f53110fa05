package rconn

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/ring"
)

// Dialer makes connections, as net.Dialer does. The zero value is usable.
type Dialer struct {
	// Timeout limits a dial as a whole. 0: no limit but the context's and Config.HandshakeTimeout.
	Timeout time.Duration

	// LocalAddr is the address to dial from, a *net.TCPAddr. Nil: chosen by the route.
	LocalAddr net.Addr

	// Resolver looks names up. Nil: net.DefaultResolver.
	Resolver *net.Resolver

	// Providers are asked in order for a device that serves the address. Nil: rdma.Providers(), which ends with the software
	// device.
	Providers []cm.Provider

	// FallbackDelay is how long one provider's device has to connect before the next one is tried beside it; when it fails, the next
	// one's turn is at once. The first connection is taken. 0: 250 ms. Negative: the next one has to wait.
	FallbackDelay time.Duration

	// Config shapes the connections.
	Config Config
}

// Dial connects to address on the network, see Dialer.DialContext.
func Dial(network, address string) (net.Conn, error) {
	return new(Dialer).Dial(network, address)
}

// Dial is DialContext with no context.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext connects to address, "host:port", on the network: "rdma", "rdma4", "rdma6" or the same with "tcp". A name's
// addresses are tried in order. The connection does not depend on ctx once it is made. The net.Conn is a *Conn.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, addr, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, opError(opDial, network, d.LocalAddr, addr, err)
	}
	return c, nil
}

func (d *Dialer) dial(ctx context.Context, network, address string) (*Conn, net.Addr, error) {
	cfg, err := d.Config.populate()
	if err != nil {
		return nil, nil, err
	}
	if d.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.Timeout)
		defer cancel()
	}
	addrs, port, err := lookup(ctx, d.Resolver, network, address)
	if err != nil {
		return nil, nil, err
	}
	local, err := d.local()
	if err != nil {
		return nil, nil, err
	}
	addrs = toDial(network, addrs, port)
	c, err := d.dialAddrs(ctx, network, local, addrs, cfg)
	return c, tcpAddr(addrs[0]), err
}

// toDial puts this host's loopback address for no host and for an unspecified one, as package net does.
func toDial(network string, addrs []netip.AddrPort, port int) []netip.AddrPort {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if f, _ := parseNetwork(network); f == ipv6 {
		loopback = netip.IPv6Loopback()
	}
	if len(addrs) == 0 {
		return []netip.AddrPort{netip.AddrPortFrom(loopback, uint16(port))}
	}
	for i, a := range addrs {
		if a.Addr().IsUnspecified() {
			addrs[i] = netip.AddrPortFrom(loopback, a.Port())
		}
	}
	return addrs
}

// dialAddrs tries the addresses in order. The error is the first one's.
func (d *Dialer) dialAddrs(ctx context.Context, network string, local netip.AddrPort, addrs []netip.AddrPort, cfg Config) (*Conn, error) {
	var first error
	for i, remote := range addrs {
		part, cancel := share(ctx, len(addrs)-i)
		c, err := d.dialAddr(part, network, local, remote, cfg)
		cancel()
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

// minShare is the least time that makes sense for one of several addresses, as in package net.
const minShare = 2 * time.Second

// share limits ctx to a fair part of its time, when so many addresses are to be tried: one that does not answer must leave
// some for the others.
func share(ctx context.Context, tries int) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok || tries == 1 {
		return ctx, func() {}
	}
	left := time.Until(deadline)
	return context.WithTimeout(ctx, max(left/time.Duration(tries), min(left, minShare)))
}

func (d *Dialer) local() (netip.AddrPort, error) {
	switch a := d.LocalAddr.(type) {
	case nil:
		return netip.AddrPort{}, nil
	case *net.TCPAddr:
		ap := a.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
	default:
		return netip.AddrPort{}, &net.AddrError{Err: "mismatched local address type", Addr: a.String()}
	}
}

// dialAddr connects to one address, by the first provider whose device can.
func (d *Dialer) dialAddr(ctx context.Context, network string, local, remote netip.AddrPort, cfg Config) (*Conn, error) {
	providers, err := cfg.choose(d.Providers)
	if err != nil {
		return nil, err
	}
	delay := orDefault(d.FallbackDelay, defaultFallbackDelay)
	return race(ctx, len(providers), delay, func(ctx context.Context, way int) (c *Conn, err error) {
		for range portTries {
			c, err = dialOn(ctx, providers[way], network, local, remote, cfg)
			if local.Port() != 0 || !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.EADDRINUSE) {
				break
			}
		}
		return c, err
	})
}

// defaultFallbackDelay is as in package net, which has it from RFC 6555, section 5.
const defaultFallbackDelay = 250 * time.Millisecond

// portTries is how many local ports are tried: on a kernel's iWARP device the RDMA CM may pick one that TCP still holds for an earlier
// connection to the same peer, or that a TCP listener has.
const portTries = 8

func dialOn(ctx context.Context, p cm.Provider, network string, local, remote netip.AddrPort, cfg Config) (*Conn, error) {
	id, err := p.Resolve(ctx, local, remote)
	if err != nil {
		return nil, err
	}
	if err := cfg.check(id.Device()); err != nil {
		return nil, errors.Join(err, id.Close())
	}
	return connect(ctx, network, id, cfg)
}

// connect makes the connection on a resolved ID, which it owns.
func connect(ctx context.Context, network string, id cm.Resolved, cfg Config) (*Conn, error) {
	ep, err := newEndpoint(id, cfg, nil)
	if err != nil {
		_ = id.Close()
		return nil, err
	}
	if err := handshake(ctx, ep, id, cfg); err != nil {
		// The kernel may still be busy connecting; the caller need not wait for it.
		go ep.release(cfg)
		return nil, err
	}
	c := newConn(network, ep)
	cfg.Monitor.addConn(c, nil)
	return c, nil
}

func handshake(ctx context.Context, ep *endpoint, id cm.Resolved, cfg Config) error {
	hctx, cancel := context.WithTimeoutCause(ctx, cfg.HandshakeTimeout, errHandshakeTimeout)
	defer cancel()
	reply, err := id.Connect(hctx, ep.param(cfg))
	if err != nil {
		if hctx.Err() != nil && ctx.Err() == nil {
			return context.Cause(hctx) // our own limit, not the caller's
		}
		return err
	}
	peer, err := ring.ParseHandshake(reply.PrivateData)
	if err != nil {
		return err
	}
	ep.reads = reply.InitiatorDepth > 0
	ep.stream.Start(peer)
	return nil
}
