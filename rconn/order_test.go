package rconn

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

// stash polls as devices do that have taken completions during a wait: those first, and what has come since with the next poll. Between
// taking them and the poll some time passes.
type stash struct {
	verbs.CQ
	verbs.CompletionChannel
	taken []verbs.Completion
	delay time.Duration
}

type (
	stashCQ      struct{ *stash }
	stashChannel struct{ *stash }
)

func (q stashCQ) Poll(wc []verbs.Completion) (int, error) {
	if n := copy(wc, q.taken); n > 0 {
		q.taken = q.taken[n:]
		return n, nil
	}
	return q.CQ.Poll(wc)
}

func (q stashCQ) Depth() int   { return q.CQ.Depth() }
func (q stashCQ) Close() error { return q.CQ.Close() }

func (c stashChannel) Wait(spin time.Duration) error {
	err := c.CompletionChannel.Wait(spin)
	if err == nil && len(c.taken) == 0 {
		var wcs [32]verbs.Completion
		n, _ := c.CQ.Poll(wcs[:])
		c.taken = wcs[:n]
		time.Sleep(c.delay)
	}
	return err
}

func (c stashChannel) Close() error { return c.CompletionChannel.Close() }

// All that had arrived counts before the peer's hanging up does, also if it takes several polls.
//
// fault: CLOSE-4
func TestArrivedBeforeHangUpIsPolledFirst(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t, fc, Config{KeepAlive: -1})
			d, a := n.pair(t)
			s := &stash{CQ: d.ep.cq, CompletionChannel: d.ep.channel, delay: 10 * time.Millisecond}
			d.ep.cq, d.ep.channel = stashCQ{s}, stashChannel{s}
			type result struct {
				got []byte
				err error
			}
			read := make(chan result)
			go func() {
				got, err := io.ReadAll(d)
				read <- result{got, err}
			}()
			synctest.Wait()
			_, err := a.Write([]byte("x"))
			require.NoError(t, err)
			time.Sleep(time.Millisecond)
			_, err = a.Write([]byte("yz"))
			require.NoError(t, err)
			closed := make(chan error)
			go func() { closed <- a.Close() }()
			r := <-read
			require.NoError(t, r.err)
			require.Equal(t, "xyz", string(r.got))
			require.NoError(t, d.Close())
			require.NoError(t, <-closed)
		})
	})
}

// CloseWrite sends the end though as many grants are under way as may be, and nobody waits who would take their completions.
func TestCloseWriteBehindGrants(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		fc.Latency = time.Millisecond
		for _, credits := range []int{2, 8} {
			for reads := 1; reads < 40; reads++ {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork(t, fc, Config{KeepAlive: -1, Credits: credits, RecvBuffer: 4, Linger: time.Second})
					d, a := n.pair(t)
					require.NoError(t, a.SetNoDelay(true))
					go func() {
						for range 200 {
							if _, err := a.Write([]byte("x")); err != nil {
								return
							}
						}
					}()
					time.Sleep(20 * time.Millisecond)
					for range reads {
						_, err := d.Read(make([]byte, 1))
						require.NoError(t, err)
					}
					require.NoError(t, d.CloseWrite())
					require.NoError(t, a.SetReadDeadline(time.Now().Add(time.Minute)))
					_, err := a.Read(make([]byte, 1))
					require.Equal(t, io.EOF, err, "%d credits, %d reads", credits, reads)
					require.NoError(t, d.Close())
					require.NoError(t, a.Close())
				})
			}
		}
	})
}

// The goroutine that posts what Write has left may be run after Close: it touches nothing then.
func TestFlushAfterClose(t *testing.T) {
	n := newSoftware(t, rdma.SoftwareConfig{}, Config{KeepAlive: -1, Linger: -1, SendBuffer: 1 << 16, RecvBuffer: 1 << 10, Credits: 64})
	d, a := n.pair(t)
	for range 32 {
		_, err := a.Write(make([]byte, 32)) // all of the ring
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.progress()
		return d.stream.Unread() == 1024
	}, 10*time.Second, time.Millisecond)
	d.mu.Lock()
	d.stream.Discard() // there is something to grant, which nobody posts
	d.flushing = true
	d.mu.Unlock()
	require.NoError(t, d.Close())
	d.flushRest()
	require.NoError(t, a.Close())
}

// What Read frees behind as many grants as may be under way is granted though nobody calls again.
//
// fault: FLOW-10
func TestGrantsBehindGrants(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		fc.Latency = time.Millisecond
		for _, credits := range []int{2, 8} {
			for reads := 1; reads < 40; reads++ {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork(t, fc, Config{KeepAlive: -1, Credits: credits, RecvBuffer: 4, Linger: -1})
					d, a := n.pair(t)
					require.NoError(t, a.SetNoDelay(true))
					go func() {
						for range 200 {
							if _, err := a.Write([]byte("x")); err != nil {
								return
							}
						}
					}()
					time.Sleep(20 * time.Millisecond)
					for range reads {
						_, err := d.Read(make([]byte, 1))
						require.NoError(t, err)
					}
					time.Sleep(time.Second)
					synctest.Wait()
					require.False(t, d.stream.Granting(), "%d credits, %d reads", credits, reads)
					require.False(t, d.flushing)
					require.NoError(t, d.Close())
					require.NoError(t, a.Close())
				})
			}
		}
	})
}

// What the peer still sends after CloseRead is dropped, though nobody calls: its Write goes on.
//
// fault: FLOW-10
func TestCloseReadFreesTheRing(t *testing.T) {
	const room = 4096
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t, fc, Config{KeepAlive: -1, Linger: -1, RecvBuffer: room})
			d, a := n.pair(t)
			time.Sleep(2 * time.Second) // the gate
			wrote := make(chan error, 1)
			go func() {
				_, err := a.Write(make([]byte, 100*room))
				wrote <- err
			}()
			synctest.Wait()
			require.EqualValues(t, room, a.Stats().BytesSent)
			require.NoError(t, d.CloseRead())
			require.NoError(t, <-wrote)
			require.NoError(t, a.CloseWrite())
			time.Sleep(time.Second)
			synctest.Wait()
			require.False(t, d.flushing, "a goroutine waits for nothing")
			closeBoth(d, a)
		})
	})
}
