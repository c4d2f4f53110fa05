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
	for name, c := range map[string]struct {
		end func(n *network, d, a *Conn)
		ending
	}{
		"nothing":            {func(n *network, d, a *Conn) {}, ending{errWaits, nil, nil, nil}},
		"closed":             {func(n *network, d, a *Conn) { d.Close() }, ending{net.ErrClosed, net.ErrClosed, net.ErrClosed, nil}},
		"writing ended":      {func(n *network, d, a *Conn) { d.CloseWrite() }, ending{errWaits, syscall.EPIPE, nil, nil}},
		"reading ended":      {func(n *network, d, a *Conn) { d.CloseRead() }, ending{io.EOF, nil, nil, nil}},
		"peer closed":        {func(n *network, d, a *Conn) { a.Close() }, ending{io.EOF, syscall.EPIPE, nil, nil}},
		"peer ended writing": {func(n *network, d, a *Conn) { a.CloseWrite() }, ending{io.EOF, nil, nil, nil}},
		"peer aborted": {func(n *network, d, a *Conn) { a.SetLinger(0); a.Close() },
			ending{syscall.ECONNRESET, syscall.ECONNRESET, nil, nil}},
		"peer killed": {func(n *network, d, a *Conn) { n.b.Kill() }, ending{syscall.ECONNRESET, syscall.ECONNRESET, nil, nil}},
		"dead link": {func(n *network, d, a *Conn) { n.fab.Cut(n.a, n.b); time.Sleep(time.Minute) },
			ending{syscall.ETIMEDOUT, syscall.ETIMEDOUT, nil, nil}},
		"dead link while writing": {func(n *network, d, a *Conn) { n.fab.Cut(n.a, n.b); d.Write([]byte("x")); time.Sleep(time.Hour) },
			ending{syscall.ECONNRESET, syscall.ECONNRESET, nil, nil}},
		"device removed": {func(n *network, d, a *Conn) { n.a.RemoveDevice(n.a.Device(0)) },
			ending{syscall.ECONNRESET, syscall.ECONNRESET, nil, verbs.ErrDeviceRemoved}},
		"post failed": {func(n *network, d, a *Conn) { n.a.Fail(verbstest.PostSend, 1, syscall.ENOMEM); d.Write([]byte("x")) },
			ending{syscall.ECONNRESET, syscall.ECONNRESET, nil, syscall.ENOMEM}},
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
					c.check(t, d)
					if !errors.Is(a.SetLinger(0), net.ErrClosed) {
						require.NoError(t, a.Close())
					}
					time.Sleep(time.Hour)
				})
			})
		})
	}
}

// ending is what calls return after the end of a connection.
type ending struct {
	read, write, endWrite error
	cause                 error // that a broken connection's error names too
}

// errWaits is what a call with a deadline returns that would go on if there were something to do.
var errWaits = os.ErrDeadlineExceeded

// check makes all calls.
func (e ending) check(t *testing.T, d *Conn) {
	cause := e.cause
	is := func(want, err error) {
		t.Helper()
		if want == nil || want == io.EOF {
			require.Equal(t, want, err)
			return
		}
		require.ErrorIs(t, err, want)
		require.IsType(t, &net.OpError{}, err)
		if cause != nil {
			require.ErrorIs(t, err, cause)
		}
	}
	closed := net.ErrClosed
	if e.read != closed {
		closed = nil
	}
	within := time.Minute // the deadline comes before the end, if it has passed
	if e.read == errWaits {
		within = time.Millisecond
	}
	for range 3 {
		is(closed, d.SetReadDeadline(time.Now().Add(within)))
		k, err := d.Read(make([]byte, 1))
		require.Zero(t, k)
		is(e.read, err)
		k, err = d.Write([]byte("x"))
		is(e.write, err)
		require.Equal(t, err == nil, k == 1)
		v := net.Buffers{{1}, {2}}
		_, err = d.WriteBuffers(&v)
		is(e.write, err)
		require.Equal(t, err == nil, len(v) == 0)
	}
	is(e.endWrite, d.CloseWrite())
	is(closed, d.CloseRead())
	is(closed, d.SetLinger(1))
	is(closed, d.Close())
	cause = nil
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
}
