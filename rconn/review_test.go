package rconn

import (
	"log/slog"
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
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
