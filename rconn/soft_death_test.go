package rconn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
)

// A network that falls silent, both ways or one, with TCP's acknowledgements or what stands for them going on, is found by idle readers
// within idle + timeout, on the dialing and on the accepting side.
//
// fault: DEATH-3 (software)
func TestSoftwareKeepaliveFindsSilence(t *testing.T) {
	const idle, timeout = 200 * time.Millisecond, 300 * time.Millisecond
	for name, ways := range map[string][]int{"both ways": {toListener, toDialer}, "to listener": {toListener}, "to dialer": {toDialer}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newSoftware(t, rdma.SoftwareConfig{}, Config{KeepAlive: idle, KeepAliveTimeout: timeout, Linger: -1})
			d, a, p := n.proxied(t)
			type result struct {
				err error
				at  time.Time
			}
			var found [2]chan result
			for i, c := range []*Conn{d, a} {
				found[i] = make(chan result, 1)
				go func() {
					_, err := c.Read(make([]byte, 1))
					found[i] <- result{err, time.Now()}
				}()
			}
			for _, c := range []*Conn{d, a} { // idle and alive
				eventually(t, func() bool { return c.Stats().Probes >= 2 })
			}
			p.hold(ways...)
			start := time.Now()
			within(t, func() {
				for i := range found {
					r := <-found[i]
					require.ErrorIs(t, r.err, syscall.ETIMEDOUT)
					require.True(t, r.err.(net.Error).Timeout(), "as in package net")
					require.Less(t, r.at.Sub(start), idle+timeout+slack)
				}
				closeBoth(d, a)
			})
		})
	}
}

// A connection that answers its probes lives, whatever the two times are to each other.
func TestSoftwareKeepaliveLeavesLivingAlone(t *testing.T) {
	for _, idle := range []time.Duration{10 * time.Millisecond, 300 * time.Millisecond} {
		n := newSoftware(t, rdma.SoftwareConfig{}, Config{KeepAlive: idle, KeepAliveTimeout: 10 * time.Second})
		d, a := n.pair(t)
		require.NoError(t, d.SetReadDeadline(time.Now().Add(time.Second)))
		_, err := d.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NotZero(t, d.Stats().Probes)
		require.NotZero(t, a.Stats().Probes)
		closeBoth(d, a)
	}
}

// A connection is closed at random moments around a tick of its keepalive timer: the one that asks for a sign of life, and the one that
// would give up. After Close nothing is probed any more, and nothing is left.
//
// fault: DEATH-4 (software)
func TestSoftwareCloseAroundTick(t *testing.T) {
	const idle, timeout, spread, rounds = 5 * time.Millisecond, 3 * time.Millisecond, time.Millisecond, 300
	n := newSoftware(t, rdma.SoftwareConfig{}, Config{
		SendBuffer: 64, RecvBuffer: 64, Credits: 4, SendQueue: 16, KeepAlive: idle, KeepAliveTimeout: timeout, Linger: -1,
	})
	r := rand.New(rand.NewPCG(5, 6))
	first := [2]int{} // how often Close was, and the tick
	ln := n.listen(t, n.addr)
	defer ln.Close()
	for round := range rounds {
		p := newProxy(t, ln.Addr())
		d, a := n.connect(t, ln, p.addr())
		d.mu.Lock()
		tick := time.Until(d.keepalive.heard) + idle
		d.mu.Unlock()
		if round%2 == 1 { // nobody answers
			p.hold(toListener)
			tick += timeout
		}
		var wg sync.WaitGroup
		if round%5 == 0 { // somebody waits
			wg.Go(func() { d.Read(make([]byte, 1)) })
		}
		time.Sleep(tick + time.Duration(r.IntN(int(2*spread))) - spread)
		require.NoError(t, d.Close())
		probes := d.Stats().Probes
		wg.Wait()
		first[min(probes, 1)]++
		abort(a)
		p.close()
		require.Equal(t, probes, d.Stats().Probes, "the timer fires on a closed connection")
	}
	t.Logf("Close came first %d times, the tick %d times", first[0], first[1])
}

// What arrives after a deadline finds memory that is still there, and what arrives after a close finds none that is somebody else's: peers
// write on while the connection is closed and its memory goes.
//
// fault: MEM-7 (software)
func TestSoftwareLateArrival(t *testing.T) {
	n := newSoftware(t, rdma.SoftwareConfig{}, Config{})
	d, a, p := n.proxied(t)
	p.hold(toDialer)
	_, err := a.Write([]byte("late"))
	require.NoError(t, err)
	require.NoError(t, d.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	buf := make([]byte, 4)
	_, err = d.Read(buf)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	p.release(toDialer)
	require.NoError(t, d.SetReadDeadline(time.Time{}))
	_, err = io.ReadFull(d, buf)
	require.NoError(t, err)
	require.Equal(t, "late", string(buf))
	closeBoth(d, a)

	got := make([]byte, 500<<10)
	for round := range 100 { // each on memory that the one before had
		d, a := n.pair(t)
		sent := bytes.Repeat([]byte{byte(round)}, 100<<10)
		var wg sync.WaitGroup
		for _, c := range []*Conn{d, a} {
			wg.Go(func() {
				for err := error(nil); err == nil; {
					_, err = c.Write(sent)
				}
			})
		}
		_, err := io.ReadFull(d, got)
		require.NoError(t, err)
		require.Equal(t, len(got), bytes.Count(got, sent[:1]))
		abort(d)
		abort(a)
		wg.Wait()
	}

	// A dial is given up at each moment of its handshake.
	ln := n.listen(t, n.addr)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			abort(c.(*Conn))
		}
	}()
	for wait := time.Duration(0); wait < 3*time.Millisecond; wait += 20 * time.Microsecond {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		c, err := n.dialer().DialContext(ctx, "rdma", ln.Addr().String())
		cancel()
		if err == nil {
			abort(c.(*Conn))
		} else {
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
	}
	require.NoError(t, ln.Close())
}

// What each call on a connection returns after each way to end it, as on the fabric.
func TestSoftwareErrorsAfterTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		end func(m *meddler, p *proxy, d, a *Conn)
		ending
	}{
		"nothing":            {func(m *meddler, p *proxy, d, a *Conn) {}, ending{errWaits, nil, nil, nil}},
		"closed":             {func(m *meddler, p *proxy, d, a *Conn) { d.Close() }, ending{net.ErrClosed, net.ErrClosed, net.ErrClosed, nil}},
		"writing ended":      {func(m *meddler, p *proxy, d, a *Conn) { d.CloseWrite() }, ending{errWaits, syscall.EPIPE, nil, nil}},
		"reading ended":      {func(m *meddler, p *proxy, d, a *Conn) { d.CloseRead() }, ending{io.EOF, nil, nil, nil}},
		"peer closed":        {func(m *meddler, p *proxy, d, a *Conn) { go a.Close(); d.Read(make([]byte, 1)) }, ending{io.EOF, syscall.EPIPE, nil, nil}},
		"peer ended writing": {func(m *meddler, p *proxy, d, a *Conn) { a.CloseWrite(); d.Read(make([]byte, 1)) }, ending{io.EOF, nil, nil, nil}},
		"peer aborted": {func(m *meddler, p *proxy, d, a *Conn) { abort(a); d.Read(make([]byte, 1)) },
			ending{syscall.ECONNRESET, syscall.ECONNRESET, nil, nil}},
		"reset": {func(m *meddler, p *proxy, d, a *Conn) { p.reset(); d.Read(make([]byte, 1)) },
			ending{syscall.ECONNRESET, syscall.ECONNRESET, nil, nil}},
		"silence": {func(m *meddler, p *proxy, d, a *Conn) { p.hold(toListener, toDialer); d.Read(make([]byte, 1)) },
			ending{syscall.ETIMEDOUT, syscall.ETIMEDOUT, nil, nil}},
		"post failed": {func(m *meddler, p *proxy, d, a *Conn) { m.fail(postSend, 1, syscall.ENOMEM); d.Write([]byte("x")) },
			ending{syscall.ECONNRESET, syscall.ECONNRESET, nil, syscall.ENOMEM}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Linger: 100 * time.Millisecond, KeepAlive: -1}
			if name == "silence" {
				cfg.KeepAlive, cfg.KeepAliveTimeout = 100*time.Millisecond, 100*time.Millisecond
			}
			n := newSoftware(t, rdma.SoftwareConfig{}, cfg)
			m := n.meddle()[0]
			d, a, p := n.proxied(t)
			within(t, func() {
				c.end(m, p, d, a)
				c.check(t, d)
				if !errors.Is(a.SetLinger(0), net.ErrClosed) {
					a.Close()
				}
			})
		})
	}
}
