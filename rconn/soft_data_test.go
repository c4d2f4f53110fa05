//go:build unix

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
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/ring"
)

// A writer who waits for space, and a reader who waits for bytes, whoever was first: what one takes from the completion queue
// serves the other.
//
// fault: DATA-6 (software)
func TestSoftwareDirectionsDoNotWaitForEachOther(t *testing.T) {
	for _, writerFirst := range []bool{true, false} {
		n := newSoftware(t, rdma.SoftwareConfig{}, Config{SendBuffer: 64, RecvBuffer: 64, Credits: 8, SendQueue: 16, KeepAlive: -1})
		d, a := n.pair(t)
		const total = 1000
		var wg sync.WaitGroup
		var wrote atomic.Bool
		var read atomic.Int32
		write := func() {
			if _, err := d.Write(make([]byte, total)); err != nil {
				t.Error(err)
			}
			wrote.Store(true)
		}
		reader := func() {
			for buf := make([]byte, 10); ; {
				k, err := d.Read(buf)
				read.Add(int32(k))
				if err != nil {
					return
				}
			}
		}
		calls, sides := []func(){write, reader}, []*side{&d.wr, &d.rd}
		if !writerFirst {
			calls[0], calls[1], sides[0], sides[1] = calls[1], calls[0], sides[1], sides[0]
		}
		for i := range calls {
			wg.Go(calls[i])
			d.waiting(t, sides[i])
		}
		for i := range 1000 {
			require.False(t, wrote.Load(), "the writer has no room")
			_, err := a.Write([]byte("x"))
			require.NoError(t, err)
			eventually(t, func() bool { return int(read.Load()) == i+1 })
		}
		// The other way round: the peer only reads.
		_, err := io.ReadFull(a, make([]byte, total))
		require.NoError(t, err)
		eventually(t, wrote.Load)
		closeBoth(d, a)
		wg.Wait()
	}
}

// Both ends write ten rings. With readers that ends; without, the writers block and use no CPU.
//
// fault: DATA-7 (software)
func TestSoftwareBothWrite(t *testing.T) {
	const ring, pairs, blocked = 4096, 20, time.Second
	for name, readers := range map[string]bool{"readers": true, "no readers": false} {
		t.Run(name, func(t *testing.T) {
			n := newSoftware(t, rdma.SoftwareConfig{}, Config{SendBuffer: ring, RecvBuffer: ring, KeepAlive: -1, Linger: -1})
			var ends []*Conn
			for range pairs {
				d, a := n.pair(t)
				ends = append(ends, d, a)
			}
			var wg sync.WaitGroup
			for _, c := range ends {
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
				for _, c := range ends {
					c.waiting(t, &c.wr)
				}
				cpu := cpuTime(t)
				for _, c := range ends {
					require.NoError(t, c.SetWriteDeadline(time.Now().Add(blocked)))
				}
				wg.Wait()
				cpu = cpuTime(t) - cpu
				t.Logf("%d blocked writers used %v of CPU in %v", len(ends), cpu, blocked)
				require.Less(t, cpu, blocked/5)
			}
			wg.Wait()
			for _, c := range ends {
				require.NoError(t, c.Close())
			}
		})
	}
}

// The caller's buffer is the caller's again when Write returns. The network takes nothing meanwhile, so the device reads most of
// the memory only afterwards.
//
// fault: DATA-8 (software)
func TestSoftwareBufferIsFreeAfterWrite(t *testing.T) {
	const size = 24 << 20 // more than the buffers of TCP on the way
	sent := make([]byte, size)
	stream(8).Read(sent)
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
			n := newSoftware(t, rdma.SoftwareConfig{}, Config{SendBuffer: size + 4096, RecvBuffer: 4 * size, KeepAlive: -1})
			d, a, p := n.proxied(t)
			p.hold(toListener)
			buf := bytes.Clone(sent)
			require.NoError(t, send(d, buf))
			for i := range buf {
				buf[i] = ^buf[i]
			}
			d.mu.Lock()
			d.progress()
			drained := d.stream.Drained()
			d.mu.Unlock()
			require.False(t, drained, "the device has nothing left to read")
			p.release(toListener)
			_, err := io.ReadFull(a, buf)
			require.NoError(t, err)
			require.True(t, bytes.Equal(sent, buf))
			closeBoth(d, a)
		})
	}
}

// The ring that Write copies to is used again only after the device is done with it, on a network that stops now and then until TCP
// takes nothing any more.
//
// fault: DATA-8 (software)
func TestSoftwareRingIsNotOverwritten(t *testing.T) {
	const ring, total = 12 << 20, 64 << 20
	n := newSoftware(t, rdma.SoftwareConfig{}, Config{SendBuffer: ring, RecvBuffer: 2 * ring, KeepAlive: -1})
	d, a, p := n.proxied(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		bytes, r, buf := stream(1), rand.New(rand.NewPCG(1, 1)), make([]byte, ring)
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
	for at := 0; at < total; at += 8 << 20 {
		p.hold(toListener)
		d.waiting(t, &d.wr)
		p.release(toListener)
		_, err := io.ReadFull(a, got[at:at+8<<20])
		require.NoError(t, err)
		if total-at <= 2*ring+16<<20 { // the writer may be through
			_, err = io.ReadFull(a, got[at+8<<20:])
			require.NoError(t, err)
			break
		}
	}
	require.True(t, bytes.Equal(want, got))
	wg.Wait()
	closeBoth(d, a)
}

// A connection that breaks in the middle of a write, at any byte, has delivered a prefix of it: never other bytes, and never the end
// of a stream, not even where TCP ends in order.
//
// fault: DATA-9 (software)
func TestSoftwareCutInTheMiddleOfAWrite(t *testing.T) {
	const total, ring = 64 << 10, 4096
	sent := make([]byte, total)
	stream(9).Read(sent)
	for how, cut := range map[string]func(*net.TCPConn){"RST": reset, "FIN": finish} {
		for name, sc := range softConfigs {
			t.Run(how+"/"+name, func(t *testing.T) {
				n := newSoftware(t, sc, Config{SendBuffer: ring, RecvBuffer: ring, Linger: -1, KeepAlive: -1})
				ln := n.listen(t, n.addr)
				defer ln.Close()
				p := newProxy(t, ln.Addr())
				for at, step := 0, 1; at < total-2*ring; at, step = at+step, step+step/8+1 {
					d, a := n.connect(t, ln, p.addr())
					p.cutAfter(at, cut)
					var wg sync.WaitGroup
					wg.Go(func() {
						if k, err := d.Write(sent); err == nil || k >= total {
							t.Errorf("wrote %d, %v", k, err)
						}
					})
					var got bytes.Buffer
					_, err := io.Copy(&got, struct{ io.Reader }{a})
					require.ErrorIs(t, err, syscall.ECONNRESET)
					require.Less(t, got.Len(), total)
					require.True(t, bytes.HasPrefix(sent, got.Bytes()), "%d bytes that are no prefix", got.Len())
					wg.Wait()
					closeBoth(d, a)
				}
			})
		}
	}
}

// The smallest send queue there is, which on iWARP leaves four entries for data, and a network that takes nothing: the writer of a thousand
// tiny writes waits, without an error, and all arrive.
//
// fault: FLOW-2 (software)
func TestSoftwareSmallestSendQueue(t *testing.T) {
	const writes, fill = 1000, 16 << 20
	n := newSoftware(t, rdma.SoftwareConfig{}, Config{
		SendQueue: ring.MinSendQueue, Credits: 2 * writes, SendBuffer: 2 * fill, RecvBuffer: 4 * fill, KeepAlive: -1,
	})
	d, a, p := n.proxied(t)
	p.hold(toListener)
	_, err := d.Write(make([]byte, fill)) // until TCP is full
	require.NoError(t, err)
	var wrote atomic.Int32
	var wg sync.WaitGroup
	wg.Go(func() {
		for range writes {
			if _, err := d.Write([]byte{byte(wrote.Load())}); err != nil {
				t.Error(err)
			}
			wrote.Add(1)
		}
	})
	d.waiting(t, &d.wr)
	t.Logf("%d writes before the first that waits", wrote.Load())
	require.LessOrEqual(t, int(wrote.Load()), ring.MinSendQueue)
	p.release(toListener)
	buf := make([]byte, fill+writes)
	_, err = io.ReadFull(a, buf)
	require.NoError(t, err)
	for i, b := range buf[fill:] {
		require.Equal(t, byte(i), b)
	}
	wg.Wait()
	closeBoth(d, a)
}
