package rconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/internal/acceptqueue"
	"github.com/rconn/rdma/ring"
	"github.com/rconn/rdma/verbs"
)

// ListenConfig makes listeners, as net.ListenConfig does. The zero value is usable.
type ListenConfig struct {
	// Backlog is how many connections may wait, for their handshake and for Accept; more are refused. 0: 4096, as many as Linux' TCP
	// has. At most 65535. The first 128 are made before Accept is called and have their memory. The others cost little
	// (on the software device a descriptor each), and their peers' dials take until it is their turn, or end at their own limits.
	Backlog int

	// Providers serve the address, all that have a device for it, on one port number. Nil: rdma.Providers(), which ends with the
	// software device.
	Providers []cm.Provider

	// TCP is a listener from which the software device takes its connections, instead of one of its own: whoever shares
	// a TCP port with others hands it in. Its port is the one that is served. It is closed with the Listener.
	TCP net.Listener

	// Config shapes the connections.
	Config Config
}

// Listen waits for connections to address on the network, see ListenConfig.Listen.
func Listen(network, address string) (net.Listener, error) {
	return new(ListenConfig).Listen(context.Background(), network, address)
}

// Listen waits for connections to address, "host:port". Without a host, or with an unspecified one, it serves all
// devices; port 0 picks a free port. The context limits name look-up only. The net.Listener is a *Listener.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	l, addr, err := lc.listen(ctx, network, address)
	if err != nil {
		return nil, opError(opListen, network, nil, addr, err)
	}
	return l, nil
}

func (lc *ListenConfig) listen(ctx context.Context, network, address string) (*Listener, net.Addr, error) {
	cfg, err := lc.Config.populate()
	if err != nil {
		return nil, nil, err
	}
	if lc.Backlog < 0 || lc.Backlog > maxBacklog {
		return nil, nil, fmt.Errorf("rconn: ListenConfig.Backlog is out of bounds: %d", lc.Backlog)
	}
	addrs, port, err := lookup(ctx, nil, network, address)
	if err != nil {
		return nil, nil, err
	}
	providers, err := cfg.choose(lc.Providers)
	if err != nil {
		return nil, nil, err
	}
	if lc.TCP != nil {
		if port, err = portOf(lc.TCP, port); err != nil {
			return nil, nil, err
		}
		addrs = withPort(addrs, port)
	}
	addrs = toServe(network, addrs, port)
	backlog := orDefault(lc.Backlog, defaultBacklog)
	s := server{cfg: cfg, providers: providers, backlog: backlog, tcp: lc.TCP}
	lns, err := s.open(addrs)
	if err != nil {
		return nil, tcpAddr(addrs[0]), err
	}
	return newListener(network, served(addrs[0], lns[0]), lns, cfg, backlog), nil, nil
}

// toServe chooses among the addresses of a host as package net does: one, of IPv4 if there is one, or all of this host's.
func toServe(network string, addrs []netip.AddrPort, port int) []netip.AddrPort {
	if len(addrs) == 0 {
		return unspecified(network, port)
	}
	i := max(0, slices.IndexFunc(addrs, func(a netip.AddrPort) bool { return a.Addr().Is4() }))
	if addrs[i].Addr().IsUnspecified() {
		return unspecified(network, port)
	}
	return addrs[i : i+1]
}

// served is the address that a Listener shows: what was asked for with the real port, or that of the first listener, which has
// the zone.
func served(asked netip.AddrPort, first cm.Listener) netip.AddrPort {
	if asked.Addr().IsUnspecified() {
		return netip.AddrPortFrom(asked.Addr(), first.Addr().Port())
	}
	return first.Addr()
}

// portOf is the port of a listener that was handed in. Another one cannot be asked for.
func portOf(tcp net.Listener, port int) (int, error) {
	a, ok := tcp.Addr().(*net.TCPAddr)
	if !ok || port != 0 && port != a.Port {
		return 0, fmt.Errorf("rconn: ListenConfig.TCP has the address %v, which is not port %d of TCP", tcp.Addr(), port)
	}
	return a.Port, nil
}

func withPort(addrs []netip.AddrPort, port int) []netip.AddrPort {
	for i, a := range addrs {
		addrs[i] = netip.AddrPortFrom(a.Addr(), uint16(port))
	}
	return addrs
}

// unspecified are the addresses that mean all of this host's.
func unspecified(network string, port int) []netip.AddrPort {
	v4 := netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(port))
	v6 := netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port))
	switch f, _ := parseNetwork(network); f {
	case ipv4:
		return []netip.AddrPort{v4}
	case ipv6:
		return []netip.AddrPort{v6}
	}
	return []netip.AddrPort{v6, v4}
}

// maxHandshakes bounds the connections of a listener that are being made at once. A peer that stops half-way keeps one
// place for Config.HandshakeTimeout, or for hastyHandshake when the places get scarce, so that many such peers do not hold up
// the others for long.
const (
	maxHandshakes  = 128
	hastyHandshake = time.Second
)

// Requests that wait cost little, made connections have their memory.
const (
	defaultBacklog = 4096 // net.core.somaxconn of Linux, see listen(2)
	maxBacklog     = 65535
	maxMade        = 128
)

// Listener waits for connections. It is a net.Listener.
type Listener struct {
	network string
	addr    *net.TCPAddr
	cfg     Config
	lns     []cm.Listener
	pool    pool

	queue            *acceptqueue.Queue[*Conn]
	slots            chan struct{} // for handshakes, and what they made until it is in the queue
	shaking          atomic.Int32  // handshakes in progress
	alive            atomic.Int32  // devices, or families, left
	accepted, failed atomic.Uint64 // see ListenerStats
	ctx              context.Context
	stop             context.CancelFunc
	loops            sync.WaitGroup
}

var _ net.Listener = (*Listener)(nil)

func newListener(network string, addr netip.AddrPort, lns []cm.Listener, cfg Config, backlog int) *Listener {
	l := &Listener{
		network: network, addr: net.TCPAddrFromAddrPort(addr), cfg: cfg, lns: lns, pool: pool{logger: cfg.Logger},
		queue: acceptqueue.New[*Conn](min(backlog, maxMade)), slots: make(chan struct{}, maxHandshakes),
	}
	l.alive.Store(int32(len(lns)))
	l.ctx, l.stop = context.WithCancel(context.Background())
	cfg.Monitor.addListener(l)
	for _, ln := range lns {
		l.loops.Go(func() { l.serve(ln) })
	}
	return l
}

// serve takes requests and makes a connection of each, in its own goroutine, so that no peer holds up another.
func (l *Listener) serve(ln cm.Listener) {
	for {
		req, err := ln.Accept(l.ctx)
		if err != nil {
			if l.ctx.Err() != nil || errors.Is(err, verbs.ErrClosed) {
				return
			}
			l.cfg.warnings.Warn(l.cfg.Logger, "rdma listener", "addr", l.addr, "err", err)
			if errors.Is(err, verbs.ErrDeviceRemoved) {
				_ = ln.Close() // the kernel waits for both before the device is gone
				l.pool.drop()
				l.lose()
				return
			}
			l.pause()
			continue
		}
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			_ = l.refuse(req, nil)
			return
		}
		l.loops.Go(func() {
			defer func() { <-l.slots }()
			l.admit(req)
		})
	}
}

// lose counts out a cm.Listener whose device is gone for good. Without any, Accept must not wait for ever.
func (l *Listener) lose() {
	if l.alive.Add(-1) == 0 {
		l.queue.End(verbs.ErrDeviceRemoved)
	}
}

// pause keeps a listener that fails again and again from filling a processor and a log.
func (l *Listener) pause() {
	select {
	case <-time.After(100 * time.Millisecond):
	case <-l.ctx.Done():
	}
}

// admit makes a connection of a request and hands it to Accept. What goes wrong is the peer's affair, or the log's: an error
// from Accept would end most servers.
func (l *Listener) admit(req cm.Request) {
	c, err := l.handshake(req)
	if err != nil {
		l.failed.Add(1)
		l.cfg.warnings.Warn(l.cfg.Logger, "rdma connection not accepted", "local", l.addr, "remote", req.RemoteAddr(), "err", err)
		return
	}
	if !l.queue.Put(c) {
		abort(c)
	}
}

// abort ends a connection that nobody accepted, with a reset as package net does, and without a wait for its peer.
func abort(c *Conn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

func (l *Listener) handshake(req cm.Request) (*Conn, error) {
	if err := l.cfg.check(req.Device()); err != nil {
		return nil, l.refuse(req, err)
	}
	peer, err := ring.ParseHandshake(req.Param().PrivateData)
	if err != nil {
		return nil, l.refuse(req, err)
	}
	ep, err := newEndpoint(req, l.cfg, &l.pool)
	if err != nil {
		return nil, l.refuse(req, err)
	}
	limit := l.cfg.HandshakeTimeout
	if l.shaking.Add(1) > maxHandshakes/2 {
		limit = min(limit, hastyHandshake)
	}
	defer l.shaking.Add(-1)
	ctx, cancel := context.WithTimeoutCause(l.ctx, limit, errHandshakeTimeout)
	defer cancel()
	ep.accepted = true
	answer := ep.answer(l.cfg, req.Param())
	ep.reads = answer.InitiatorDepth > 0
	if err := req.Accept(ctx, answer); err != nil {
		ep.pool = nil
		ep.release(l.cfg)
		return nil, err
	}
	ep.stream.Start(peer)
	c := newConn(l.network, ep)
	l.cfg.Monitor.addConn(c, l)
	return c, nil
}

// refuse rejects a request and frees it.
func (l *Listener) refuse(req cm.Request, cause error) error {
	return errors.Join(cause, req.Reject(nil), req.Close())
}

// Accept waits for a connection. It is a *Conn. A handshake that fails is logged and does not end Accept; the removal of the
// only device that serves the address does.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.queue.Accept()
	if err != nil {
		return nil, opError(opAccept, l.network, nil, l.addr, err)
	}
	l.accepted.Add(1)
	return c, nil
}

// SetDeadline sets the time after which Accept fails, also one that waits now. The zero time means never.
func (l *Listener) SetDeadline(t time.Time) error {
	if err := l.queue.SetDeadline(t); err != nil {
		return opError(opSet, l.network, nil, l.addr, err)
	}
	return nil
}

// Addr is the listener's address, a *net.TCPAddr with the real port.
func (l *Listener) Addr() net.Addr { return l.addr }

// Close stops listening. Accept returns net.ErrClosed; connections made but not accepted are reset.
func (l *Listener) Close() error {
	if !l.queue.Close() {
		return opError(opClose, l.network, nil, l.addr, net.ErrClosed)
	}
	l.stop()
	defer l.cfg.Monitor.dropListener(l)
	var errs []error
	for _, ln := range l.lns {
		errs = append(errs, ln.Close())
	}
	l.loops.Wait()
	l.queue.Drain(abort)
	l.pool.close()
	if err := errors.Join(errs...); err != nil {
		return opError(opClose, l.network, nil, l.addr, err)
	}
	return nil
}

// errHandshakeTimeout is our own limit for a handshake. It is a timeout for package net's users.
var errHandshakeTimeout error = handshakeTimeout{}

type handshakeTimeout struct{}

func (handshakeTimeout) Error() string        { return "the peer did not complete the connection in time" }
func (handshakeTimeout) Timeout() bool        { return true }
func (handshakeTimeout) Temporary() bool      { return true }
func (handshakeTimeout) Is(target error) bool { return target == syscall.ETIMEDOUT }
