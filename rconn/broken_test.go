package rconn

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

// What each call on a connection returns after each way to end it, again and again: the errors that the package's documentation names.
func TestErrorsAfterTheEnd(t *testing.T) {
	waits := os.ErrDeadlineExceeded // the call would go on if there were something to do
	for name, c := range map[string]struct {
		end                   func(n *network, d, a *Conn)
		read, write, endWrite error
		cause                 error // that a broken connection's error names too
	}{
		"nothing":            {func(n *network, d, a *Conn) {}, waits, nil, nil, nil},
		"closed":             {func(n *network, d, a *Conn) { d.Close() }, net.ErrClosed, net.ErrClosed, net.ErrClosed, nil},
		"writing ended":      {func(n *network, d, a *Conn) { d.CloseWrite() }, waits, syscall.EPIPE, nil, nil},
		"reading ended":      {func(n *network, d, a *Conn) { d.CloseRead() }, io.EOF, nil, nil, nil},
		"peer closed":        {func(n *network, d, a *Conn) { a.Close() }, io.EOF, syscall.EPIPE, nil, nil},
		"peer ended writing": {func(n *network, d, a *Conn) { a.CloseWrite() }, io.EOF, nil, nil, nil},
		"peer aborted": {func(n *network, d, a *Conn) { a.SetLinger(0); a.Close() },
			syscall.ECONNRESET, syscall.ECONNRESET, nil, nil},
		"peer killed": {func(n *network, d, a *Conn) { n.b.Kill() }, syscall.ECONNRESET, syscall.ECONNRESET, nil, nil},
		"dead link": {func(n *network, d, a *Conn) { n.fab.Cut(n.a, n.b); time.Sleep(time.Minute) },
			syscall.ETIMEDOUT, syscall.ETIMEDOUT, nil, nil},
		"dead link while writing": {func(n *network, d, a *Conn) { n.fab.Cut(n.a, n.b); d.Write([]byte("x")); time.Sleep(time.Hour) },
			syscall.ECONNRESET, syscall.ECONNRESET, nil, nil},
		"device removed": {func(n *network, d, a *Conn) { n.a.RemoveDevice(n.a.Device(0)) },
			syscall.ECONNRESET, syscall.ECONNRESET, nil, verbs.ErrDeviceRemoved},
		"post failed": {func(n *network, d, a *Conn) { n.a.Fail(verbstest.PostSend, 1, syscall.ENOMEM); d.Write([]byte("x")) },
			syscall.ECONNRESET, syscall.ECONNRESET, nil, syscall.ENOMEM},
	} {
		t.Run(name, func(t *testing.T) {
			forFlavours(t, func(t *testing.T, fc verbstest.Config) {
				synctest.Test(t, func(t *testing.T) {
					cfg := Config{AckTimeout: 31}
					if name == "dead link while writing" { // the device, or TCP, finds it
						cfg = Config{AckTimeout: 10, KeepAlive: -1}
					}
					n := newNetwork(t, fc, cfg)
					d, a := n.pair(t)
					synctest.Wait()
					c.end(n, d, a)
					time.Sleep(time.Second)
					is := func(want, err error) {
						t.Helper()
						if want == nil || want == io.EOF {
							require.Equal(t, want, err)
							return
						}
						require.ErrorIs(t, err, want)
						require.IsType(t, &net.OpError{}, err)
						if c.cause != nil {
							require.ErrorIs(t, err, c.cause)
						}
					}
					closed := net.ErrClosed
					if c.read != closed {
						closed = nil
					}
					for range 3 {
						is(closed, d.SetReadDeadline(time.Now().Add(time.Millisecond)))
						k, err := d.Read(make([]byte, 1))
						require.Zero(t, k)
						is(c.read, err)
						k, err = d.Write([]byte("x"))
						is(c.write, err)
						require.Equal(t, err == nil, k == 1)
						v := net.Buffers{{1}, {2}}
						_, err = d.WriteBuffers(&v)
						is(c.write, err)
						require.Equal(t, err == nil, len(v) == 0)
					}
					is(c.endWrite, d.CloseWrite())
					is(closed, d.CloseRead())
					is(closed, d.SetLinger(1))
					is(closed, d.Close())
					c.cause = nil
					for _, err := range []error{
						d.Close(), d.CloseRead(), d.CloseWrite(), d.SetLinger(1), d.SetDeadline(time.Time{}), d.SetReadDeadline(time.Time{}),
						d.SetWriteDeadline(time.Time{}),
					} {
						is(net.ErrClosed, err)
					}
					for _, p := range [][]byte{nil, {1}} {
						_, err := d.Read(p)
						is(net.ErrClosed, err)
						_, err = d.Write(p)
						is(net.ErrClosed, err)
					}
					if !errors.Is(a.SetLinger(0), net.ErrClosed) {
						require.NoError(t, a.Close())
					}
					time.Sleep(time.Hour)
				})
			})
		})
	}
}
