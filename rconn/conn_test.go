package rconn

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

// Windows are of the whole receive ring, which is two segments.
//
// fault: MEM-5
func TestNettest(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		t.Parallel()
		for name, cfg := range map[string]Config{
			"default": {},
			"8B":      {RecvBuffer: 8, SendBuffer: 8},
			"64B":     {RecvBuffer: 64, SendBuffer: 64},
			"4KiB":    {RecvBuffer: 4 << 10, SendBuffer: 4 << 10, Credits: 16, SendQueue: 16},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
					n := newNetwork(t, fc, cfg)
					d, a := n.pair(t)
					return d, a, func() { closeBoth(d, a) }, nil
				})
			})
		}
	})
}

// closeBoth closes both ends at the same time: on iWARP each waits for the other.
func closeBoth(a, b *Conn) {
	var wg sync.WaitGroup
	wg.Go(func() { a.Close() })
	wg.Go(func() { b.Close() })
	wg.Wait()
}

func TestAddresses(t *testing.T) {
	forDevices(t, func(t *testing.T, dev device) {
		n := dev.network(t, Config{})
		d, a := n.pair(t)
		require.IsType(t, &net.TCPAddr{}, d.LocalAddr())
		require.Equal(t, d.LocalAddr().String(), a.RemoteAddr().String())
		require.Equal(t, a.LocalAddr().String(), d.RemoteAddr().String())
		if n.fab != nil {
			require.Contains(t, d.LocalAddr().String(), addrA+":")
		}
		closeBoth(d, a)
		require.Equal(t, d.LocalAddr().String(), a.RemoteAddr().String())
	})
}

// fault: MEM-4 (software)
func TestBytesThenEOF(t *testing.T) {
	forDevices(t, func(t *testing.T, dev device) {
		for _, size := range []int{1, 65535, 65536, 65537, 3 << 20} {
			n := dev.network(t, Config{})
			d, a := n.pair(t)
			sent := make([]byte, size)
			rand.Read(sent)
			within(t, func() {
				go func() {
					_, err := d.Write(sent)
					err = errors.Join(err, d.Close())
					if err != nil {
						t.Error(err)
					}
				}()
				got, err := io.ReadAll(a)
				require.NoError(t, err)
				require.True(t, bytes.Equal(sent, got), "%d bytes", size)
				_, err = a.Write([]byte("x"))
				require.ErrorIs(t, err, syscall.EPIPE)
				require.NoError(t, a.Close())
			})
		}
	})
}

func TestHalfClose(t *testing.T) {
	forDevices(t, func(t *testing.T, dev device) {
		n := dev.network(t, Config{})
		d, a := n.pair(t)
		within(t, func() {
			go func() {
				_, err := io.Copy(a, a) // until EOF
				err = errors.Join(err, a.CloseWrite(), a.Close())
				if err != nil {
					t.Error(err)
				}
			}()
			_, err := d.Write([]byte("over and out"))
			require.NoError(t, err)
			require.NoError(t, d.CloseWrite())
			_, err = d.Write([]byte("x"))
			require.ErrorIs(t, err, syscall.EPIPE)
			got, err := io.ReadAll(d)
			require.NoError(t, err)
			require.Equal(t, "over and out", string(got))
			require.NoError(t, d.Close())
		})
	})
}

// fault: MEM-4 (software)
func TestEmptyReadAndWrite(t *testing.T) {
	forDevices(t, func(t *testing.T, dev device) {
		n := dev.network(t, Config{})
		d, a := n.pair(t)
		for i := range 2 {
			sent, posts := d.Stats(), n.posts()
			for _, empty := range [][]byte{nil, {}} {
				k, err := d.Write(empty)
				require.Zero(t, k)
				require.NoError(t, err)
				k, err = d.Read(empty)
				require.Zero(t, k)
				require.NoError(t, err)
			}
			require.Equal(t, sent, d.Stats())
			require.Equal(t, posts, n.posts(), "something was sent")
			require.EqualValues(t, i, d.Stats().DataSent)
			d.Write([]byte("x"))
		}
		closeBoth(d, a)
		_, err := d.Read(nil)
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// A write that ran out of time has sent what it says, and nothing else.
func TestPartialWrite(t *testing.T) {
	forDevices(t, func(t *testing.T, dev device) {
		n := dev.network(t, Config{SendBuffer: 1000, RecvBuffer: 100})
		d, a := n.pair(t)
		sent := make([]byte, 5000)
		rand.Read(sent)
		require.NoError(t, d.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
		k, err := d.Write(sent)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		window := 100
		if d.iwarp() {
			window /= 2 // the accepting side cannot offer the other half before it has heard something
		}
		require.Equal(t, window, k, "as much as the peer's ring takes")
		require.NoError(t, d.SetWriteDeadline(time.Time{}))
		within(t, func() {
			go func() {
				_, err := d.Write(sent[k:])
				if err = errors.Join(err, d.Close()); err != nil {
					t.Error(err)
				}
			}()
			got, err := io.ReadAll(a)
			require.NoError(t, err)
			require.True(t, bytes.Equal(sent, got))
			require.NoError(t, a.Close())
		})
	})
}

// fault: DATA-10 (software)
func TestConcurrentWritesDoNotMix(t *testing.T) {
	forDevices(t, func(t *testing.T, dev device) {
		n := dev.network(t, Config{RecvBuffer: 4096})
		d, a := n.pair(t)
		const size, writers, each = 100 << 10, 8, 4
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				for range each {
					if _, err := d.Write(bytes.Repeat([]byte{byte('a' + i)}, size)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		within(t, func() {
			record := make([]byte, size)
			for range writers * each {
				_, err := io.ReadFull(a, record)
				require.NoError(t, err)
				require.Equal(t, size, bytes.Count(record, record[:1]))
			}
			wg.Wait()
			closeBoth(d, a)
		})
	})
}

// Both write more than all rings hold while both read.
func TestFullDuplex(t *testing.T) {
	forDevices(t, func(t *testing.T, dev device) {
		n := dev.network(t, Config{SendBuffer: 8 << 10, RecvBuffer: 16 << 10})
		d, a := n.pair(t)
		const total = 1 << 20
		var wg sync.WaitGroup
		for _, c := range []*Conn{d, a} {
			wg.Go(func() {
				_, err := c.Write(make([]byte, total))
				if err = errors.Join(err, c.CloseWrite()); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				if k, err := io.Copy(io.Discard, c); k != total || err != nil {
					t.Error(k, err)
				}
			})
		}
		within(t, wg.Wait)
		closeBoth(d, a)
	})
}

// A peer that is killed gives what it had sent, then a reset.
func TestPeerKilled(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		n := newNetwork(t, fc, Config{})
		d, a := n.pair(t)
		within(t, func() {
			_, err := a.Write([]byte("last words"))
			require.NoError(t, err)
			buf := make([]byte, 100)
			k, err := d.Read(buf)
			require.NoError(t, err)
			require.Equal(t, "last words", string(buf[:k]))
			n.b.Kill()
			_, err = d.Read(buf)
			require.ErrorIs(t, err, syscall.ECONNRESET)
			_, err = d.Write(buf)
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.NoError(t, d.Close())
			_ = a // died with its process
		})
	})
}

// A writer that always finds room, and never reads, learns of its peer's end.
func TestWriterLearnsOfEnd(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		for _, end := range []struct {
			how  func(*network, *Conn)
			want error
		}{
			{func(n *network, a *Conn) { n.b.Kill() }, syscall.ECONNRESET},
			{func(n *network, a *Conn) { a.Close() }, syscall.EPIPE},
		} {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, fc, Config{})
				d, a := n.pair(t)
				synctest.Wait()
				end.how(n, a)
				time.Sleep(10 * time.Second)
				_, err := d.Write([]byte("x"))
				require.ErrorIs(t, err, end.want)
				d.Close()
			})
		}
	})
}

// A link that swallows everything ends a connection with something in flight.
func TestLinkCut(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{AckTimeout: 10, Linger: 100 * time.Millisecond})
	d, a := n.pair(t)
	n.fab.Cut(n.a, n.b)
	within(t, func() {
		d.Write([]byte("into the void"))
		_, err := d.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		cerr := &verbs.CompletionError{Status: verbs.StatusRetryExcErr}
		require.ErrorIs(t, err, cerr)
		require.NoError(t, d.Close())
		require.NoError(t, a.Close()) // idle: it has to wait for its linger
	})
}

func TestDeviceRemoved(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{})
	d, a := n.pair(t)
	within(t, func() {
		read := make(chan error)
		go func() {
			_, err := d.Read(make([]byte, 1))
			read <- err
		}()
		n.a.RemoveDevice(n.a.Device(0))
		require.ErrorIs(t, <-read, syscall.ECONNRESET)
		// Work requests may be flushed before the event tells why.
		require.Eventually(t, func() bool {
			_, err := d.Read(make([]byte, 1))
			return errors.Is(err, syscall.ECONNRESET) && errors.Is(err, verbs.ErrDeviceRemoved)
		}, 10*time.Second, time.Millisecond)
		require.NoError(t, d.Close())
		require.NoError(t, a.Close())
	})
}

// Close gives up at the linger when the peer takes nothing.
func TestLinger(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{Linger: 50 * time.Millisecond, RecvBuffer: 64, SendBuffer: 64})
	d, a := n.pair(t)
	n.fab.Cut(n.a, n.b)
	within(t, func() { require.NoError(t, d.Close()) })
	_, err := d.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, d.Close(), net.ErrClosed)
	require.NoError(t, a.Close())
}

func TestCloseWakes(t *testing.T) {
	forDevices(t, func(t *testing.T, dev device) {
		n := dev.network(t, Config{SendBuffer: 64, RecvBuffer: 64, Linger: 50 * time.Millisecond})
		d, a := n.pair(t)
		within(t, func() {
			errs := make(chan error, 2)
			go func() { _, err := d.Read(make([]byte, 1)); errs <- err }()
			go func() { _, err := d.Write(make([]byte, 1000)); errs <- err }()
			time.Sleep(10 * time.Millisecond)
			require.NoError(t, d.Close())
			require.ErrorIs(t, <-errs, net.ErrClosed)
			require.ErrorIs(t, <-errs, net.ErrClosed)
			require.NoError(t, a.Close())
		})
	})
}

// A lost DISCONNECTED event does not hold Close up.
//
// fault: CLOSE-5
func TestDisconnectedLost(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		n := newNetwork(t, fc, Config{Linger: 100 * time.Millisecond})
		d, a := n.pair(t)
		n.a.DropEvents(cm.Disconnected, 1)
		n.b.DropEvents(cm.Disconnected, 1)
		within(t, func() {
			require.NoError(t, d.Close())
			require.NoError(t, a.Close())
		})
	})
}
