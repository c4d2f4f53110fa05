package rconn

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs/verbstest"
)

// Another program has the port for one address family, and there is no RDMA that could do without TCP's port: that is an error, as in
// package net, and not half a listener.
func TestPortOfOneFamilyTaken(t *testing.T) {
	tcp, err := net.Listen("tcp4", "0.0.0.0:0")
	require.NoError(t, err)
	defer tcp.Close()
	port := tcp.Addr().(*net.TCPAddr).Port
	lc := ListenConfig{
		Providers: []cm.Provider{rdma.Software(rdma.SoftwareConfig{})}, Config: Config{Logger: slog.New(slog.DiscardHandler)},
	}
	_, err = lc.Listen(t.Context(), "tcp", ":"+strconv.Itoa(port))
	require.ErrorIs(t, err, syscall.EADDRINUSE)
}

// A listener on more addresses than there may be handshakes serves all of them.
func TestManyAddresses(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{})
	cfg, err := n.cfg.populate()
	require.NoError(t, err)
	var lns []cm.Listener
	for range 2 * maxHandshakes {
		ln, err := n.b.Listen(netip.MustParseAddrPort(addrB+":0"), cm.ListenOptions{})
		require.NoError(t, err)
		lns = append(lns, ln)
	}
	l := newListener("tcp", lns[0].Addr(), lns, cfg, len(lns))
	defer l.Close()
	within(t, func() {
		for _, ln := range slices.Backward(lns) {
			c, err := n.dialer().DialContext(context.Background(), "tcp", ln.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			abort(c.(*Conn))
		}
	})
}
