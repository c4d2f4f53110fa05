package rconn

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/verbs/verbstest"
)

// stream gives the bytes of a direction: the writer's and what the reader must see.
func stream(seed byte) *rand.ChaCha8 { return rand.NewChaCha8([32]byte{seed}) }

// Writes and reads of all sizes up to three rings, both ways at once: every byte arrives, once.
//
// fault: DATA-1 (software)
func TestRandomSizes(t *testing.T) {
	most := 500_000 // operations, of each flavour
	if raceEnabled {
		most = 20_000 // make unit runs it whole, without the race detector
	}
	forDevices(t, func(t *testing.T, dev device) {
		most := most
		if dev.fabric == nil {
			most /= 5 // in real time
		}
		dev.bubble(t, func(t *testing.T) {
			const sendRing, recvRing = 96, 128
			n := dev.network(t, Config{SendBuffer: sendRing, RecvBuffer: recvRing, Credits: 16, SendQueue: 32, KeepAlive: -1})
			d, a := n.pair(t)
			var wg sync.WaitGroup
			var ops atomic.Int64
			for i, way := range [][2]*Conn{{d, a}, {a, d}} {
				r := [2]*rand.Rand{rand.New(rand.NewPCG(1, uint64(i))), rand.New(rand.NewPCG(2, uint64(i)))}
				wg.Go(func() {
					for bytes, buf := stream(byte(i)), make([]byte, 3*recvRing); ops.Add(1) <= int64(most); {
						p := buf[:r[0].IntN(len(buf)+1)]
						bytes.Read(p)
						if k, err := way[0].Write(p); k != len(p) || err != nil {
							t.Error(k, err)
							break
						}
					}
					if err := way[0].CloseWrite(); err != nil {
						t.Error(err)
					}
				})
				wg.Go(func() {
					total, want, buf, expect := 0, stream(byte(i)), make([]byte, 3*recvRing), make([]byte, 3*recvRing)
					for {
						k, err := way[1].Read(buf[:1+r[1].IntN(len(buf))])
						want.Read(expect[:k])
						if err != nil && err != io.EOF || !bytes.Equal(buf[:k], expect[:k]) {
							t.Errorf("%d bytes behind %d: %v, or wrong ones", k, total, err)
						}
						total += k
						ops.Add(1)
						if err != nil {
							break
						}
					}
					if sent := int(way[0].Stats().BytesSent); total != sent {
						t.Errorf("%d bytes of %d", total, sent)
					}
				})
			}
			wg.Wait()
			t.Logf("%d operations, %d bytes", ops.Load(), d.Stats().BytesSent+a.Stats().BytesSent)
			closeBoth(d, a)
		})
	})
}

// Several messages that arrive behind one wake-up are all taken at once: nothing comes after them that would wake the reader again. A
// hundred are more than one poll takes.
//
// fault: DATA-3
func TestMessagesBehindOneWakeUp(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		for _, k := range []int{2, 3, 4, 5, 100} {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, fc, Config{KeepAlive: -1})
				d, a := n.pair(t)
				time.Sleep(time.Second)
				read := 0
				var wg sync.WaitGroup
				wg.Go(func() {
					var err error
					if read, err = d.Read(make([]byte, 1000)); err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
				before := d.Stats()
				// The reader that was woken looks only when all are there.
				remove := n.a.On(verbstest.Poll, func() error { time.Sleep(time.Millisecond); return nil })
				for range k {
					_, err := a.Write([]byte("x"))
					require.NoError(t, err)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				require.Equal(t, k, read, "bytes are forgotten")
				require.EqualValues(t, 1, d.Stats().Waits-before.Waits, "not all came behind one wake-up")
				remove()
				wg.Wait()
				closeBoth(d, a)
			})
		}
	})
}

// A writer who waits for space, and a reader who waits for bytes, whoever was first: what one takes from the completion queue
// serves the other.
//
// fault: DATA-6
func TestDirectionsDoNotWaitForEachOther(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		for _, writerFirst := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, fc, Config{SendBuffer: 64, RecvBuffer: 64, Credits: 8, SendQueue: 16, KeepAlive: -1})
				d, a := n.pair(t)
				const total = 1000
				var wg sync.WaitGroup
				wrote, read := false, 0
				write := func() {
					if _, err := d.Write(make([]byte, total)); err != nil {
						t.Error(err)
					}
					wrote = true
				}
				reader := func() {
					for buf := make([]byte, 10); ; {
						k, err := d.Read(buf)
						read += k
						if err != nil {
							return
						}
					}
				}
				calls := []func(){write, reader}
				if !writerFirst {
					calls[0], calls[1] = calls[1], calls[0]
				}
				for _, f := range calls {
					wg.Go(f)
					synctest.Wait()
				}
				for i := range 100 {
					require.False(t, wrote, "the writer has no room")
					_, err := a.Write([]byte("x"))
					require.NoError(t, err)
					synctest.Wait()
					require.Equal(t, i+1, read, "the reader sleeps on")
				}
				// The other way round: the peer only reads.
				_, err := io.ReadFull(a, make([]byte, total))
				require.NoError(t, err)
				synctest.Wait()
				require.True(t, wrote, "the writer sleeps on")
				closeBoth(d, a)
				wg.Wait()
			})
		}
	})
}

// Both ends write ten rings. With readers that ends; without, the writers block and nothing at all happens.
//
// fault: DATA-7
func TestBothWrite(t *testing.T) {
	const ring = 4096
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		for name, readers := range map[string]bool{"readers": true, "no readers": false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork(t, fc, Config{SendBuffer: ring, RecvBuffer: ring, KeepAlive: -1})
					d, a := n.pair(t)
					var wg sync.WaitGroup
					for _, c := range []*Conn{d, a} {
						wg.Go(func() {
							k, err := c.Write(make([]byte, 10*ring))
							if readers && err != nil || !readers && !errors.Is(err, os.ErrDeadlineExceeded) {
								t.Error(k, err)
							}
						})
						if readers {
							wg.Go(func() {
								if _, err := io.ReadFull(c, make([]byte, 10*ring)); err != nil {
									t.Error(err)
								}
							})
						}
					}
					if !readers {
						synctest.Wait()
						calls := n.a.Calls(verbstest.AnyOp) + n.b.Calls(verbstest.AnyOp)
						time.Sleep(time.Hour)
						require.Equal(t, calls, n.a.Calls(verbstest.AnyOp)+n.b.Calls(verbstest.AnyOp), "somebody turns while all wait")
						require.NoError(t, errors.Join(d.SetDeadline(time.Now()), a.SetDeadline(time.Now())))
					}
					wg.Wait()
					closeBoth(d, a)
				})
			})
		}
	})
}

// The caller's buffer is the caller's again when Write returns. The device is held up meanwhile and reads memory only after that,
// in the moment in which the requests complete.
//
// fault: DATA-8
func TestBufferIsFreeAfterWrite(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		for name, send := range map[string]func(*Conn, []byte) error{
			"Write": func(c *Conn, p []byte) error { _, err := c.Write(p); return err },
			"WriteBuffers": func(c *Conn, p []byte) error {
				v := net.Buffers{p[:len(p)/3], p[len(p)/3:]}
				_, err := c.WriteBuffers(&v)
				return err
			},
			"ReadFrom": func(c *Conn, p []byte) error { _, err := c.ReadFrom(bytes.NewReader(p)); return err },
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork(t, fc, Config{SendBuffer: 8192, RecvBuffer: 8192, KeepAlive: -1})
					d, a := n.pair(t)
					synctest.Wait()
					dev := n.a.Device(0)
					for _, size := range []int{1, 64, 65, 1000, 4096, 1, 3000} {
						sent := make([]byte, size)
						stream(byte(size)).Read(sent)
						buf := bytes.Clone(sent)
						dev.Pause()
						require.NoError(t, send(d, buf))
						for i := range buf {
							buf[i] = ^buf[i]
						}
						time.Sleep(time.Second)
						dev.Resume()
						_, err := io.ReadFull(a, buf)
						require.NoError(t, err)
						require.True(t, bytes.Equal(sent, buf), "%d bytes", size)
					}
					closeBoth(d, a)
				})
			})
		}
	})
}

// The ring that Write copies to is used again only after the device is done with it: packets on a long way are read from memory
// when they arrive, and their completions come later still.
//
// fault: DATA-8
func TestRingIsNotOverwritten(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			fc.Latency, fc.Jitter = 10*time.Millisecond, 5*time.Millisecond
			n := newNetwork(t, fc, Config{SendBuffer: 1000, RecvBuffer: 8192, KeepAlive: -1})
			d, a := n.pair(t)
			n.a.Device(0).DelayCompletions(20*time.Millisecond, 0)
			var wg sync.WaitGroup
			const total = 100_000
			wg.Go(func() {
				bytes, r := stream(1), rand.New(rand.NewPCG(1, 1))
				buf := make([]byte, 3000)
				for left := total; left > 0; {
					p := buf[:min(left, 1+r.IntN(len(buf)))]
					bytes.Read(p)
					if _, err := d.Write(p); err != nil {
						t.Error(err)
					}
					clear(p)
					left -= len(p)
				}
			})
			got, want := make([]byte, total), make([]byte, total)
			stream(1).Read(want)
			_, err := io.ReadFull(a, got)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
			wg.Wait()
			closeBoth(d, a)
		})
	})
}

// A connection that breaks in the middle of a write, at any moment, has delivered a prefix of it: never other bytes, and never the end
// of a stream.
//
// fault: DATA-9
func TestCutInTheMiddleOfAWrite(t *testing.T) {
	const total = 64 << 10
	sent := make([]byte, total)
	stream(9).Read(sent)
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		for name, cut := range map[string]func(n *network, d *Conn){
			"link":   func(n *network, d *Conn) { n.fab.Cut(n.a, n.b) },
			"kill":   func(n *network, d *Conn) { n.a.Kill() },
			"power":  func(n *network, d *Conn) { n.a.PowerCut() },
			"device": func(n *network, d *Conn) { n.a.RemoveDevice(n.a.Device(0)) },
			"abort":  func(n *network, d *Conn) { d.SetLinger(0); d.Close() },
			"post": func(n *network, d *Conn) {
				n.a.Fail(verbstest.PostSend, 1, syscall.ENOMEM)
				time.Sleep(time.Minute)
				d.Close()
			},
		} {
			t.Run(name, func(t *testing.T) {
				for moment := time.Duration(0); moment < 24*time.Millisecond; moment += 700 * time.Microsecond {
					synctest.Test(t, func(t *testing.T) {
						fc.Latency, fc.Jitter, fc.Seed = time.Millisecond, 300*time.Microsecond, uint64(moment)
						n := newNetwork(t, fc, Config{
							SendBuffer: 6000, RecvBuffer: 4096, Linger: -1, KeepAlive: 10 * time.Second, KeepAliveTimeout: time.Second,
						})
						d, a := n.pair(t)
						var wg sync.WaitGroup
						wg.Go(func() {
							if k, err := d.Write(sent); err == nil || k >= total {
								t.Errorf("wrote %d, %v", k, err)
							}
						})
						wg.Go(func() {
							time.Sleep(moment)
							cut(n, d)
						})
						var got bytes.Buffer
						_, err := io.Copy(&got, struct{ io.Reader }{a})
						require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ETIMEDOUT), "%v", err)
						require.Less(t, got.Len(), total)
						require.True(t, bytes.HasPrefix(sent, got.Bytes()), "%d bytes that are no prefix", got.Len())
						wg.Wait()
						a.Close()
						d.Close()
						time.Sleep(time.Hour)
					})
				}
			})
		}
	})
}
