package compat

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
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
	synctest.Test(t, func(t *testing.T) {
		var m memory
		a, b := attempt{"h:1", "x"}, attempt{"h:1", "y"}
		require.False(t, m.vain(a))
		m.note(a, time.Minute)
		require.True(t, m.vain(a))
		require.False(t, m.vain(b))
		time.Sleep(time.Minute - 1)
		require.True(t, m.vain(a))
		time.Sleep(time.Nanosecond)
		require.False(t, m.vain(a))
		m.note(a, time.Minute)
		m.forget(a)
		require.False(t, m.vain(a))
		m.note(a, -1)
		require.False(t, m.vain(a))

		// What is over goes first, and there are never more than the bound.
		for i := range maxRemembered - 1 {
			m.note(attempt{strconv.Itoa(i), "old"}, time.Second)
		}
		m.note(a, time.Hour)
		time.Sleep(time.Minute)
		m.note(b, time.Hour)
		require.Len(t, m.until, 2)
		for i := range 3 * maxRemembered {
			m.note(attempt{strconv.Itoa(i), "new"}, time.Hour)
			if len(m.until) > maxRemembered || !m.vain(attempt{strconv.Itoa(i), "new"}) {
				t.Fatalf("%d remembered after %d", len(m.until), i)
			}
		}
	})
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
