package softiwarp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// provider makes connections on its one device.
type provider struct {
	dev    *device
	mapper portMapper
}

// New makes a software device.
func New(cfg Config) cm.Provider {
	cfg = cfg.populate()
	return &provider{dev: newDevice(cfg), mapper: portMapper{log: cfg.Logger}}
}

func (p *provider) Name() string { return "software" }

// Leaks tells what is open on the device. Tests of what stands above ask for it by its name.
func (p *provider) Leaks() error { return p.dev.leaks() }

func (p *provider) Devices() ([]verbs.Device, error) { return []verbs.Device{p.dev}, nil }

// Resolve asks the kernel which address it would connect from. Nothing is sent, so a host that is not there is found by
// Connect only.
func (p *provider) Resolve(ctx context.Context, local, remote netip.AddrPort) (cm.Resolved, error) {
	fail := func(err error) (cm.Resolved, error) {
		return nil, &cm.Error{Op: "resolve address", Addr: remote, Err: err}
	}
	switch {
	case ctx.Err() != nil:
		return fail(ctx.Err())
	case !remote.Addr().IsValid():
		return fail(syscall.EINVAL)
	}
	remote = unmap(remote)
	if local.Addr().IsValid() {
		local = unmap(local)
	}
	const discard = 9 // any port but 0
	d := net.Dialer{}
	if specified(local) {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(local.Addr(), 0))
	}
	probe, err := d.DialContext(ctx, network("udp", remote), netip.AddrPortFrom(remote.Addr(), discard).String())
	if err != nil {
		return fail(reason(ctx, err))
	}
	own := addrPort(probe.LocalAddr())
	_ = probe.Close()

	i := p.dev.newID(netip.AddrPortFrom(own.Addr(), local.Port()), remote)
	i.bind = local
	return i, nil
}

func specified(a netip.AddrPort) bool { return a.Addr().IsValid() && !a.Addr().IsUnspecified() }

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// network adds the address family to "tcp" or "udp", so that nothing is mapped from the one to the other.
func network(proto string, a netip.AddrPort) string {
	if a.Addr().Is4() {
		return proto + "4"
	}
	return proto + "6"
}

// addrPort is the address of one end, invalid if it is none of TCP or UDP.
func addrPort(a net.Addr) netip.AddrPort {
	switch a := a.(type) {
	case *net.TCPAddr:
		return unmap(a.AddrPort())
	case *net.UDPAddr:
		return unmap(a.AddrPort())
	}
	if a != nil {
		if ap, err := netip.ParseAddrPort(a.String()); err == nil {
			return unmap(ap)
		}
	}
	return netip.AddrPort{}
}

// reason takes what package net wraps off an error, and puts the context's in its place if that has ended.
func reason(ctx context.Context, err error) error {
	if cerr := ctx.Err(); cerr != nil {
		return cerr
	}
	var timeout net.Error
	if _, ok := ctx.Deadline(); ok && errors.As(err, &timeout) && timeout.Timeout() && !errors.Is(err, syscall.ETIMEDOUT) {
		return context.DeadlineExceeded // the socket's deadline is the context's
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
