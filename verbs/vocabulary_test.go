package verbs_test

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

func TestNames(t *testing.T) {
	for want, got := range map[string]fmt.Stringer{
		"SUCCESS":             verbs.StatusSuccess,
		"RETRY_EXC_ERR":       verbs.StatusRetryExcErr,
		"GENERAL_ERR":         verbs.StatusGeneralErr,
		"STATUS(22)":          verbs.StatusGeneralErr + 1,
		"SEND":                verbs.WCSend,
		"RECV_RDMA_WITH_IMM":  verbs.WCRecvRDMAWithImm,
		"WC_OPCODE(9)":        verbs.WCRecvRDMAWithImm + 1,
		"RDMA_WRITE_WITH_IMM": verbs.OpRDMAWriteWithImm,
		"BIND_MW":             verbs.OpBindMW,
		"OPCODE(10)":          verbs.OpBindMW + 1,
		"CQ_ERR":              verbs.EventCQErr,
		"WQ_FATAL":            verbs.EventWQFatal,
		"EVENT(20)":           verbs.EventWQFatal + 1,
		"RC":                  verbs.RC,
		"UD":                  verbs.UD,
		"QPTYPE(3)":           verbs.UD + 1,
		"RESET":               verbs.QPReset,
		"ERR":                 verbs.QPError,
		"QPSTATE(7)":          verbs.QPError + 1,
		"ACTIVE":              verbs.PortActive,
		"ACTIVE_DEFER":        verbs.PortActiveDefer,
		"PORT_STATE(6)":       verbs.PortActiveDefer + 1,
		"InfiniBand":          verbs.TransportIB,
		"iWARP":               verbs.TransportIWARP,
		"transport 0":         verbs.TransportUnknown,
		"Ethernet":            verbs.LinkEthernet,
		"unknown":             verbs.LinkUnknown,
	} {
		require.Equal(t, want, got.String())
	}
	require.Equal(t, "InfiniBand", verbs.LinkInfiniBand.String())
}

// TestValues pins the numbers that C's headers give.
func TestValues(t *testing.T) {
	require.EqualValues(t, 5, verbs.StatusWRFlushErr)
	require.EqualValues(t, 10, verbs.StatusRemAccessErr)
	require.EqualValues(t, 12, verbs.StatusRetryExcErr)
	require.EqualValues(t, 21, verbs.StatusGeneralErr)
	require.EqualValues(t, 8, verbs.EventDeviceFatal)
	require.EqualValues(t, 9, verbs.EventPortActive)
	require.EqualValues(t, 19, verbs.EventWQFatal)
	require.EqualValues(t, 3, verbs.QPRTS)
	require.EqualValues(t, 6, verbs.QPError)
	require.EqualValues(t, 1, verbs.AccessLocalWrite)
	require.EqualValues(t, 8, verbs.AccessRemoteAtomic)
}

func TestOpcodeSet(t *testing.T) {
	s := verbs.Opcodes(verbs.OpSend, verbs.OpBindMW)
	require.True(t, s.Has(verbs.OpSend))
	require.True(t, s.Has(verbs.OpBindMW))
	require.False(t, s.Has(verbs.OpRDMAWrite))
	require.False(t, s.Has(32))
	require.False(t, s.Has(255))
	require.Zero(t, verbs.Opcodes())
}

func TestGID(t *testing.T) {
	require.True(t, verbs.GID{}.IsZero())
	g := verbs.GID{0xfe, 0x80, 15: 1}
	require.False(t, g.IsZero())
	require.Equal(t, "fe80:0000:0000:0000:0000:0000:0000:0001", g.String())
}

func TestCompletionError(t *testing.T) {
	require.NoError(t, (&verbs.Completion{}).Err())
	wc := verbs.Completion{Status: verbs.StatusRemAccessErr, VendorErr: 0x88, QPNum: 5}
	err := fmt.Errorf("write: %w", wc.Err())
	require.ErrorIs(t, err, &verbs.CompletionError{Status: verbs.StatusRemAccessErr})
	require.NotErrorIs(t, err, &verbs.CompletionError{Status: verbs.StatusRetryExcErr})
	var c *verbs.CompletionError
	require.ErrorAs(t, err, &c)
	require.EqualValues(t, 5, c.QPNum)
	require.Contains(t, err.Error(), "REM_ACCESS_ERR")
	require.Contains(t, err.Error(), "0x88")
	require.Contains(t, (&verbs.CompletionError{Status: 99}).Error(), "STATUS(99)")
}

func TestErrors(t *testing.T) {
	wrapped := func(err error) error { return fmt.Errorf("context: %w", err) }
	require.ErrorIs(t, wrapped(verbs.ErrNoDevice), errors.ErrUnsupported)
	require.ErrorIs(t, wrapped(verbs.ErrNoDevice), verbs.ErrNoDevice)
	require.Equal(t, net.ErrClosed, verbs.ErrClosed)

	unsupported := &verbs.UnsupportedError{Device: "siw0", What: "RDMA_WRITE_WITH_IMM"}
	require.ErrorIs(t, wrapped(unsupported), errors.ErrUnsupported)
	require.NotErrorIs(t, unsupported, verbs.ErrNoDevice)
	require.EqualError(t, unsupported, "RDMA device siw0 does not support RDMA_WRITE_WITH_IMM")

	limit := &verbs.LimitError{What: "send queue entries", Got: 9, Max: 8}
	require.ErrorIs(t, wrapped(limit), syscall.EINVAL)
	require.EqualError(t, limit, "9 send queue entries exceed the limit of 8")

	memlock := &verbs.MemlockError{Size: 4096, Limit: 1024}
	require.ErrorIs(t, wrapped(memlock), syscall.ENOMEM)
	for _, part := range []string{"4096", "1024", "ulimit -l", "RLIMIT_MEMLOCK"} {
		require.ErrorContains(t, memlock, part)
	}
}
