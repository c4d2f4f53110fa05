package main

import (
	"context"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/examples/internal/leak"
	"github.com/rconn/rdma/verbs"
)

// serving has a server until the test ends, and then wants nothing left of it.
func serving(t *testing.T, c config) (*server, netip.AddrPort) {
	t.Helper()
	leak.Check(t)
	s, err := newServer(netip.MustParseAddrPort("127.0.0.1:0"), c)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.Empty(t, s.sent)
		require.Empty(t, s.waiting)
		require.Len(t, s.free, 2*c.recvs)
		require.NoError(t, s.close()) // and so had nothing open any more
	})
	return s, s.ln.Addr()
}

func eventually(t *testing.T, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "waited in vain")
	}
}

// gone waits until the server has no clients.
func (s *server) gone(t *testing.T) {
	t.Helper()
	eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.clients) == 0
	})
}

func TestManyClientsShareReceives(t *testing.T) {
	s, addr := serving(t, config{recvs: 64, clients: 8})
	n, errs := load{clients: 8, window: 32, credits: true, lasts: 300 * time.Millisecond}.use(t.Context(), addr, nil)
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Greater(t, n, int64(100))
	require.Equal(t, n, s.requests.Load())
	require.Less(t, s.batches.Load(), n, "each request was a batch of its own")
}

// A server that posts its receives too late breaks connections on iWARP, whose clients do not mind how many there are.
func TestStarvation(t *testing.T) {
	s, addr := serving(t, config{recvs: 16, clients: 4, starve: 2 * time.Millisecond})
	l := load{clients: 4, window: 32, lasts: 200 * time.Millisecond}
	_, errs := l.use(t.Context(), addr, nil)
	lost, others := broken(errs)
	require.NoError(t, others)
	require.Positive(t, lost)
	eventually(t, func() bool { return s.low.Load() > 0 }) // the device tells that receives ran low

	// The receives that the broken connections had begun to use are posted again: the credits are good for as many as before.
	s.gone(t)
	l.credits = true
	n, errs := l.use(t.Context(), addr, nil)
	lost, others = broken(errs)
	require.NoError(t, others)
	require.Zero(t, lost)
	require.Positive(t, n)
}

// With credits nothing breaks, however few receives there are and however late they come.
func TestCredits(t *testing.T) {
	for _, c := range []config{
		{recvs: 8, clients: 8, starve: time.Millisecond},
		{recvs: 8, clients: 2, starve: 5 * time.Millisecond},
		{recvs: 100, clients: 3},
	} {
		_, addr := serving(t, c)
		n, errs := load{clients: c.clients, window: 32, credits: true, lasts: 150 * time.Millisecond}.use(t.Context(), addr, nil)
		for _, err := range errs {
			require.NoError(t, err, "%+v", c)
		}
		require.Positive(t, n)
	}
}

func TestTooManyClients(t *testing.T) {
	s, addr := serving(t, config{recvs: 8, clients: 1})
	var count atomic.Int64
	u, err := dial(t.Context(), addr, 4, true, &count)
	require.NoError(t, err)
	_, err = dial(t.Context(), addr, 4, true, &count)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorContains(t, err, "too many clients")
	require.NoError(t, u.run(time.Now().Add(50*time.Millisecond)))
	require.NoError(t, u.close())
	s.gone(t)
	u, err = dial(t.Context(), addr, 4, true, &count)
	require.NoError(t, err)
	require.NoError(t, u.close())
}

// What is no request gets no answer, and costs no receive.
func TestNoRequest(t *testing.T) {
	s, addr := serving(t, config{recvs: 8, clients: 1})
	var count atomic.Int64
	u, err := dial(t.Context(), addr, 4, true, &count)
	require.NoError(t, err)
	for i := range 20 {
		u.slot(4).setHeader(0, opPut, 1)
		_, err := u.conn.QP.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, SGL: u.objects.SGE(4*slotSize, headerSize)}})
		require.NoError(t, err)
		var wcs [1]verbs.Completion
		_, err = u.objects.Wait(u.conn.Gone(), wcs[:])
		require.NoError(t, err)
		require.NoError(t, wcs[0].Err())
		eventually(t, func() bool { return s.requests.Load() > int64(i) })
	}
	require.NoError(t, u.run(time.Now().Add(50*time.Millisecond)))
	require.Positive(t, count.Load())
	require.NoError(t, u.close())
}

// The client notices an answer that is not what was PUT.
func TestWrongAnswers(t *testing.T) {
	slot := make(message, slotSize)
	u := &user{expected: []expectation{{op: opGet, key: 7, version: 3}}}
	fillValue(slot.value(), 7, 3)
	slot.setHeader(0, 1, 7)
	require.NoError(t, u.check(slot, slotSize))

	require.ErrorContains(t, u.check(slot, headerSize), "missing")
	slot.setHeader(1, 1, 7)
	require.ErrorContains(t, u.check(slot, slotSize), "answer to request 0")
	slot.setHeader(0, 1, 7)
	fillValue(slot.value(), 7, 2)
	require.ErrorContains(t, u.check(slot, slotSize), "version 3")
	slot.setHeader(0, 0, 7)
	require.ErrorContains(t, u.check(slot, slotSize), "missing")
}

func TestDemo(t *testing.T) {
	leak.Check(t)
	l := load{clients: 4, window: 32, lasts: 50 * time.Millisecond}
	require.NoError(t, show(t.Context(), "127.0.0.1:0", config{recvs: 16, clients: 4}, l))
	require.ErrorContains(t, show(t.Context(), "127.0.0.1", config{}, l), "want IP:port")
	require.Zero(t, rnr("no such device"))
}
