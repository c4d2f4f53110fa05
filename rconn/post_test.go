package rconn

import (
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

// slowQP does its work in the call that posts, as Soft-RoCE does.
type slowQP struct {
	verbs.QP
	delay time.Duration

	mu      sync.Mutex
	posting int
	most    int // calls at once
	calls   int
}

func (q *slowQP) PostSend(wrs []verbs.SendWR) (int, error) {
	q.mu.Lock()
	q.posting++
	q.calls++
	q.most = max(q.most, q.posting)
	q.mu.Unlock()
	time.Sleep(q.delay)
	n, err := q.QP.PostSend(wrs)
	q.mu.Lock()
	q.posting--
	q.mu.Unlock()
	return n, err
}

// slowDown has the posts of a connection take a while.
func (c *Conn) slowDown(delay time.Duration) *slowQP {
	q := &slowQP{QP: c.ep.qp, delay: delay}
	c.ep.qp = q
	return q
}

// startPost has a goroutine post something that no call waits for, as keepalive does. It tells when that has returned.
func (c *Conn) startPost() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		c.mu.Lock()
		c.probe()
		c.mu.Unlock()
		close(done)
	}()
	synctest.Wait()
	return done
}

// While one goroutine is in a call that posts, which may take long, others go on: one reads what is there, one writes. What they have to post
// follows, and Close waits for it, also if it does not linger.
func TestCallsDuringSlowPost(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t, fc, Config{KeepAlive: -1})
			d, a := n.pair(t)
			time.Sleep(2 * time.Second) // the gate
			_, err := a.Write([]byte("there"))
			require.NoError(t, err)
			synctest.Wait()
			const delay = 100 * time.Millisecond
			q := d.slowDown(delay)
			begun := time.Now()
			d.startPost()
			require.Equal(t, 1, q.posting)

			got := make([]byte, 5)
			_, err = io.ReadFull(d, got)
			require.NoError(t, err)
			require.Equal(t, "there", string(got))
			_, err = d.Write([]byte("and "))
			require.NoError(t, err)
			_, err = d.Write([]byte("back"))
			require.NoError(t, err)
			require.Zero(t, time.Since(begun))
			got = make([]byte, 8)
			_, err = io.ReadFull(a, got)
			require.NoError(t, err)
			require.Equal(t, "and back", string(got))
			require.Equal(t, 2*delay, time.Since(begun))
			require.Equal(t, 2, q.calls)

			d.startPost()
			require.Equal(t, 1, q.posting)
			require.NoError(t, d.SetLinger(0))
			require.NoError(t, d.Close())
			require.Zero(t, q.posting)
			require.Equal(t, 1, q.most)
			require.NoError(t, a.Close())
		})
	})
}

// A call does not post for ever what others go on adding.
func TestPostOfOthersEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{KeepAlive: -1})
		d, a := n.pair(t)
		require.NoError(t, d.SetNoDelay(true))
		const delay = 100 * time.Millisecond
		d.slowDown(delay)
		begun := time.Now()
		done := d.startPost()
		ended := make(chan time.Duration, 1)
		go func() {
			<-done
			ended <- time.Since(begun)
		}()
		var want []byte
		for i := range 4 * callPosts {
			time.Sleep(delay / 2)
			want = append(want, byte(i))
			_, err := d.Write(want[i:])
			require.NoError(t, err)
		}
		require.Equal(t, callPosts*delay, <-ended)
		got := make([]byte, len(want))
		_, err := io.ReadFull(a, got)
		require.NoError(t, err)
		require.Equal(t, want, got)
		closeBoth(d, a)
	})
}

// All that posts on a connection does so at once, on a device where that takes a while.
func TestSlowPostsFromAllSides(t *testing.T) {
	n := newSoftware(t, rdma.SoftwareConfig{}, Config{KeepAlive: 10 * time.Millisecond, SendBuffer: 256 << 10, RecvBuffer: 256 << 10})
	d, a := n.pair(t)
	qs := [...]*slowQP{d.slowDown(100 * time.Microsecond), a.slowDown(100 * time.Microsecond)}
	within(t, func() { transfer(t, d, a, 8<<20, 200_000) })
	closeBoth(d, a)
	for _, q := range qs {
		require.Equal(t, 1, q.most)
	}
}
