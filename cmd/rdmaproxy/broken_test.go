package main

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// wantReset reads until the end, which must be a reset; for a Unix socket, which has none, any end.
func wantReset(t testing.TB, c conn) {
	t.Helper()
	_, err := io.Copy(io.Discard, struct{ io.Reader }{c})
	if _, ok := c.(*net.UnixConn); !ok || err != nil {
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
}

// dialReset makes a connection that is to be reset. That may be so fast that its dial sees it.
func dialReset(t testing.TB, network, addr string) {
	t.Helper()
	c, err := net.Dial(network, addr)
	if err != nil {
		require.ErrorIs(t, err, syscall.ECONNRESET)
		return
	}
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	wantReset(t, c.(conn))
}

// What breaks on one side breaks on the other, in both directions, at rest and under load.
func TestReset(t *testing.T) {
	for _, load := range []bool{false, true} {
		for _, who := range []string{"client", "backend"} {
			t.Run(who+map[bool]string{true: " under load"}[load], func(t *testing.T) {
				addr, conns := handOver(t, "tcp")
				c := newChain(t, "tcp", addr)
				victim := c.dial(t)
				other := receive(t, conns)
				if who == "backend" {
					victim, other = other, victim
				}
				roundTripBetween(t, victim, other)
				var loads sync.WaitGroup
				written := make(chan error, 1) // by other
				if load {
					loads.Go(func() { io.Copy(victim, bytesOf(1, 1<<40)) })
					loads.Go(func() {
						_, err := io.Copy(other, bytesOf(1, 1<<40))
						written <- err
					})
					_, err := io.CopyN(io.Discard, other, 1<<20)
					require.NoError(t, err)
				} else {
					written <- nil
				}
				reset(victim)
				_, err := io.Copy(io.Discard, other)
				// The system tells of a reset once.
				require.ErrorIs(t, errors.Join(err, receive(t, written)), syscall.ECONNRESET)
				loads.Wait()
				for _, i := range []*instance{c.front, c.back} {
					eventually(t, "the connection ends", func() bool { return i.open(t) == 0 })
					eventually(t, "the reset is counted", func() bool { return i.sum(t, "errors_total", `kind="reset"`) == 1 })
				}
			})
		}
	}
}

// roundTripBetween sends a byte each way.
func roundTripBetween(t testing.TB, a, b conn) {
	t.Helper()
	for _, c := range [][2]conn{{a, b}, {b, a}} {
		_, err := c[0].Write([]byte{'x'})
		require.NoError(t, err)
		_, err = io.ReadFull(c[1], make([]byte, 1))
		require.NoError(t, err)
	}
}

// sink is a connection that takes and gives without end, and tells when it was ended in order.
type sink struct {
	net.Conn
	over  chan struct{}
	ended atomic.Bool
}

func (s *sink) Read(b []byte) (int, error) {
	select {
	case <-s.over:
		return 0, net.ErrClosed
	default:
		return len(b), nil
	}
}
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) CloseWrite() error           { s.ended.Store(true); return nil }
func (s *sink) Close() error                { close(s.over); return nil }

// A reset is told to one call, which may be a Write. What Read sees then must not pass for an orderly end.
func TestResetIsNoEnd(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	for range 200 {
		victim := dialAt(t, "tcp", ln.Addr().String())
		accepted, err := ln.Accept()
		require.NoError(t, err)
		backend := &sink{over: make(chan struct{})}
		p := newPair(accepted.(conn), backend, &counters{})
		result := make(chan error, 1)
		go func() { result <- p.carry(t.Context(), 0) }()
		_, err = io.CopyN(io.Discard, victim, 256<<10)
		require.NoError(t, err)
		reset(victim)
		require.ErrorIs(t, receive(t, result), syscall.ECONNRESET)
		require.False(t, backend.ended.Load(), "the backend saw an end")
	}
}

// A client that has ended its direction dies while the backend is silent: the backend is not left with it.
func TestDeathAfterHalfClose(t *testing.T) {
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			addr, conns := handOver(t, network)
			c := newChain(t, network, addr)
			client := c.dial(t)
			backend := receive(t, conns)
			require.NoError(t, client.CloseWrite())
			_, err := backend.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			reset(client)
			for _, i := range []*instance{c.front, c.back} {
				eventually(t, "the connection ends", func() bool { return i.open(t) == 0 })
			}
			// The backend learns of it as soon as it looks.
			eventually(t, "the backend cannot write", func() bool {
				_, err := backend.Write([]byte{1})
				return err != nil
			})
		})
	}
}

// Nobody serves behind the second proxy, or there is no second proxy: the client is reset.
func TestBackendDown(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	down := ln.Addr()
	ln.Close()
	c := newChain(t, "tcp", down)
	dialReset(t, "tcp", c.front.addrs[0])
	eventually(t, "the failure is counted", func() bool { return c.back.sum(t, "errors_total", `kind="dial"`) == 1 })
	require.Equal(t, 1, c.back.sum(t, "connections_failed_total", ""))
	eventually(t, "the log says why", func() bool { return strings.Contains(c.back.log.String(), "connection refused") })
	eventually(t, "the reset is counted", func() bool { return c.front.sum(t, "errors_total", `kind="reset"`) == 1 })

	p := start(t, "tcp://127.0.0.1:0=rdma://"+down.String(), listenRule(t, "unix")+"=rdma://"+down.String())
	dialReset(t, "tcp", p.addrs[0])
	dialReset(t, "unix", p.addrs[1])
	eventually(t, "both are counted", func() bool { return p.sum(t, "errors_total", `kind="dial"`) == 2 })
}

// A backend that does not answer a dial: its client is reset after -dial-timeout.
func TestDialTimeout(t *testing.T) {
	p := start(t, "tcp://127.0.0.1:0=rdma://"+silentListener(t), "-dial-timeout=300ms")
	dialReset(t, "tcp", p.addrs[0])
	eventually(t, "it is counted", func() bool { return p.sum(t, "errors_total", `kind="dial"`) == 1 })
}

func TestIdle(t *testing.T) {
	addr, conns := handOver(t, "tcp")
	back := start(t, "rdma://127.0.0.1:0=tcp://"+addr.String())
	front := start(t, "tcp://127.0.0.1:0=rdma://"+back.addrs[0], "-idle=1s")
	client := dialAt(t, "tcp", front.addrs[0])
	backend := receive(t, conns)
	// Bytes in either direction keep it alive, for longer than the limit.
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		_, err := backend.Write([]byte{1})
		require.NoError(t, err)
		_, err = io.ReadFull(client, make([]byte, 1))
		require.NoError(t, err)
	}
	quiet := time.Now()
	wantReset(t, client)
	wantReset(t, backend)
	require.Greater(t, time.Since(quiet), 700*time.Millisecond)
	eventually(t, "the connection is counted", func() bool { return front.sum(t, "errors_total", `kind="idle"`) == 1 })
}

// Beyond a limit connections wait, and go on when there is room.
func TestLimits(t *testing.T) {
	backend := serve(t, "tcp", echo).String()
	for _, c := range []struct {
		name, args string
		flags      []string
	}{
		{"rule", "?max=2", nil},
		{"process", "", []string{"-max-conns=2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := start(t, append(c.flags, "rdma://127.0.0.1:0=tcp://"+backend)...)
			front := start(t, append(c.flags, "tcp://127.0.0.1:0"+c.args+"=rdma://"+p.addrs[0],
				"tcp://127.0.0.1:0=rdma://"+p.addrs[0])...)
			var clients []conn
			for range 6 {
				clients = append(clients, dialAt(t, "tcp", front.addrs[0]))
				_, err := io.WriteString(clients[len(clients)-1], "hello")
				require.NoError(t, err)
			}
			eventually(t, "a connection waits", func() bool { return front.sum(t, "connections_waiting", "") == 1 })
			eventually(t, "two are carried", func() bool { return front.open(t) == 2 })
			require.Equal(t, 3, front.sum(t, "connections_total", ""))

			// The other rule has room, unless the limit is that of the process.
			other := dialAt(t, "tcp", front.addrs[1])
			if c.flags == nil {
				roundTrip(t, other, "room")
			} else {
				eventually(t, "it waits too", func() bool { return front.sum(t, "connections_waiting", "") == 2 })
			}
			other.Close()

			for _, client := range clients {
				_, err := io.ReadFull(client, make([]byte, 5))
				require.NoError(t, err)
				client.Close()
			}
			eventually(t, "all end", func() bool { return front.open(t) == 0 && p.open(t) == 0 })
			require.Equal(t, 0, front.sum(t, "connections_waiting", ""))
			require.Equal(t, 7, front.sum(t, "connections_total", ""))
		})
	}
}

// Clients that die in the middle of transfers leave nothing behind and are in nobody's way.
func TestClientsDie(t *testing.T) {
	forNetworks(t, func(t *testing.T, network string) {
		c := newChain(t, network, serve(t, network, echo))
		rounds := 50
		if raceEnabled {
			rounds = 5
		}
		var clients sync.WaitGroup
		for range 4 {
			clients.Go(func() {
				for range rounds {
					victim := c.dial(t)
					n := rand.Int64N(1 << 20)
					var sending sync.WaitGroup
					sending.Go(func() { io.Copy(victim, bytesOf(1, 1<<40)) })
					io.CopyN(io.Discard, victim, n)
					if n%2 == 0 {
						reset(victim)
					} else {
						victim.Close()
					}
					sending.Wait()
				}
			})
		}
		survivor := c.dial(t)
		sent := make(chan error, 1)
		go func() {
			_, err := io.Copy(survivor, bytesOf(7, 8<<20))
			sent <- errors.Join(err, survivor.CloseWrite())
		}()
		got, _, err := hashOf(survivor)
		require.NoError(t, err)
		require.NoError(t, receive(t, sent))
		want, _, _ := hashOf(bytesOf(7, 8<<20))
		require.Equal(t, want, got)
		clients.Wait()
		for _, i := range []*instance{c.front, c.back} {
			eventually(t, "all end", func() bool { return i.open(t) == 0 })
		}
		roundTrip(t, c.dial(t), "still there")
	})
}
