package softiwarp

import (
	"io"
	"net"
	"runtime"
	"testing"

	"github.com/rconn/rdma/verbs"
)

// Each benchmark has its like over plain TCP, in the same way: two goroutines of this process. Ours fail if they allocate:
// with -benchtime=100x or more they are a test of that.

// hot measures f, which does n operations.
func hot(b *testing.B, f func(n int)) {
	f(300) // until the queues have gone round and have their storage
	b.ReportAllocs()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.ResetTimer()
	f(b.N)
	b.StopTimer()
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; b.N >= 100 && n >= uint64(b.N) {
		b.Errorf("%d objects allocated in %d operations", n, b.N)
	}
}

// beside runs f at the same time as g.
func beside(f, g func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	g()
	<-done
}

func BenchmarkPingPong64(b *testing.B) {
	play := func(e *end, n int, begins bool) {
		for i := range n {
			if !begins || i > 0 {
				e.recv(b)
			}
			e.send(b, 64)
		}
		if begins {
			e.recv(b)
		}
	}
	x, y := newPair(b, Config{}, pairSize{})
	b.Run("iwarp", func(b *testing.B) {
		hot(b, func(n int) { beside(func() { play(y, n, false) }, func() { play(x, n, true) }) })
	})
	b.Run("tcp", func(b *testing.B) {
		x, y := tcpPair(b)
		var there, back [64]byte
		beside(func() {
			for range b.N {
				io.ReadFull(y, there[:])
				y.Write(there[:])
			}
		}, func() {
			for range b.N {
				x.Write(back[:])
				io.ReadFull(x, back[:])
			}
		})
	})
}

func BenchmarkMessages64(b *testing.B) {
	const window = 64
	b.Run("iwarp", func(b *testing.B) {
		x, y := newPair(b, Config{}, pairSize{wr: 4 * window, inline: 64})
		payload := make([]byte, 64)
		hot(b, func(n int) {
			for i := range n {
				wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Inline: payload, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()}
				if i%window == 0 {
					wr.Flags = verbs.Signaled
					x.inFlight++
				}
				x.post(b, wr)
				x.inFlight--
				for x.inFlight >= 2 {
					x.reap(b)
				}
			}
			x.send(b, 1)
			y.recv(b)
		})
	})
	b.Run("tcp", func(b *testing.B) {
		x, y := tcpPair(b)
		flood(b, x, y, 64)
	})
}

func BenchmarkWrite(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"64KiB", 64 << 10}, {"1MiB", 1 << 20}} {
		for _, cfg := range []struct {
			name string
			cfg  Config
		}{{"iwarp", Config{}}, {"crc", Config{CRC: true}}, {"mss", Config{MaxFPDU: MSS}}} {
			b.Run(size.name+"/"+cfg.name, func(b *testing.B) {
				x, y := newPair(b, cfg.cfg, pairSize{memory: 4 << 20})
				b.SetBytes(int64(size.bytes))
				hot(b, func(n int) {
					for range n {
						x.post(b, verbs.SendWR{
							Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: x.sge(0, size.bytes),
							RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey(),
						})
						for x.inFlight >= 4 {
							x.reap(b)
						}
					}
					x.send(b, 1)
					y.recv(b)
				})
			})
		}
		b.Run(size.name+"/tcp", func(b *testing.B) {
			x, y := tcpPair(b)
			b.SetBytes(int64(size.bytes))
			flood(b, x, y, size.bytes)
		})
	}
}

// The peer's program does nothing: its device answers.
func BenchmarkRead4K(b *testing.B) {
	x, y := newPair(b, Config{}, pairSize{})
	b.Run("iwarp", func(b *testing.B) {
		hot(b, func(n int) {
			for range n {
				x.post(b, verbs.SendWR{
					Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: x.sge(0, 4<<10), RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey(),
				})
				x.reap(b)
			}
		})
	})
}

// flood sends b.N messages from x to y.
func flood(b *testing.B, x, y net.Conn, size int) {
	sent, taken := make([]byte, size), make([]byte, max(size, 16<<10))
	b.ResetTimer()
	beside(func() {
		for n := 0; n < size*b.N; {
			k, err := y.Read(taken)
			if err != nil {
				return
			}
			n += k
		}
	}, func() {
		for range b.N {
			x.Write(sent)
		}
	})
}

func tcpPair(b *testing.B) (x, y net.Conn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	if x, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		b.Fatal(err)
	}
	if y, err = ln.Accept(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { x.Close(); y.Close() })
	return x, y
}
