package rconn

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

// flavours are the two kinds of device that the wire differs for.
var flavours = map[string]verbstest.Config{
	"ib":    {},
	"iwarp": {Device: verbstest.DeviceConfig{Transport: verbs.TransportIWARP}},
}

// network is a fabric with two hosts, a at 10.0.0.1 and b at 10.0.0.2.
type network struct {
	fab  *verbstest.Fabric
	a, b *verbstest.Host
	cfg  Config
}

const addrA, addrB = "10.0.0.1", "10.0.0.2"

// newNetwork makes a network; at the end of the test nothing may be left on it.
func newNetwork(t testing.TB, fc verbstest.Config, cfg Config) *network {
	fab := verbstest.NewFabric(fc)
	n := &network{fab: fab, a: fab.Host("a", addrA), b: fab.Host("b", addrB), cfg: cfg}
	t.Cleanup(func() {
		verbstest.CheckLeaks(t, fab)
		fab.Close()
	})
	return n
}

func (n *network) dialer() *Dialer { return &Dialer{Providers: []cm.Provider{n.a}, Config: n.cfg} }

func (n *network) listen(t testing.TB, addr string) *Listener {
	lc := ListenConfig{Providers: []cm.Provider{n.b}, Config: n.cfg}
	ln, err := lc.Listen(context.Background(), "rdma", addr)
	require.NoError(t, err)
	return ln.(*Listener)
}

// pair makes a connection from a to b.
func (n *network) pair(t testing.TB) (dialed, accepted *Conn) {
	ln := n.listen(t, addrB+":0")
	defer ln.Close()
	type result struct {
		c   net.Conn
		err error
	}
	ch := make(chan result, 1)
	go func() {
		c, err := ln.Accept()
		ch <- result{c, err}
	}()
	c, err := n.dialer().Dial("rdma", ln.Addr().String())
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

// forFlavours runs a test on both kinds of device.
func forFlavours(t *testing.T, f func(t *testing.T, fc verbstest.Config)) {
	for name, fc := range flavours {
		t.Run(name, func(t *testing.T) { f(t, fc) })
	}
}
