package softiwarp

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

func (d *duty) holds(h holder) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.holder == h
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); runtime.Gosched() {
		require.True(t, time.Now().Before(end), what)
	}
}

// TestDuty follows the duty to receive: the servant has it first, gives way to a waiter who slept beside him, and takes it back when
// none comes any more.
func TestDuty(t *testing.T) {
	x, y := newPair(t, Config{}, pairSize{})
	d := &y.qp.(*qp).duty
	require.True(t, d.holds(servant))
	next, got := make(chan struct{}, 1), make(chan struct{})
	go func() {
		for range next {
			y.recv(t)
			got <- struct{}{}
		}
	}()
	defer close(next)
	follows := &y.ch.(*channel).follows
	next <- struct{}{}
	eventually(t, "a waiter sleeps beside the servant", follows.Load)
	for range 2 { // after the servant, and after a waiter
		for tries := 0; ; tries++ {
			next <- struct{}{}
			x.send(t, 1)
			<-got
			eventually(t, "the next wait begins", func() bool { return d.holds(waiter) || d.holds(servant) && follows.Load() })
			if d.holds(waiter) {
				break
			}
			require.Less(t, tries, 50, "the next wait has the duty, unless it comes too late")
		}
	}
	x.send(t, 1)
	<-got // nobody waits any more
	eventually(t, "the servant takes over", func() bool { return d.holds(servant) })

	// Idle, it stays so, and no timer runs.
	time.Sleep(5 * vacancy)
	d.mu.Lock()
	require.False(t, d.ticks)
	d.mu.Unlock()

	// An interrupted waiter leaves it too.
	done := make(chan error, 1)
	go func() { done <- y.ch.Wait(0) }()
	y.ch.Interrupt()
	require.NoError(t, <-done)
	x.send(t, 1)
	y.recv(t)
}

// TestDutyEnds has the connection end while a waiter has the duty, while the servant has it, and while nobody has.
func TestDutyEnds(t *testing.T) {
	for name, state := range map[string]func(e *end, peer *end){
		"servant": func(*end, *end) {},
		"vacant": func(e *end, peer *end) {
			peer.send(t, 1)
			e.recv(t)
		},
		"waiter": func(e *end, peer *end) {
			for range 3 {
				peer.send(t, 1)
				e.recv(t)
			}
			go func() { _ = e.ch.Wait(0) }()
		},
	} {
		t.Run(name, func(t *testing.T) {
			x, y := newPair(t, Config{}, pairSize{})
			state(y, x)
			require.NoError(t, y.id.Disconnect())
			y.disconnected(t)
			x.disconnected(t)
			y.ch.Interrupt()
			dev := y.id.Device().(*device)
			eventually(t, "both TCP connections are closed", func() bool { return dev.open.streams.Load() == 0 })
		})
	}
}

// TestDutyOfTwoChannels has a QP with a channel for each queue: when the waiter of one leaves, that of the other takes the duty.
func TestDutyOfTwoChannels(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	id, err := p.Resolve(t.Context(), netip.AddrPort{}, ln.Addr())
	require.NoError(t, err)
	pd, err := id.Device().AllocPD()
	require.NoError(t, err)
	var chs [2]verbs.CompletionChannel
	var cqs [2]verbs.CQ
	for i := range chs {
		chs[i], err = id.Device().CreateCompletionChannel()
		require.NoError(t, err)
		cqs[i], err = id.Device().CreateCQ(verbs.CQOptions{Depth: 2, Channel: chs[i]})
		require.NoError(t, err)
	}
	pair, err := id.CreateQP(pd, verbs.QPOptions{SendCQ: cqs[0], RecvCQ: cqs[1]})
	require.NoError(t, err)
	_, err = pair.PostRecv(make([]verbs.RecvWR, 1))
	require.NoError(t, err)
	connected := make(chan error, 1)
	go func() {
		_, err := id.Connect(t.Context(), param())
		connected <- err
	}()
	req, err := ln.Accept(t.Context())
	require.NoError(t, err)
	peer := newEnd(t, req, pairSize{})
	require.NoError(t, req.Accept(t.Context(), param()))
	require.NoError(t, <-connected)

	waits := [2]chan error{make(chan error, 1), make(chan error, 1)}
	wait := func(i int) { go func() { waits[i] <- chs[i].Wait(0) }() }
	wait(0)
	eventually(t, "one waits", chs[0].(*channel).follows.Load)
	peer.send(t, 0) // the servant hears it, and gives way
	d := &pair.(*qp).duty
	eventually(t, "one has the duty", func() bool { return d.holds(waiter) })
	require.NoError(t, chs[1].Wait(0))
	_, err = cqs[1].Poll(make([]verbs.Completion, 1))
	require.NoError(t, err)
	wait(1)
	eventually(t, "the other waits", chs[1].(*channel).follows.Load)
	chs[0].Interrupt()
	require.NoError(t, <-waits[0])
	eventually(t, "the other has the duty", func() bool { return d.holds(waiter) })
	chs[1].Interrupt()
	require.NoError(t, <-waits[1])

	require.NoError(t, pair.Close())
	for i := range chs {
		require.NoError(t, cqs[i].Close())
		require.NoError(t, chs[i].Close())
	}
	require.NoError(t, pd.Close())
	require.NoError(t, id.Close())
}
