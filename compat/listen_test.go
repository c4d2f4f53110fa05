package compat

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/rconn"
	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

// RDMA, the software device and plain TCP come in by one port, and each works. Plain TCP is the TCP connection itself.
func TestOnePort(t *testing.T) {
	forLooks(t, func(t *testing.T, w *world, lc *ListenConfig) {
		ln := w.listen(t, lc)
		addr := ln.Addr().(*net.TCPAddr)
		require.NotZero(t, addr.Port)
		for want, dial := range map[string]func(network, address string) (net.Conn, error){
			"rdma":     w.rconnDialer(0).Dial,
			"software": w.rconnDialer(1).Dial,
			"tcp":      net.Dial,
		} {
			c, err := dial("tcp", addr.String())
			require.NoError(t, err, want)
			write(t, c, "hello")
			a := accept(t, ln)
			require.Equal(t, want, kind(a))
			if tcp, ok := a.(*net.TCPConn); want == "tcp" && lc.RDMA.TCP == nil {
				require.True(t, ok)
				require.NoError(t, tcp.SetNoDelay(true))
			}
			read(t, a, "hello")
			exchange(t, c, a)
		}
	})
}

// A client that waits for the server's first word is taken for plain TCP after the limit, and not before. One that speaks is known at
// once, as is one that has nothing to say: the limit here is an hour.
func TestServerSpeaksFirst(t *testing.T) {
	forLooks(t, func(t *testing.T, w *world, lc *ListenConfig) {
		lc.Silence = 50 * time.Millisecond
		ln := w.listen(t, lc)
		start := time.Now()
		c := dialTCP(t, ln.Addr())
		a := accept(t, ln)
		require.GreaterOrEqual(t, time.Since(start), lc.Silence)
		write(t, a, "220 ready")
		read(t, c, "220 ready")
		exchange(t, c, a)
	})
	forLooks(t, func(t *testing.T, w *world, lc *ListenConfig) {
		ln := w.listen(t, lc)
		for _, first := range []string{"x", "MOVE", "MPA ID Req Fram3"} {
			c := dialTCP(t, ln.Addr())
			write(t, c, first)
			a := accept(t, ln)
			read(t, a, first)
			exchange(t, c, a)
		}
		c := dialTCP(t, ln.Addr())
		require.NoError(t, c.CloseWrite())
		a := accept(t, ln)
		over(t, a)
		write(t, a, "the time is 12")
		read(t, c, "the time is 12")
		require.NoError(t, a.Close())
	})
}

// The limit is 200 ms when none is given.
func TestDefaultSilence(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	lc := w.listenConfig()
	lc.Silence = 0
	ln := w.listen(t, lc)
	start := time.Now()
	dialTCP(t, ln.Addr())
	require.NoError(t, accept(t, ln).Close())
	require.GreaterOrEqual(t, time.Since(start), 200*time.Millisecond)

	lc.Silence = -1
	_, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.ErrorContains(t, err, "Silence")
}

// A request that comes in pieces is one. A key that stops half-way is plain TCP's after the limit, with all its bytes. One that is
// followed by nothing is nobody's, and never comes out of Accept.
func TestTrickle(t *testing.T) {
	forLooks(t, func(t *testing.T, w *world, lc *ListenConfig) {
		ln := w.listen(t, lc)
		trickled := tricklingProxy(t, ln.Addr())
		c, err := w.rconnDialer(1).Dial("tcp", trickled)
		require.NoError(t, err)
		a := accept(t, ln)
		require.Equal(t, "software", kind(a))
		exchange(t, c, a)
	})
	forLooks(t, func(t *testing.T, w *world, lc *ListenConfig) {
		lc.Silence = 20 * time.Millisecond
		ln := w.listen(t, lc)
		half, whole := dialTCP(t, ln.Addr()), dialTCP(t, ln.Addr())
		write(t, whole, mpaKey)
		write(t, half, mpaKey[:8])
		a := accept(t, ln)
		read(t, a, mpaKey[:8])
		exchange(t, half, a)
		over(t, whole)
		require.Zero(t, ln.hall.ready.Len())
	})
}

// tricklingProxy passes on what is sent to an address, the beginning byte by byte.
func tricklingProxy(t *testing.T, to net.Addr) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	wg.Go(func() {
		in, err := ln.Accept()
		if err != nil {
			return
		}
		defer in.Close()
		out, err := net.Dial("tcp", to.String())
		if err != nil {
			t.Error(err)
			return
		}
		defer out.Close()
		wg.Go(func() { io.Copy(in, out); in.(*net.TCPConn).CloseWrite() })
		b := make([]byte, 1)
		for range 100 {
			if _, err := in.Read(b); err != nil {
				break
			}
			out.Write(b)
			runtime.Gosched()
		}
		io.Copy(out, in)
		out.(*net.TCPConn).CloseWrite()
	})
	return ln.Addr().String()
}

// A client that resets before it is known does not come out of Accept, and the next one does.
func TestResetWhileLooked(t *testing.T) {
	forLooks(t, func(t *testing.T, w *world, lc *ListenConfig) {
		ln := w.listen(t, lc)
		for _, said := range []string{"", "M", "MPA ID"} {
			c := dialTCP(t, ln.Addr())
			if said != "" {
				write(t, c, said)
			}
			eventually(t, func() bool { return len(ln.hall.looks) == 1 })
			reset(c)
			eventually(t, func() bool { return len(ln.hall.looks) == 0 })
		}
		require.Zero(t, ln.hall.ready.Len())
		c := dialTCP(t, ln.Addr())
		write(t, c, "hello")
		exchange(t, c, readHello(t, ln))
	})
}

func readHello(t *testing.T, ln *Listener) net.Conn {
	a := accept(t, ln)
	read(t, a, "hello")
	return a
}

// Silent clients cost a bounded number of goroutines, and Close ends all that is under examination, that waits for the software device and that
// waits for Accept.
func TestCloseWithMany(t *testing.T) {
	forLooks(t, func(t *testing.T, w *world, lc *ListenConfig) {
		ln := w.listen(t, lc)
		before := runtime.NumGoroutine()
		var conns []*net.TCPConn
		for range 3 {
			c := dialTCP(t, ln.Addr())
			write(t, c, "hello")
			conns = append(conns, c)
		}
		eventually(t, func() bool { return ln.hall.ready.Len() == 3 })
		keyed := dialTCP(t, ln.Addr())
		write(t, keyed, mpaKey)
		for range maxLooks + 50 {
			conns = append(conns, dialTCP(t, ln.Addr()))
		}
		eventually(t, func() bool { return len(ln.hall.looks) == maxLooks })
		require.LessOrEqual(t, runtime.NumGoroutine(), before+maxLooks+10)
		require.NoError(t, ln.Close())
		for _, c := range append(conns, keyed) {
			over(t, c)
		}
	})
}

// Twice as many silent clients as there are places do not keep out one that speaks, and all come out of Accept.
func TestManySilent(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	lc := w.listenConfig()
	lc.Silence = 200 * time.Millisecond
	ln := w.listen(t, lc)
	const silent = 2 * maxLooks
	for range silent {
		dialTCP(t, ln.Addr())
	}
	write(t, dialTCP(t, ln.Addr()), "hello")
	var wg sync.WaitGroup
	wg.Go(func() {
		c, err := w.rconnDialer(1).Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		c.Close()
	})
	count := map[string]int{}
	for range silent + 2 {
		a := accept(t, ln)
		count[kind(a)]++
		require.NoError(t, a.Close())
	}
	wg.Wait()
	require.Equal(t, map[string]int{"tcp": silent + 1, "software": 1}, count)
}

// Accept gives connections in the order in which they became known, whatever they are; as many as the backlog are held for it.
func TestOrderAndBacklog(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	lc := w.listenConfig()
	lc.RDMA.Backlog = 5
	ln := w.listen(t, lc)
	addr := ln.Addr().String()
	kinds := []string{"tcp", "rdma", "software", "rdma", "tcp"}
	dials := map[string]func(network, address string) (net.Conn, error){
		"rdma": w.rconnDialer(0).Dial, "software": w.rconnDialer(1).Dial, "tcp": net.Dial,
	}
	var conns []net.Conn
	for i, k := range kinds {
		c, err := dials[k]("tcp", addr)
		require.NoError(t, err)
		write(t, c, strconv.Itoa(i))
		conns = append(conns, c)
		eventually(t, func() bool { return ln.hall.ready.Len() == i+1 })
	}
	const more = 20
	for range more {
		c := dialTCP(t, ln.Addr())
		write(t, c, "later")
		conns = append(conns, c)
	}
	require.Equal(t, 5, ln.hall.ready.Len())
	for i, k := range kinds {
		a := accept(t, ln)
		require.Equal(t, k, kind(a))
		read(t, a, strconv.Itoa(i))
		closeBoth(a, conns[i])
	}
	for range more {
		a := accept(t, ln)
		read(t, a, "later")
		require.NoError(t, a.Close())
	}
}

// A kernel's iWARP device has the TCP ports of its address: RDMA alone is served there, and the log says so.
func TestKernelIWARP(t *testing.T) {
	w := newWorld(t, verbstest.Config{Device: verbstest.DeviceConfig{Transport: verbs.TransportIWARP}})
	for _, device := range []string{"", "no-software"} {
		lc := w.listenConfig()
		lc.RDMA.Config.Device = device
		ln := w.listen(t, lc)
		require.Contains(t, w.log.String(), "plain TCP is not served")
		_, err := net.Dial("tcp", ln.Addr().String())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		c, err := w.rconnDialer(0).Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		exchange(t, c, accept(t, ln))
		require.NoError(t, ln.Close())
	}

	// The device goes: nothing is left to wait for.
	ln := w.listen(t, w.listenConfig())
	w.b.RemoveDevice(w.b.Device(0))
	_, err := ln.Accept()
	require.ErrorIs(t, err, verbs.ErrDeviceRemoved)
}

// Where the software device is not wanted, plain TCP is served beside RDMA, without a look at its bytes.
func TestNoSoftware(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	lc := w.listenConfig()
	lc.RDMA.Config.Device = "no-software"
	ln := w.listen(t, lc)
	c, err := w.rconnDialer(0).Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	exchange(t, c, accept(t, ln))
	silent := dialTCP(t, ln.Addr())
	exchange(t, silent, accept(t, ln))

	lc.RDMA.Config.Device = "none0"
	ln = w.listen(t, lc)
	require.Contains(t, w.log.String(), "plain TCP alone")
	silent = dialTCP(t, ln.Addr())
	exchange(t, silent, accept(t, ln))
}

// All addresses: both families, on one port number.
func TestAllAddresses(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	ln, err := w.listenConfig().Listen(t.Context(), "tcp", ":0")
	require.NoError(t, err)
	l := ln.(*Listener)
	defer ln.Close()
	addr := ln.Addr().(*net.TCPAddr)
	require.True(t, addr.IP.IsUnspecified())
	require.NotEmpty(t, l.fronts)
	for _, f := range l.fronts {
		require.Equal(t, addr.Port, f.Addr().(*net.TCPAddr).Port)
		c := dialTCP(t, f.Addr())
		write(t, c, "hello")
		exchange(t, c, readHello(t, l))
	}
	c, err := w.rconnDialer(1).Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(addr.Port)))
	require.NoError(t, err)
	exchange(t, c, accept(t, l))
}

// A taken port is an error, and not a listener that serves RDMA alone.
func TestPortTaken(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	for _, device := range []string{"", "no-software", "software"} {
		lc := w.listenConfig()
		lc.RDMA.Config.Device = device
		_, err = lc.Listen(t.Context(), "tcp", tcp.Addr().String())
		require.ErrorIs(t, err, syscall.EADDRINUSE, device)
		require.IsType(t, &net.OpError{}, err)
		require.NotContains(t, w.log.String(), "RDMA alone")
	}
}

// A picked port number that RDMA has free and TCP has not is given up for another.
func TestPortPicked(t *testing.T) {
	for _, device := range []string{"", "no-software"} {
		t.Run(device, func(t *testing.T) {
			w := newWorld(t, verbstest.Config{})
			lc := w.listenConfig()
			lc.RDMA.Config.Device = device
			first := w.listen(t, lc).Addr().(*net.TCPAddr).Port
			next := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+1)) // the fabric counts up
			if tcp, err := net.Listen("tcp", next); err == nil {
				defer tcp.Close()
			} // else somebody has it, which is as good
			ln := w.listen(t, lc)
			require.Greater(t, ln.Addr().(*net.TCPAddr).Port, first+1)
			require.Len(t, ln.fronts, 1)
		})
	}
}

func TestListenPolicies(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	lc := w.listenConfig()
	lc.Policy = Require
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.IsType(t, &rconn.Listener{}, ln)
	require.NoError(t, ln.Close())
	lc.Policy = TCPOnly
	ln, err = lc.Listen(t.Context(), "rdma4", "127.0.0.1:0")
	require.NoError(t, err)
	require.IsType(t, &net.TCPListener{}, ln)
	require.NoError(t, ln.Close())
	lc.Policy = Prefer
	ln, err = lc.Listen(t.Context(), "unix", t.TempDir()+"/socket")
	require.NoError(t, err)
	require.IsType(t, &net.UnixListener{}, ln)
	require.NoError(t, ln.Close())
}

func TestListenErrors(t *testing.T) {
	for network, address := range map[string]string{"tcp": "127.0.0.1", "tcp6": "127.0.0.1:0", "tcp4": "192.0.2.1:0"} {
		_, err := Listen(network, address)
		require.IsType(t, &net.OpError{}, err, address)
		_, want := net.Listen(network, address)
		require.Equal(t, errors.Is(want, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EADDRNOTAVAIL), address)
	}
}

// Deadlines and Close are package net's.
func TestListener(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	ln := w.listen(t, w.listenConfig())
	require.NoError(t, ln.SetDeadline(time.Unix(1, 0)))
	_, err := ln.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	var ne net.Error
	require.True(t, errors.As(err, &ne) && ne.Timeout())
	for _, wake := range []func() error{func() error { return ln.SetDeadline(time.Now()) }, ln.Close} {
		require.NoError(t, ln.SetDeadline(time.Time{}))
		accepted := make(chan error)
		go func() { _, err := ln.Accept(); accepted <- err }()
		require.NoError(t, wake())
		require.Error(t, <-accepted)
	}
	_, err = ln.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, ln.Close(), net.ErrClosed)
	require.ErrorIs(t, ln.SetDeadline(time.Time{}), net.ErrClosed)
}

// failing is a TCP listener without descriptors left, for a while.
type failing struct {
	net.Listener
	left int
}

func (l *failing) Accept() (net.Conn, error) {
	if l.left--; l.left >= 0 {
		return nil, os.NewSyscallError("accept4", syscall.EMFILE)
	}
	return l.Listener.Accept()
}

// Running out of descriptors is for the log, and passes.
func TestAcceptErrors(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	lc := w.listenConfig()
	lc.RDMA.TCP = &failing{tcp, 3}
	ln := w.listen(t, lc)
	c := dialTCP(t, ln.Addr())
	write(t, c, "hello")
	exchange(t, c, readHello(t, ln))
	require.Contains(t, w.log.String(), syscall.EMFILE.Error())

	lc.RDMA.TCP = &failing{otherConns{must(net.Listen("tcp", "127.0.0.1:0"))}, 1 << 40}
	ln = w.listen(t, lc)
	require.NoError(t, ln.Close()) // in the middle of a pause
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Clients come, go and reset at random while the listener closes.
func TestCloseRace(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	for range 20 {
		lc := w.listenConfig()
		lc.Silence = time.Millisecond
		ln := w.listen(t, lc)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for ctx.Err() == nil {
					c, err := net.Dial("tcp", ln.Addr().String())
					if err != nil {
						return
					}
					switch i % 4 {
					case 1:
						c.Write([]byte(mpaKey))
					case 2:
						c.Write([]byte("GET"))
					case 3:
						c.Write([]byte("MP"))
						reset(c)
					}
					c.Close()
				}
			})
		}
		wg.Go(func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		})
		eventually(t, func() bool { return ln.hall.ready.Len() > 0 || len(ln.hall.looks) > 0 })
		require.NoError(t, ln.Close())
		cancel()
		wg.Wait()
	}
}
