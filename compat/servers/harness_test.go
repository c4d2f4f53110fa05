package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/compat"
	"github.com/rconn/rdma/rconn"
)

// A row of the matrix is a server and a client.
type row struct {
	name    string
	modules []string // whose versions the matrix shows; none: the standard library
	does    string   // for the matrix, in a few words

	// serve serves ln until the end of the test. It has to wait for what it started.
	serve func(t *testing.T, ln net.Listener)

	// start, if it is set, is there instead of serve: it starts a program that serves, until the end of the test, and returns its address.
	start func(t *testing.T, l link) (addr string)

	// use is the client's side.
	use func(t *testing.T, n *network)
}

// network is what a client needs.
type network struct {
	link
	*compat.Dialer
	addr string // the server's
}

// A link is a way to carry connections.
type link struct {
	name   string
	policy compat.Policy
	ring   int // bytes of each ring, 0 for the default
}

var links = []link{
	{name: "tcp", policy: compat.TCPOnly},
	{name: "rdma", policy: compat.Require},
	{name: "4KiB", policy: compat.Require, ring: 4 << 10},
}

// Where the tests run, see the package's comment.
var (
	address = or(os.Getenv("RDMA_ADDR"), "127.0.0.1")
	device  = or(os.Getenv("RCONN_DEVICE"), "software")
)

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// patience is how long anything may take that should take far less.
const patience = 2 * time.Minute

// In a pair of guests each process has a role, "server" or "client", and RDMA_PEER is where the other one is; COMPAT_LINKS names the links
// to use. A server says "serving" and serves until its standard input ends.
var role = os.Getenv("COMPAT_ROLE")

const pairPort = "7400"

func port() string {
	if role == "server" {
		return pairPort
	}
	return "0"
}

func (r row) run(t *testing.T) {
	for _, l := range links {
		if only := os.Getenv("COMPAT_LINKS"); only != "" && !slices.Contains(strings.Split(only, ","), l.name) {
			continue
		}
		if ok := r.runOn(t, l); !ok && l.policy == compat.TCPOnly {
			t.Fatal("fails on plain TCP too")
		}
	}
}

// runOn runs a row on a link, and notes the result for the matrix.
func (r row) runOn(t *testing.T, l link) (ok bool) {
	started := time.Now()
	defer func() { r.note(t, l, ok, time.Since(started)) }()
	return t.Run(l.name, func(t *testing.T) {
		if l.policy == compat.TCPOnly {
			t.Cleanup(settle)
		} else {
			// A process keeps the devices and the CM that it has used.
			ln, err := newEnds(t, l).lc.Listen(t.Context(), "tcp", net.JoinHostPort(address, "0"))
			check(t, err)
			check(t, ln.Close())
			settle()
			leaves(t, takeStock(t))
		}
		e := newEnds(t, l)
		n := &network{link: l, Dialer: e.dialer}
		switch {
		case role == "client":
			n.addr = net.JoinHostPort(os.Getenv("RDMA_PEER"), pairPort)
		case r.start != nil:
			n.addr = r.start(t, l)
		default:
			ln := e.listen(t, net.JoinHostPort(address, port()))
			n.addr = ln.Addr().String()
			r.serve(t, ln)
		}
		if role == "server" {
			fmt.Println("serving")
			io.Copy(io.Discard, os.Stdin)
			return
		}
		r.use(t, n)
	})
}

// ends makes listeners and connections.
type ends struct {
	lc     *compat.ListenConfig
	dialer *compat.Dialer
}

// newEnds makes them for a link. On the software device it checks at the end of the test that all its objects are gone.
func newEnds(t testing.TB, l link) ends {
	var providers []cm.Provider
	if device == "software" {
		soft := rdma.Software(rdma.SoftwareConfig{Logger: quiet})
		providers = []cm.Provider{soft}
		t.Cleanup(func() {
			eventually(t, func() error { return soft.(interface{ Leaks() error }).Leaks() })
		})
	}
	e := ends{
		lc:     &compat.ListenConfig{RDMA: rconn.ListenConfig{Providers: providers, Config: l.config()}},
		dialer: dialer(l),
	}
	e.dialer.RDMA.Providers = providers
	return e
}

// dialer is a link's dialer.
func dialer(l link) *compat.Dialer {
	return &compat.Dialer{Policy: l.policy, Timeout: patience, RDMA: rconn.Dialer{Config: l.config()}}
}

func (l link) config() rconn.Config {
	return rconn.Config{Device: device, SendBuffer: l.ring, RecvBuffer: l.ring, Logger: quiet}
}

// quiet has what is worth a warning.
var quiet = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))

// listen listens until the end of the test. The port serves RDMA and plain TCP.
func (e ends) listen(t testing.TB, address string) net.Listener {
	ln, err := e.lc.Listen(context.Background(), "tcp", address)
	check(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

// stock is what a process has.
type stock struct{ goroutines, files int }

// takeStock counts. Go's poller, which has descriptors of its own, runs by then.
func takeStock(t testing.TB) stock {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	check(t, ln.Close())
	return stock{runtime.NumGoroutine(), openFiles(t)}
}

// leaves checks at the end of the test that there is no more than before.
func leaves(t testing.TB, before stock) {
	t.Cleanup(func() {
		eventually(t, func() error {
			if now := takeStock(t); now.goroutines > before.goroutines || now.files > before.files {
				return fmt.Errorf("%+v, before %+v", now, before)
			}
			return nil
		})
	})
}

// settle waits until the number of goroutines stays: libraries end some of theirs in their own time.
func settle() {
	for last, same := -1, 0; same < 20; time.Sleep(5 * time.Millisecond) {
		if n := runtime.NumGoroutine(); n != last {
			last, same = n, 0
		} else {
			same++
		}
	}
}

func openFiles(t testing.TB) int {
	names, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	return len(names)
}

// eventually waits until f has no error.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			var stacks strings.Builder
			pprof.Lookup("goroutine").WriteTo(&stacks, 1)
			t.Fatalf("waited in vain: %v\n%s", err, &stacks)
		}
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// together runs f n times at once, and fails with all of their errors.
func together(t testing.TB, n int, f func(i int) error) {
	t.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := f(i); err != nil {
				errs[i] = fmt.Errorf("%d: %w", i, err)
			}
		})
	}
	wg.Wait()
	check(t, errors.Join(errs...))
}

// noise is n bytes that depend on seed and have no period.
func noise(seed uint64, n int) []byte {
	p := make([]byte, n)
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range p {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		p[i] = byte(x)
	}
	return p
}

// serveConns hands each connection of ln to f, until the end of the test, when all are over.
func serveConns(t *testing.T, ln net.Listener, f func(c net.Conn)) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
				return
			}
			wg.Go(func() { f(c) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
}

// bridge carries bytes both ways until one end is over, and closes both.
func bridge(a, b net.Conn) {
	var wg sync.WaitGroup
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		wg.Go(func() {
			io.Copy(pair[0], pair[1])
			pair[0].Close()
			pair[1].Close()
		})
	}
	wg.Wait()
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}
