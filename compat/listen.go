package compat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/internal/acceptqueue"
	"github.com/rconn/rdma/rconn"
	"github.com/rconn/rdma/verbs"
)

// ListenConfig makes listeners, as net.ListenConfig does. The zero value is usable.
type ListenConfig struct {
	// Policy says who is served. Require: no plain TCP, as rconn.ListenConfig does by itself. TCPOnly: as net.ListenConfig.
	Policy Policy

	// Silence is how long a client may say nothing until it is taken for one of plain TCP that waits for the server's first word. 0: 200 ms.
	// More suits networks that lose packets, where a peer's request may come late: it would be taken for plain TCP. While more than 768
	// clients are silent it is half as long for the next ones.
	Silence time.Duration

	// RDMA shapes what serves RDMA and the software device, and the bound of what waits for Accept (the first 128 of its Backlog are
	// accepted from TCP and made at RDMA before Accept is called). Its TCP, if set, is the listener whose port is shared.
	//
	// Where that listener's connections are no *net.TCPConn, the first bytes are read and given again: Accept returns a net.Conn around
	// the listener's with CloseRead, CloseWrite and SetLinger, of which those that the inner one lacks return errors.ErrUnsupported. It
	// has to carry an MPA request unchanged, so a wrapper that counts, limits or logs does, and one of TLS does not: put TLS around the
	// Listener.
	RDMA rconn.ListenConfig

	// TCP makes the TCP listeners.
	TCP net.ListenConfig
}

const defaultSilence = 200 * time.Millisecond

// Listen waits for connections to address on the network, see ListenConfig.Listen.
func Listen(network, address string) (net.Listener, error) {
	return new(ListenConfig).Listen(context.Background(), network, address)
}

// Listen waits for connections to address, "host:port", on the network: "tcp", "tcp4", "tcp6" or the same with "rdma". The net.Listener is a
// *Listener under the policy Prefer, else that of package rconn or net. Other networks, such as "unix", are package net's under every
// policy.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	switch {
	case !isStream(network) || lc.Policy == TCPOnly:
		return lc.TCP.Listen(ctx, plain(network), address)
	case lc.Policy == Require:
		return lc.RDMA.Listen(ctx, network, address)
	}
	l, err := lc.listen(ctx, network, address)
	if err != nil {
		return nil, opError("listen", network, nil, err)
	}
	return l, nil
}

// portRetries is how many port numbers are tried until one is free at RDMA and at TCP.
const portRetries = 16

func (lc *ListenConfig) listen(ctx context.Context, network, address string) (l *Listener, err error) {
	if lc.Silence < 0 {
		return nil, fmt.Errorf("compat: ListenConfig.Silence is negative: %v", lc.Silence)
	}
	for range portRetries {
		o := opening{lc: lc, ctx: ctx, network: network, address: address, log: lc.RDMA.Config.Logger}
		if o.log == nil {
			o.log = slog.Default()
		}
		l, err = o.open()
		if !o.anyPort() || !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return l, err
}

// opening is one attempt to listen. It lends package rconn its providers, and learns through them which addresses are served by what.
type opening struct {
	lc               *ListenConfig
	ctx              context.Context
	network, address string
	log              *slog.Logger
	hall             *hall

	fronts []*front
	iwarp  []netip.Addr // served by an iWARP device of the kernel, alone
	taken  error        // why TCP's port cannot be had
}

func (o *opening) anyPort() bool {
	_, port, err := net.SplitHostPort(o.address)
	return err == nil && (port == "" || port == "0")
}

// maxReady bounds the connections that are held for Accept: made ones of RDMA and accepted ones of TCP. More wait with package rconn and in
// TCP's backlog.
const maxReady = 128

// open listens with package rconn, whose software device opens the TCP port through our provider. Where no software device takes part, plain
// TCP is served beside it.
func (o *opening) open() (*Listener, error) {
	silence := o.lc.Silence
	if silence == 0 {
		silence = defaultSilence
	}
	backlog := maxReady
	if b := o.lc.RDMA.Backlog; b > 0 {
		backlog = min(b, maxReady)
	}
	o.hall = &hall{log: o.log, silence: silence, ready: acceptqueue.New[net.Conn](backlog), looks: make(chan struct{}, maxLooks)}
	providers := o.lc.RDMA.Providers
	if providers == nil {
		providers = rdma.Providers()
	}
	rc := o.lc.RDMA
	rc.Providers = make([]cm.Provider, len(providers))
	for i, p := range providers {
		rc.Providers[i] = &lent{p, o}
	}
	ln, err := rc.Listen(o.ctx, o.network, o.address)
	switch {
	case o.taken != nil:
		return nil, o.taken
	case errors.Is(err, verbs.ErrNoDevice):
		o.log.Warn("no RDMA: plain TCP alone is served", "addr", o.address, "err", cause(err))
		ln = nil
	case err != nil:
		return nil, err
	}
	o.fronts = slices.DeleteFunc(o.fronts, (*front).isClosed) // of port numbers that were given up
	if len(o.fronts) == 0 && len(o.iwarp) == 0 {
		if err := o.openPlain(ln, providers); err != nil {
			if ln != nil {
				_ = ln.Close()
			}
			return nil, err
		}
	}
	for _, ip := range o.iwarp {
		o.log.Warn("an iWARP device of the kernel has the TCP ports of the address: plain TCP is not served there", "addr", ip)
	}
	return newListener(o, ln), nil
}

// openPlain serves plain TCP without a software device, on the port that RDMA has.
func (o *opening) openPlain(ln net.Listener, providers []cm.Provider) error {
	tcp := o.lc.RDMA.TCP
	if tcp == nil {
		address := o.address
		if ln != nil {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return err
			}
			address = net.JoinHostPort(host, strconv.Itoa(ln.Addr().(*net.TCPAddr).Port))
		}
		var err error
		if tcp, err = o.lc.TCP.Listen(o.ctx, plain(o.network), address); err != nil {
			if ln != nil && !o.anyPort() && errors.Is(err, syscall.EADDRINUSE) && slices.ContainsFunc(providers, hasIWARP) {
				o.log.Warn("plain TCP is not served: its port is taken, by an iWARP device of the kernel or a program", "addr", address)
				return nil
			}
			return err
		}
	}
	o.fronts = append(o.fronts, newPlainFront(o.hall, tcp))
	return nil
}

func isSoftware(p cm.Provider) bool { return p.Name() == "software" }

func isIWARP(d verbs.Device) bool { return d != nil && d.Attr().Transport == verbs.TransportIWARP }

func hasIWARP(p cm.Provider) bool {
	devices, _ := p.Devices() // without any there is none
	return !isSoftware(p) && slices.ContainsFunc(devices, isIWARP)
}

// lent is a provider that package rconn listens with.
type lent struct {
	cm.Provider
	o *opening
}

// Listen lets the software device accept from a front, and notes the addresses of iWARP devices.
func (p *lent) Listen(local netip.AddrPort, lo cm.ListenOptions) (cm.Listener, error) {
	if isSoftware(p) {
		return p.share(local, lo)
	}
	ln, err := p.Provider.Listen(local, lo)
	if err == nil && isIWARP(ln.Device()) {
		if ip := local.Addr(); !slices.Contains(p.o.iwarp, ip) {
			p.o.iwarp = append(p.o.iwarp, ip)
		}
	}
	return ln, err
}

func (p *lent) share(local netip.AddrPort, lo cm.ListenOptions) (cm.Listener, error) {
	o := p.o
	tcp := lo.TCP
	if tcp == nil {
		network := "tcp6"
		if local.Addr().Is4() {
			network = "tcp4"
		}
		lc := o.lc.TCP
		lc.SetMultipathTCP(false) // iWARP keeps to one path
		var err error
		if tcp, err = lc.Listen(o.ctx, network, local.String()); err != nil {
			if errors.Is(err, syscall.EADDRINUSE) && !o.anyPort() {
				o.taken = err // package rconn would be content with RDMA alone
				return nil, errTaken
			}
			return nil, &cm.Error{Op: "listen", Addr: local, Err: errno(err)}
		}
	}
	f := newFront(o.hall, tcp)
	lo.TCP = f
	ln, err := p.Provider.Listen(local, lo)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	o.fronts = append(o.fronts, f)
	return ln, nil
}

// errTaken ends package rconn's Listen without a word to the log.
var errTaken = errors.New("the TCP port is taken")

// errno is what package net wraps.
func errno(err error) error {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}
