package softiwarp

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// TestQuery reads what the ends have agreed on, before, during and after the connection.
func TestQuery(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, c := range []struct {
		dial, accept     cm.ConnParam
		dialed, accepted verbs.QPAttr
	}{
		{
			cm.ConnParam{InitiatorDepth: 3, ResponderResources: 5}, cm.ConnParam{InitiatorDepth: 2, ResponderResources: 3},
			verbs.QPAttr{Access: remoteAccess, MaxRdAtomic: 3, MaxDestRdAtomic: 2},
			verbs.QPAttr{Access: remoteAccess, MaxRdAtomic: 2, MaxDestRdAtomic: 3},
		},
		{
			cm.ConnParam{InitiatorDepth: 4}, cm.ConnParam{InitiatorDepth: 4, ResponderResources: 1},
			verbs.QPAttr{Access: verbs.AccessRemoteWrite, MaxRdAtomic: 1},
			verbs.QPAttr{Access: remoteAccess, MaxDestRdAtomic: 1},
		},
	} {
		p := New(Config{Logger: quiet})
		ln := listen(t, p, cm.ListenOptions{})
		id, err := p.Resolve(ctx, netip.AddrPort{}, ln.Addr())
		require.NoError(t, err)
		x := newEnd(t, id, pairSize{})
		query := func(e *end, state verbs.QPState, want verbs.QPAttr) {
			t.Helper()
			got, err := e.qp.Query()
			require.NoError(t, err)
			want.State = state
			require.Equal(t, want, got)
		}
		query(x, verbs.QPInit, verbs.QPAttr{})
		done := make(chan error, 1)
		go func() {
			_, err := id.Connect(ctx, c.dial)
			done <- err
		}()
		req, err := ln.Accept(ctx)
		require.NoError(t, err)
		y := newEnd(t, req, pairSize{})
		require.NoError(t, req.Accept(ctx, c.accept))
		require.NoError(t, <-done)
		query(x, verbs.QPRTS, c.dialed)
		query(y, verbs.QPRTS, c.accepted)
		require.NoError(t, id.Disconnect())
		y.disconnected(t)
		query(x, verbs.QPError, c.dialed)
		query(y, verbs.QPError, c.accepted)
	}
}

// TestUnsupported asks for what there is not: an error that says what.
func TestUnsupported(t *testing.T) {
	p := New(Config{Logger: quiet}).(*provider)
	pd, err := p.dev.AllocPD()
	require.NoError(t, err)
	attr := p.dev.Attr()
	require.Zero(t, attr.MaxAH)
	cq, err := p.dev.CreateCQ(verbs.CQOptions{Depth: 1})
	require.NoError(t, err)
	id := p.dev.newID(loopback(1), loopback(2))
	for _, qpType := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		require.False(t, attr.Caps.QPTypes.Has(qpType))
		o := verbs.QPOptions{Type: qpType, SendCQ: cq, RecvCQ: cq}
		_, err = pd.CreateQP(o)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, qpType.String()+" queue pairs")
		if qpType != verbs.RC {
			_, err = id.CreateQP(pd, o)
			require.ErrorIs(t, err, errors.ErrUnsupported)
			require.ErrorContains(t, err, qpType.String()+" queue pair")
		}
	}
	_, err = pd.CreateAH(verbs.AHAttr{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "address handles")
	require.NoError(t, id.Close())
	require.NoError(t, cq.Close())
	require.NoError(t, pd.Close())
}
