package rconn

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// server opens the listeners of the devices that serve an address, all on one port number.
//
// RDMA and TCP number their ports apart, so a device of the system and the software device can both have the same one. The
// exception is an iWARP device of the kernel, whose ports are TCP's: it serves its addresses alone. It speaks the software
// device's wire.
type server struct {
	cfg       Config
	providers []cm.Provider
	backlog   int
	tcp       net.Listener // for the software device, nil: its own

	picked bool // the port number is ours to pick
	lent   bool // tcp was handed on
	lns    []cm.Listener
}

// portRetries is how many port numbers are tried until one is free everywhere.
const portRetries = 16

// open listens at all addresses, which have the same port. A number picked by the first listener may be taken for another:
// then it tries again.
func (s *server) open(addrs []netip.AddrPort) ([]cm.Listener, error) {
	s.picked = addrs[0].Port() == 0
	addrs = s.expand(addrs)
	for try := 0; ; try++ {
		err := s.openOnce(addrs)
		if err == nil {
			return s.lns, nil
		}
		for _, ln := range s.lns {
			_ = ln.Close()
		}
		s.lns = nil
		if !s.picked || !errors.Is(err, syscall.EADDRINUSE) || try == portRetries {
			return nil, err
		}
	}
}

func (s *server) openOnce(addrs []netip.AddrPort) error {
	errs := make([]error, 0, len(addrs))
	for _, a := range addrs {
		err := s.openAddr(a)
		if err != nil && !isMissing(err) {
			return err
		}
		errs = append(errs, err)
	}
	if len(s.lns) == 0 {
		return firstReal(errs)
	}
	return nil
}

// isMissing tells whether an address cannot be served because there is no device, or no such family on this host.
func isMissing(err error) bool {
	return errors.Is(err, verbs.ErrNoDevice) || errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EADDRNOTAVAIL)
}

// openAddr listens at an address with every provider that serves it.
func (s *server) openAddr(a netip.AddrPort) error {
	var errs []error
	rdma := false // serves the address
	for _, p := range s.providers {
		ln, err := s.listen(p, a.Addr(), a.Port(), rdma)
		if err != nil && !isMissing(err) {
			return err
		}
		errs = append(errs, err)
		if ln == nil {
			continue
		}
		s.lns = append(s.lns, ln)
		rdma = rdma || !isSoftware(p)
		if !isSoftware(p) && isIWARP(ln.Device()) {
			break // the address's TCP ports are the device's
		}
	}
	if slices.Contains(errs, nil) {
		return nil
	}
	return firstReal(errs)
}

// listen listens with one provider. It may return nil where nothing more is needed; rdma tells that
// a device of the system serves the address already.
func (s *server) listen(p cm.Provider, ip netip.Addr, port uint16, rdma bool) (cm.Listener, error) {
	if len(s.lns) > 0 {
		port = s.lns[0].Addr().Port()
	}
	o := cm.ListenOptions{Backlog: s.backlog}
	if isSoftware(p) && s.tcp != nil {
		if s.lent {
			return nil, nil // it takes all that comes
		}
		s.lent, o.TCP = true, s.tcp
	}
	ln, err := p.Listen(netip.AddrPortFrom(ip, port), o)
	switch {
	case err == nil && ln.Device() != nil:
		if err := s.cfg.check(ln.Device()); err != nil {
			return nil, errors.Join(err, ln.Close())
		}
	case isSoftware(p) && rdma && !s.picked && errors.Is(err, syscall.EADDRINUSE):
		s.cfg.Logger.Warn("another program has the TCP port: RDMA alone is served", "addr", netip.AddrPortFrom(ip, port))
		return nil, nil
	}
	return ln, err
}

func isSoftware(p cm.Provider) bool { return p.Name() == onlySoftware }

func isIWARP(d verbs.Device) bool { return d != nil && d.Attr().Transport == verbs.TransportIWARP }

// expand replaces an address that means all of this host's by each of them, where they cannot be served alike: beside an iWARP device
// of the kernel the software device may have the other addresses only.
func (s *server) expand(addrs []netip.AddrPort) []netip.AddrPort {
	if !slices.ContainsFunc(s.providers, isSoftware) || !slices.ContainsFunc(s.providers, hasKernelIWARP) {
		return addrs
	}
	var each []netip.AddrPort
	for _, a := range addrs {
		if !a.Addr().IsUnspecified() {
			each = append(each, a)
			continue
		}
		for _, ip := range hostAddrs() {
			if ip.Is4() == a.Addr().Is4() {
				each = append(each, netip.AddrPortFrom(ip, a.Port()))
			}
		}
	}
	if len(each) == 0 {
		return addrs // a host without that family: the error says so
	}
	return each
}

func hasKernelIWARP(p cm.Provider) bool {
	devices, _ := p.Devices() // without any there is none
	return !isSoftware(p) && slices.ContainsFunc(devices, isIWARP)
}

// hostAddrs are the addresses of this host. Tests have their own.
var hostAddrs = func() []netip.Addr {
	var addrs []netip.Addr
	interfaces, _ := net.Interfaces()
	for i := range interfaces {
		addrs = append(addrs, interfaceAddrs(&interfaces[i])...)
	}
	return addrs
}

// interfaceAddrs are the addresses of a network interface, link-local ones with their zone.
func interfaceAddrs(ifi *net.Interface) []netip.Addr {
	var addrs []netip.Addr
	list, _ := ifi.Addrs()
	for _, a := range list {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		ip := prefix.Addr().Unmap()
		if ip.Is6() && ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(ifi.Name)
		}
		addrs = append(addrs, ip)
	}
	return addrs
}
