package compat

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// fakeConn is told whether it was closed.
type fakeConn struct {
	net.Conn
	name   string
	closed *sync.Map
}

func (c *fakeConn) Close() error {
	c.closed.Store(c.name, true)
	return nil
}

var errBoom = errors.New("boom")

// Each way takes its time and then connects, or fails, or hears that it is given up. Which one is taken, when, and what becomes of the
// others.
func TestRace(t *testing.T) {
	const never = -1
	type w struct {
		patience, takes time.Duration
		err             error
		deaf            bool // connects although it was given up
	}
	ms := time.Millisecond
	for name, c := range map[string]struct {
		ways     []w
		limit    time.Duration // of the context
		won      int
		after    time.Duration
		outcomes string
		closed   string
	}{
		"the first":            {[]w{{250 * ms, 10 * ms, nil, false}, {-1, 0, nil, false}}, 0, 0, 10 * ms, "[taken after 10ms not tried]", ""},
		"fails at once":        {[]w{{250 * ms, 0, errBoom, false}, {-1, 5 * ms, nil, false}}, 0, 1, 5 * ms, "[boom taken after 5ms]", ""},
		"fails late":           {[]w{{250 * ms, 100 * ms, errBoom, false}, {-1, 5 * ms, nil, false}}, 0, 1, 105 * ms, "[boom taken after 5ms]", ""},
		"slow":                 {[]w{{250 * ms, never, nil, false}, {-1, 5 * ms, nil, false}}, 0, 1, 255 * ms, "[no answer in 255ms taken after 5ms]", ""},
		"slow, but faster":     {[]w{{250 * ms, 260 * ms, nil, false}, {-1, 50 * ms, nil, false}}, 0, 0, 260 * ms, "[taken after 260ms no answer in 10ms]", ""},
		"late loser is closed": {[]w{{250 * ms, 300 * ms, nil, true}, {-1, 5 * ms, nil, false}}, 0, 1, 255 * ms, "[no answer in 255ms taken after 5ms]", "0"},
		"three, two slow":      {[]w{{250 * ms, never, nil, false}, {250 * ms, never, nil, false}, {-1, 5 * ms, nil, false}}, 0, 2, 505 * ms, "[no answer in 505ms no answer in 255ms taken after 5ms]", ""},
		"the second fails while the first is slow": {[]w{{250 * ms, never, nil, false}, {250 * ms, 10 * ms, errBoom, false}, {-1, 5 * ms, nil, false}}, 0, 2, 265 * ms,
			"[no answer in 265ms boom taken after 5ms]", ""},
		"the first fails while the second has time": {[]w{{250 * ms, 260 * ms, errBoom, false}, {250 * ms, never, nil, false}, {-1, 5 * ms, nil, false}}, 0, 2, 505 * ms,
			"[boom no answer in 255ms taken after 5ms]", ""},
		"has to wait": {[]w{{-1, 10 * time.Second, errBoom, false}, {-1, 5 * ms, nil, false}}, 0, 1, 10005 * ms, "[boom taken after 5ms]", ""},
		"all fail":    {[]w{{250 * ms, 5 * ms, errBoom, false}, {-1, 5 * ms, errBoom, false}}, 0, -1, 10 * ms, "[boom boom]", ""},
		"little time is shared": {[]w{{250 * ms, never, nil, false}, {250 * ms, never, nil, false}, {-1, 5 * ms, nil, false}}, 90 * ms, 2, 65 * ms,
			"[no answer in 65ms no answer in 35ms taken after 5ms]", ""},
		"no time": {[]w{{-1, never, nil, false}, {-1, 5 * ms, nil, false}}, 90 * ms, -1, 90 * ms, "[context deadline exceeded not tried]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var closed sync.Map
				var ways []way
				for i, w := range c.ways {
					ways = append(ways, way{strconv.Itoa(i), w.patience, func(ctx context.Context) (net.Conn, error) {
						given := ctx.Done()
						if w.deaf {
							given = nil
						}
						var ends <-chan time.Time
						if w.takes >= 0 {
							ends = time.After(w.takes)
						}
						select {
						case <-given:
							return nil, ctx.Err()
						case <-ends:
						}
						if w.err != nil {
							return nil, w.err
						}
						return &fakeConn{name: strconv.Itoa(i), closed: &closed}, nil
					}})
				}
				ctx := t.Context()
				if c.limit > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.limit)
					defer cancel()
				}
				start := time.Now()
				conn, won, outcomes := race(ctx, ways)
				require.Equal(t, c.won, won)
				require.Equal(t, c.won >= 0, conn != nil)
				require.Equal(t, c.after, time.Since(start))
				require.Equal(t, c.outcomes, fmt.Sprint(outcomes))
				time.Sleep(time.Hour)
				synctest.Wait()
				left := ""
				closed.Range(func(k, _ any) bool { left += k.(string); return true })
				require.Equal(t, c.closed, left)
			})
		})
	}
}

func TestMemory(t *testing.T) {
	refused := &cm.RejectedError{Reason: cm.RejectNoListener}
	synctest.Test(t, func(t *testing.T) {
		var m memory
		a, b := attempt{"tcp", "h:1", "x"}, attempt{"tcp", "h:1", "y"}
		require.False(t, m.vain(a))
		m.note(a, refused, time.Minute)
		require.True(t, m.vain(a))
		require.False(t, m.vain(b))
		require.False(t, m.vain(attempt{"tcp6", "h:1", "x"}))
		time.Sleep(time.Minute - 1)
		require.True(t, m.vain(a))
		time.Sleep(time.Nanosecond)
		require.False(t, m.vain(a))
		m.note(a, refused, time.Minute)
		m.forget(a)
		require.False(t, m.vain(a))
		m.note(a, refused, -1)
		require.False(t, m.vain(a))

		// What is over goes first, and there are never more than the bound.
		for i := range maxRemembered - 1 {
			m.note(attempt{"tcp", strconv.Itoa(i), "old"}, refused, time.Second)
		}
		m.note(a, refused, time.Hour)
		time.Sleep(time.Minute)
		m.note(b, refused, time.Hour)
		require.Len(t, m.notes, 2)
		for i := range 3 * maxRemembered {
			m.note(attempt{"tcp", strconv.Itoa(i), "new"}, refused, time.Hour)
			if len(m.notes) > maxRemembered || !m.vain(attempt{"tcp", strconv.Itoa(i), "new"}) {
				t.Fatalf("%d remembered after %d", len(m.notes), i)
			}
		}
	})
}

// What may work the next time is left out for a short time, which grows until it does work, or until there is an answer.
func TestDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m memory
		a := attempt{"tcp", "h:1", "x"}
		lasts := func(err error, most time.Duration) time.Duration {
			start := time.Now()
			for m.note(a, err, most); m.vain(a); {
				time.Sleep(100 * time.Millisecond)
			}
			return time.Since(start)
		}
		for _, s := range []int{5, 10, 20, 40, 60, 60} {
			require.Equal(t, time.Duration(s)*time.Second, lasts(nil, time.Minute))
		}
		m.forget(a)
		require.Equal(t, 5*time.Second, lasts(nil, time.Minute))
		require.Equal(t, 10*time.Second, lasts(syscall.ECONNRESET, time.Minute))
		require.Equal(t, time.Minute, lasts(verbs.ErrNoDevice, time.Minute))
		require.Equal(t, 5*time.Second, lasts(nil, time.Minute))
		require.Equal(t, time.Second, lasts(nil, time.Second))

		// Dials at the same time are no row: a pool that opens ten connections at once has tried once.
		m.forget(a)
		for range 9 {
			m.note(a, nil, time.Minute)
		}
		require.Equal(t, 5*time.Second, lasts(nil, time.Minute))
		m.note(a, verbs.ErrNoDevice, time.Minute)
		require.Equal(t, time.Minute, lasts(nil, time.Minute)) // the answer stands
	})
	addr := netip.MustParseAddrPort("10.0.0.1:80")
	for _, c := range []struct {
		err      error
		definite bool
		brief    string
	}{
		{verbs.ErrNoDevice, true, "no device"},
		{&cm.RejectedError{Reason: cm.RejectNoListener}, true, "refused"},
		{&cm.RejectedError{Reason: cm.RejectConsumer}, false, "refused"},
		{&cm.RejectedError{Reason: int(syscall.ECONNREFUSED)}, false, "refused"},
		{syscall.EHOSTUNREACH, true, "unreachable"},
		{syscall.ENETUNREACH, true, "unreachable"},
		{fmt.Errorf("%w: what?", syscall.EPROTO), true, "another protocol"},
		{syscall.ECONNRESET, false, "reset"},
		{syscall.ETIMEDOUT, false, "no answer"},
		{context.DeadlineExceeded, false, "no answer"},
		{syscall.ENOMEM, false, "failed"},
	} {
		err := &net.OpError{Op: "dial", Err: &cm.Error{Op: "connect", Addr: addr, Err: c.err}}
		require.Equal(t, c.definite, isDefinite(err), c.err)
		require.Equal(t, c.brief, outcome{started: time.Now(), ended: true, err: err}.brief())
	}
}

func TestPolicyText(t *testing.T) {
	for p, name := range map[Policy]string{Prefer: "prefer", Require: "require", TCPOnly: "tcp-only"} {
		var q Policy
		require.NoError(t, q.UnmarshalText([]byte(name)))
		require.Equal(t, p, q)
		text, err := p.MarshalText()
		require.NoError(t, err)
		require.Equal(t, name, string(text))
	}
	require.ErrorContains(t, new(Policy).UnmarshalText([]byte("rdma")), `"prefer"`)
	require.Equal(t, "Policy(9)", Policy(9).String())
}
