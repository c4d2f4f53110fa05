package verbstest

import (
	"syscall"
	"testing"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

func (s *suite) attributes(t *testing.T) {
	require.NotEmpty(t, s.Dial.Name())
	devices, err := s.Dial.Devices()
	require.NoError(t, err)
	require.NotEmpty(t, devices)
	devices[0] = nil
	again, err := s.Dial.Devices()
	require.NoError(t, err)
	require.NotNil(t, again[0], "Devices must return a fresh slice")

	d := s.device(t)
	require.Contains(t, again, d)
	require.NotEmpty(t, d.Name())
	a := d.Attr()
	require.Contains(t, []verbs.Transport{verbs.TransportIB, verbs.TransportIWARP}, a.Transport)
	for name, n := range map[string]int{
		"Ports": a.Ports, "MaxQP": a.MaxQP, "MaxQPWR": a.MaxQPWR, "MaxSGE": a.MaxSGE, "MaxSGERead": a.MaxSGERead, "MaxCQ": a.MaxCQ,
		"MaxCQE": a.MaxCQE, "MaxMR": a.MaxMR, "MaxPD": a.MaxPD, "MaxQPRdAtom": a.MaxQPRdAtom,
		"MaxQPInitRdAtom": a.MaxQPInitRdAtom,
	} {
		require.Positive(t, n, name)
	}
	require.Positive(t, a.MaxMRSize)

	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWrite, verbs.OpRDMARead} {
		require.True(t, a.Caps.Send.Has(op), op)
	}
	ib := a.Transport == verbs.TransportIB
	if ib {
		require.True(t, a.Caps.Send.Has(verbs.OpRDMAWriteWithImm))
	}
	require.Equal(t, ib, a.Caps.RNR)
	require.Equal(t, ib, a.Caps.WriteAcked)
}

func (s *suite) ports(t *testing.T) {
	d := s.device(t)
	p, err := d.Port(1)
	require.NoError(t, err)
	require.Equal(t, verbs.PortActive, p.State)
	require.Positive(t, p.MTU)
	require.GreaterOrEqual(t, p.MaxMTU, p.MTU)
	require.Positive(t, p.GIDs)
	require.Positive(t, p.MaxMsgSize)
	for _, num := range []int{-1, 0, d.Attr().Ports + 1, 300} {
		_, err = d.Port(num)
		require.Error(t, err, "port %d", num)
	}

	gid, err := d.GID(1, 0)
	require.NoError(t, err)
	require.False(t, gid.IsZero())
	for _, index := range []int{-1, p.GIDs, 1 << 20} {
		_, err = d.GID(1, index)
		require.ErrorIs(t, err, syscall.EINVAL, "GID %d", index)
	}
}

func (s *suite) watch(t *testing.T) {
	stop := s.device(t).Watch(func(verbs.AsyncEvent) {})
	stop()
	stop()
}
