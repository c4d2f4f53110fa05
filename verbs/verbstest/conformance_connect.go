package verbstest

import (
	"bytes"
	"context"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// dial makes a dialing end and starts its Connect.
func (s *suite) dial(t *testing.T, ctx context.Context, to netip.AddrPort, p cm.ConnParam) (*side, <-chan dialed) {
	t.Helper()
	id := s.resolve(t, to)
	e := s.side(t, id, size{})
	done := make(chan dialed, 1)
	go func() {
		reply, err := id.Connect(ctx, p)
		done <- dialed{reply, err}
	}()
	return e, done
}

type dialed struct {
	reply cm.ConnParam
	err   error
}

// requireData checks private data: padded with zeros on InfiniBand, exact on iWARP.
func (s *suite) requireData(t *testing.T, e *side, sent, got []byte, padded int) {
	t.Helper()
	if !e.iwarp() {
		require.Len(t, got, padded)
		require.Zero(t, bytes.Trim(got[len(sent):], "\x00"))
		got = got[:len(sent)]
	}
	require.Equal(t, string(sent), string(got))
}

func (s *suite) privateData(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{})
	for _, c := range []struct{ request, reply int }{{0, 0}, {1, 2}, {40, 40}, {cm.MaxRequestData, cm.MaxReplyData}} {
		p := param()
		p.PrivateData = filled(c.request, 1)
		p.InitiatorDepth, p.ResponderResources = 2, 3
		a, done := s.dial(t, s.ctx(t), ln.Addr(), p)
		req, err := ln.Accept(s.ctx(t))
		require.NoError(t, err)
		s.requireData(t, a, p.PrivateData, req.Param().PrivateData, cm.MaxRequestData)
		if !a.iwarp() {
			// Each side sees them from its own end.
			require.EqualValues(t, 2, req.Param().ResponderResources)
			require.EqualValues(t, 3, req.Param().InitiatorDepth)
		}
		b := s.side(t, req, size{})
		p = param()
		p.PrivateData = filled(c.reply, 2)
		require.NoError(t, req.Accept(s.ctx(t), p))
		answer := <-done
		require.NoError(t, answer.err)
		s.requireData(t, a, p.PrivateData, answer.reply.PrivateData, cm.MaxReplyData)
		a.close()
		b.close()
	}
}

func (s *suite) privateDataTooLong(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{})
	p := param()
	p.PrivateData = make([]byte, cm.MaxRequestData+1)
	_, done := s.dial(t, s.ctx(t), ln.Addr(), p)
	require.ErrorIs(t, (<-done).err, syscall.EINVAL)

	a, done := s.dial(t, s.ctx(t), ln.Addr(), param())
	req, err := ln.Accept(s.ctx(t))
	require.NoError(t, err)
	b := s.side(t, req, size{})
	p.PrivateData = make([]byte, cm.MaxReplyData+1)
	require.ErrorIs(t, req.Accept(s.ctx(t), p), syscall.EINVAL)
	require.ErrorIs(t, req.Reject(make([]byte, cm.MaxRejectData+1)), syscall.EINVAL)
	b.close()
	require.Error(t, (<-done).err)
	a.close()
}

func (s *suite) addresses(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{})
	require.Equal(t, s.Addr.WithZone(""), ln.Addr().Addr().WithZone(""))
	require.NotZero(t, ln.Addr().Port())
	a, b := s.connect(t, ln, size{})
	require.Equal(t, ln.Addr(), b.id.LocalAddr())
	require.Equal(t, withoutZone(ln.Addr()), withoutZone(a.id.RemoteAddr()))
	require.Equal(t, withoutZone(a.id.LocalAddr()), withoutZone(b.id.RemoteAddr()))
	require.NotZero(t, a.id.LocalAddr().Port())
	if s.Local.IsValid() {
		require.Equal(t, s.Local, a.id.LocalAddr().Addr())
	}
	for _, e := range []*side{a, b} {
		for _, x := range []netip.AddrPort{e.id.LocalAddr(), e.id.RemoteAddr()} {
			if x.Addr().Is6() && x.Addr().IsLinkLocalUnicast() {
				require.NotEmpty(t, x.Addr().Zone(), x)
			}
		}
	}
}

// withoutZone takes off what the two ends may call differently.
func withoutZone(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().WithZone(""), a.Port())
}

func (s *suite) qpAttributes(t *testing.T) {
	a, b := s.pair(t, size{})
	if a.iwarp() {
		_, err := a.qp.Query()
		require.NoError(t, err)
		return
	}
	p := param()
	for _, e := range []*side{a, b} {
		q, err := e.qp.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.QPRTS, q.State)
		require.Positive(t, q.PathMTU)
		require.Equal(t, p.RetryCount, q.RetryCount)
		require.Equal(t, p.RNRRetryCount, q.RNRRetry)
		require.Equal(t, p.AckTimeout, q.AckTimeout)
		require.Equal(t, p.MinRNRTimer, q.MinRNRTimer)

		require.NoError(t, e.qp.Modify(verbs.QPAttr{MinRNRTimer: 9}, verbs.AttrMinRNRTimer))
		q, err = e.qp.Query()
		require.NoError(t, err)
		require.EqualValues(t, 9, q.MinRNRTimer)

		peer := a
		if e == a {
			peer = b
		}
		require.Equal(t, peer.qp.Num(), q.DestQPNum)
	}
}

func (s *suite) listenPort(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{})
	other := s.listen(t, cm.ListenOptions{})
	require.NotEqual(t, ln.Addr().Port(), other.Addr().Port())
	_, err := s.Listen.Listen(ln.Addr(), cm.ListenOptions{})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.NoError(t, ln.Close())
	s.eventually(t, "the port is free again", func() bool {
		again, err := s.Listen.Listen(ln.Addr(), cm.ListenOptions{})
		if err != nil {
			return false
		}
		require.Equal(t, ln.Addr(), again.Addr())
		require.NoError(t, again.Close())
		return true
	})
}

func (s *suite) reject(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{})
	for _, n := range []int{0, 5, cm.MaxRejectData} {
		a, done := s.dial(t, s.ctx(t), ln.Addr(), param())
		req, err := ln.Accept(s.ctx(t))
		require.NoError(t, err)
		private := filled(n, 3)
		require.NoError(t, req.Reject(private))
		require.NoError(t, req.Close())
		err = (<-done).err
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		var rejected *cm.RejectedError
		require.ErrorAs(t, err, &rejected)
		require.True(t, bytes.HasPrefix(rejected.PrivateData, private))
		require.Empty(t, bytes.Trim(rejected.PrivateData[n:], "\x00"))
		if !a.iwarp() {
			require.Equal(t, cm.RejectConsumer, rejected.Reason)
		}
		a.close()
	}
}

// refused dials where nobody listens.
func (s *suite) refused(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{})
	require.NoError(t, ln.Close())
	a, done := s.dial(t, s.ctx(t), ln.Addr(), param())
	err := (<-done).err
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	var rejected *cm.RejectedError
	require.ErrorAs(t, err, &rejected)
	if !a.iwarp() {
		require.Equal(t, cm.RejectNoListener, rejected.Reason)
	}
	var step *cm.Error
	require.ErrorAs(t, err, &step)
	require.Equal(t, "connect", step.Op)
}

func (s *suite) nobody(t *testing.T) {
	if !s.Nobody.IsValid() {
		return
	}
	_, err := s.Dial.Resolve(s.ctx(t), netip.AddrPort{}, netip.AddrPortFrom(s.Nobody, 7471))
	require.ErrorIs(t, err, syscall.EHOSTUNREACH)
}

func (s *suite) loopbackRefused(t *testing.T) {
	if s.Loopback {
		return
	}
	for _, a := range []string{"127.0.0.1:0", "127.1.2.3:0", "[::1]:0"} {
		to := netip.MustParseAddrPort(a)
		_, err := s.Listen.Listen(to, cm.ListenOptions{})
		require.ErrorIs(t, err, verbs.ErrNoDevice)
		_, err = s.Dial.Resolve(s.ctx(t), netip.AddrPort{}, netip.AddrPortFrom(to.Addr(), 7471))
		require.ErrorIs(t, err, verbs.ErrNoDevice)
	}
}

// wrongOrder calls what is out of turn.
func (s *suite) wrongOrder(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{})
	id := s.resolve(t, ln.Addr())
	_, err := id.Connect(s.ctx(t), param())
	require.Error(t, err, "Connect without QP")
	require.NoError(t, id.Disconnect())

	a, done := s.dial(t, s.ctx(t), ln.Addr(), param())
	req, err := ln.Accept(s.ctx(t))
	require.NoError(t, err)
	require.Error(t, req.Accept(s.ctx(t), param()), "Accept without QP")
	b := s.side(t, req, size{})
	_, err = req.CreateQP(b.pd, verbs.QPOptions{SendCQ: b.sendCQ, RecvCQ: b.recvCQ, Cap: b.qp.Cap()})
	require.Error(t, err, "a second QP")
	if err = req.Accept(s.ctx(t), param()); err == nil { // a failed Accept may have been final
		require.NoError(t, (<-done).err)
		_, err = a.id.(cm.Resolved).Connect(s.ctx(t), param())
		require.Error(t, err, "a second Connect")
		require.Error(t, req.Accept(s.ctx(t), param()), "a second Accept")
		require.Error(t, req.Reject(nil), "Reject after Accept")
		a.post(a.writeWR(1, a.sge(0, 1), b, 0))
		a.sent(1, verbs.WCRDMAWrite)
	}
	b.close()
}

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func (s *suite) cancelResolve(t *testing.T) {
	_, err := s.Dial.Resolve(cancelled(), s.localPort0(), netip.AddrPortFrom(s.Addr, 7471))
	require.ErrorIs(t, err, context.Canceled)
	if s.Nobody.IsValid() {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err = s.Dial.Resolve(ctx, s.localPort0(), netip.AddrPortFrom(s.Nobody, 7471))
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
}

func (s *suite) cancelConnect(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{})
	a, done := s.dial(t, cancelled(), ln.Addr(), param())
	require.ErrorIs(t, (<-done).err, context.Canceled)
	_, err := a.id.(cm.Resolved).Connect(s.ctx(t), param())
	require.Error(t, err, "a given up Connect is final")
	a.close()

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	a, done = s.dial(t, ctx, ln.Addr(), param())
	require.ErrorIs(t, (<-done).err, context.DeadlineExceeded)
	closed := make(chan struct{})
	go func() { // may wait for the other end
		defer close(closed)
		a.close()
	}()

	// The request, if it is still there, leads nowhere.
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if req, err := ln.Accept(ctx); err == nil {
		b, err := s.trySide(t, req, size{})
		if err == nil && req.Accept(s.ctx(t), param()) == nil {
			b.disconnected()
		}
		b.close()
	}
	require.NoError(t, ln.Close())
	<-closed
}

func (s *suite) cancelAccept(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{})
	_, err := ln.Accept(cancelled())
	require.ErrorIs(t, err, context.Canceled)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = ln.Accept(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	a, done := s.dial(t, s.ctx(t), ln.Addr(), param())
	req, err := ln.Accept(s.ctx(t))
	require.NoError(t, err)
	b := s.side(t, req, size{})
	require.ErrorIs(t, req.Accept(cancelled(), param()), context.Canceled)
	b.close()
	if (<-done).err == nil {
		a.disconnected()
	}
	a.close()
	s.connect(t, ln, size{}) // the listener goes on
}

func (s *suite) backlog(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{Backlog: 2})
	answers := make(chan error, 4)
	for range 4 {
		_, done := s.dial(t, s.ctx(t), ln.Addr(), param())
		go func() { answers <- (<-done).err }()
	}
	for range 2 {
		require.ErrorIs(t, <-answers, syscall.ECONNREFUSED)
	}
	for range 2 {
		req, err := ln.Accept(s.ctx(t))
		require.NoError(t, err)
		s.side(t, req, size{})
		require.NoError(t, req.Accept(s.ctx(t), param()))
		require.NoError(t, <-answers)
	}
	s.connect(t, ln, size{})
}

func (s *suite) closeListener(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{})
	const n = 3
	ended := make(chan error, n)
	for range n {
		go func() {
			_, err := ln.Accept(s.ctx(t))
			ended <- err
		}()
	}
	time.Sleep(10 * time.Millisecond) // most likely they wait by now
	require.NoError(t, ln.Close())
	for range n {
		require.ErrorIs(t, <-ended, verbs.ErrClosed)
	}

	// What nobody accepted is rejected, what was accepted goes on.
	ln = s.listen(t, cm.ListenOptions{})
	a, b := s.connect(t, ln, size{})
	_, done := s.dial(t, s.ctx(t), ln.Addr(), param())
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, ln.Close())
	require.ErrorIs(t, (<-done).err, syscall.ECONNREFUSED)
	a.sync(b)
}

// closeUnconnected closes connections that were never made.
func (s *suite) closeUnconnected(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{})
	require.NoError(t, s.resolve(t, ln.Addr()).Close())
	s.side(t, s.resolve(t, ln.Addr()), size{recvs: 2}).close()

	_, done := s.dial(t, s.ctx(t), ln.Addr(), param())
	req, err := ln.Accept(s.ctx(t))
	require.NoError(t, err)
	require.NoError(t, req.Close())
	require.ErrorIs(t, (<-done).err, syscall.ECONNREFUSED)

	_, done = s.dial(t, s.ctx(t), ln.Addr(), param())
	req, err = ln.Accept(s.ctx(t))
	require.NoError(t, err)
	s.side(t, req, size{recvs: 2}).close()
	require.ErrorIs(t, (<-done).err, syscall.ECONNREFUSED)
}
