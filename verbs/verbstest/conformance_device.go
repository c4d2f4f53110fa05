package verbstest

import (
	"errors"
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

	require.Equal(t, a.MaxSRQ > 0, a.MaxSRQWR > 0)
	require.Equal(t, a.MaxSRQ > 0, a.MaxSRQSGE > 0)
	require.Equal(t, a.Caps.QPTypes.Has(verbs.UD), a.MaxAH > 0)
	require.Equal(t, a.Caps.Send.Has(verbs.OpAtomicFetchAndAdd), a.Atomic != verbs.AtomicNone)
	require.Equal(t, a.Caps.Send.Has(verbs.OpAtomicFetchAndAdd), a.Caps.Send.Has(verbs.OpAtomicCmpAndSwp))
	require.Contains(t, []verbs.AtomicCap{verbs.AtomicNone, verbs.AtomicHCA, verbs.AtomicGlob}, a.Atomic)
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

	require.Contains(t, []verbs.LinkLayer{verbs.LinkInfiniBand, verbs.LinkEthernet}, p.Link)
	if d.Attr().Transport == verbs.TransportIB {
		require.Contains(t, []int{256, 512, 1024, 2048, 4096}, p.MTU)
		require.Contains(t, []int{256, 512, 1024, 2048, 4096}, p.MaxMTU)
	}

	gid, err := d.GID(1, 0)
	require.NoError(t, err)
	require.False(t, gid.IsZero())
	for index := range p.GIDs {
		_, err = d.GID(1, index)
		require.NoError(t, err)
		typ, err := d.GIDType(1, index)
		require.NoError(t, err)
		require.Contains(t, []verbs.GIDType{verbs.GIDTypeIB, verbs.GIDTypeRoCEv1, verbs.GIDTypeRoCEv2}, typ)
		if gid, _ = d.GID(1, index); !gid.IsZero() && d.Attr().Transport == verbs.TransportIB {
			require.Equal(t, p.Link == verbs.LinkEthernet, typ != verbs.GIDTypeIB, "entry %d is of type %v", index, typ)
		}
	}
	for _, entry := range []struct{ port, index int }{
		{1, -1}, {1, p.GIDs}, {1, 1 << 20}, {0, 0}, {-1, 0}, {d.Attr().Ports + 1, 0},
	} {
		_, err = d.GID(entry.port, entry.index)
		require.ErrorIs(t, err, syscall.EINVAL, "%+v", entry)
		_, err = d.GIDType(entry.port, entry.index)
		require.ErrorIs(t, err, syscall.EINVAL, "%+v", entry)
	}
}

func (s *suite) watch(t *testing.T) {
	stop := s.device(t).Watch(func(verbs.AsyncEvent) {})
	stop()
	stop()
}

// missingObjects asks for the objects that the device does not have.
func (s *suite) missingObjects(t *testing.T) {
	d := s.device(t)
	attr := d.Attr()
	e := s.equipped(t, d, size{}.orDefaults())
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		if !attr.Caps.QPTypes.Has(typ) {
			o := e.options(size{}.orDefaults())
			o.Type = typ
			_, err := e.pd.CreateQP(o)
			requireUnsupported(t, d, err)
		}
	}
	if attr.MaxSRQ == 0 {
		_, err := e.pd.CreateSRQ(verbs.SRQOptions{MaxWR: 4})
		requireUnsupported(t, d, err)
	}
	if attr.MaxAH == 0 {
		_, err := e.pd.CreateAH(verbs.AHAttr{Port: 1})
		requireUnsupported(t, d, err)
	}
}

// requireUnsupported expects an error that says which device does not have what.
func requireUnsupported(t *testing.T, d verbs.Device, err error) {
	t.Helper()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	u, ok := errors.AsType[*verbs.UnsupportedError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, d.Name(), u.Device)
	require.NotEmpty(t, u.What)
}
