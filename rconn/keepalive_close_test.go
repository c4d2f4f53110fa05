package rconn

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/verbs/verbstest"
)

// A connection is closed at random moments around a tick of its keepalive timer: the one that asks for a sign of life, the one that
// would give up, and just when the answer comes. After Close nothing is posted or polled any more, and nothing is left.
//
// fault: DEATH-4
func TestCloseAroundTick(t *testing.T) {
	const idle, timeout, latency = time.Second, 500 * time.Millisecond, 10 * time.Microsecond
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		fc.Latency = latency
		r := rand.New(rand.NewPCG(5, 6))
		first := [2]int{} // how often Close was, and the tick
		for round := range 400 {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, fc, Config{
					SendBuffer: 64, RecvBuffer: 64, Credits: 4, SendQueue: 16, KeepAlive: idle, KeepAliveTimeout: timeout, AckTimeout: 31,
					Linger: time.Duration(1-2*(round&1)) * time.Second, // or none
				})
				d, a := n.pair(t)
				synctest.Wait()
				d.mu.Lock()
				tick := time.Until(d.keepalive.heard) + idle
				d.mu.Unlock()
				if round%4 >= 2 { // nobody answers
					n.fab.Cut(n.a, n.b)
					if round%8 >= 4 {
						tick += timeout
					}
				}
				// Mostly at the very nanosecond: then the two run at the same time.
				if round%3 == 0 {
					tick += time.Duration(r.IntN(int(6*latency))) - latency
				}
				var wg sync.WaitGroup
				if round%5 == 0 { // somebody waits
					wg.Go(func() { d.Read(make([]byte, 1)) })
				}
				time.Sleep(tick)
				require.NoError(t, d.Close())
				calls := n.a.Calls(verbstest.AnyOp)
				probes := d.Stats().Probes
				time.Sleep(time.Hour)
				require.Equal(t, calls, n.a.Calls(verbstest.AnyOp), "the timer fires on a closed connection")
				require.Equal(t, probes, d.Stats().Probes)
				first[min(probes, 1)]++
				wg.Wait()
				require.NoError(t, a.SetLinger(0))
				require.NoError(t, a.Close())
			})
		}
		t.Logf("Close came first %d times, the tick %d times", first[0], first[1])
		require.True(t, first[0] > 10 && first[1] > 10)
	})
}
