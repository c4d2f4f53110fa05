package verbstest

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// fault: CONN-2
func TestResolveErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fab := NewFabric(Config{Latency: latency})
		t.Cleanup(func() { CheckLeaks(t, fab); fab.Close() })
		h := fab.Host("a", "10.0.0.1", "fe80::1")
		fab.Host("b", "10.0.0.2", "fe80::2")
		bare := fab.Host("bare")
		for _, c := range []struct {
			host          *Host
			local, remote string
			err           error
			after         time.Duration
		}{
			{h, "", "10.0.0.9:1", syscall.EHOSTUNREACH, time.Second + 2*latency},
			{h, "", "10.1.0.9:1", syscall.ENETUNREACH, 0},
			{h, "", "[fd00::1]:1", syscall.ENETUNREACH, 0},
			{h, "10.0.0.7:0", "10.0.0.2:1", syscall.EADDRNOTAVAIL, 0},
			{h, "", "127.0.0.1:1", verbs.ErrNoDevice, 0},
			{h, "", "0.0.0.0:1", verbs.ErrNoDevice, 0},
			{h, "", "[fe80::2]:1", syscall.EINVAL, 0},
			{h, "", "[fe80::2%other]:1", syscall.ENETUNREACH, 0},
			{bare, "", "10.0.0.2:1", verbs.ErrNoDevice, 0},
		} {
			var local netip.AddrPort
			if c.local != "" {
				local = netip.MustParseAddrPort(c.local)
			}
			start := time.Now()
			_, err := c.host.Resolve(t.Context(), local, netip.MustParseAddrPort(c.remote))
			require.ErrorIs(t, err, c.err, c.remote)
			require.Equal(t, c.after, time.Since(start), c.remote)
			var step *cm.Error
			require.ErrorAs(t, err, &step)
		}
		_, err := bare.Listen(netip.MustParseAddrPort("0.0.0.0:0"), cm.ListenOptions{})
		require.ErrorIs(t, err, verbs.ErrNoDevice)
		_, err = h.Listen(netip.MustParseAddrPort("10.0.0.2:0"), cm.ListenOptions{})
		require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
		require.Equal(t, "fab0", h.Device(0).Name())
	})
}

// TestSuiteOnOneDevice has both ends on one device, as the guests' Soft-RoCE has.
func TestSuiteOnOneDevice(t *testing.T) {
	fab := NewFabric(Config{})
	defer fab.Close()
	h := fab.Host("a", "fd00::1/48")
	Run(t, Env{Dial: h, Listen: h, Addr: netip.MustParseAddr("fd00::1"), Local: netip.MustParseAddr("fd00::1")})
}

// fault: CONN-4
func TestLinkLocal(t *testing.T) {
	virtuallyOn(t, []string{"fe80::1"}, []string{"fe80::2"}, func(t *testing.T, s *suite) {
		s.Addr = netip.MustParseAddr("fe80::2%net0")
		a, b := s.pair(t, size{})
		require.Equal(t, "fe80::1%net0", a.id.LocalAddr().Addr().String())
		require.Equal(t, "fe80::2%net0", a.id.RemoteAddr().Addr().String())
		require.Equal(t, "fe80::2%net0", b.id.LocalAddr().Addr().String())
		require.Equal(t, "fe80::1%net0", b.id.RemoteAddr().Addr().String())
	})
}

func virtuallyOn(t *testing.T, a, b []string, f func(*testing.T, *suite)) {
	synctest.Test(t, func(t *testing.T) {
		fab := NewFabric(Config{Latency: latency})
		t.Cleanup(func() { CheckLeaks(t, fab); fab.Close() })
		f(t, &suite{Env{Dial: fab.Host("a", a...), Listen: fab.Host("b", b...), Patience: time.Hour}})
	})
}

// TestTwoDevices has the address choose the device, and mixes up their objects.
//
// fault: CONN-5
func TestTwoDevices(t *testing.T) {
	virtuallyOn(t, []string{"10.0.0.1"}, []string{"10.0.0.2"}, func(t *testing.T, s *suite) {
		ha, hb := s.Dial.(*Host), s.Listen.(*Host)
		ha.AddDevice(DeviceConfig{Transport: verbs.TransportIWARP, Addrs: []string{"10.7.0.1"}, Name: "siw0"})
		hb.AddDevice(DeviceConfig{Transport: verbs.TransportIWARP, Addrs: []string{"10.7.0.2"}})
		ln, err := hb.Listen(netip.MustParseAddrPort("0.0.0.0:80"), cm.ListenOptions{})
		require.NoError(t, err)
		defer ln.Close()

		connect := func(to string) *side {
			id := s.resolve(t, netip.MustParseAddrPort(to))
			a := s.side(t, id, size{})
			done := make(chan error, 1)
			go func() { _, err := id.Connect(t.Context(), param()); done <- err }()
			req, err := ln.Accept(t.Context())
			require.NoError(t, err)
			require.Equal(t, to, req.LocalAddr().String())
			b := s.side(t, req, size{})
			require.NoError(t, req.Accept(t.Context(), param()))
			require.NoError(t, <-done)
			require.Equal(t, a.iwarp(), b.iwarp())
			return a
		}
		one, two := connect("10.0.0.2:80"), connect("10.7.0.2:80")
		require.Equal(t, "fab0", one.dev.Name())
		require.Equal(t, "siw0", two.dev.Name())

		_, err = one.dev.CreateCQ(verbs.CQOptions{Depth: 1, Channel: two.ch})
		require.ErrorIs(t, err, verbs.ErrForeign)
		id := s.resolve(t, netip.MustParseAddrPort("10.0.0.2:80"))
		for _, o := range []struct {
			pd         verbs.PD
			send, recv verbs.CQ
		}{{two.pd, one.sendCQ, one.recvCQ}, {one.pd, two.sendCQ, one.recvCQ}, {one.pd, one.sendCQ, two.recvCQ}} {
			_, err = id.CreateQP(o.pd, verbs.QPOptions{SendCQ: o.send, RecvCQ: o.recv})
			require.ErrorIs(t, err, verbs.ErrForeign)
		}

		// An iWARP device dials an InfiniBand one in the same network: the address is there, but nobody who understands.
		ha.AddDevice(DeviceConfig{Transport: verbs.TransportIWARP, Addrs: []string{"10.0.0.3"}})
		odd, err := ha.Resolve(t.Context(), netip.MustParseAddrPort("10.0.0.3:0"), netip.MustParseAddrPort("10.0.0.2:80"))
		require.NoError(t, err)
		e := s.side(t, odd, size{})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err = odd.Connect(ctx, param())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		e.close()
	})
}

func TestPorts(t *testing.T) {
	virtuallyOn(t, []string{"10.0.0.1"}, []string{"10.0.0.2", "fd00::2"}, func(t *testing.T, s *suite) {
		listen := func(a string) error {
			ln, err := s.Listen.Listen(netip.MustParseAddrPort(a), cm.ListenOptions{})
			if err == nil {
				t.Cleanup(func() { ln.Close() })
			}
			return err
		}
		require.NoError(t, listen("10.0.0.2:80"))
		require.ErrorIs(t, listen("0.0.0.0:80"), syscall.EADDRINUSE)
		require.NoError(t, listen("[::]:80")) // the other family
		require.ErrorIs(t, listen("[fd00::2]:80"), syscall.EADDRINUSE)

		to := netip.MustParseAddrPort("10.0.0.2:80")
		from := netip.MustParseAddrPort("10.0.0.1:5000")
		id, err := s.Dial.Resolve(t.Context(), from, to)
		require.NoError(t, err)
		require.Equal(t, from, id.LocalAddr())
		_, err = s.Dial.Resolve(t.Context(), from, to)
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.NoError(t, id.Close())
	})
}
