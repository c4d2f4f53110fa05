package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/rconn"
)

var networks = []string{"tcp", "unix"}

// forNetworks runs a test with TCP and with Unix sockets at both ends.
func forNetworks(t *testing.T, f func(t *testing.T, network string)) {
	for _, n := range networks {
		t.Run(n, func(t *testing.T) { f(t, n) })
	}
}

func TestEcho(t *testing.T) {
	forNetworks(t, func(t *testing.T, network string) {
		c := newChain(t, network, serve(t, network, echo))
		var clients sync.WaitGroup
		for i := range 20 {
			clients.Go(func() {
				conn := c.dial(t)
				for j := range 20 {
					roundTrip(t, conn, fmt.Sprintf("client %d, line %d\n", i, j))
				}
			})
		}
		clients.Wait()
	})
}

// Programs that speak RDMA themselves need a proxy at the other end only, on either side.
func TestOneProxy(t *testing.T) {
	p := start(t, "rdma://127.0.0.1:0=tcp://"+serve(t, "tcp", echo).String())
	nc, err := rconn.Dial("rdma", p.addrs[0])
	require.NoError(t, err)
	defer nc.Close()
	roundTrip(t, nc.(conn), "by RDMA to TCP")

	ln, err := rconn.Listen("rdma", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	go func() {
		if c, err := ln.Accept(); err == nil {
			echo(c.(conn))
			c.Close()
		}
	}()
	p = start(t, "tcp://127.0.0.1:0=rdma://"+ln.Addr().String())
	c := dialAt(t, "tcp", p.addrs[0])
	roundTrip(t, c, "by TCP to RDMA")
	require.NoError(t, c.CloseWrite())
	_, err = c.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
}

// Several rules in one process, one of which leads from RDMA to RDMA.
func TestRules(t *testing.T) {
	one := serve(t, "tcp", func(c conn) { io.WriteString(c, "one") })
	two := serve(t, "unix", func(c conn) { io.WriteString(c, "two") })
	back := start(t, "rdma://127.0.0.1:0=tcp://"+one.String(), "rdma://127.0.0.1:0=unix://"+two.String())
	mid := start(t, "rdma://127.0.0.1:0=rdma://"+back.addrs[0])
	front := start(t, listenRule(t, "tcp")+"=rdma://"+mid.addrs[0], listenRule(t, "unix")+"=rdma://"+back.addrs[1])
	for i, network := range networks {
		got, err := io.ReadAll(dialAt(t, network, front.addrs[i]))
		require.NoError(t, err)
		require.Equal(t, []string{"one", "two"}[i], string(got))
	}
}

// bytesOf is a stream of n bytes that depend on the seed.
func bytesOf(seed byte, n int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{seed}), n)
}

func hashOf(r io.Reader) (string, int64, error) {
	h := sha256.New()
	n, err := io.Copy(h, r)
	return fmt.Sprintf("%x", h.Sum(nil)), n, err
}

// Both ends send at once, each ends its direction on its own, and nothing of either is lost. The backend sends as much again when
// the client has long ended.
func TestBulkHalfClose(t *testing.T) {
	size := int64(256 << 20)
	if raceEnabled {
		size = 32 << 20
	}
	for _, c := range []struct {
		network string
		ring    string
		size    int64
	}{{"tcp", "0", size}, {"unix", "0", size / 4}, {"tcp", "4KiB", size / 16}, {"unix", "4KiB", size / 16}} {
		t.Run(c.network+" "+c.ring, func(t *testing.T) {
			type result struct {
				hash string
				n    int64
				err  error
			}
			atBackend := make(chan result, 1)
			backend := serve(t, c.network, func(bc conn) {
				var sending sync.WaitGroup
				sending.Go(func() { io.Copy(bc, bytesOf(2, c.size)) })
				var r result
				r.hash, r.n, r.err = hashOf(bc)
				atBackend <- r
				sending.Wait()
				io.Copy(bc, bytesOf(3, c.size))
			})
			conn := newChain(t, c.network, backend, "-ring="+c.ring).dial(t)
			sent := make(chan error, 1)
			go func() {
				_, err := io.Copy(conn, bytesOf(1, c.size))
				if err == nil {
					err = conn.CloseWrite()
				}
				sent <- err
			}()
			got, n, err := hashOf(conn)
			require.NoError(t, err)
			require.EqualValues(t, 2*c.size, n)
			want, _, _ := hashOf(io.MultiReader(bytesOf(2, c.size), bytesOf(3, c.size)))
			require.Equal(t, want, got)

			require.NoError(t, receive(t, sent))
			r := receive(t, atBackend)
			require.NoError(t, r.err)
			require.EqualValues(t, c.size, r.n)
			want, _, _ = hashOf(bytesOf(1, c.size))
			require.Equal(t, want, r.hash)
		})
	}
}

// The backend ends first, and the client goes on.
func TestBackendEndsFirst(t *testing.T) {
	forNetworks(t, func(t *testing.T, network string) {
		addr, conns := handOver(t, network)
		client := newChain(t, network, addr).dial(t)
		backend := receive(t, conns)
		_, err := io.WriteString(backend, "bye")
		require.NoError(t, err)
		require.NoError(t, backend.CloseWrite())
		got, err := io.ReadAll(client)
		require.NoError(t, err)
		require.Equal(t, "bye", string(got))

		// Longer than the time after which a peer that has ended its direction is looked at.
		time.Sleep(2 * probeTime)
		_, err = io.WriteString(client, "still here")
		require.NoError(t, err)
		require.NoError(t, client.CloseWrite())
		got, err = io.ReadAll(backend)
		require.NoError(t, err)
		require.Equal(t, "still here", string(got))
	})
}

// The end of a client that takes nothing gets through, though what goes the other way is stuck.
func TestHalfCloseWhileStuck(t *testing.T) {
	for _, network := range []string{"tcp", "unix", "rdma"} {
		t.Run(network, func(t *testing.T) {
			var written atomic.Int64
			end := make(chan error, 1)
			backend := serve(t, "tcp", func(c conn) {
				var writing sync.WaitGroup
				writing.Go(func() {
					for buf := make([]byte, 64<<10); ; {
						n, err := c.Write(buf)
						written.Add(int64(n))
						if err != nil {
							return
						}
					}
				})
				_, err := io.Copy(io.Discard, struct{ io.Reader }{c})
				end <- err
				writing.Wait()
			})
			var client conn
			if network == "rdma" {
				p := start(t, "rdma://127.0.0.1:0=tcp://"+backend.String())
				nc, err := rconn.Dial("rdma", p.addrs[0])
				require.NoError(t, err)
				client = nc.(conn)
			} else {
				client = newChain(t, network, backend).dial(t)
			}
			last, since := int64(0), time.Now()
			eventually(t, "writing is stuck", func() bool {
				if n := written.Load(); n != last {
					last, since = n, time.Now()
				}
				return last > 0 && time.Since(since) > 500*time.Millisecond
			})
			require.NoError(t, client.CloseWrite())
			require.NoError(t, receive(t, end))
			reset(client)
		})
	}
}

// A client that sends and closes at once: the backend gets all of it, though nobody takes what it answers then.
func TestSendAndClose(t *testing.T) {
	const size = 8 << 20
	forNetworks(t, func(t *testing.T, network string) {
		got := make(chan int64, 1)
		backend := serve(t, network, func(c conn) {
			n, _ := io.Copy(io.Discard, c)
			got <- n
			io.Copy(c, bytesOf(1, size))
		})
		c := newChain(t, network, backend)
		client := c.dial(t)
		_, err := io.Copy(client, bytesOf(1, size))
		require.NoError(t, err)
		require.NoError(t, client.Close())
		require.EqualValues(t, size, receive(t, got))
		for _, i := range []*instance{c.front, c.back} {
			eventually(t, "the connection ends", func() bool { return i.open(t) == 0 })
			require.NotContains(t, i.log.String(), "level=WARN")
		}
	})
}

// A client that takes no answers, which only Unix sockets can tell: what it sends is good, and the backend must not be held up by
// answers that are more than any buffer holds.
func TestAnswersToNobody(t *testing.T) {
	const size = 32 << 20
	got := make(chan int64, 1)
	backend := serve(t, "unix", func(c conn) {
		var n int64
		defer func() { got <- n }()
		buf := make([]byte, 64<<10)
		for {
			k, err := c.Read(buf)
			n += int64(k)
			if err != nil {
				return
			}
			c.Write(buf[:k]) // may fail: what is left is to be read
		}
	})
	client := newChain(t, "unix", backend).dial(t)
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		io.Copy(io.Discard, client)
	}()
	_, err := io.Copy(client, bytesOf(1, 1<<20))
	require.NoError(t, err)
	require.NoError(t, client.(*net.UnixConn).CloseRead())
	receive(t, taken)
	_, err = io.Copy(client, bytesOf(1, size-1<<20))
	require.NoError(t, err)
	require.NoError(t, client.Close())
	require.EqualValues(t, size, receive(t, got))
}

// Connections that carry nothing hold little: the buffers of the copying are small then.
func TestIdleConnectionsAreCheap(t *testing.T) {
	c := newChain(t, "tcp", serve(t, "tcp", echo), "-ring=4KiB")
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what pools hold goes with the second
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	roundTrip(t, c.dial(t), "warm")
	const conns = 100
	before := heap()
	for range conns {
		roundTrip(t, c.dial(t), "x")
	}
	if each := (int64(heap()) - int64(before)) / conns; each > 1<<20 {
		t.Errorf("a connection through both proxies takes %d bytes", each)
	} else {
		t.Logf("a connection through both proxies, with its client and backend, takes %d bytes", each)
	}
}

// A socket that a killed process left is replaced, one that is served is not; the permissions are those asked for.
func TestUnixListen(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	ln.SetUnlinkOnClose(false)
	ln.Close()

	start(t, "unix://"+path+"?mode=0620=rdma://127.0.0.1:1")
	fi, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o620), fi.Mode().Perm())

	out := &logs{}
	require.Equal(t, exitError, run([]string{"-forward", "unix://" + path + "=rdma://127.0.0.1:1"}, writerTo(out), nil))
	require.Contains(t, out.String(), "address already in use")
	require.FileExists(t, path)

	file := filepath.Join(shortDir(t), "file")
	require.NoError(t, os.WriteFile(file, []byte("mine"), 0o600))
	require.Equal(t, exitError, run([]string{"-forward", "unix://" + file + "=rdma://127.0.0.1:1"}, writerTo(out), nil))
	require.FileExists(t, file)
}

// writerTo writes to logs.
func writerTo(l *logs) io.Writer { return writerFunc(func(b []byte) { l.add(string(b)) }) }

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }
