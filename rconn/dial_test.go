package rconn

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

func TestDialErrors(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{})
	for name, c := range map[string]struct {
		network, addr string
		target        error
	}{
		"refused":    {"tcp", addrB + ":1", syscall.ECONNREFUSED},
		"no host":    {"tcp", "10.0.0.99:1", syscall.EHOSTUNREACH},
		"no route":   {"tcp", "192.0.2.1:1", syscall.ENETUNREACH},
		"network":    {"udp", addrB + ":1", net.UnknownNetworkError("udp")},
		"no port":    {"tcp", addrB, nil},
		"wrong type": {"tcp6", addrB + ":1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := n.dialer().Dial(c.network, c.addr)
			require.Error(t, err)
			op, ok := err.(*net.OpError)
			require.True(t, ok, "%T", err)
			require.Equal(t, "dial", op.Op)
			if c.target != nil {
				require.ErrorIs(t, err, c.target)
			}
		})
	}
}

func TestDialContext(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{})
	ln := n.listen(t, addrB+":0")
	defer ln.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := n.dialer().DialContext(ctx, "tcp", ln.Addr().String())
	require.ErrorIs(t, err, context.Canceled)

	n.fab.Cut(n.a, n.b)
	d := n.dialer()
	d.Timeout = 50 * time.Millisecond
	_, err = d.Dial("tcp", ln.Addr().String())
	require.Error(t, err)
	var ne net.Error
	require.True(t, errors.As(err, &ne) && ne.Timeout(), "%v", err)
}

// Each step of a dial and of an accept fails in turn: a clear error, nothing left, and the listener serves the next.
//
// fault: MEM-2
func TestEachStepFails(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		boom := errors.New("boom")
		ops := []verbstest.Op{
			verbstest.AllocPD, verbstest.AllocMR, verbstest.CreateChannel, verbstest.CreateCQ, verbstest.CreateQP, verbstest.PostRecv,
		}
		n := newNetwork(t, fc, Config{HandshakeTimeout: time.Second})
		ln := n.listen(t, addrB+":0")
		defer ln.Close()
		for _, op := range ops {
			for name, h := range map[string]*verbstest.Host{"dial": n.a, "accept": n.b} {
				t.Run(name+"/"+string(op), func(t *testing.T) {
					h.Fail(op, 1, boom)
					_, err := n.dialer().Dial("rdma", ln.Addr().String())
					require.Error(t, err)
					if h == n.a {
						require.ErrorIs(t, err, boom)
					} else {
						require.ErrorIs(t, err, syscall.ECONNREFUSED)
					}
				})
			}
		}
		within(t, func() {
			d, a := n.connect(t, ln, ln.Addr().String())
			closed := make(chan error)
			go func() { closed <- a.Close() }()
			require.NoError(t, d.Close())
			require.NoError(t, <-closed)
		})
	})
}

// A local port that the kernel picked and TCP still holds is not the user's affair.
func TestDialTriesOtherPort(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{})
	ln := n.listen(t, addrB+":0")
	defer ln.Close()
	n.a.Fail(verbstest.Connect, 1, syscall.EADDRNOTAVAIL)
	within(t, func() {
		c, err := n.dialer().Dial("rdma", ln.Addr().String())
		require.NoError(t, err)
		require.NoError(t, c.Close())
	})
	remove := n.a.On(verbstest.Connect, func() error { return syscall.EADDRNOTAVAIL })
	defer remove()
	_, err := n.dialer().Dial("rdma", ln.Addr().String())
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
}

func TestNoDevice(t *testing.T) {
	d := Dialer{Providers: []cm.Provider{}}
	_, err := d.Dial("tcp", "10.0.0.1:1")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	lc := ListenConfig{Providers: []cm.Provider{}}
	_, err = lc.Listen(t.Context(), "tcp", ":0")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
}

func TestListener(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{})
	ln := n.listen(t, ":0")
	require.NotZero(t, ln.Addr().(*net.TCPAddr).Port)

	require.NoError(t, ln.SetDeadline(time.Unix(1, 0)))
	_, err := ln.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, ln.SetDeadline(time.Time{}))

	within(t, func() {
		for _, wake := range []func() error{func() error { return ln.SetDeadline(time.Now()) }, ln.Close} {
			accepted := make(chan error)
			go func() { _, err := ln.Accept(); accepted <- err }()
			time.Sleep(5 * time.Millisecond)
			require.NoError(t, wake())
			require.Error(t, <-accepted)
			ln.SetDeadline(time.Time{})
		}
	})
	_, err = ln.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, ln.Close(), net.ErrClosed)
}

// Connections made and not accepted are closed with the listener.
func TestListenerClosesWaiting(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{})
	ln := n.listen(t, addrB+":0")
	c, err := n.dialer().Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	within(t, func() {
		require.NoError(t, ln.Close())
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		require.NoError(t, c.Close())
	})
}

// A peer that is no rsocket is turned away at the door, and the next one is served.
func TestForeignPeer(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{})
	ln := n.listen(t, addrB+":0")
	defer ln.Close()
	id, err := n.a.Resolve(t.Context(), netip.AddrPort{}, ln.Addr().(*net.TCPAddr).AddrPort())
	require.NoError(t, err)
	ep, err := newEndpoint(id, must(Config{}.populate()), nil)
	require.NoError(t, err)
	_, err = id.Connect(t.Context(), cm.ConnParam{PrivateData: []byte("I am no rsocket")})
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	ep.release(Config{Logger: slog.Default()})

	within(t, func() {
		c, err := n.dialer().Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		a, err := ln.Accept()
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, a.Close())
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestConfigBounds(t *testing.T) {
	for name, cfg := range map[string]Config{
		"RecvBuffer":       {RecvBuffer: -2},
		"SendBuffer":       {SendBuffer: -1},
		"Credits":          {Credits: 70000},
		"SendQueue":        {SendQueue: 3},
		"HandshakeTimeout": {HandshakeTimeout: -1},
		"AckTimeout":       {AckTimeout: 32},
	} {
		_, err := (&Dialer{Config: cfg}).Dial("tcp", "10.0.0.1:1")
		require.ErrorContains(t, err, name)
	}
}

// A device with small queues is used as far as it goes.
func TestSmallDevice(t *testing.T) {
	fc := verbstest.Config{Device: verbstest.DeviceConfig{Attr: func(a *verbs.DeviceAttr) { a.MaxQPWR, a.MaxCQE = 24, 40 }}}
	n := newNetwork(t, fc, Config{})
	d, a := n.pair(t)
	within(t, func() {
		go func() { d.Write(make([]byte, 1<<20)); d.Close() }()
		buf := make([]byte, 1000)
		total := 0
		for {
			k, err := a.Read(buf)
			total += k
			if err != nil {
				break
			}
		}
		require.Equal(t, 1<<20, total)
		require.NoError(t, a.Close())
	})
}

// An address that does not answer leaves time for the next.
func TestDialSharesTime(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t, fc, Config{})
			dead := n.fab.Host("dead", "10.0.0.3")
			n.fab.Cut(n.a, dead)
			ln := n.listen(t, addrB+":0")
			to := ln.Addr().(*net.TCPAddr).AddrPort()
			addrs := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.3:1"), to}
			cfg := must(Config{}.populate())
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
			defer cancel()
			start := time.Now()
			c, err := n.dialer().dialAddrs(ctx, "rdma", netip.AddrPort{}, addrs, cfg)
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(start), 4*time.Second)
			require.NoError(t, errors.Join(c.Close(), ln.Close()))
			time.Sleep(time.Hour) // until what was given up is released
		})
	})
}

// No host and an unspecified one are this host, as in package net.
func TestDialUnspecified(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{})
	for addr, want := range map[string]string{":1": "127.0.0.1:1", "[::]:1": "127.0.0.1:1", "0.0.0.0:1": "127.0.0.1:1"} {
		_, err := n.dialer().Dial("rdma", addr)
		require.ErrorIs(t, err, verbs.ErrNoDevice)
		require.ErrorContains(t, err, want)
	}
	_, err := n.dialer().Dial("rdma6", ":1")
	require.ErrorContains(t, err, "[::1]:1")
}

// fault: CONN-4
func TestLookupKeepsZone(t *testing.T) {
	addrs, port, err := lookup(t.Context(), nil, "tcp", "[fe80::1%lo]:http")
	require.NoError(t, err)
	require.Equal(t, 80, port)
	require.Equal(t, []netip.AddrPort{netip.MustParseAddrPort("[fe80::1%lo]:80")}, addrs)
	for network, address := range map[string]string{"tcp4": "[fe80::1]:80", "rdma6": "10.0.0.1:80", "tcp6": "[::ffff:10.0.0.1]:80"} {
		_, _, err := lookup(t.Context(), nil, network, address)
		require.Error(t, err, network)
	}
}
