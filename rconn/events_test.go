package rconn

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs/verbstest"
)

// Each event of the connection manager, at a connection with a blocked reader: those that end a connection wake it, the others
// change nothing, and all is released after each.
//
// fault: CLOSE-2, DEATH-5
func TestEveryEvent(t *testing.T) {
	for typ := cm.AddrResolved; typ <= cm.AddrinfoError; typ++ {
		t.Run(typ.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, verbstest.Config{}, Config{})
				d, a := n.pair(t)
				read := make(chan error, 1)
				go func() {
					_, err := d.Read(make([]byte, 1))
					read <- err
				}()
				synctest.Wait()
				ev := cm.Event{Type: typ}
				n.a.InjectEvent(ev)
				synctest.Wait()
				if ev.Ends() {
					require.ErrorIs(t, <-read, syscall.ECONNRESET)
				} else {
					require.Empty(t, read)
					_, err := a.Write([]byte("x"))
					require.NoError(t, err)
					require.NoError(t, <-read)
				}
				require.NoError(t, d.Close())
				require.NoError(t, a.Close())
			})
		})
	}
}

// A client that stops in the middle of its handshake holds nobody else up.
//
// fault: CONN-3
func TestHalfHandshake(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			fc.Latency = time.Millisecond
			n := newNetwork(t, fc, Config{HandshakeTimeout: 5 * time.Second})
			other := n.fab.Host("c", "10.0.0.3")
			ln := n.listen(t, addrB+":0")
			defer ln.Close()

			// The cable is cut when the listener is about to answer.
			uncut := n.b.On(verbstest.Accept, func() error { n.fab.Cut(n.a, n.b); return nil })
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			failed := make(chan error, 1)
			go func() {
				_, err := n.dialer().DialContext(ctx, "rdma", ln.Addr().String())
				failed <- err
			}()
			time.Sleep(100 * time.Millisecond)
			uncut()

			start := time.Now()
			d := n.dialer()
			d.Providers = []cm.Provider{other}
			c, err := d.Dial("rdma", ln.Addr().String())
			require.NoError(t, err)
			a, err := ln.Accept()
			require.NoError(t, err)
			if a.RemoteAddr().(*net.TCPAddr).IP.String() == addrA {
				// On iWARP an accepting side is done with its answer: it cannot know yet.
				require.NoError(t, a.(*Conn).SetLinger(0))
				require.NoError(t, a.Close())
				a, err = ln.Accept()
				require.NoError(t, err)
			}
			require.Equal(t, c.LocalAddr().String(), a.RemoteAddr().String())
			require.Less(t, time.Since(start), time.Second)
			require.NoError(t, errors.Join(c.Close(), a.Close()))

			var ne net.Error
			require.ErrorAs(t, <-failed, &ne)
			require.True(t, ne.Timeout())
			n.fab.Heal(n.a, n.b)
			time.Sleep(time.Minute) // the listener gives up too, and releases all
		})
	})
}

// What arrives after a deadline or a cancel finds memory that is still there. The fabric records a device that touches memory of
// a closed MR.
//
// fault: MEM-7
func TestLateArrival(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			fc.Latency = 50 * time.Millisecond
			n := newNetwork(t, fc, Config{})
			d, a := n.pair(t)
			time.Sleep(time.Second)
			_, err := a.Write([]byte("late"))
			require.NoError(t, err)
			require.NoError(t, d.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
			_, err = d.Read(make([]byte, 4))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			time.Sleep(time.Second)
			require.NoError(t, d.SetReadDeadline(time.Time{}))
			buf := make([]byte, 4)
			_, err = d.Read(buf)
			require.NoError(t, err)
			require.Equal(t, "late", string(buf))

			// A write on its way meets a peer that has just gone.
			_, err = a.Write([]byte("later"))
			require.NoError(t, err)
			require.NoError(t, d.SetLinger(0))
			require.NoError(t, d.Close())
			time.Sleep(10 * time.Second)
			require.NoError(t, a.Close())

			// A dial is given up at each moment of its handshake.
			ln := n.listen(t, addrB+":0")
			for wait := time.Millisecond; wait < 400*time.Millisecond; wait += 10 * time.Millisecond {
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				c, err := n.dialer().DialContext(ctx, "rdma", ln.Addr().String())
				cancel()
				if err == nil {
					require.NoError(t, c.Close())
				} else {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
			}
			time.Sleep(time.Minute)
			require.NoError(t, ln.Close())
		})
	})
}

// An error of a post reaches the Write that needed it.
//
// fault: FLOW-8
func TestPostError(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.EINVAL} {
		n := newNetwork(t, verbstest.Config{}, Config{Linger: -1})
		d, a := n.pair(t)
		within(t, func() {
			n.a.Fail(verbstest.PostSend, 3, errno)
			var err error
			for i := 0; i < 10 && err == nil; i++ {
				_, err = d.Write([]byte("x"))
			}
			require.ErrorIs(t, err, errno)
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.NoError(t, errors.Join(d.Close(), a.Close()))
		})
	}
}

// The limit on locked memory ends one connection, not the listener.
//
// fault: MEM-1
func TestListenerSurvivesMemlock(t *testing.T) {
	n := newNetwork(t, verbstest.Config{Device: verbstest.DeviceConfig{Memlock: 3 << 20}}, Config{})
	ln := n.listen(t, addrB+":0")
	defer ln.Close()
	within(t, func() {
		var conns []net.Conn
		for {
			c, err := n.dialer().Dial("rdma", ln.Addr().String())
			if err != nil {
				require.True(t, errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ECONNREFUSED), "%v", err)
				if errors.Is(err, syscall.ENOMEM) {
					require.ErrorContains(t, err, "ulimit -l")
				}
				break
			}
			a, err := ln.Accept()
			require.NoError(t, err)
			conns = append(conns, c, a)
		}
		require.NotEmpty(t, conns)
		for _, c := range conns {
			require.NoError(t, c.Close())
		}
		serveNext(t, n, ln)
	})
}

// An error of a post wakes the call of the other direction too: nothing else may ever.
//
// fault: FLOW-8
func TestPostErrorWakesReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{Linger: -1})
		d, a := n.pair(t)
		read := make(chan error, 1)
		go func() {
			_, err := d.Read(make([]byte, 1))
			read <- err
		}()
		synctest.Wait()
		n.a.Fail(verbstest.PostSend, 1, syscall.ENOMEM)
		_, err := d.Write([]byte("x"))
		require.ErrorIs(t, err, syscall.ENOMEM)
		synctest.Wait()
		require.Len(t, read, 1, "the reader sleeps on")
		require.ErrorIs(t, <-read, syscall.ENOMEM)
		require.NoError(t, errors.Join(d.Close(), a.Close()))
	})
}

// A post that fails does not hide what had arrived before: the rest of the stream, and its end.
func TestPostErrorAfterArrival(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t, fc, Config{Linger: -1})
			d, a := n.pair(t)
			_, err := a.Write([]byte("last words"))
			require.NoError(t, err)
			require.NoError(t, a.CloseWrite())
			synctest.Wait()
			n.a.Fail(verbstest.PostSend, 1, syscall.ENOTCONN)
			_, err = d.Write([]byte("x"))
			require.ErrorIs(t, err, syscall.ENOTCONN)
			got, err := io.ReadAll(d)
			require.NoError(t, err)
			require.Equal(t, "last words", string(got))
			require.NoError(t, errors.Join(d.Close(), a.Close()))
		})
	})
}

// Many clients that stop in the middle of their handshakes, more than there are places, hold the others up only shortly.
//
// fault: CONN-3
func TestManyHalfHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{SendBuffer: 4096, RecvBuffer: 4096, Logger: slog.New(slog.DiscardHandler)}
		n := newNetwork(t, verbstest.Config{Latency: time.Millisecond}, cfg)
		other := n.fab.Host("c", "10.0.0.3")
		ln := n.listen(t, addrB+":0")
		uncut := n.b.On(verbstest.Accept, func() error {
			time.Sleep(50 * time.Millisecond) // until all have asked
			n.fab.Cut(n.a, n.b)
			return nil
		})
		for range 200 {
			go func() {
				if c, err := n.dialer().Dial("rdma", ln.Addr().String()); err == nil {
					c.Close()
				}
			}()
		}
		time.Sleep(100 * time.Millisecond)
		uncut()

		start := time.Now()
		d := n.dialer()
		d.Providers = []cm.Provider{other}
		c, err := d.Dial("rdma", ln.Addr().String())
		require.NoError(t, err)
		require.Less(t, time.Since(start), 3*time.Second)
		require.NoError(t, c.Close())
		n.fab.Heal(n.a, n.b)
		require.NoError(t, ln.Close())
		time.Sleep(time.Minute)
	})
}
