package rdmacore

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
)

// sockaddrSize holds a sockaddr_in or a sockaddr_in6.
const sockaddrSize = 28

// Address families of Linux, which sockaddrs are encoded for on every system, so that tests run everywhere.
const (
	afInet  = 2
	afInet6 = 10
)

// checkAddr refuses addresses that must not reach the RDMA CM, and returns the address without IPv4-in-IPv6 mapping.
func checkAddr(a netip.AddrPort) (netip.AddrPort, error) {
	if !a.Addr().IsValid() {
		return a, fmt.Errorf("%w: no address", syscall.EINVAL)
	}
	a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	if a.Addr().IsLoopback() {
		// The RDMA CM takes a loopback address for any address and would open it to the network.
		return a, noDevice("none serves loopback addresses; use an address of an RDMA device's network interface")
	}
	return a, nil
}

// encodeSockaddr writes an address as the kernel wants it. An IPv6 zone is an interface's name or number.
func encodeSockaddr(a netip.AddrPort) ([sockaddrSize]byte, error) {
	var b [sockaddrSize]byte
	binary.BigEndian.PutUint16(b[2:], a.Port())
	if a.Addr().Is4() {
		binary.NativeEndian.PutUint16(b[0:], afInet)
		ip := a.Addr().As4()
		copy(b[4:], ip[:])
		return b, nil
	}
	binary.NativeEndian.PutUint16(b[0:], afInet6)
	ip := a.Addr().As16()
	copy(b[8:], ip[:])
	if zone := a.Addr().Zone(); zone != "" {
		index, err := zoneIndex(zone)
		if err != nil {
			return b, err
		}
		binary.NativeEndian.PutUint32(b[24:], uint32(index))
	}
	return b, nil
}

// decodeSockaddr reads an address. The zone is the interface's name if it has one.
func decodeSockaddr(b [sockaddrSize]byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(b[2:])
	switch binary.NativeEndian.Uint16(b[0:]) {
	case afInet:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	case afInet6:
		ip := netip.AddrFrom16([16]byte(b[8:24])).Unmap()
		if scope := binary.NativeEndian.Uint32(b[24:]); scope != 0 {
			ip = ip.WithZone(zoneName(int(scope)))
		}
		return netip.AddrPortFrom(ip, port)
	}
	return netip.AddrPort{}
}

func zoneIndex(zone string) (int, error) {
	if ifi, err := net.InterfaceByName(zone); err == nil {
		return ifi.Index, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 31); err == nil && n > 0 {
		return int(n), nil
	}
	return 0, fmt.Errorf("%w: no network interface %q", syscall.EINVAL, zone)
}

func zoneName(index int) string {
	if ifi, err := net.InterfaceByIndex(index); err == nil {
		return ifi.Name
	}
	return strconv.Itoa(index)
}

// withZone gives a link-local address that came without a zone the one zone.
func withZone(a netip.AddrPort, zone string) netip.AddrPort {
	if ip := a.Addr(); zone != "" && ip.Is6() && ip.Zone() == "" && ip.IsLinkLocalUnicast() {
		return netip.AddrPortFrom(ip.WithZone(zone), a.Port())
	}
	return a
}

// interfaceOf finds the network interface that has the link-local address ip, "" if none or several have.
func interfaceOf(ip netip.Addr) string {
	all, _ := net.Interfaces()
	found := ""
	for _, ifi := range all {
		addrs, _ := ifi.Addrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(net.IP(ip.WithZone("").AsSlice())) {
				if found != "" {
					return ""
				}
				found = ifi.Name
			}
		}
	}
	return found
}
