package rconn

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// caller calls methods of one end, one after the other, and knows what it may see.
type caller struct {
	*Conn
	peer         *caller
	read         int  // bytes of the peer's
	over, closed bool // Read has told the end; Close was called

	mu      sync.Mutex
	written []byte // by this end, or about to be
}

// methods are what a script of FuzzMethods can call; arg shapes the call. Each ends: there is always a deadline.
var methods = []func(c *caller, arg int) error{
	(*caller).readSome,
	func(c *caller, arg int) error { return c.writeSome(arg, c.Write) },
	func(c *caller, arg int) error {
		return c.writeSome(arg, func(p []byte) (int, error) {
			v := net.Buffers{p[:arg/2], nil, p[arg/2:]}
			k, err := c.WriteBuffers(&v)
			return int(k), err
		})
	},
	func(c *caller, arg int) error {
		return c.writeSome(arg, func(p []byte) (int, error) {
			k, err := c.ReadFrom(struct{ io.Reader }{bytes.NewReader(p)})
			return int(k), err
		})
	},
	func(c *caller, arg int) error {
		var b bytes.Buffer
		_, err := c.WriteTo(&b)
		c.over = c.over || err == nil
		if wrong := c.saw(b.Bytes()); wrong != nil {
			return wrong
		}
		return err
	},
	func(c *caller, arg int) error { return c.CloseWrite() },
	func(c *caller, arg int) error { c.over = true; return c.CloseRead() },
	func(c *caller, arg int) error { c.closed = true; return c.Close() },
	func(c *caller, arg int) error { return c.SetLinger(arg - 1) },
	func(c *caller, arg int) error { return c.SetReadDeadline(soon(arg)) },
	func(c *caller, arg int) error { return c.SetWriteDeadline(soon(arg)) },
	func(c *caller, arg int) error { return c.SetDeadline(soon(arg)) },
	func(c *caller, arg int) error {
		c.Stats()
		c.Info()
		c.LocalAddr()
		c.RemoteAddr()
		c.Device()
		return nil
	},
	func(c *caller, arg int) error { time.Sleep(time.Duration(arg) * 100 * time.Millisecond); return nil },
}

// soon is a deadline, sometimes one that has passed.
func soon(arg int) time.Time { return time.Now().Add(time.Duration(arg-10) * time.Millisecond) }

// saw checks bytes that were read.
func (c *caller) saw(p []byte) error {
	c.peer.mu.Lock()
	defer c.peer.mu.Unlock()
	if !bytes.HasPrefix(c.peer.written[c.read:], p) {
		return fmt.Errorf("%d wrong bytes behind %d", len(p), c.read)
	}
	c.read += len(p)
	return nil
}

func (c *caller) readSome(n int) error {
	p := make([]byte, n)
	k, err := c.Read(p)
	switch {
	case k == 0 && err == nil && n > 0:
		return errors.New("nothing, and no error")
	case k > 0 && (c.over || err != nil):
		return fmt.Errorf("%d bytes after the end, or with an error: %w", k, err)
	}
	c.over = c.over || err == io.EOF
	if wrong := c.saw(p[:k]); wrong != nil {
		return wrong
	}
	return err
}

func (c *caller) writeSome(n int, write func([]byte) (int, error)) error {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(31*len(c.written) + i)
	}
	from := len(c.written)
	c.mu.Lock()
	c.written = append(c.written, p...) // the peer may see it before the call is over
	c.mu.Unlock()
	k, err := write(p)
	c.mu.Lock()
	c.written = c.written[:from+k]
	c.mu.Unlock()
	if k < n && err == nil {
		return fmt.Errorf("%d bytes of %d, and no error", k, n)
	}
	return err
}

// expected tells whether an error is of those that the package names for a connection between two honest ends.
func expected(err error, closed bool) bool {
	_, ok := err.(*net.OpError)
	switch {
	case err == nil || err == io.EOF:
		return true
	case !ok:
		return false
	case errors.Is(err, net.ErrClosed):
		return closed
	}
	return slices.ContainsFunc([]error{os.ErrDeadlineExceeded, syscall.EPIPE, syscall.ECONNRESET}, func(e error) bool { return errors.Is(err, e) })
}

// FuzzMethods calls methods of both ends in any order: nothing panics or hangs, the errors are those that the package names, and what is
// read is what was written. TestEverythingAtOnce calls them at the same time.
//
// fault: MEM-8
func FuzzMethods(f *testing.F) {
	// The transport, then three bytes a call: which end, the method, its argument.
	for transport := range byte(2) {
		f.Add([]byte{transport})
		all := []byte{transport}
		for m := range byte(len(methods)) {
			all = append(all, m, m, 40, m+1, m, 20)
		}
		f.Add(slices.Clone(all))
		slices.Reverse(all[1:])
		f.Add(all)
		f.Add([]byte{transport, 0, 1, 50, 0, 7, 0, 1, 0, 9, 1, 0, 99, 1, 0, 99, 1, 1, 1})       // write, close; read, to the end and beyond; write
		f.Add([]byte{transport, 0, 1, 200, 0, 0, 1, 1, 1, 200, 1, 0, 7, 0, 7, 0, 1, 7, 0})      // nobody reads; both ends close
		f.Add([]byte{transport, 0, 1, 9, 0, 8, 1, 0, 7, 0, 1, 0, 1, 1, 0, 9, 1, 1, 5, 1, 6, 0}) // an abort
		f.Add([]byte{transport, 0, 6, 0, 1, 1, 255, 0, 0, 5, 0, 5, 0, 1, 0, 5, 1, 0, 5})        // half-closes
		f.Add([]byte{transport, 0, 3, 255, 1, 4, 0, 0, 5, 0, 1, 4, 0, 0, 13, 60, 1, 0, 0})      // copies
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) == 0 {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			fc := flavours[[]string{"ib", "iwarp"}[script[0]&1]]
			fc.Latency = 100 * time.Microsecond
			cfg := Config{SendBuffer: 50, RecvBuffer: 40, Credits: 4, SendQueue: 16, KeepAlive: time.Second, Logger: slog.New(slog.DiscardHandler)}
			d, a := newNetwork(t, fc, cfg).pair(t)
			ends := [2]*caller{{Conn: d}, {Conn: a}}
			ends[0].peer, ends[1].peer = ends[1], ends[0]
			var wg sync.WaitGroup
			for i, c := range ends {
				require.NoError(t, c.SetDeadline(time.Now().Add(time.Second)))
				wg.Go(func() {
					for call := range slices.Chunk(script[1:min(len(script), 1+3*100)], 3) {
						if len(call) < 3 || int(call[0]&1) != i {
							continue
						}
						m := int(call[1]) % len(methods)
						if err := methods[m](c, int(call[2])); !expected(err, c.closed) {
							t.Errorf("end %d, method %d: %v", i, m, err)
						}
					}
				})
			}
			wg.Wait()
			closeBoth(d, a)
		})
	})
}
