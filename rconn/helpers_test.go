package rconn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

// flavours are the two kinds of device that the wire differs for.
var flavours = map[string]verbstest.Config{
	"ib":    {},
	"iwarp": {Device: verbstest.DeviceConfig{Transport: verbs.TransportIWARP}},
}

// network is where connections are made: from host a to host b of a fabric, or on this host's loopback address by two software devices.
type network struct {
	fab  *verbstest.Fabric // nil with software devices
	a, b *verbstest.Host   // at 10.0.0.1 and 10.0.0.2

	dialing, serving cm.Provider
	addr             string // to listen at, port 0
	cfg              Config
}

const addrA, addrB = "10.0.0.1", "10.0.0.2"

// newNetwork makes a network on a fabric; at the end of the test nothing may be left on it.
func newNetwork(t testing.TB, fc verbstest.Config, cfg Config) *network {
	fab := verbstest.NewFabric(fc)
	n := &network{fab: fab, a: fab.Host("a", addrA), b: fab.Host("b", addrB), addr: addrB + ":0", cfg: cfg}
	n.dialing, n.serving = n.a, n.b
	t.Cleanup(func() {
		verbstest.CheckLeaks(t, fab)
		fab.Close()
	})
	return n
}

// newSoftware makes a network of software devices; at the end of the test nothing may be left on them.
func newSoftware(t testing.TB, sc rdma.SoftwareConfig, cfg Config) *network {
	if sc.Logger == nil {
		sc.Logger = slog.New(slog.DiscardHandler) // says who terminated what
	}
	n := &network{dialing: rdma.Software(sc), serving: rdma.Software(sc), addr: "127.0.0.1:0", cfg: cfg}
	t.Cleanup(func() { require.NoError(t, n.leaks()) })
	return n
}

// leaks waits until nothing is left: on the software device TCP connections end in the background.
func (n *network) leaks() error {
	open := func() error {
		if n.fab != nil {
			if o := n.fab.Objects(); o != (verbstest.Objects{}) {
				return fmt.Errorf("left: %+v", o)
			}
			return nil
		}
		dialing, serving := n.dialing.(interface{ Leaks() error }), n.serving.(interface{ Leaks() error })
		return errors.Join(dialing.Leaks(), serving.Leaks())
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if err := open(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

func (n *network) dialer() *Dialer {
	return &Dialer{Providers: []cm.Provider{n.dialing}, Config: n.cfg}
}

func (n *network) listen(t testing.TB, addr string) *Listener {
	lc := ListenConfig{Providers: []cm.Provider{n.serving}, Config: n.cfg}
	ln, err := lc.Listen(context.Background(), "rdma", addr)
	require.NoError(t, err)
	return ln.(*Listener)
}

// posts counts the posts of host a, as far as anybody knows.
func (n *network) posts() int {
	if n.fab == nil {
		return 0
	}
	return n.a.Calls(verbstest.PostSend)
}

// pair makes a connection.
func (n *network) pair(t testing.TB) (dialed, accepted *Conn) {
	ln := n.listen(t, n.addr)
	defer ln.Close()
	return n.connect(t, ln, ln.Addr().String())
}

// connect makes a connection that comes out at ln when addr is dialed.
func (n *network) connect(t testing.TB, ln *Listener, addr string) (dialed, accepted *Conn) {
	type result struct {
		c   net.Conn
		err error
	}
	ch := make(chan result, 1)
	go func() {
		c, err := ln.Accept()
		ch <- result{c, err}
	}()
	c, err := n.dialer().Dial("rdma", addr)
	require.NoError(t, err)
	r := <-ch
	require.NoError(t, r.err)
	return c.(*Conn), r.c.(*Conn)
}

// within fails the test when f takes longer than a generous limit.
func within(t testing.TB, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("hangs")
	}
}

// forFlavours runs a test on both kinds of device, on the fabric.
func forFlavours(t *testing.T, f func(t *testing.T, fc verbstest.Config)) {
	for name, fc := range flavours {
		t.Run(name, func(t *testing.T) { f(t, fc) })
	}
}

// device is what tests that need no faults of the fabric's run on.
type device struct {
	fabric *verbstest.Config // nil: the software device
}

// forDevices runs a test on both kinds of device of the fabric and on the software device.
func forDevices(t *testing.T, f func(t *testing.T, dev device)) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) { f(t, device{&fc}) })
	t.Run("software", func(t *testing.T) { f(t, device{}) })
}

// forSome runs a test on one kind of device of the fabric and on the software device: one for which the flavour does not matter.
func forSome(t *testing.T, f func(t *testing.T, dev device)) {
	t.Run("fabric", func(t *testing.T) { f(t, device{new(verbstest.Config)}) })
	t.Run("software", func(t *testing.T) { f(t, device{}) })
}

func (dev device) network(t testing.TB, cfg Config) *network {
	if dev.fabric == nil {
		return newSoftware(t, rdma.SoftwareConfig{}, cfg)
	}
	return newNetwork(t, *dev.fabric, cfg)
}

// bubble runs a test in virtual time on the fabric. On the software device, whose sockets know no other, it is real time.
func (dev device) bubble(t *testing.T, f func(*testing.T)) {
	if dev.fabric == nil {
		f(t)
	} else {
		synctest.Test(t, f)
	}
}

// waiting waits until a call of the side sleeps, or is about to.
func (c *Conn) waiting(t testing.TB, s *side) {
	t.Helper()
	eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return s.waiting
	})
}

// eventually waits for what must happen, in real time.
func eventually(t testing.TB, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(100 * time.Microsecond) {
		require.True(t, time.Now().Before(end), "waited in vain")
	}
}
