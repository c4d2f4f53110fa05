package rconn

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/verbs/verbstest"
)

// Nobody reads behind the peer's end. That the peer has closed after that is noticed by who writes, if only nothing.
func TestWriteOfNothingTellsThatPeerHasClosed(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t, fc, Config{KeepAlive: -1, Linger: time.Hour})
			d, a := n.pair(t)
			require.NoError(t, d.CloseWrite())
			_, err := a.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			for _, nothing := range []net.Buffers{nil, {nil, {}}} {
				_, err = a.WriteBuffers(&nothing)
				require.NoError(t, err)
			}
			closed := make(chan error)
			go func() { closed <- d.Close() }()
			synctest.Wait()
			_, err = a.Write(nil)
			require.ErrorIs(t, err, syscall.EPIPE)
			require.NoError(t, a.Close())
			require.NoError(t, <-closed)
		})
	})
}

// Close sends the end itself, whether or not it has just sent another call away.
func TestCloseSendsTheEnd(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t, fc, Config{KeepAlive: -1, Linger: time.Hour})
			d, a := n.pair(t)
			read := make(chan error)
			for _, c := range []*Conn{d, a} {
				go func() {
					_, err := c.Read(make([]byte, 1))
					read <- err
				}()
			}
			synctest.Wait()
			start := time.Now()
			closed := make(chan error)
			go func() { closed <- a.Close() }()
			require.NoError(t, d.Close())
			require.NoError(t, <-closed)
			<-read
			<-read // net.ErrClosed, or the other's end
			require.Less(t, time.Since(start), time.Second)
		})
	})
}

// While Close lingers, other calls are told at once.
func TestCallsWhileCloseLingers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{KeepAlive: -1})
		d, a := n.pair(t)
		n.fab.Cut(n.a, n.b)
		closed := make(chan error)
		go func() { closed <- d.Close() }()
		synctest.Wait()
		start := time.Now()
		_, err := d.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = d.Write(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, d.CloseRead(), net.ErrClosed)
		require.ErrorIs(t, d.CloseWrite(), net.ErrClosed)
		require.Zero(t, time.Since(start))
		require.NoError(t, <-closed)
		require.NoError(t, a.Close())
	})
}

// Close does not wait for a peer that is known to be gone.
//
// fault: CLOSE-1
func TestCloseEndsWithConnection(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t, fc, Config{AckTimeout: 10, Linger: time.Hour})
			d, a := n.pair(t)
			n.fab.Cut(n.a, n.b)
			start := time.Now()
			require.NoError(t, d.Close())
			require.Less(t, time.Since(start), 30*time.Minute) // on iWARP it is TCP that gives up
			require.NoError(t, a.SetLinger(0))
			require.NoError(t, a.Close())
		})
	})
}

// When both directions were ended before, Close has nothing to wait for.
func TestCloseAfterBothShutdowns(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t, fc, Config{})
			d, a := n.pair(t)
			require.NoError(t, errors.Join(d.CloseWrite(), a.CloseWrite()))
			for _, c := range []*Conn{d, a} {
				_, err := c.Read(make([]byte, 1))
				require.ErrorContains(t, err, "EOF")
			}
			start := time.Now()
			closed := make(chan error)
			go func() { closed <- d.Close() }()
			require.NoError(t, errors.Join(a.Close(), <-closed))
			require.Zero(t, time.Since(start))
		})
	})
}

// CloseWrite does not wait for a Write that the peer holds up, as in package net.
func TestCloseWriteEndsWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{SendBuffer: 64, RecvBuffer: 64})
		d, a := n.pair(t)
		type result struct {
			k   int
			err error
		}
		wrote := make(chan result, 1)
		go func() {
			k, err := d.Write(make([]byte, 1000))
			wrote <- result{k, err}
		}()
		synctest.Wait()
		require.NoError(t, d.CloseWrite())
		r := <-wrote
		require.ErrorIs(t, r.err, syscall.EPIPE)
		got, err := io.ReadAll(a)
		require.NoError(t, err)
		require.Len(t, got, r.k)
		require.NoError(t, errors.Join(d.CloseWrite(), d.Close(), a.Close()))
		require.ErrorIs(t, d.CloseWrite(), net.ErrClosed)
	})
}
