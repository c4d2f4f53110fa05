package main

import (
	"context"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/examples/internal/leak"
)

// TestMain makes the test binary the program itself where a test runs processes.
func TestMain(m *testing.M) {
	if os.Getenv("LOCK_PROGRAM") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// serving has a server until the test ends, and then wants nothing left of it.
func serving(t *testing.T) netip.AddrPort {
	t.Helper()
	leak.Check(t)
	o, err := newServer("127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.NoError(t, o.Close())
	})
	return o.Addr()
}

func contenders(n int) contest {
	return contest{contenders: n, of: n, lasts: 300 * time.Millisecond, lease: lease{200 * time.Millisecond}}
}

// The counter is exact under each lock with 8 contenders, and is not without one.
func TestCounter(t *testing.T) {
	addr := serving(t)
	for _, kind := range kinds {
		s, err := contenders(8).hold(t.Context(), addr, kind, false)
		require.NoError(t, err, kind)
		require.Greater(t, s.total.Acquired, 16, kind)
		if kind == "none" {
			require.Less(t, s.counted, s.total.Acquired)
			continue
		}
		require.Equal(t, s.total.Acquired, s.counted, kind)
		require.Positive(t, s.total.Retries, "%s: nobody has contended", kind)
	}
}

// Tickets are served in the order in which they were drawn.
func TestTicketsAreServedInTurn(t *testing.T) {
	addr := serving(t)
	holder, err := join(t.Context(), addr)
	require.NoError(t, err)
	defer holder.close()
	require.NoError(t, ticket{}.acquire(t.Context(), holder))

	var wg sync.WaitGroup
	served := make(chan int, 7)
	for i := range cap(served) {
		c, err := join(t.Context(), addr)
		require.NoError(t, err)
		defer c.close()
		wg.Go(func() {
			assert.NoError(t, ticket{}.acquire(t.Context(), c))
			served <- i
			assert.NoError(t, ticket{}.release(c, c.mem.Store(counterAt, uint64(i))))
		})
		for drawn := uint64(0); drawn < uint64(i+2); {
			drawn, err = holder.mem.Do(holder.mem.Load(nextAt))
			require.NoError(t, err)
		}
	}
	require.Empty(t, served)
	require.NoError(t, ticket{}.release(holder, holder.mem.Store(counterAt, 0)))
	wg.Wait()
	for i := range cap(served) {
		require.Equal(t, i, <-served)
	}
}

func TestProcesses(t *testing.T) {
	t.Setenv("LOCK_PROGRAM", "1")
	addr := serving(t)
	for _, kind := range []string{"cas", "ticket"} {
		s, err := contenders(8).hold(t.Context(), addr, kind, true)
		require.NoError(t, err, kind)
		require.Greater(t, s.total.Acquired, 16)
		require.Equal(t, s.total.Acquired, s.counted, kind)
	}
}

func TestDeadHolder(t *testing.T) {
	addr := serving(t)
	tries, err := deadHolder(t.Context(), addr, 200*time.Millisecond)
	require.NoError(t, err)
	require.Greater(t, tries, 1)

	// The lock that its killer has broken works again.
	s, err := contenders(2).hold(t.Context(), addr, "cas", false)
	require.NoError(t, err)
	require.True(t, s.exact())
}

// A dead holder's ticket is worse: nobody behind it is served.
func TestDeadTicket(t *testing.T) {
	addr := serving(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := vanish(ctx, addr, func(c *contender) error { return ticket{}.acquire(ctx, c) })
	require.NoError(t, err)
	c, err := join(t.Context(), addr)
	require.NoError(t, err)
	defer c.close()
	require.ErrorIs(t, ticket{}.acquire(ctx, c), context.DeadlineExceeded)
}

func TestDeadLessee(t *testing.T) {
	addr := serving(t)
	l := lease{100 * time.Millisecond}
	for range 2 {
		waited, err := deadLessee(t.Context(), addr, l)
		require.NoError(t, err)
		require.GreaterOrEqual(t, waited, l.lasts-2*time.Millisecond) // the clock is set once in a millisecond
	}
}

// Leases that are given back at once, many in a row, end no later than they should.
func TestLeasesDoNotAddUp(t *testing.T) {
	addr := serving(t)
	l := lease{100 * time.Millisecond}
	c, err := join(t.Context(), addr)
	require.NoError(t, err)
	defer c.close()
	last := uint64(0)
	for range 500 {
		g, err := l.acquire(t.Context(), c)
		require.NoError(t, err)
		require.False(t, g.takenOver)
		require.Greater(t, g.word, last)
		last = g.word
		require.NoError(t, l.release(c, g))
	}
	now, err := c.mem.Do(c.mem.Load(clockAt))
	require.NoError(t, err)
	require.LessOrEqual(t, last>>holderBits, now+ticks(l.lasts)+500)
}

func TestLateHolder(t *testing.T) {
	addr := serving(t)
	l := lease{30 * time.Millisecond}
	grown, told, err := lateHolder(t.Context(), addr, l, false)
	require.NoError(t, err)
	require.NoError(t, told)
	require.Equal(t, 1, grown, "the WRITE of the late holder undid nothing")

	grown, told, err = lateHolder(t.Context(), addr, l, true)
	require.NoError(t, err)
	require.ErrorIs(t, told, errFenced)
	require.Equal(t, 1, grown)
}

// A holder that is late before it has touched the counter is fenced off too, and cannot release what is not its own.
func TestLateEntry(t *testing.T) {
	addr := serving(t)
	l := lease{30 * time.Millisecond}
	late, err := join(t.Context(), addr)
	require.NoError(t, err)
	defer late.close()
	next, err := join(t.Context(), addr)
	require.NoError(t, err)
	defer next.close()

	g, err := l.acquire(t.Context(), late)
	require.NoError(t, err)
	require.NoError(t, l.increment(t.Context(), next))
	_, err = g.enter(late)
	require.ErrorIs(t, err, errFenced)
	require.ErrorIs(t, l.release(late, g), errLost)
}

func TestProgram(t *testing.T) {
	leak.Check(t)
	require.NoError(t, program(t.Context(), []string{"-demo", "-for", "50ms", "-lease", "20ms"}))
}
