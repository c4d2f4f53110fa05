package rconn

import (
	"context"
	"net"
	"net/netip"
)

// family is the IP family that a network name asks for.
type family int

const (
	anyFamily family = iota
	ipv4
	ipv6
)

// lookupNetwork is the network for package net's resolver.
func (f family) lookupNetwork() string { return [...]string{"ip", "ip4", "ip6"}[f] }

// parseNetwork reads a network name.
func parseNetwork(network string) (family, error) {
	switch network {
	case "rdma", "tcp":
		return anyFamily, nil
	case "rdma4", "tcp4":
		return ipv4, nil
	case "rdma6", "tcp6":
		return ipv6, nil
	}
	return 0, net.UnknownNetworkError(network)
}

// lookup turns "host:port" into addresses of the family, in the resolver's order. An empty host gives none, and the port.
func lookup(ctx context.Context, r *net.Resolver, network, address string) ([]netip.AddrPort, int, error) {
	f, err := parseNetwork(network)
	if err != nil {
		return nil, 0, err
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, 0, err
	}
	if r == nil {
		r = net.DefaultResolver
	}
	port, err := r.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, 0, err
	}
	if host == "" {
		return nil, port, nil
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		// The resolver would lose the zone.
		if ip = ip.Unmap(); f != anyFamily && ip.Is4() != (f == ipv4) {
			return nil, 0, &net.AddrError{Err: "no suitable address found", Addr: host}
		}
		return []netip.AddrPort{netip.AddrPortFrom(ip, uint16(port))}, port, nil
	}
	ips, err := r.LookupNetIP(ctx, f.lookupNetwork(), host)
	if err != nil {
		return nil, 0, err
	}
	addrs := make([]netip.AddrPort, 0, len(ips))
	for _, ip := range ips {
		addrs = append(addrs, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return addrs, port, nil
}

// tcpAddr is ap as package net's type, nil where there is none.
func tcpAddr(ap netip.AddrPort) net.Addr {
	if !ap.IsValid() {
		return nil
	}
	return net.TCPAddrFromAddrPort(ap)
}
