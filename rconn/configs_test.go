package rconn

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/ring"
	"github.com/rconn/rdma/verbs/verbstest"
)

// pairOf makes a connection whose ends differ.
func (n *network) pairOf(t testing.TB, dial, accept Config) (dialed, accepted *Conn) {
	l := *n
	n.cfg, l.cfg = dial, accept
	ln := l.listen(t, n.addr)
	defer ln.Close()
	d, err := n.dialer().Dial("rdma", ln.Addr().String())
	require.NoError(t, err)
	a, err := ln.Accept()
	require.NoError(t, err)
	return d.(*Conn), a.(*Conn)
}

// Ends with rings, queues and credits of very different sizes get along: bytes go both ways at once, each to its end.
func TestOddConfigs(t *testing.T) {
	configs := map[string]Config{
		"default":       {},
		"smallest":      {SendBuffer: 1, RecvBuffer: 2, Credits: 1, SendQueue: 16},
		"odd":           {SendBuffer: 77, RecvBuffer: 5, Credits: 3, SendQueue: 17},
		"small receive": {SendBuffer: 1 << 20, RecvBuffer: 10, Credits: 5},
		"small send":    {SendBuffer: 10, RecvBuffer: 1 << 20, Credits: 2, SendQueue: 16},
		"few credits":   {SendBuffer: 4096, RecvBuffer: 4096, Credits: 2},
		"deep queues":   {SendBuffer: 300, RecvBuffer: 300, Credits: 4000, SendQueue: 3000},
	}
	const total = 1000
	forDevices(t, func(t *testing.T, dev device) {
		for dialer, dial := range configs {
			for listener, accept := range configs {
				t.Run(dialer+" to "+listener, func(t *testing.T) {
					dev.bubble(t, func(t *testing.T) {
						n := dev.network(t, Config{})
						d, a := n.pairOf(t, dial, accept)
						require.Equal(t, d.Info().Credits, a.Info().PeerCredits)
						var wg sync.WaitGroup
						for i, c := range []*Conn{d, a} {
							wg.Go(func() {
								sent := make([]byte, total)
								stream(byte(i)).Read(sent)
								_, err := c.Write(sent)
								if err = errors.Join(err, c.CloseWrite()); err != nil {
									t.Error(err)
								}
							})
							wg.Go(func() {
								want := make([]byte, total)
								stream(byte(1 - i)).Read(want)
								if got, err := io.ReadAll(c); err != nil || !bytes.Equal(want, got) {
									t.Errorf("%d bytes, %v, or wrong ones", len(got), err)
								}
							})
						}
						wg.Wait()
						closeBoth(d, a)
					})
				})
			}
		}
	})
}

// The smallest send queue there is, of 16 entries, which on iWARP leaves four for data: a thousand tiny writes on a device that is held up.
// The writer waits, without an error, and all arrive.
//
// fault: FLOW-2
func TestSmallestSendQueue(t *testing.T) {
	const writes = 1000
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t, fc, Config{SendQueue: ring.MinSendQueue, Credits: 2 * writes, KeepAlive: -1})
			d, a := n.pair(t)
			require.NoError(t, d.SetNoDelay(true))
			time.Sleep(time.Second)
			n.a.Device(0).Pause()
			wrote := 0
			var wg sync.WaitGroup
			wg.Go(func() {
				for ; wrote < writes; wrote++ {
					if _, err := d.Write([]byte{byte(wrote)}); err != nil {
						t.Error(err)
					}
				}
			})
			synctest.Wait()
			t.Logf("%d writes before the first that waits", wrote)
			require.Greater(t, wrote, 0)
			require.LessOrEqual(t, wrote, ring.MinSendQueue)
			n.a.Device(0).Resume()
			buf := make([]byte, writes)
			_, err := io.ReadFull(a, buf)
			require.NoError(t, err)
			for i, b := range buf {
				require.Equal(t, byte(i), b)
			}
			wg.Wait()
			require.NotZero(t, d.Stats().WriteStalls)
			closeBoth(d, a)
		})
	})
}

// The peer's space and credits come long before the completions of what we sent: they count at once.
//
// fault: FLOW-9
func TestCreditBeforeCompletion(t *testing.T) {
	const recvRing, total = 4096, 40 << 10
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			fc.Latency = time.Millisecond
			// Entries of the send queue do wait for completions: there are enough.
			n := newNetwork(t, fc, Config{RecvBuffer: recvRing, Credits: 4, SendQueue: 160, KeepAlive: -1})
			d, a := n.pair(t)
			time.Sleep(time.Second)
			n.a.Device(0).DelayCompletions(time.Hour, 0)
			require.NoError(t, d.SetNoDelay(true)) // small writes that travel together do wait for completions
			sent, got := make([]byte, total), make([]byte, total)
			stream(2).Read(sent)
			start := time.Now()
			var wg sync.WaitGroup
			wg.Go(func() {
				for at := 0; at < total; at += 1000 {
					if _, err := d.Write(sent[at:min(at+1000, total)]); err != nil {
						t.Error(err)
					}
				}
			})
			_, err := io.ReadFull(a, got)
			require.NoError(t, err)
			require.True(t, bytes.Equal(sent, got))
			require.Less(t, time.Since(start), time.Minute, "waited for completions")
			wg.Wait()
			time.Sleep(2 * time.Hour) // the completions come
			n.a.Device(0).DelayCompletions(0, 0)
			_, err = d.Write([]byte("x"))
			require.NoError(t, err)
			_, err = a.Read(got)
			require.NoError(t, err)
			closeBoth(d, a)
		})
	})
}

// What a connection costs is for us to say. A peer that announces as much of everything as is accepted gets no more memory than another.
//
// fault: MEM-3 (software)
func TestPeerDoesNotSetCost(t *testing.T) {
	forDevices(t, func(t *testing.T, dev device) {
		cfg := Config{SendBuffer: 4096, RecvBuffer: 4096, Logger: slog.New(slog.DiscardHandler)}
		n := dev.network(t, cfg)
		ln := n.listen(t, n.addr)
		defer ln.Close()
		const conns = 20
		cost := func(change func([]byte)) uint64 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range conns {
				_, err := dialRaw(t, n, ln.Addr(), change)
				require.NoError(t, err)
				c, err := ln.Accept()
				require.NoError(t, err)
				require.NoError(t, c.(*Conn).SetLinger(0))
				require.NoError(t, c.Close())
			}
			runtime.ReadMemStats(&after)
			return (after.TotalAlloc - before.TotalAlloc) / conns
		}
		cost(nil)
		honest := cost(nil)
		greedy := cost(func(b []byte) {
			copy(b[2:], []byte{0xff, 0xff})     // credits
			b[7] = 0xff                         // mapped buffers
			copy(b[20:], []byte{0, 0, 0, 64})   // table entries
			copy(b[36:], []byte{0x40, 0, 0, 0}) // bytes of a segment
		})
		t.Logf("%d bytes allocated for a connection with an honest peer, %d with a greedy one, its own included", honest, greedy)
		require.Less(t, greedy, honest+32<<10)
	})
}
