package rconn

import (
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs/verbstest"
)

func TestBacklogBounds(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{})
	for _, backlog := range []int{-1, 1 << 40} {
		lc := ListenConfig{Providers: []cm.Provider{n.b}, Backlog: backlog}
		_, err := lc.Listen(context.Background(), "rdma", addrB+":0")
		require.ErrorContains(t, err, "Backlog")
	}
}

// A listener closes at once, however many connections nobody accepted.
func TestListenerClosesWaitingAtOnce(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t, fc, Config{})
			ln := n.listen(t, addrB+":0")
			var conns []net.Conn
			for range 20 {
				c, err := n.dialer().Dial("tcp", ln.Addr().String())
				require.NoError(t, err)
				conns = append(conns, c)
			}
			synctest.Wait()
			start := time.Now()
			require.NoError(t, ln.Close())
			require.Zero(t, time.Since(start))
			for _, c := range conns {
				_, err := c.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.NoError(t, c.Close())
			}
		})
	})
}

// A listener whose device is gone says so, instead of waiting for ever.
//
// fault: DEATH-6
func TestListenerDeviceRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{})
		ln := n.listen(t, addrB+":0")
		accepted := make(chan error, 1)
		go func() { _, err := ln.Accept(); accepted <- err }()
		synctest.Wait()
		n.b.RemoveDevice(n.b.Device(0))
		time.Sleep(2 * time.Second)
		require.Len(t, accepted, 1)
		t.Log(<-accepted)
		require.NoError(t, ln.Close())
	})
}

// With an unspecified address, as without a host, both families are served, as package net does.
func TestListenUnspecified(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{})
	for _, host := range []string{"", "[::]", "0.0.0.0"} {
		ln := n.listen(t, host+":0")
		require.Len(t, ln.lns, 2, host)
		require.NoError(t, ln.Close())
	}
}

// A thousand dials at once while the server is busy and does not accept: all connect when it does, as with package net.
//
// fault: CONN-10 (software)
func TestBurst(t *testing.T) {
	const dials = 1000
	small := Config{SendBuffer: 4 << 10, RecvBuffer: 4 << 10, Credits: 8, SendQueue: 16, HandshakeTimeout: time.Minute}
	forSome(t, func(t *testing.T, dev device) {
		dev.bubble(t, func(t *testing.T) {
			n := dev.network(t, small)
			ln := n.listen(t, n.addr)
			var wg sync.WaitGroup
			for range dials {
				wg.Go(func() {
					c, err := n.dialer().Dial("tcp", ln.Addr().String())
					if err != nil {
						t.Error(err)
						return
					}
					if _, err := io.ReadAll(c); err != nil {
						t.Error(err)
					}
					c.Close()
				})
			}
			eventually(t, func() bool { return ln.Stats().Waiting == maxMade })
			require.NoError(t, ln.SetDeadline(time.Now().Add(time.Minute)))
			for range dials {
				c, err := ln.Accept()
				require.NoError(t, err)
				wg.Go(func() { c.Close() })
			}
			wg.Wait()
			require.NoError(t, ln.Close())
			require.Zero(t, ln.Stats().Failed)
			require.NoError(t, n.leaks())
		})
	})
}

// A flood of peers that are refused fills no log: one warning in 10 s, that counts the others.
func TestHostileFloodIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var warned warnings
		n := newNetwork(t, verbstest.Config{}, Config{Logger: slog.New(&warned)})
		ln := n.listen(t, n.addr)
		refused := func() {
			_, err := dialRaw(t, n, ln.Addr(), func(b []byte) { clear(b) })
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			synctest.Wait()
		}
		for range 50 {
			refused()
		}
		require.Equal(t, []int64{0}, warned.leftOut)
		time.Sleep(10 * time.Second)
		refused()
		require.Equal(t, []int64{0, 49}, warned.leftOut)
		require.EqualValues(t, 51, ln.Stats().Failed)
		require.NoError(t, ln.Close())
	})
}

// warnings is a log that keeps how many each warning says were left out.
type warnings struct {
	slog.Handler
	leftOut []int64
}

func (w *warnings) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	n := int64(0)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "left_out" {
			n = a.Value.Int64()
		}
		return true
	})
	w.leftOut = append(w.leftOut, n)
	return nil
}
