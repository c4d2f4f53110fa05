package compat

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/rconn"
	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

// echo answers whatever comes out of Accept, and counts it by kind. It ends with the listener.
type echo struct {
	work sync.WaitGroup
	mu   sync.Mutex
	seen map[string]int // connections that said something
}

func (w *world) echo(t testing.TB, ln net.Listener) *echo {
	e := &echo{seen: make(map[string]int)}
	e.work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			e.work.Go(func() {
				defer c.Close()
				defer context.AfterFunc(t.Context(), func() { c.Close() })() // a test that failed may have left its end open
				if n, _ := io.Copy(c, c); n > 0 {
					e.mu.Lock()
					e.seen[kind(c)]++
					e.mu.Unlock()
				}
			})
		}
	})
	t.Cleanup(func() { ln.Close(); e.work.Wait() })
	return e
}

// healthy is the bound of the issue: a dial takes this much longer than one by TCP, at most.
const healthy = time.Second

// unhurried is a delay that no test reaches unless something is wrong: which way is taken does not depend on the load then.
const unhurried = 20 * time.Second

// unhurriedDialer falls back when a way has failed, not when it is slow.
func (w *world) unhurriedDialer() *Dialer {
	d := w.dialer()
	d.FallbackDelay, d.RDMA.FallbackDelay = unhurried, unhurried
	return d
}

// dialed dials, says hello and hears it, and tells the kind of connection.
func dialed(t testing.TB, d *Dialer, addr string) string {
	t.Helper()
	c, err := d.Dial("tcp", addr)
	require.NoError(t, err)
	defer c.Close()
	write(t, c, "hello")
	read(t, c, "hello")
	return kind(c)
}

// The best way that is there is taken; the log has one line that says which, and why.
func TestBestWay(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	ln := w.listen(t, w.listenConfig())
	w.echo(t, ln)
	addr := ln.Addr().String()
	require.Equal(t, "rdma", dialed(t, w.unhurriedDialer(), addr))
	lines := w.log.taken()
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "level=DEBUG")
	require.Contains(t, lines[0], "took=fabric")

	d := w.unhurriedDialer()
	d.RDMA.Config.Device = "software"
	require.Equal(t, "software", dialed(t, d, addr))
	lines = w.log.taken()
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "level=INFO")
	require.Contains(t, lines[0], "took=software")
	require.Contains(t, lines[0], `fabric="no RDMA device`)
	require.Contains(t, lines[0], `device=software0 why="fabric: no device"`)

	// Details are for who asks for them.
	w.log.taken()
	d = w.unhurriedDialer()
	d.RDMA.Config.Device = "software"
	d.RDMA.Config.Logger = slog.New(slog.NewTextHandler(w.log, nil))
	for range 2 {
		require.Equal(t, "software", dialed(t, d, addr))
	}
	lines = w.log.taken()
	require.Len(t, lines, 1)
	_, line, _ := strings.Cut(lines[0], "level=")
	require.Equal(t, "INFO msg=dialed addr="+addr+` took=software device=software0 why="fabric: no device"`+"\n", line)

	d = w.unhurriedDialer()
	d.Policy = TCPOnly
	require.Equal(t, "tcp", dialed(t, d, addr))
	require.Empty(t, w.log.taken())

	d.Policy = Require
	require.Equal(t, "rdma", dialed(t, d, addr))
}

// The server has no RDMA: the software device is taken. RDMA that refuses is remembered, and not asked again.
func TestNoRDMAThere(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	lc := w.listenConfig()
	lc.RDMA.Config.Device = "software"
	ln := w.listen(t, lc)
	w.echo(t, ln)
	d := w.unhurriedDialer()
	for range 3 {
		require.Equal(t, "software", dialed(t, d, ln.Addr().String()))
	}
	require.Equal(t, 1, w.a.Calls(verbstest.Connect))
	lines := w.log.taken()
	require.Len(t, lines, 3)
	require.Contains(t, lines[0], "level=INFO")
	require.Contains(t, lines[0], "connection refused")
	require.Contains(t, lines[1], "level=DEBUG")
	require.Contains(t, lines[1], "in vain lately")

	d.Memory = -1
	d.memory.notes = nil
	for range 3 {
		require.Equal(t, "software", dialed(t, d, ln.Addr().String()))
	}
	require.Equal(t, 4, w.a.Calls(verbstest.Connect))
}

// RDMA is firewalled: its connection manager hears nothing, TCP works. The first dial takes the software device after the delay, the second at once.
func TestRDMAFirewalled(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	ln := w.listen(t, w.listenConfig())
	w.echo(t, ln)
	w.fab.Cut(w.a, w.b)
	d := w.dialer()
	d.FallbackDelay = unhurried
	start := time.Now()
	require.Equal(t, "software", dialed(t, d, ln.Addr().String()))
	require.Less(t, time.Since(start), healthy)
	require.Contains(t, w.log.taken()[0], `fabric="no answer in 2`)
	require.Equal(t, "software", dialed(t, d, ln.Addr().String()))
	require.Contains(t, w.log.taken()[0], `fabric="not tried`)

	// All is firewalled but plain TCP.
	d = w.dialer()
	d.RDMA.Config.Device = "no-software"
	start = time.Now()
	require.Equal(t, "tcp", dialed(t, d, ln.Addr().String()))
	require.Less(t, time.Since(start), healthy)
	w.fab.Heal(w.a, w.b)
}

// tcpServer is a server that has TCP only. It counts connections, and those that began with an MPA request.
type tcpServer struct {
	net.Listener
	conns, mpa atomic.Int32
	open       atomic.Int32
	work       sync.WaitGroup
}

// serveTCP serves each connection with f until the end of the test; f gets what the client says.
func serveTCP(t testing.TB, f func(c *net.TCPConn, r *bufio.Reader)) *tcpServer {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &tcpServer{Listener: ln}
	s.work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.conns.Add(1)
			s.open.Add(1)
			s.work.Go(func() {
				defer s.open.Add(-1)
				defer c.Close()
				defer context.AfterFunc(t.Context(), func() { c.Close() })() // a test that failed may have left its end open
				r := bufio.NewReader(&mpaCounter{Conn: c, s: s})
				f(c.(*net.TCPConn), r)
			})
		}
	})
	t.Cleanup(func() { ln.Close(); s.work.Wait() })
	return s
}

// mpaCounter looks at what a client says first.
type mpaCounter struct {
	net.Conn
	s    *tcpServer
	said bool
}

func (c *mpaCounter) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.said && bytes.HasPrefix(p[:n], []byte(mpaKey)) {
		c.s.mpa.Add(1)
	}
	c.said = c.said || n > 0
	return n, err
}

// A server that has TCP only sees one connection with an MPA request, whatever it does with it, which ends; and then plain ones. Those are there
// in time, work, and come at once from the second one on.
func TestTCPOnlyServers(t *testing.T) {
	lines := func(c *net.TCPConn, r *bufio.Reader) { // answers each line
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			io.WriteString(c, line)
		}
	}
	for name, s := range map[string]struct {
		serve    func(c *net.TCPConn, r *bufio.Reader)
		greeting string
		quick    bool // the answer tells
	}{
		"waits for more": {func(c *net.TCPConn, r *bufio.Reader) {
			if b, _ := r.Peek(3); string(b) == "MPA" {
				io.Copy(io.Discard, r) // no line ever ends: with chance in it, the request's own bytes would now and then end one
			}
			lines(c, r)
		}, "", false},
		"greets": {func(c *net.TCPConn, r *bufio.Reader) {
			io.WriteString(c, "220 \r\n")
			lines(c, r)
		}, "220 \r\n", true},
		"echoes": {func(c *net.TCPConn, r *bufio.Reader) { io.Copy(c, r) }, "", true},
		"closes on what it does not know": {func(c *net.TCPConn, r *bufio.Reader) {
			if b, _ := r.Peek(3); string(b) != "MPA" {
				lines(c, r)
			}
		}, "", true},
		"resets on what it does not know": {func(c *net.TCPConn, r *bufio.Reader) {
			if b, _ := r.Peek(3); string(b) != "MPA" {
				lines(c, r)
			}
			c.SetLinger(0)
		}, "", true},
		"complains": {func(c *net.TCPConn, r *bufio.Reader) {
			if b, _ := r.Peek(3); string(b) == "MPA" {
				io.WriteString(c, "what?")
			}
			lines(c, r)
		}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, verbstest.Config{})
			srv := serveTCP(t, s.serve)
			d := w.dialer()
			for i := range 3 {
				start := time.Now()
				c, err := d.Dial("tcp", srv.Addr().String())
				took := time.Since(start)
				require.NoError(t, err)
				defer c.Close() // whatever fails
				require.Less(t, took, healthy)
				if !s.quick && i == 0 {
					require.GreaterOrEqual(t, took, defaultFallbackDelay, w.log)
				}
				require.IsType(t, &net.TCPConn{}, c)
				read(t, c, s.greeting)
				write(t, c, "hello\n")
				read(t, c, "hello\n")
				require.NoError(t, c.Close())
			}
			eventually(t, func() bool { return srv.open.Load() == 0 })
			require.EqualValues(t, 4, srv.conns.Load())
			require.EqualValues(t, 1, srv.mpa.Load())
			logged := w.log.taken()
			require.Len(t, logged, 3)
			require.Contains(t, logged[0], "level=INFO")
			require.Contains(t, logged[0], "took=tcp")
			require.Contains(t, logged[1], "level=DEBUG")
			require.Contains(t, logged[1], `software="not tried`)
		})
	}
}

// A stock net/http server stays with its clients.
func TestStockHTTPServer(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") })}
	var work sync.WaitGroup
	work.Go(func() { srv.Serve(ln) })
	tr := Transport(w.dialer())
	for range 3 {
		start := time.Now()
		resp, err := (&http.Client{Transport: tr}).Get("http://" + ln.Addr().String())
		require.NoError(t, err)
		require.Less(t, time.Since(start), healthy)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, "hello", string(body))
		resp.Body.Close()
		tr.CloseIdleConnections()
	}
	require.NoError(t, srv.Shutdown(context.Background()))
	work.Wait()
}

// With Require no plain connection is made.
func TestRequire(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	srv := serveTCP(t, func(c *net.TCPConn, r *bufio.Reader) { io.Copy(io.Discard, r) })
	d := w.dialer()
	d.Policy = Require
	d.Timeout = 400 * time.Millisecond
	_, err := d.Dial("tcp", srv.Addr().String())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "refused") // by RDMA
	require.IsType(t, &net.OpError{}, err)
	eventually(t, func() bool { return srv.open.Load() == 0 })
	require.EqualValues(t, 1, srv.conns.Load())
	require.EqualValues(t, 1, srv.mpa.Load())

	d.RDMA.Config.Device = "none0"
	_, err = d.Dial("tcp", srv.Addr().String())
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	d.RDMA.Providers = []cm.Provider{}
	_, err = d.Dial("tcp", srv.Addr().String())
	require.ErrorIs(t, err, verbs.ErrNoDevice)
}

// An error is package net's; what failed in another way is said.
func TestDialErrors(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	closed := ln.Addr().String()
	ln.Close()
	_, want := net.Dial("tcp", closed)
	_, err = w.dialer().Dial("tcp", closed)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.Equal(t, want.Error(), err.Error())
	require.IsType(t, want, err)
	require.Contains(t, w.log.taken()[0], `msg="dial failed"`)

	w.a.Fail(verbstest.CreateQP, 1, syscall.ENOMEM)
	_, err = w.dialer().Dial("tcp", closed)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorContains(t, err, syscall.ENOMEM.Error())
	require.IsType(t, want, err)

	for _, address := range []string{"127.0.0.1", "host.invalid:80"} {
		_, err = w.dialer().Dial("tcp", address)
		require.IsType(t, &net.OpError{}, err, address)
	}
	var dns *net.DNSError
	require.ErrorAs(t, err, &dns)
	_, err = w.dialer().Dial("udp5", "127.0.0.1:1")
	require.ErrorIs(t, err, net.UnknownNetworkError("udp5"))
}

// The end of the context and the limit end a dial in time, and leave nothing.
func TestDialGivenUp(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	srv := serveTCP(t, func(c *net.TCPConn, r *bufio.Reader) { io.Copy(io.Discard, r) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := w.dialer().DialContext(ctx, "tcp", srv.Addr().String())
	require.ErrorIs(t, err, context.Canceled)

	// Little time is shared: TCP gets its part, although the peer is silent.
	d := w.dialer()
	start := time.Now()
	c, err := d.DialTimeout("tcp", srv.Addr().String(), 400*time.Millisecond)
	require.NoError(t, err)
	require.Less(t, time.Since(start), 400*time.Millisecond)
	require.Equal(t, "tcp", kind(c))
	require.NoError(t, c.Close())

	d = w.dialer()
	d.FallbackDelay = -1
	_, err = d.DialTimeout("tcp", srv.Addr().String(), 100*time.Millisecond)
	var ne net.Error
	require.True(t, errors.As(err, &ne) && ne.Timeout(), "%v", err)
	eventually(t, func() bool { return srv.open.Load() == 0 })
}

// A way that was in vain is tried when the others have failed.
func TestVainIsTriedLast(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	lc := w.listenConfig()
	lc.RDMA.Config.Device = "no-software"
	lc.Policy = Require // RDMA alone
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w.echo(t, ln)
	d := w.unhurriedDialer()
	addr := ln.Addr().String()
	d.memory.note(attempt{"tcp", addr, "fabric"}, verbs.ErrNoDevice, time.Hour)
	require.Equal(t, "rdma", dialed(t, d, addr))
	require.False(t, d.memory.vain(attempt{"tcp", addr, "fabric"}))
	require.False(t, d.memory.vain(attempt{"tcp", addr, wayTCP}), "TCP has no rank to lose")
	require.True(t, d.memory.vain(attempt{"tcp", addr, "software"}))
	require.Equal(t, "rdma", dialed(t, d, addr))
}

// RDMA is slow, the software device is taken, and RDMA connects all the same: the server sees a connection that ends without a byte.
func TestLateLoser(t *testing.T) {
	w := newWorld(t, verbstest.Config{Latency: 200 * time.Millisecond})
	ln := w.listen(t, w.listenConfig())
	e := w.echo(t, ln)
	d := w.dialer()
	d.FallbackDelay = unhurried
	require.Equal(t, "software", dialed(t, d, ln.Addr().String()))
	eventually(t, func() bool { return w.fab.Objects().QPs == 0 })
	require.NoError(t, ln.Close())
	e.work.Wait()
	require.Equal(t, map[string]int{"software": 1}, e.seen)
}

// Many dials at once, to servers of each kind, some given up: all get what is there, and nothing is left.
func TestManyDials(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	both := w.listen(t, w.listenConfig())
	w.echo(t, both)
	lc := w.listenConfig()
	lc.RDMA.Config.Device = "software"
	soft := w.listen(t, lc)
	w.echo(t, soft)
	plain := serveTCP(t, func(c *net.TCPConn, r *bufio.Reader) { io.Copy(c, r) })
	d := w.unhurriedDialer()
	var wg sync.WaitGroup
	for range 8 {
		for want, ln := range map[string]net.Listener{"rdma": both, "software": soft, "tcp": plain} {
			wg.Go(func() {
				for i := range 10 {
					ctx, cancel := context.WithCancel(t.Context())
					if i%3 == 0 {
						time.AfterFunc(time.Duration(i)*100*time.Microsecond, cancel)
					}
					c, err := d.DialContext(ctx, "tcp", ln.Addr().String())
					if err == nil {
						if k := kind(c); k != want && i%3 != 0 {
							t.Errorf("%s instead of %s", k, want)
						}
						c.Close()
					} else if i%3 != 0 {
						t.Error(err)
					}
					cancel()
				}
			})
		}
	}
	wg.Wait()
}

// Names, other networks, and the shapes that libraries take.
func TestDialShapes(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	ln := w.listen(t, w.listenConfig())
	w.echo(t, ln)
	port := strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
	d := w.unhurriedDialer()
	for _, addr := range []string{"localhost:" + port, ln.Addr().String()} {
		c, err := d.DialContext(t.Context(), "rdma4", addr)
		require.NoError(t, err)
		require.Equal(t, "rdma", kind(c))
		require.NoError(t, c.Close())
	}
	c, err := d.DialAddr(t.Context(), ln.Addr().String())
	require.NoError(t, err)
	require.NoError(t, c.Close())

	dir := t.TempDir()
	t.Chdir(dir)
	paths := []string{dir + "/socket", "socket"}
	addrs := []string{"unix:" + dir + "/socket", "unix://" + dir + "/socket", "unix:socket", "unix://socket"} // as gRPC has them
	if runtime.GOOS == "linux" {
		abstract := "compat-test-" + strconv.Itoa(os.Getpid())
		paths, addrs = append(paths, "@"+abstract), append(addrs, "unix:@"+abstract, "\x00"+abstract)
		unix, err := Listen("unix", "@"+abstract)
		require.NoError(t, err)
		defer unix.Close()
	}
	unix, err := Listen("unix", paths[0])
	require.NoError(t, err)
	for _, path := range paths {
		c, err = d.Dial("unix", path)
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	for _, addr := range addrs {
		c, err = d.DialAddr(t.Context(), addr)
		require.NoError(t, err, "%q", addr)
		require.IsType(t, &net.UnixConn{}, c)
		require.NoError(t, c.Close())
	}
	require.NoError(t, unix.Close())

	for _, f := range []func() (net.Conn, error){
		func() (net.Conn, error) { return Dial("tcp", ln.Addr().String()) },
		func() (net.Conn, error) { return DialTimeout("tcp", ln.Addr().String(), time.Minute) },
		func() (net.Conn, error) { return d.DialTimeout("tcp4", ln.Addr().String(), 0) },
	} {
		c, err := f()
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
}

// A server of package rconn, dialed as its documentation says.
func TestRconnServer(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	lc := rconn.ListenConfig{Providers: w.listening, Config: w.config()}
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w.echo(t, ln)
	d := w.unhurriedDialer()
	d.Policy = Require
	require.Equal(t, "rdma", dialed(t, d, ln.Addr().String()))
	d.RDMA.Config.Device = "software"
	require.Equal(t, "software", dialed(t, d, strings.Replace(ln.Addr().String(), "127.0.0.1", "localhost", 1)))
}
