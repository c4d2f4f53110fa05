package verbstest

import (
	"bytes"
	"errors"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

func (s *suite) memory(t *testing.T) {
	pd, err := s.device(t).AllocPD()
	require.NoError(t, err)
	keys := make(map[uint32]bool)
	var all []verbs.MR
	for _, n := range []int{1, 4095, 4096, 4097, 1 << 20} {
		mr, err := pd.AllocMR(n, allAccess)
		require.NoError(t, err)
		b := mr.Bytes()
		require.Len(t, b, n)
		require.Zero(t, mr.Addr()%4096)
		require.True(t, bytes.Equal(b, make([]byte, n)), "memory is not zeroed")
		fill(b, 1)
		require.False(t, keys[mr.LKey()])
		keys[mr.LKey()] = true
		all = append(all, mr)
	}
	for _, mr := range all {
		require.True(t, has(mr.Bytes(), 1), "regions overlap")
		require.NoError(t, mr.Close())
		require.NoError(t, mr.Close())
	}

	for _, n := range []int{-1, 0, int(min(1<<50, uint64(math.MaxInt)))} {
		_, err = pd.AllocMR(n, allAccess)
		require.Error(t, err, "%d bytes", n)
	}
	_, err = pd.AllocMR(4096, verbs.AccessRemoteWrite)
	require.Error(t, err, "remote write needs local write")
	mr, err := pd.AllocMR(4096, 0)
	require.NoError(t, err)
	require.NoError(t, mr.Close())
	require.NoError(t, pd.Close())
}

func (s *suite) sizes(t *testing.T) {
	id := s.resolve(t, netip.AddrPortFrom(s.Addr, 7471))
	e := s.side(t, id, size{sendWR: 5, recvWR: 7, inline: 33})
	require.GreaterOrEqual(t, e.qp.Cap().MaxSendWR, 5)
	require.GreaterOrEqual(t, e.qp.Cap().MaxRecvWR, 7)
	require.GreaterOrEqual(t, e.qp.Cap().MaxSendSGE, 1)
	require.GreaterOrEqual(t, e.qp.Cap().MaxRecvSGE, 1)
	require.NotZero(t, e.qp.Num())
	cq, err := e.dev.CreateCQ(verbs.CQOptions{Depth: 3})
	require.NoError(t, err)
	require.GreaterOrEqual(t, cq.Depth(), 3)
	n, err := cq.Poll(make([]verbs.Completion, 1))
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, cq.Close())

	// Inline alone is lowered to what there is.
	e = s.side(t, s.resolve(t, netip.AddrPortFrom(s.Addr, 7471)), size{inline: 1 << 20})
	require.Less(t, e.qp.Cap().MaxInline, 1<<20)
}

func (s *suite) limits(t *testing.T) {
	id := s.resolve(t, netip.AddrPortFrom(s.Addr, 7471))
	d := id.Device()
	attr := d.Attr()
	pd, err := d.AllocPD()
	require.NoError(t, err)
	cq, err := d.CreateCQ(verbs.CQOptions{Depth: 16})
	require.NoError(t, err)
	defer func() {
		require.NoError(t, cq.Close())
		require.NoError(t, pd.Close())
	}()

	var limit *verbs.LimitError
	_, err = d.CreateCQ(verbs.CQOptions{Depth: attr.MaxCQE + 1})
	require.ErrorAs(t, err, &limit)
	require.EqualValues(t, attr.MaxCQE, limit.Max)
	for _, depth := range []int{0, -1} {
		_, err = d.CreateCQ(verbs.CQOptions{Depth: depth})
		require.Error(t, err)
	}

	fits := verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}
	for _, change := range []func(*verbs.QPCap){
		func(c *verbs.QPCap) { c.MaxSendWR = attr.MaxQPWR + 1 },
		func(c *verbs.QPCap) { c.MaxRecvWR = attr.MaxQPWR + 1 },
		func(c *verbs.QPCap) { c.MaxSendSGE = attr.MaxSGE + 1 },
		func(c *verbs.QPCap) { c.MaxRecvSGE = attr.MaxSGE + 1 },
	} {
		c := fits
		change(&c)
		_, err = id.CreateQP(pd, verbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: c})
		require.ErrorAs(t, err, &limit, "%+v", c)
		require.NotEmpty(t, limit.What)
	}
	_, err = id.CreateQP(pd, verbs.QPOptions{Type: verbs.UD, SendCQ: cq, RecvCQ: cq, Cap: fits})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func (s *suite) closeOrder(t *testing.T) {
	a, _ := s.pair(t, size{})
	busy := func(what string, f func() error) { require.ErrorIs(t, f(), verbs.ErrBusy, what) }
	busy("PD with MR and QP", a.pd.Close)
	busy("channel with CQs", a.ch.Close)
	busy("send CQ with QP", a.sendCQ.Close)
	busy("receive CQ with QP", a.recvCQ.Close)
	busy("ID with QP", a.id.Close)

	// Nothing has changed by that.
	a.post(sendWR(1, a.sge(0, 0)))
	require.NoError(t, a.qp.Close())
	busy("PD with MR", a.pd.Close)
	busy("channel with CQs", a.ch.Close)
	for range 2 { // closing twice is harmless
		a.close()
	}
}

func (s *suite) afterClose(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{})
	a, _ := s.connect(t, ln, size{})
	addr := a.id.LocalAddr()
	a.close()
	require.Equal(t, addr, a.id.LocalAddr())
	require.NotNil(t, a.id.Device())

	_, err := a.pd.AllocMR(4096, 0)
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = a.sendCQ.Poll(make([]verbs.Completion, 1))
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.ErrorIs(t, a.ch.Wait(0), verbs.ErrClosed)
	a.ch.Interrupt()
	_, err = a.dev.CreateCQ(verbs.CQOptions{Depth: 1, Channel: a.ch})
	require.ErrorIs(t, err, verbs.ErrClosed)
	n, err := a.qp.PostSend([]verbs.SendWR{sendWR(1, nil)})
	require.Zero(t, n)
	require.ErrorIs(t, err, verbs.ErrClosed)
	n, err = a.qp.PostRecv([]verbs.RecvWR{{}})
	require.Zero(t, n)
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = a.qp.Query()
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.ErrorIs(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState), verbs.ErrClosed)
	_, err = a.id.CreateQP(a.pd, verbs.QPOptions{SendCQ: a.sendCQ, RecvCQ: a.recvCQ})
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = a.id.(cm.Resolved).Connect(s.ctx(t), param())
	require.ErrorIs(t, err, verbs.ErrClosed)

	// A QP on closed parts.
	id := s.resolve(t, ln.Addr())
	_, err = id.CreateQP(a.pd, verbs.QPOptions{SendCQ: a.sendCQ, RecvCQ: a.recvCQ})
	require.ErrorIs(t, err, verbs.ErrClosed)

	require.NoError(t, ln.Close())
	require.NoError(t, ln.Close())
	_, err = ln.Accept(s.ctx(t))
	require.ErrorIs(t, err, verbs.ErrClosed)
}

// Objects that no provider has made.
type (
	otherPD      struct{ verbs.PD }
	otherCQ      struct{ verbs.CQ }
	otherChannel struct{ verbs.CompletionChannel }
)

func (otherChannel) Wait(time.Duration) error { return nil }
func (otherChannel) Parks() uint64            { return 0 }

func (s *suite) foreign(t *testing.T) {
	id := s.resolve(t, netip.AddrPortFrom(s.Addr, 7471))
	d := id.Device()
	pd, err := d.AllocPD()
	require.NoError(t, err)
	cq, err := d.CreateCQ(verbs.CQOptions{Depth: 16})
	require.NoError(t, err)
	capacity := verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}

	for _, c := range []struct {
		pd         verbs.PD
		send, recv verbs.CQ
	}{
		{otherPD{pd}, cq, cq},
		{pd, otherCQ{cq}, cq},
		{pd, cq, otherCQ{cq}},
	} {
		_, err = id.CreateQP(c.pd, verbs.QPOptions{SendCQ: c.send, RecvCQ: c.recv, Cap: capacity})
		require.ErrorIs(t, err, verbs.ErrForeign)
	}
	_, err = d.CreateCQ(verbs.CQOptions{Depth: 1, Channel: otherChannel{}})
	require.ErrorIs(t, err, verbs.ErrForeign)

	_, err = id.CreateQP(nil, verbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: capacity})
	require.Error(t, err)
	_, err = id.CreateQP(pd, verbs.QPOptions{Cap: capacity})
	require.Error(t, err)

	require.NoError(t, cq.Close())
	require.NoError(t, pd.Close())
}
