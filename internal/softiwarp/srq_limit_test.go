package softiwarp

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/verbs"
)

// TestSRQLimit arms the limit above and below what is left.
func TestSRQLimit(t *testing.T) {
	f := newSRQFixture(t, Config{}, pairSize{wr: 8}, 6)
	x, _ := f.connect(t)
	events := watch(t, f.p.dev)
	use := func() {
		x.post(t, verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled})
		f.pool.taken(t)
	}
	armed := func() int {
		a, err := f.pool.srq.Query()
		require.NoError(t, err)
		return a.Limit
	}
	reached := verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: f.pool.srq}
	require.NoError(t, f.pool.srq.SetLimit(5))
	use() // 5 are left
	require.Equal(t, 5, armed())
	require.Empty(t, events)
	use()
	require.Equal(t, reached, nextEvent(t, events))
	require.Zero(t, armed())
	use() // it comes once
	require.NoError(t, f.pool.srq.SetLimit(4))
	require.Equal(t, reached, nextEvent(t, events), "at once")
	require.Zero(t, armed())
	require.NoError(t, f.pool.srq.SetLimit(3))
	require.NoError(t, f.pool.srq.SetLimit(0))
	use()
	require.Empty(t, events)
	require.NoError(t, f.pool.srq.SetLimit(8))
	require.Equal(t, reached, nextEvent(t, events))
}

// TestSRQLimitRaces arms the limit while others post and peers send: there is one event for each arming at most, and in the end no arming
// without one.
func TestSRQLimitRaces(t *testing.T) {
	const clients, messages = 4, 300
	f := newSRQFixture(t, Config{}, pairSize{wr: 64}, 64)
	var events, armings atomic.Int64
	defer f.p.dev.Watch(func(e verbs.AsyncEvent) {
		if e.Type == verbs.EventSRQLimitReached {
			events.Add(1)
		}
	})()
	tickets := make(chan struct{}, 64) // messages under way
	var senders, helpers sync.WaitGroup
	for range clients {
		x, _ := f.connect(t)
		senders.Go(func() {
			for range messages {
				tickets <- struct{}{}
				x.send(t, 8)
				x.reap(t)
			}
		})
	}
	stop := make(chan struct{})
	for range 2 {
		helpers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				armings.Add(1)
				if err := f.pool.srq.SetLimit(1 + i%64); err != nil {
					t.Error(err)
				}
				if _, err := f.pool.srq.Query(); err != nil {
					t.Error(err)
				}
				time.Sleep(50 * time.Microsecond)
			}
		})
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		for range clients * messages {
			f.pool.recv(t)
			<-tickets
		}
	}()
	senders.Wait()
	<-received
	close(stop)
	helpers.Wait()
	require.Equal(t, 64, f.pool.left())
	require.LessOrEqual(t, events.Load(), armings.Load())
	require.NoError(t, f.pool.srq.SetLimit(0))
	before := events.Load()
	require.NoError(t, f.pool.srq.SetLimit(64)) // as many as there are
	x, _ := f.connect(t)
	x.send(t, 1)
	eventually(t, "the limit is told", func() bool { return events.Load() > before })
	f.pool.recv(t)
}
