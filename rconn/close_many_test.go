package rconn

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/verbs/verbstest"
)

// The peer's window is full and it does not read: Close is back within the linger, in virtual time, and the calls that wait are told
// at once. Also when nothing that was sent completes.
//
// fault: CLOSE-1
func TestCloseWithFullWindow(t *testing.T) {
	const linger = 3 * time.Second
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		for name, stop := range map[string]func(*network){
			"stopped":     func(*network) {}, // as by SIGSTOP: the device still answers
			"device hung": func(n *network) { n.a.Device(0).Pause() },
			"dead link":   func(n *network) { n.fab.Cut(n.a, n.b) },
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork(t, fc, Config{SendBuffer: 256, RecvBuffer: 64, Linger: linger, KeepAlive: -1, AckTimeout: 31})
					d, a := n.pair(t)
					start := time.Now()
					var wg sync.WaitGroup
					for _, call := range []func([]byte) (int, error){d.Read, d.Write} {
						wg.Go(func() {
							_, err := call(make([]byte, 1000))
							if !errors.Is(err, net.ErrClosed) || time.Since(start) != time.Second {
								t.Errorf("after %v: %v", time.Since(start), err)
							}
						})
					}
					synctest.Wait()
					stop(n)
					time.Sleep(time.Second)
					require.NoError(t, d.Close())
					require.LessOrEqual(t, time.Since(start), time.Second+linger)
					wg.Wait()
					require.NoError(t, errors.Join(a.SetLinger(0), a.Close()))
					n.a.Device(0).Resume()
				})
			})
		}
	})
}

// 1 MiB is written and the connection closed at once, a thousand times: every byte arrives, then an orderly end. With the race detector it
// is less often; make unit runs it whole without.
//
// fault: CLOSE-4 (software)
func TestWriteAndClose(t *testing.T) {
	const size = 1 << 20
	rounds := 1000
	if raceEnabled {
		rounds = 100
	}
	sent := make([]byte, size)
	stream(4).Read(sent)
	forDevices(t, func(t *testing.T, dev device) {
		n := dev.network(t, Config{SendBuffer: 64 << 10, RecvBuffer: 64 << 10})
		ln := n.listen(t, n.addr)
		var wg sync.WaitGroup
		wg.Go(func() {
			for range rounds {
				c, err := n.dialer().Dial("rdma", ln.Addr().String())
				if err == nil {
					_, err = c.Write(sent)
					err = errors.Join(err, c.Close())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
		got := make([]byte, size+1)
		for i := range rounds {
			c, err := ln.Accept()
			require.NoError(t, err)
			require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
			k, err := io.ReadFull(c, got)
			require.Equal(t, io.ErrUnexpectedEOF, err) // the end, in order, before the buffer was full
			require.True(t, bytes.Equal(sent, got[:k]), "connection %d: %d bytes", i, k)
			k, err = c.Read(got)
			require.Zero(t, k)
			require.Equal(t, io.EOF, err)
			require.NoError(t, c.Close())
		}
		wg.Wait()
		require.NoError(t, ln.Close())
	})
}

// Both ends of ten thousand connections close at once, some with bytes under way: all objects, goroutines and file descriptors are gone
// afterwards. The software device has as many for itself, fewer with the race detector; make unit runs it whole without.
//
// fault: CLOSE-7 (software)
func TestSimultaneousClose(t *testing.T) {
	const workers = 8
	base := runtime.NumGoroutine()
	forDevices(t, func(t *testing.T, dev device) {
		conns := 10_000 / len(flavours)
		switch {
		case dev.fabric != nil:
		case raceEnabled:
			conns = 2000
		default:
			conns = 10_000
		}
		n := dev.network(t, Config{SendBuffer: 64, RecvBuffer: 64, Credits: 4, SendQueue: 16})
		files := openFiles(t)
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				ln := n.listen(t, n.addr)
				defer ln.Close()
				for i := range conns / workers {
					d, err := n.dialer().Dial("rdma", ln.Addr().String())
					if err != nil {
						t.Error(err)
						return
					}
					a, err := ln.Accept()
					if err != nil {
						t.Error(err)
						return
					}
					for j, c := range []net.Conn{d, a} {
						if i>>j&1 == 0 {
							if _, err := c.Write(make([]byte, 10)); err != nil {
								t.Error(err)
							}
						}
					}
					closeBoth(d.(*Conn), a.(*Conn))
				}
			})
		}
		wg.Wait()
		require.NoError(t, n.leaks())
		eventually(t, func() bool { return openFiles(t) <= files })
	})
	eventually(t, func() bool { return runtime.NumGoroutine() <= base })
}

// openFiles counts the file descriptors of this process, where the system tells.
func openFiles(t testing.TB) int {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil && runtime.GOOS == "linux" {
		t.Error(err)
	}
	return len(fds)
}
