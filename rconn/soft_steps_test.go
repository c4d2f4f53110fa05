package rconn

import (
	"errors"
	"io"
	"log/slog"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
)

// Each step of a dial and of an accept fails in turn, a thousand times in all: a clear error, nothing left, and the listener serves the
// next.
//
// fault: MEM-2 (software)
func TestSoftwareEachStepFails(t *testing.T) {
	const failures = 1000
	boom := errors.New("boom")
	n := newSoftware(t, rdma.SoftwareConfig{}, Config{
		SendBuffer: 4096, RecvBuffer: 4096, Credits: 4, SendQueue: 16, Logger: slog.New(slog.DiscardHandler),
	})
	ms := n.meddle()
	steps := [2][]string{
		{resolveAddr, allocPD, allocMR, createChannel, createCQ, createQP, postRecv, connectID},
		{allocPD, allocMR, createChannel, createCQ, createQP, postRecv, acceptID},
	}
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	ln := n.listen(t, n.addr)
	for done := 0; done < failures; {
		for side := range steps {
			for _, step := range steps[side] {
				ms[side].fail(step, 1, boom)
				_, err := n.dialer().Dial("rdma", ln.Addr().String())
				require.ErrorIs(t, err, []error{boom, syscall.ECONNREFUSED}[side], step)
				done++
			}
		}
	}
	within(t, func() { serveNext(t, n, ln) })
	require.NoError(t, ln.Close())
	_, err := n.dialer().Dial("rdma", ln.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, n.leaks())
	eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines && openFiles(t) <= files })
}

// An error of a post reaches the Write that needed it, and wakes the call of the other direction.
//
// fault: FLOW-8 (software)
func TestSoftwarePostError(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.EINVAL} {
		for k := 1; k <= 10; k++ {
			n := newSoftware(t, rdma.SoftwareConfig{}, Config{Linger: -1})
			m := n.meddle()[0]
			d, a := n.pair(t)
			require.NoError(t, d.SetNoDelay(true))
			read := make(chan error, 1)
			go func() {
				_, err := d.Read(make([]byte, 1))
				read <- err
			}()
			d.waiting(t, &d.rd)
			m.fail(postSend, k, errno)
			within(t, func() {
				var err error
				wrote := 0
				for ; err == nil && wrote <= k; wrote++ {
					_, err = d.Write([]byte("x"))
				}
				require.ErrorIs(t, err, errno)
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.ErrorIs(t, <-read, errno)
				require.NoError(t, d.Close())
				got, err := io.Copy(io.Discard, struct{ io.Reader }{a})
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.LessOrEqual(t, int(got), wrote)
				require.NoError(t, a.Close())
			})
		}
	}
}
