package cm_test

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/rconn/rdma/cm"
	"github.com/stretchr/testify/require"
)

func TestEvents(t *testing.T) {
	for want, e := range map[string]cm.Event{
		"ADDR_RESOLVED":             {},
		"DISCONNECTED":              {Type: cm.Disconnected},
		"UNREACHABLE (status -110)": {Type: cm.Unreachable, Status: -110},
		"ADDRINFO_ERROR":            {Type: cm.AddrinfoError},
		"EVENT(18)":                 {Type: cm.AddrinfoError + 1},
	} {
		require.Equal(t, want, e.String())
	}
	// As in rdma_cma.h.
	require.EqualValues(t, 9, cm.Established)
	require.EqualValues(t, 10, cm.Disconnected)
	require.EqualValues(t, 11, cm.DeviceRemoval)
	require.EqualValues(t, 15, cm.TimewaitExit)
}

func TestEventEnds(t *testing.T) {
	goesOn := map[cm.EventType]bool{
		cm.AddrChange: true, cm.TimewaitExit: true, cm.Established: true, cm.MulticastJoin: true, cm.MulticastError: true,
	}
	for e := cm.AddrResolved; e <= cm.AddrinfoError; e++ {
		require.Equal(t, !goesOn[e], cm.Event{Type: e}.Ends(), e)
	}
}

func TestErrors(t *testing.T) {
	addr := netip.MustParseAddrPort("10.0.0.1:80")
	err := fmt.Errorf("dial: %w", &cm.Error{Op: "connect", Addr: addr, Err: &cm.RejectedError{Reason: cm.RejectNoListener}})
	require.EqualError(t, err, "dial: rdma connect 10.0.0.1:80: connection refused: nobody listens")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	var step *cm.Error
	require.ErrorAs(t, err, &step)
	require.Equal(t, addr, step.Addr)
	require.EqualError(t, &cm.Error{Op: "listen", Err: errors.New("no")}, "rdma listen: no")

	for reason, text := range map[int]string{
		cm.RejectConsumer:         "connection refused by the peer: by its program, or because nobody listens on that address",
		int(syscall.ECONNREFUSED): "connection refused",
		4:                         "connection refused (reason 4)",
	} {
		require.EqualError(t, &cm.RejectedError{Reason: reason}, text)
	}
}
