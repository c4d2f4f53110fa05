package compat

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/rconn"
	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

// world has RDMA on a fabric, the software device and TCP, all at 127.0.0.1.
type world struct {
	fab                *verbstest.Fabric
	a, b               *verbstest.Host
	dialing, listening []cm.Provider // RDMA, the software device
	log                *logs
}

// newWorld makes one; at the end of the test nothing may be left in it.
func newWorld(t testing.TB, fc verbstest.Config) *world {
	w := &world{fab: verbstest.NewFabric(fc), log: new(logs)}
	w.a, w.b = w.fab.Host("a", "10.0.0.1"), w.fab.Host("b", "10.0.0.2")
	soft := rdma.SoftwareConfig{Logger: slog.New(slog.DiscardHandler)}
	softA, softB := rdma.Software(soft), rdma.Software(soft)
	w.dialing, w.listening = []cm.Provider{onLoopback{w.a}, softA}, []cm.Provider{onLoopback{w.b}, softB}
	closeBoth(tcpPair(t)) // Go's poller has descriptors of its own
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	t.Cleanup(func() {
		var err error
		eventually(t, func() bool {
			err = errors.Join(softA.(interface{ Leaks() error }).Leaks(), softB.(interface{ Leaks() error }).Leaks())
			if o := w.fab.Objects(); o != (verbstest.Objects{}) {
				err = errors.Join(err, fmt.Errorf("left on the fabric: %+v", o))
			}
			return err == nil
		}, &err)
		verbstest.CheckLeaks(t, w.fab)
		w.fab.Close()
		eventually(t, func() bool {
			g, f := runtime.NumGoroutine(), openFiles(t)
			err = fmt.Errorf("%d goroutines and %d files, %d and %d before", g, f, goroutines, files)
			return g <= goroutines && f <= files
		}, &err)
	})
	return w
}

// openFiles counts descriptors, where the system tells. Not those of pipes: package net keeps some for splice, until a garbage collection.
func openFiles(t testing.TB) int {
	if runtime.GOOS != "linux" {
		return 0
	}
	names, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	n := 0
	for _, name := range names {
		if to, err := os.Readlink("/proc/self/fd/" + name.Name()); err == nil && !strings.HasPrefix(to, "pipe:") {
			n++
		}
	}
	return n
}

func (w *world) config() rconn.Config {
	return rconn.Config{Logger: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Linger: time.Second}
}

func (w *world) dialer() *Dialer {
	return &Dialer{RDMA: rconn.Dialer{Providers: w.dialing, Config: w.config()}}
}

// patient is a limit that no test reaches unless something is wrong.
const patient = time.Hour

func (w *world) listenConfig() *ListenConfig {
	return &ListenConfig{Silence: patient, RDMA: rconn.ListenConfig{Providers: w.listening, Config: w.config()}}
}

// listen listens; the listener is closed at the end of the test if it was not before.
func (w *world) listen(t testing.TB, lc *ListenConfig) *Listener {
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	return ln.(*Listener)
}

// rconnDialer dials one of the providers with package rconn alone.
func (w *world) rconnDialer(i int) *rconn.Dialer {
	return &rconn.Dialer{Providers: w.dialing[i : i+1], Config: w.config()}
}

// onLoopback has the fabric's 10.0.0.2 at 127.0.0.1, where TCP is too.
type onLoopback struct{ *verbstest.Host }

var loopback, fabricB = netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.0.0.2")

func swap(a netip.AddrPort, from, to netip.Addr) netip.AddrPort {
	if a.Addr() == from {
		return netip.AddrPortFrom(to, a.Port())
	}
	return a
}

func (h onLoopback) Resolve(ctx context.Context, local, remote netip.AddrPort) (cm.Resolved, error) {
	return h.Host.Resolve(ctx, local, swap(remote, loopback, fabricB))
}

func (h onLoopback) Listen(local netip.AddrPort, o cm.ListenOptions) (cm.Listener, error) {
	ln, err := h.Host.Listen(swap(local, loopback, fabricB), o)
	if err != nil {
		return nil, err
	}
	return loopbackListener{ln}, nil
}

type loopbackListener struct{ cm.Listener }

func (l loopbackListener) Addr() netip.AddrPort { return swap(l.Listener.Addr(), fabricB, loopback) }

// logs is a log that tests read.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// taken returns the lines that tell of a dial, and forgets all.
func (l *logs) taken() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for line := range bytes.Lines(l.buf.Bytes()) {
		if bytes.Contains(line, []byte("msg=dialed")) || bytes.Contains(line, []byte(`msg="dial failed"`)) {
			found = append(found, string(line))
		}
	}
	l.buf.Reset()
	return found
}

// eventually waits for what must happen, in real time.
func eventually(t testing.TB, f func() bool, why ...*error) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(end) {
			for _, err := range why {
				t.Error(*err)
			}
			buf := make([]byte, 1<<20)
			t.Fatalf("waited in vain\n%s", buf[:runtime.Stack(buf, true)])
		}
	}
}

// kind is what a connection runs on: "rdma", "software" or "tcp".
func kind(c net.Conn) string {
	switch c := c.(type) {
	case *rconn.Conn:
		if c.Info().Transport == verbs.TransportIWARP {
			return "software"
		}
		return "rdma"
	case *net.TCPConn, *begun:
		return "tcp"
	}
	return fmt.Sprintf("%T", c)
}

// exchange has both ends say something and end in order.
func exchange(t testing.TB, a, b net.Conn) {
	t.Helper()
	limit := time.Now().Add(20 * time.Second)
	var wg sync.WaitGroup
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		require.NoError(t, pair[0].SetDeadline(limit))
		wg.Go(func() {
			_, err := pair[0].Write(bytes.Repeat([]byte("hello"), 10000))
			if err = errors.Join(err, pair[0].(interface{ CloseWrite() error }).CloseWrite()); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			got, err := io.ReadAll(pair[1])
			if err != nil || !bytes.Equal(got, bytes.Repeat([]byte("hello"), 10000)) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	wg.Wait()
	closeBoth(a, b)
}

// closeBoth closes both ends at once: each waits for the other.
func closeBoth(a, b net.Conn) {
	var wg sync.WaitGroup
	wg.Go(func() { a.Close() })
	wg.Go(func() { b.Close() })
	wg.Wait()
}

// accept takes a connection, in time.
func accept(t testing.TB, ln *Listener) net.Conn {
	t.Helper()
	require.NoError(t, ln.SetDeadline(time.Now().Add(20*time.Second)))
	c, err := ln.Accept()
	require.NoError(t, err)
	require.NoError(t, ln.SetDeadline(time.Time{}))
	return c
}

// dialTCP dials a listener by plain TCP. The connection is closed at the end of the test.
func dialTCP(t testing.TB, addr net.Addr) *net.TCPConn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr.String(), 20*time.Second)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

func write(t testing.TB, c net.Conn, s string) {
	t.Helper()
	_, err := io.WriteString(c, s)
	require.NoError(t, err)
}

// read reads just what is expected.
func read(t testing.TB, c net.Conn, want string) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	got := make([]byte, len(want))
	_, err := io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

// over expects the end of a connection.
func over(t testing.TB, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err := c.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

// otherConns is a TCP listener whose connections are no *net.TCPConn, as on systems where first bytes have to be read.
type otherConns struct{ net.Listener }

func (l otherConns) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return otherConn{c}, nil
}

// otherConn hides what a TCP connection can do besides net.Conn.
type otherConn struct{ net.Conn }

func (c otherConn) CloseWrite() error { return c.Conn.(*net.TCPConn).CloseWrite() }

// forLooks runs a test with first bytes that stay in the socket, and with those that are read.
func forLooks(t *testing.T, f func(t *testing.T, w *world, lc *ListenConfig)) {
	t.Run("peek", func(t *testing.T) {
		w := newWorld(t, verbstest.Config{})
		f(t, w, w.listenConfig())
	})
	t.Run("read", func(t *testing.T) {
		w := newWorld(t, verbstest.Config{})
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		lc := w.listenConfig()
		lc.RDMA.TCP = otherConns{tcp}
		f(t, w, lc)
	})
}
