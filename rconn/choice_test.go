package rconn

import (
	"bytes"
	"context"
	"crypto/rand"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

// asSoftware is a host of a fabric in the place of the software device, and notes where it is asked to listen.
type asSoftware struct {
	cm.Provider
	asked []netip.AddrPort
}

func (s *asSoftware) Name() string { return onlySoftware }

func (s *asSoftware) Listen(a netip.AddrPort, o cm.ListenOptions) (cm.Listener, error) {
	s.asked = append(s.asked, a)
	return s.Provider.Listen(a, o)
}

// twoWays are two networks between the same addresses: of the system's devices, and of the software device.
type twoWays struct {
	system, software *network
	dialer           Dialer
	lc               ListenConfig
}

func newTwoWays(t testing.TB, cfg Config) *twoWays {
	w := &twoWays{system: newNetwork(t, verbstest.Config{}, cfg)}
	w.software = newNetwork(t, verbstest.Config{Device: verbstest.DeviceConfig{Transport: verbs.TransportIWARP}}, cfg)
	w.dialer = Dialer{Providers: []cm.Provider{w.system.a, &asSoftware{Provider: w.software.a}}, Config: cfg}
	w.lc = ListenConfig{Providers: []cm.Provider{w.system.b, &asSoftware{Provider: w.software.b}}, Config: cfg}
	return w
}

func (w *twoWays) listen(t testing.TB) net.Listener {
	ln, err := w.lc.Listen(t.Context(), "tcp", addrB+":0")
	require.NoError(t, err)
	return ln
}

func (w *twoWays) dial(t testing.TB, ln net.Listener) *Conn {
	c, err := w.dialer.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	return c.(*Conn)
}

func transport(c *Conn) verbs.Transport { return c.Info().Transport }

// Both ways are served on one port, and RDMA is taken where it is there.
func TestBothServed(t *testing.T) {
	w := newTwoWays(t, Config{})
	ln := w.listen(t)
	defer ln.Close()
	c := w.dial(t, ln)
	require.Equal(t, verbs.TransportIB, transport(c))
	abort(c)
	for name, want := range map[string]verbs.Transport{onlySoftware: verbs.TransportIWARP, noSoftware: verbs.TransportIB} {
		w.dialer.Config.Device = name
		c := w.dial(t, ln)
		require.Equal(t, want, transport(c))
		abort(c)
	}
}

// The software device comes in when RDMA is slow, at once when RDMA has failed, and RDMA's error is told when both have.
func TestFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTwoWays(t, Config{})
		ln := w.listen(t)
		w.system.fab.Cut(w.system.a, w.system.b)
		start := time.Now()
		c := w.dial(t, ln)
		require.Equal(t, verbs.TransportIWARP, transport(c))
		require.Equal(t, 250*time.Millisecond, time.Since(start))
		abort(c)

		w.dialer.FallbackDelay = time.Second
		start = time.Now()
		abort(w.dial(t, ln))
		require.Equal(t, time.Second, time.Since(start))

		w.dialer.FallbackDelay = -1
		w.dialer.Timeout = 300 * time.Millisecond
		_, err := w.dialer.Dial("tcp", ln.Addr().String())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		w.system.fab.Heal(w.system.a, w.system.b)
		w.dialer.Timeout = 0

		w.dialer.FallbackDelay = time.Hour
		removed := w.system.a.On(verbstest.Connect, func() error { return &cm.RejectedError{Reason: cm.RejectNoListener} })
		start = time.Now()
		c = w.dial(t, ln)
		require.Equal(t, verbs.TransportIWARP, transport(c))
		require.Zero(t, time.Since(start))
		abort(c)
		removed()

		require.NoError(t, ln.Close())
		w.software.a.Fail(verbstest.Connect, 1, syscall.ENETUNREACH)
		_, err = w.dialer.Dial("tcp", ln.Addr().String())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

// Both ways connect: the first is taken, the other is reset and nothing of it stays (newNetwork looks).
func TestLoserIsReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{}
		slow := newNetwork(t, verbstest.Config{Latency: 200 * time.Millisecond}, cfg)
		quick := newNetwork(t, verbstest.Config{Latency: 20 * time.Millisecond}, cfg)
		w := twoWays{
			dialer: Dialer{Providers: []cm.Provider{slow.a, &asSoftware{Provider: quick.a}}},
			lc:     ListenConfig{Providers: []cm.Provider{slow.b, &asSoftware{Provider: quick.b}}},
		}
		ln := w.listen(t)
		for range 20 {
			c := w.dial(t, ln)
			_, err := c.Write([]byte{1})
			require.NoError(t, err)
			for {
				a, err := ln.Accept()
				require.NoError(t, err)
				if _, err = a.Read(make([]byte, 1)); err == nil {
					abort(a.(*Conn))
					break
				}
				require.ErrorIs(t, err, syscall.ECONNRESET)
				abort(a.(*Conn))
			}
			abort(c)
		}
		require.NoError(t, ln.Close())
	})
}

// A number picked for a device of the system may be taken for the software device: another is picked.
func TestPickedPortIsFreeEverywhere(t *testing.T) {
	w := newTwoWays(t, Config{})
	w.software.b.Fail(verbstest.Listen, 1, syscall.EADDRINUSE)
	ln := w.listen(t)
	defer ln.Close()
	soft := w.lc.Providers[1].(*asSoftware)
	require.Len(t, soft.asked, 2)
	require.NotEqual(t, soft.asked[0].Port(), soft.asked[1].Port())
	require.EqualValues(t, ln.Addr().(*net.TCPAddr).Port, soft.asked[1].Port())

	w.software.b.On(verbstest.Listen, func() error { return syscall.EADDRINUSE })
	_, err := w.lc.Listen(t.Context(), "tcp", addrB+":0")
	require.ErrorIs(t, err, syscall.EADDRINUSE)
}

// Another program has the port at TCP: RDMA alone is served, and the log says so. Without RDMA it is an error.
func TestPortOfTCPTaken(t *testing.T) {
	var log bytes.Buffer
	w := newTwoWays(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	w.software.b.On(verbstest.Listen, func() error { return syscall.EADDRINUSE })
	ln, err := w.lc.Listen(t.Context(), "tcp", addrB+":4711")
	require.NoError(t, err)
	defer ln.Close()
	require.Contains(t, log.String(), "RDMA alone is served")
	c := w.dial(t, ln)
	require.Equal(t, verbs.TransportIB, transport(c))
	abort(c)

	w.lc.Config.Device = onlySoftware
	_, err = w.lc.Listen(t.Context(), "tcp", addrB+":4712")
	require.ErrorIs(t, err, syscall.EADDRINUSE)
}

// An address of a kernel's iWARP device is that device's alone. All addresses are then served one by one: the software device gets
// the others.
func TestKernelIWARP(t *testing.T) {
	n := newNetwork(t, verbstest.Config{Device: verbstest.DeviceConfig{Transport: verbs.TransportIWARP}}, Config{})
	soft := &asSoftware{Provider: rdma.Software(rdma.SoftwareConfig{})}
	lc := ListenConfig{Providers: []cm.Provider{n.b, soft}}
	ln, err := lc.Listen(t.Context(), "tcp", addrB+":0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	require.Empty(t, soft.asked)

	defer func(f func() []netip.Addr) { hostAddrs = f }(hostAddrs)
	loopback := netip.MustParseAddr("127.0.0.1")
	hostAddrs = func() []netip.Addr { return []netip.Addr{loopback, netip.MustParseAddr(addrB), netip.IPv6Loopback()} }
	ln, err = lc.Listen(t.Context(), "tcp4", ":0")
	require.NoError(t, err)
	defer ln.Close()
	port := ln.Addr().(*net.TCPAddr).AddrPort().Port()
	require.Equal(t, netip.AddrPortFrom(netip.IPv4Unspecified(), port), ln.Addr().(*net.TCPAddr).AddrPort())
	require.NotEmpty(t, soft.asked)
	for _, a := range soft.asked {
		require.Equal(t, loopback, a.Addr())
	}
	d := Dialer{Providers: []cm.Provider{n.a, soft}}
	for ip, device := range map[string]string{addrB: n.a.Device(0).Name(), "127.0.0.1": "software0"} {
		c, err := d.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr(ip), port).String())
		require.NoError(t, err)
		require.Equal(t, device, c.(*Conn).Info().Device)
		abort(c.(*Conn))
	}

	hostAddrs = func() []netip.Addr { return nil }
	none, err := lc.Listen(t.Context(), "tcp6", ":0")
	if err == nil { // this host can after all
		require.NoError(t, none.Close())
	}

	// Where the software device is left out, or is alone, nothing is in its way.
	soft.asked = nil
	for _, device := range []string{noSoftware, onlySoftware} {
		lc.Config.Device = device
		one, err := lc.Listen(t.Context(), "tcp4", ":0")
		require.NoError(t, err)
		require.NoError(t, one.Close())
	}
	require.Len(t, soft.asked, 1)
	require.True(t, soft.asked[0].Addr().IsUnspecified())
}

// A device can be asked for by name, in the program or from outside.
func TestDeviceByName(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{})
	n.b.AddDevice(verbstest.DeviceConfig{Name: "other0", Addrs: []string{"10.0.1.2"}})
	name := n.b.Device(0).Name()

	lc := ListenConfig{Providers: []cm.Provider{n.b}, Config: Config{Device: name}}
	ln, err := lc.Listen(t.Context(), "tcp", addrB+":0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())

	for _, c := range []struct{ device, says string }{{"none0", `"none0"`}, {"other0", name}, {onlySoftware, onlySoftware}} {
		lc.Config.Device = c.device
		_, err = lc.Listen(t.Context(), "tcp", addrB+":0")
		require.ErrorIs(t, err, verbs.ErrNoDevice)
		require.ErrorContains(t, err, c.says)
	}

	// One that listens on all addresses refuses what comes by other devices.
	lc.Config.Device = "other0"
	ln, err = lc.Listen(t.Context(), "tcp", ":0")
	require.NoError(t, err)
	defer ln.Close()
	port := ln.Addr().(*net.TCPAddr).AddrPort().Port()
	_, err = n.dialer().Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr(addrB), port).String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)

	t.Setenv(deviceEnv, "none0")
	_, err = n.dialer().Dial("tcp", ln.Addr().String())
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	require.ErrorContains(t, err, deviceEnv)
	d := n.dialer()
	d.Config.Device = noSoftware // the program's word counts
	_, err = d.Dial("tcp", addrB+":1")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

// The log names a device once.
func TestDeviceIsAnnouncedOnce(t *testing.T) {
	var log bytes.Buffer
	name := "announced" + rand.Text() // the process remembers, and tests may be repeated
	n := newNetwork(t, verbstest.Config{Device: verbstest.DeviceConfig{Name: name}}, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for range 3 {
		c, a := n.pair(t)
		abort(c)
		abort(a)
	}
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("device=")), log.String())
	require.Contains(t, log.String(), "device="+name)
}
