//go:build unix

package rconn

import (
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/verbs/verbstest"
)

// cpuTime is the CPU time that this process has used.
func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Connections on which everybody waits use no CPU: nothing is called but for the signs of life.
//
// fault: MEM-9
func TestIdle(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		for name, keepAlive := range map[string]time.Duration{"keepalive": 0, "no keepalive": -1} {
			t.Run(name, func(t *testing.T) {
				// In virtual time an hour is over at once if nobody does anything.
				synctest.Test(t, func(t *testing.T) {
					const conns = 50
					n := newNetwork(t, fc, Config{SendBuffer: 64, RecvBuffer: 64, Credits: 4, SendQueue: 16, KeepAlive: keepAlive})
					var ends []*Conn
					var wg sync.WaitGroup
					for range conns {
						d, a := n.pair(t)
						ends = append(ends, d, a)
						wg.Go(func() { d.Read(make([]byte, 1)) })
						wg.Go(func() { d.Write(make([]byte, 1000)) }) // more than the peer takes
					}
					time.Sleep(time.Minute)
					calls := n.a.Calls(verbstest.AnyOp) + n.b.Calls(verbstest.AnyOp)
					time.Sleep(time.Hour)
					calls = n.a.Calls(verbstest.AnyOp) + n.b.Calls(verbstest.AnyOp) - calls
					t.Logf("%d calls in an hour of %d ends", calls, len(ends))
					if keepAlive < 0 {
						require.Zero(t, calls)
					}
					require.LessOrEqual(t, calls, 8*len(ends)*int(time.Hour/defaultKeepAlive))
					for _, c := range ends {
						require.NoError(t, c.SetLinger(0))
						require.NoError(t, c.Close())
					}
					wg.Wait()
				})
			})
		}
	})
	// And by the clock of the processor.
	n := newNetwork(t, verbstest.Config{}, Config{SendBuffer: 4096, RecvBuffer: 4096, KeepAlive: 500 * time.Millisecond})
	var ends []*Conn
	var wg sync.WaitGroup
	for range 50 {
		d, a := n.pair(t)
		for _, c := range []*Conn{d, a} {
			ends = append(ends, c)
			wg.Go(func() { c.Read(make([]byte, 1)) })
		}
	}
	runtime.GC()
	before := cpuTime(t)
	time.Sleep(time.Second)
	used := cpuTime(t) - before
	t.Logf("%d idle ends used %v of CPU in 1 s", len(ends), used)
	require.Less(t, used, 100*time.Millisecond)
	for _, c := range ends {
		require.NoError(t, c.SetLinger(0))
		require.NoError(t, c.Close())
	}
	wg.Wait()
}
