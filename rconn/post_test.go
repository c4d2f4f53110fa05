package rconn

import (
	"io"
	"os"
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
	late  time.Duration // after the device has taken the requests

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
	time.Sleep(q.late)
	q.mu.Lock()
	q.posting--
	q.mu.Unlock()
	return n, err
}

func (q *slowQP) isPosting() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.posting > 0
}

func (q *slowQP) called() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.calls
}

// slowDown has the posts of a connection take a while.
func (c *Conn) slowDown(delay time.Duration) *slowQP {
	c.mu.Lock()
	defer c.mu.Unlock()
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
			require.True(t, q.isPosting())

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
			require.Equal(t, 2, q.called())

			d.startPost()
			require.True(t, q.isPosting())
			require.NoError(t, d.SetLinger(0))
			require.NoError(t, d.Close())
			require.False(t, q.isPosting())
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

// A deadline holds that is set while the call that leads is posting.
func TestDeadlineSetDuringSlowPost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{SendBuffer: 64, RecvBuffer: 64, KeepAlive: -1, Linger: -1})
		d, a := n.pair(t)
		read := make(chan error, 1)
		go func() {
			_, err := d.Read(make([]byte, 1))
			read <- err
		}()
		d.waiting(t, &d.rd)
		go d.Write(make([]byte, 1000))
		d.waiting(t, &d.wr)
		q := d.slowDown(100 * time.Millisecond)
		_, err := a.Read(make([]byte, 64)) // there is room now: the call that leads posts for Write
		require.NoError(t, err)
		synctest.Wait()
		require.True(t, q.isPosting())
		require.Same(t, &d.rd, d.leader)
		begun := time.Now()
		require.NoError(t, d.SetReadDeadline(begun.Add(time.Second)))
		time.AfterFunc(time.Minute, d.kick)
		require.ErrorIs(t, <-read, os.ErrDeadlineExceeded)
		require.Equal(t, time.Second, time.Since(begun))
		closeBoth(d, a)
	})
}

// Keepalive asks as often as it should though the answer comes before the call that posts has returned, and though many requests wait.
//
// fault: DEATH-7
func TestProbeDuringSlowPost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{KeepAlive: time.Second, KeepAliveTimeout: 10 * time.Second, Linger: -1})
		d, a := n.pair(t)
		d.slowDown(0).late = time.Millisecond
		go d.Read(make([]byte, 1))
		time.Sleep(100 * time.Second)
		require.InDelta(t, 100, d.Stats().Probes, 20)
		closeBoth(d, a)
	})
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t, fc, Config{KeepAlive: -1, Linger: -1})
			d, a := n.pair(t)
			time.Sleep(2 * time.Second)
			require.NoError(t, d.SetNoDelay(true))
			d.slowDown(time.Second)
			d.startPost()
			for range batchSends {
				d.Write([]byte{1})
			}
			require.GreaterOrEqual(t, d.ep.out.n, batchSends)
			before := d.Stats().Probes
			d.mu.Lock()
			d.probe()
			d.mu.Unlock()
			require.Equal(t, before+1, d.Stats().Probes)
			_, err := io.ReadFull(a, make([]byte, batchSends))
			require.NoError(t, err)
			closeBoth(d, a)
		})
	})
}

// A probe that finds no room, or would come between the two parts of a message, is sent later.
//
// fault: DEATH-7
func TestProbeBehindHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, flavours["iwarp"], Config{KeepAlive: time.Second, KeepAliveTimeout: 5 * time.Second, Credits: 32, Linger: -1})
		d, a := n.pair(t)
		time.Sleep(2060 * time.Millisecond) // the gate, and the rest of a step
		require.NoError(t, d.SetNoDelay(true))
		require.NoError(t, a.SetNoDelay(true))
		a.stopKeepalive()
		d.mu.Lock()
		d.posting = true // a call that takes long
		d.mu.Unlock()
		for range 16 {
			_, err := a.Write([]byte("x"))
			require.NoError(t, err)
		}
		synctest.Wait()
		_, err := d.Read(make([]byte, 100)) // one grant, which is one request
		require.NoError(t, err)
		require.Equal(t, 1, d.ep.out.n)
		for range 8 {
			_, err := d.Write([]byte("x")) // two requests
			require.NoError(t, err)
		}
		require.Equal(t, batchSends, d.ep.out.n)
		before := d.Stats().Probes
		time.Sleep(3 * time.Second)
		require.Equal(t, before, d.Stats().Probes)
		d.mu.Lock()
		d.posting = false
		d.push()
		d.mu.Unlock()
		require.Equal(t, before+1, d.Stats().Probes)
		time.Sleep(10 * time.Second)
		d.mu.Lock()
		require.NoError(t, d.err)
		d.mu.Unlock()
		closeBoth(d, a)
	})
}

// While a batch is being posted the next one fills, and a Write that finds no room waits for no more than that.
func TestRoomDuringSlowPost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{KeepAlive: -1})
		d, a := n.pair(t)
		require.NoError(t, d.SetNoDelay(true))
		const delay = 100 * time.Millisecond
		q := d.slowDown(delay)
		begun := time.Now()
		d.startPost()
		for i := range 2*batchSends + 1 {
			_, err := d.Write([]byte{byte(i)})
			require.NoError(t, err)
			require.Equal(t, time.Duration(i/batchSends)*delay, time.Since(begun), i)
		}
		_, err := io.ReadFull(a, make([]byte, 2*batchSends+1))
		require.NoError(t, err)
		require.Equal(t, 4, q.called())
		closeBoth(d, a)
	})
}

// What waits behind a post is given up when the peer ends the connection meanwhile, and when Close does.
func TestEndDuringSlowPost(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		for _, peer := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, fc, Config{KeepAlive: -1})
				d, a := n.pair(t)
				time.Sleep(2 * time.Second)
				q := d.slowDown(time.Second)
				d.startPost()
				_, err := d.Write([]byte("not wanted"))
				require.NoError(t, err)
				closed := make(chan error, 1)
				if peer {
					go func() { closed <- a.Close() }()
					_, err = d.Read(make([]byte, 1))
					require.Equal(t, io.EOF, err)
					time.Sleep(5 * time.Second)
				}
				require.NoError(t, d.SetLinger(0))
				require.NoError(t, d.Close())
				require.Equal(t, 1, q.called())
				if !peer {
					closed <- a.Close()
				}
				require.NoError(t, <-closed)
			})
		}
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
