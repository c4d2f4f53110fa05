package softiwarp

import (
	"io"
	"net"
	"testing"

	"github.com/rconn/rdma/verbs"
)

// Each benchmark has its like over plain TCP, in the same way: two goroutines of this process.

func BenchmarkPingPong64(b *testing.B) {
	x, y := newPair(b, Config{}, pairSize{})
	b.Run("iwarp", func(b *testing.B) {
		play := func(e *end, begins bool) {
			for i := range b.N {
				if !begins || i > 0 {
					e.recv(b)
				}
				e.send(b, 64)
			}
			if begins {
				e.recv(b)
			}
		}
		done := make(chan struct{})
		go func() { play(y, false); close(done) }()
		play(x, true)
		<-done
	})
	b.Run("tcp", func(b *testing.B) {
		x, y := tcpPair(b)
		go func() {
			var buf [64]byte
			for range b.N {
				io.ReadFull(y, buf[:])
				y.Write(buf[:])
			}
		}()
		var buf [64]byte
		for range b.N {
			x.Write(buf[:])
			io.ReadFull(x, buf[:])
		}
	})
}

func BenchmarkMessages64(b *testing.B) {
	const window = 64
	b.Run("iwarp", func(b *testing.B) {
		x, y := newPair(b, Config{}, pairSize{wr: 4 * window, inline: 64})
		payload := make([]byte, 64)
		b.ResetTimer()
		for i := range b.N {
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
	b.Run("tcp", func(b *testing.B) {
		x, y := tcpPair(b)
		done := make(chan struct{})
		go func() {
			defer close(done)
			buf := make([]byte, 16<<10)
			for n := 0; n < 64*b.N; {
				k, err := y.Read(buf)
				if err != nil {
					return
				}
				n += k
			}
		}()
		var buf [64]byte
		for range b.N {
			x.Write(buf[:])
		}
		<-done
	})
}

func BenchmarkWrite(b *testing.B) {
	for name, size := range map[string]int{"64KiB": 64 << 10, "1MiB": 1 << 20} {
		for _, cfg := range []struct {
			name string
			cfg  Config
		}{{"iwarp", Config{}}, {"crc", Config{CRC: true}}, {"mss", Config{MaxFPDU: MSS}}} {
			b.Run(name+"/"+cfg.name, func(b *testing.B) {
				x, y := newPair(b, cfg.cfg, pairSize{memory: 4 << 20})
				b.SetBytes(int64(size))
				b.ResetTimer()
				for range b.N {
					x.post(b, verbs.SendWR{
						Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: x.sge(0, size),
						RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey(),
					})
					for x.inFlight >= 4 {
						x.reap(b)
					}
				}
				x.send(b, 1)
				y.recv(b)
			})
		}
		b.Run(name+"/tcp", func(b *testing.B) {
			x, y := tcpPair(b)
			b.SetBytes(int64(size))
			done := make(chan struct{})
			go func() {
				defer close(done)
				buf := make([]byte, size)
				for n := 0; n < size*b.N; {
					k, err := y.Read(buf)
					if err != nil {
						return
					}
					n += k
				}
			}()
			buf := make([]byte, size)
			b.ResetTimer()
			for range b.N {
				x.Write(buf)
			}
			<-done
		})
	}
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
