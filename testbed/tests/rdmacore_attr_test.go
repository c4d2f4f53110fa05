//go:build guest

package tests

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// fault: FLOW-4
func TestRxeCoreTimers(t *testing.T) {
	a, b := pair(t)
	for _, e := range []*end{a, b} {
		q, err := e.qp.Query()
		if err != nil {
			t.Fatal(err)
		}
		if q.MinRNRTimer != params.MinRNRTimer || q.AckTimeout != params.AckTimeout || q.RetryCount != params.RetryCount ||
			q.RNRRetry != params.RNRRetryCount || q.State != verbs.QPRTS || q.PathMTU != 4096 {
			t.Errorf("QP attributes %+v", q)
		}
	}
	qa, _ := a.qp.Query()
	if qa.DestQPNum != b.qp.Num() {
		t.Errorf("connected to QP %d, want %d", qa.DestQPNum, b.qp.Num())
	}
}

func TestBothCoreDevice(t *testing.T) {
	devices, err := system.Devices()
	if err != nil || len(devices) != 1 {
		t.Fatal(devices, err)
	}
	again, _ := system.Devices()
	d := devices[0]
	if again[0] != d {
		t.Error("another Device object for the same device")
	}
	port, err := d.Port(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %+v\n%+v", d.Name(), d.Attr(), port)
	if d.Name() != os.Getenv("RDMA_DEV")+"0" || port.State != verbs.PortActive || port.Link != verbs.LinkEthernet || port.Netdev != "d0" {
		t.Errorf("port %+v", port)
	}
	gid, err := d.GID(1, 0)
	if err != nil || gid.IsZero() {
		t.Errorf("GID %v, %v", gid, err)
	}
	if gid, err = d.GID(1, port.GIDs-1); port.GIDs > 8 && (err != nil || !gid.IsZero()) {
		t.Errorf("an empty GID: %v, %v", gid, err)
	}
	for _, index := range []int{-1, port.GIDs} {
		if _, err := d.GID(1, index); err == nil {
			t.Errorf("GID %d", index)
		}
	}
	if _, err := d.Port(2); err == nil {
		t.Error("port 2")
	}
}

func TestBothCoreIPv6(t *testing.T) {
	ln := listen(t, "fd00:9::1")
	a, b := connect(t, ln, ln.Addr())
	agree(t, a, b)

	any6 := listen(t, "::")
	to := netip.AddrPortFrom(netip.MustParseAddr("fd00:9::1"), any6.Addr().Port())
	a, b = connect(t, any6, to)
	agree(t, a, b)

	any4 := listen(t, "0.0.0.0")
	a, b = connect(t, any4, at(addr, any4.Addr().Port()))
	agree(t, a, b)

	// One number for both families: the IPv6 one is for IPv6 alone.
	both, err := system.Listen(at("0.0.0.0", any6.Addr().Port()), cm.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	both.Close()
}

func agree(t *testing.T, a, b *end) {
	t.Helper()
	if err := errors.Join(a.close(), b.close()); err != nil {
		t.Error(err)
	}
	if a.id.LocalAddr() != b.id.RemoteAddr() || a.id.RemoteAddr() != b.id.LocalAddr() {
		t.Errorf("addresses do not agree crosswise: %v %v, %v %v", a.id.LocalAddr(), a.id.RemoteAddr(), b.id.LocalAddr(), b.id.RemoteAddr())
	}
}

func TestBothCoreLinkLocal(t *testing.T) {
	ifi, err := net.InterfaceByName("d0")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := ifi.Addrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range addrs {
		ip, _, _ := strings.Cut(x.String(), "/")
		if !strings.HasPrefix(ip, "fe80") {
			continue
		}
		for _, ln := range []cm.Listener{listen(t, ip+"%d0"), listen(t, "::")} {
			a, b := connect(t, ln, netip.AddrPortFrom(netip.MustParseAddr(ip+"%d0"), ln.Addr().Port()))
			for _, got := range []netip.AddrPort{a.id.LocalAddr(), a.id.RemoteAddr(), b.id.LocalAddr(), b.id.RemoteAddr()} {
				if got.Addr().Zone() != "d0" {
					t.Errorf("zone of %v", got)
				}
			}
			agree(t, a, b)
		}
		return
	}
	t.Fatal("d0 has no link-local address")
}

func TestFreshRxeCoreAsyncEvents(t *testing.T) { testAsyncEvents(t, "d1") } // the carrier
func TestFreshSiwCoreAsyncEvents(t *testing.T) { testAsyncEvents(t, "d0") } // the interface

func testAsyncEvents(t *testing.T, ifname string) {
	devices, err := system.Devices()
	if err != nil {
		t.Fatal(err)
	}
	d := devices[0]
	events := make(chan verbs.AsyncEvent, 16)
	stop := d.Watch(func(ev verbs.AsyncEvent) { events <- ev })
	run(t, "ip", "link", "set", ifname, "down")
	run(t, "ip", "link", "set", ifname, "up")
	seen := map[verbs.AsyncEventType]bool{}
	timeout := time.After(patience)
	for !seen[verbs.EventPortErr] || !seen[verbs.EventPortActive] {
		select {
		case ev := <-events:
			seen[ev.Type] = true
			t.Log(ev)
		case <-timeout:
			t.Fatalf("seen %v", seen)
		}
	}
	stop()
	stop()
	waitFor(t, "the port", func() bool {
		p, err := d.Port(1)
		return err == nil && p.State == verbs.PortActive
	})
}
