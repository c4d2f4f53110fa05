package rconn

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/verbs/verbstest"
)

// Deadlines are on time, can be moved in both directions while a call waits, are over when they are taken back, and are timeouts
// of package net.
//
// fault: MEM-5
func TestDeadlines(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		for name, c := range map[string]struct {
			call func(*Conn) error
			set  func(*Conn, time.Time) error
		}{
			"Read":       {func(c *Conn) error { _, err := c.Read(make([]byte, 1)); return err }, (*Conn).SetReadDeadline},
			"Write":      {func(c *Conn) error { _, err := c.Write(make([]byte, 1000)); return err }, (*Conn).SetWriteDeadline},
			"Read, both": {func(c *Conn) error { _, err := c.Read(make([]byte, 1)); return err }, (*Conn).SetDeadline},
			"WriteTo":    {func(c *Conn) error { _, err := c.WriteTo(io.Discard); return err }, (*Conn).SetDeadline},
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork(t, fc, Config{SendBuffer: 64, RecvBuffer: 64, KeepAlive: -1})
					d, a := n.pair(t)
					ends := func(at time.Duration) { // the call, and with a timeout, at that time from now
						t.Helper()
						start := time.Now()
						err := c.call(d)
						require.ErrorIs(t, err, os.ErrDeadlineExceeded)
						var ne net.Error
						require.True(t, errors.As(err, &ne) && ne.Timeout(), "%v", err)
						require.Equal(t, at, time.Since(start))
					}
					require.NoError(t, c.set(d, time.Now().Add(time.Second)))
					ends(time.Second)
					ends(0) // it has passed: no call gets further
					require.NoError(t, c.set(d, time.Now().Add(time.Minute)))
					ends(time.Minute)
					for _, moved := range []time.Duration{time.Second, time.Hour} { // while the call waits
						require.NoError(t, c.set(d, time.Now().Add(time.Minute)))
						start := time.Now()
						time.AfterFunc(500*time.Millisecond, func() {
							if err := c.set(d, start.Add(moved)); err != nil {
								t.Error(err)
							}
						})
						ends(moved)
					}
					// What has passed, or will pass, no longer counts once it is taken back.
					require.NoError(t, c.set(d, time.Now()))
					require.NoError(t, c.set(d, time.Time{}))
					done := make(chan error, 1)
					go func() { done <- c.call(d) }()
					time.Sleep(100 * time.Hour)
					synctest.Wait()
					require.Empty(t, done)
					go func() { // serves any of the calls
						a.Write([]byte("x"))
						a.CloseWrite()
						io.Copy(io.Discard, struct{ io.Reader }{a})
					}()
					require.NoError(t, <-done)
					closeBoth(d, a)
				})
			})
		}
	})
}

// Writes that run out of time at any moment say what they have sent; nothing is lost or doubled, and in the end the window is as large
// as before.
//
// fault: FLOW-7
func TestRandomDeadlines(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			fc.Latency = time.Millisecond
			n := newNetwork(t, fc, Config{SendBuffer: 100, RecvBuffer: 64, Credits: 6, SendQueue: 16, KeepAlive: -1})
			d, a := n.pair(t)
			const total = 50_000
			sent := make([]byte, total)
			stream(7).Read(sent)
			expired := 0
			var wg sync.WaitGroup
			wg.Go(func() {
				r := rand.New(rand.NewPCG(7, 7))
				for at := 0; at < total; {
					d.SetWriteDeadline(time.Now().Add(time.Duration(r.IntN(int(10 * time.Millisecond)))))
					k, err := d.Write(sent[at:min(total, at+r.IntN(200))])
					at += k
					if errors.Is(err, os.ErrDeadlineExceeded) {
						expired++
					} else if err != nil {
						t.Error(err)
						return
					}
				}
			})
			got, r := 0, rand.New(rand.NewPCG(8, 8))
			for buf := make([]byte, 100); got < total; {
				a.SetReadDeadline(time.Now().Add(time.Duration(r.IntN(int(3 * time.Millisecond)))))
				k, err := a.Read(buf[:1+r.IntN(len(buf))])
				require.True(t, err == nil || k == 0 && errors.Is(err, os.ErrDeadlineExceeded), "%v", err)
				require.Equal(t, sent[got:got+k], buf[:k])
				got += k
			}
			wg.Wait()
			require.Greater(t, expired, 100)
			t.Logf("%d writes ran out of time", expired)

			// As many bytes as at first can be under way, unread.
			time.Sleep(time.Second)
			d.SetWriteDeadline(time.Now().Add(time.Second))
			k, err := d.Write(make([]byte, 1000))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.Greater(t, k, 32, "the window shrank") // all but what is left of a segment that is not read empty
			closeBoth(d, a)
		})
	})
}
