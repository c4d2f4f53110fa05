package rdmacore

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/rconn/rdma/verbs"
)

func TestSockaddr(t *testing.T) {
	for _, s := range []string{"10.9.0.1:80", "0.0.0.0:0", "[fd00::1]:65535", "[::]:1"} {
		a := netip.MustParseAddrPort(s)
		b, err := encodeSockaddr(a)
		if err != nil {
			t.Errorf("%s: %v", s, err)
		}
		if got := decodeSockaddr(b); got != a {
			t.Errorf("%s came back as %v", s, got)
		}
	}
	if got := decodeSockaddr([sockaddrSize]byte{}); got.IsValid() {
		t.Errorf("an empty sockaddr is %v", got)
	}
}

func TestSockaddrZone(t *testing.T) {
	all, err := net.Interfaces()
	if err != nil || len(all) == 0 {
		t.Fatal("no network interfaces", err)
	}
	a := netip.MustParseAddrPort("[fe80::1%" + all[0].Name + "]:7")
	b, err := encodeSockaddr(a)
	if err != nil {
		t.Fatal(err)
	}
	if got := decodeSockaddr(b); got != a {
		t.Errorf("%v came back as %v", a, got)
	}
	if b, err = encodeSockaddr(netip.MustParseAddrPort("[fe80::1%2147483000]:7")); err != nil {
		t.Error(err)
	} else if got := decodeSockaddr(b); got.Addr().Zone() != "2147483000" {
		t.Errorf("zone %q", got.Addr().Zone())
	}
	if _, err := encodeSockaddr(netip.MustParseAddrPort("[fe80::1%nosuchinterface]:7")); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a zone that does not exist: %v", err)
	}
	for in, want := range map[string]string{
		"[fe80::1]:7":      "[fe80::1%eth9]:7",
		"[fe80::1%eth1]:7": "[fe80::1%eth1]:7",
		"[fd00::1]:7":      "[fd00::1]:7",
		"10.9.0.1:7":       "10.9.0.1:7",
	} {
		if got := withZone(netip.MustParseAddrPort(in), "eth9"); got.String() != want {
			t.Errorf("%s with a zone is %v, want %s", in, got, want)
		}
	}
}

func TestCheckAddr(t *testing.T) {
	for _, s := range []string{"127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"} {
		if _, err := checkAddr(netip.MustParseAddrPort(s)); !errors.Is(err, verbs.ErrNoDevice) {
			t.Errorf("%s: %v", s, err)
		}
	}
	if _, err := checkAddr(netip.AddrPort{}); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if a, err := checkAddr(netip.MustParseAddrPort("[::ffff:10.9.0.1]:1")); err != nil || a.String() != "10.9.0.1:1" {
		t.Errorf("%v, %v", a, err)
	}
}
