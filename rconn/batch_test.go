package rconn

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/verbs/verbstest"
)

// hold writes until bytes are left that somebody must post, more than the peer has room for, and returns how many it wrote.
func hold(t *testing.T, d *Conn, room int) (wrote int) {
	t.Helper()
	write := func(n int) {
		_, err := d.Write(make([]byte, n))
		require.NoError(t, err)
		wrote += n
	}
	write(room - 100)
	flushing := func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.flushing
	}
	for !flushing() {
		write(1)
		require.Less(t, wrote, room)
	}
	write(500)
	return wrote
}

// Of three calls that wait one leads and leaves, and the one that it rouses has just become ready too: the third must lead, for it posts
// what is held.
func TestThirdCallLeads(t *testing.T) {
	const room = 4096
	n := newNetwork(t, verbstest.Config{}, Config{})
	d, a := n.pairOf(t, Config{SendBuffer: 8192, KeepAlive: -1}, Config{RecvBuffer: room, KeepAlive: -1})
	within(t, func() {
		d.rest.op.Lock() // the goroutine comes late
		wrote := hold(t, d, room)
		read := make(chan error, 1)
		go func() {
			_, err := d.Read(make([]byte, 1))
			read <- err
		}()
		d.waiting(t, &d.rd)
		d.rest.op.Unlock()
		d.waiting(t, &d.rest)
		const more = 2500
		d.mu.Lock()
		d.burst = burst{writes: burstWrites, last: time.Now().Add(time.Hour)} // however slow the test is
		d.mu.Unlock()
		write := make(chan error, 1)
		go func() {
			_, err := d.Write(make([]byte, more))
			write <- err
		}()
		d.waiting(t, &d.wr)

		completed := func() uint64 {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.stream.Batch(1) // each message has a completion
			a.progress()
			return a.stats.Completions
		}
		eventually(t, func() bool { completed(); return a.stream.Unread() == room })
		before := completed()

		// The peer's byte, and room for a part of what is held, come at once.
		d.mu.Lock()
		require.Same(t, &d.rd, d.leader)
		_, err := io.ReadFull(a, make([]byte, room/2))
		require.NoError(t, err)
		a.mu.Lock()
		a.stream.Commit(1)
		a.post()
		a.mu.Unlock()
		eventually(t, func() bool { return completed() == before+2 })
		d.mu.Unlock()
		require.NoError(t, <-read)
		require.NoError(t, <-write)
		_, err = io.ReadFull(a, make([]byte, wrote+more-room/2))
		require.NoError(t, err)
	})
	closeBoth(d, a)
}

// On a device that works in the call that posts each Write takes a while. That is no pause of the caller: small writes travel together.
//
// fault: FLOW-11
func TestSmallWritesOnSlowDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{KeepAlive: -1})
		d, a := n.pair(t)
		q := d.slowDown(burstGap - 1)
		const writes = 400
		go func() {
			for range writes {
				d.Write(make([]byte, 1024))
			}
		}()
		_, err := io.ReadFull(a, make([]byte, writes*1024))
		require.NoError(t, err)
		require.Less(t, q.called(), writes/4)

		// After a pause each leaves at once again.
		for range burstWrites {
			time.Sleep(burstGap + 1)
			called := q.called()
			_, err := d.Write(make([]byte, 1024))
			require.NoError(t, err)
			require.Equal(t, called+1, q.called())
		}
		time.Sleep(time.Second) // no post is under way
		closeBoth(d, a)
	})
}

// Bytes that a peer who is gone does not want keep no goroutine.
func TestHeldBytesOfEndedPeer(t *testing.T) {
	const room = 4096
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t, fc, Config{})
			d, a := n.pairOf(t, Config{SendBuffer: 8192, KeepAlive: -1}, Config{RecvBuffer: room, KeepAlive: -1})
			time.Sleep(2 * time.Second)
			hold(t, d, room)
			synctest.Wait()
			require.Greater(t, d.stream.Unposted(), 0)
			require.True(t, d.flushing)
			require.NoError(t, a.Close())
			synctest.Wait()
			require.False(t, d.flushing)
			require.NoError(t, d.Close())
		})
	})
}
