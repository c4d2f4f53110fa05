package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is the limit for what must happen.
const patience = 60 * time.Second

// instance is a running rdmaproxy: the function run, or a process of its own.
type instance struct {
	addrs   []string // of the listeners, in the order of the rules
	metrics string
	signal  func(os.Signal)
	status  chan int
	log     *logs
}

// logs takes what an instance logs.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.WriteString(line + "\n")
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// start runs the program within this process until the end of the test.
func start(t testing.TB, args ...string) *instance {
	t.Helper()
	r, w := io.Pipe()
	signals := make(chan os.Signal, 4)
	i := &instance{status: make(chan int, 1), signal: func(s os.Signal) { signals <- s }}
	go func() {
		status := run(testArgs(args), w, signals)
		w.Close()
		i.status <- status
	}()
	i.ready(t, r)
	return i
}

// testArgs are rules, or flags.
func testArgs(args []string) []string {
	all := []string{"-metrics", "127.0.0.1:0", "-page", "-log-level", "debug", "-drain", patience.String()}
	for _, a := range args {
		if strings.HasPrefix(a, "-") {
			all = append(all, a)
		} else {
			all = append(all, "-forward", a)
		}
	}
	return all
}

var address = regexp.MustCompile(`address="?([^" ]+)`)

// ready waits until all listens, as the log says, and ends the instance with the test.
func (i *instance) ready(t testing.TB, out io.Reader) {
	t.Helper()
	i.log = &logs{}
	ready, done := make(chan bool, 1), make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			line := lines.Text()
			i.log.add(line)
			switch {
			case strings.Contains(line, "msg=listening"):
				i.addrs = append(i.addrs, address.FindStringSubmatch(line)[1])
			case strings.Contains(line, "msg=metrics"):
				i.metrics = "http://" + address.FindStringSubmatch(line)[1]
				ready <- true
			}
		}
	}()
	t.Cleanup(func() {
		i.signal(syscall.SIGTERM)
		i.signal(syscall.SIGTERM)
		receive(t, done)
		if t.Failed() {
			t.Logf("log of %v:\n%v", i.addrs, i.log)
		}
	})
	select {
	case <-ready:
	case <-done:
		t.Fatalf("does not start:\n%v", i.log)
	case <-time.After(patience):
		t.Fatal("does not start")
	}
}

// get fetches a page of an instance.
func (i *instance) get(t testing.TB, path string) string {
	t.Helper()
	resp, err := http.Get(i.metrics + path)
	require.NoError(t, err)
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	return string(b)
}

// sum adds up a metric over those of its lines that have a label, as kind="dial"; empty: over all.
func (i *instance) sum(t testing.TB, name, label string) int {
	t.Helper()
	n, found := 0, false
	for line := range strings.Lines(i.get(t, "/metrics")) {
		if strings.HasPrefix(line, "rdmaproxy_"+name+"{") && strings.Contains(line, label) {
			v, err := strconv.Atoi(line[strings.LastIndex(line, " ")+1 : len(line)-1])
			require.NoError(t, err)
			n, found = n+v, true
		}
	}
	require.True(t, found, name)
	return n
}

// open is the number of connections that are being carried.
func (i *instance) open(t testing.TB) int { return i.sum(t, "connections_open", "") }

// stopping tells whether a signal was seen.
func (i *instance) stopping(t testing.TB) bool {
	return strings.Contains(i.get(t, "/metrics"), "\nrdmaproxy_stopping 1\n")
}

// chain is two proxies in front of a backend: a client dials front, which is carried by RDMA to the other one.
type chain struct {
	front, back *instance
	network     string // of front
}

// newChain makes a chain that listens on a network, tcp or unix, and ends at a backend. The flags are for both.
func newChain(t testing.TB, network string, backend net.Addr, flags ...string) *chain {
	t.Helper()
	back := start(t, append(flags, "rdma://127.0.0.1:0="+backend.Network()+"://"+backend.String())...)
	front := start(t, append(flags, listenRule(t, network)+"=rdma://"+back.addrs[0])...)
	return &chain{front, back, network}
}

// listenRule is the first side of a rule that listens on tcp or unix.
func listenRule(t testing.TB, network string) string {
	if network == "unix" {
		return "unix://" + filepath.Join(shortDir(t), "front")
	}
	return "tcp://127.0.0.1:0"
}

// shortDir is a folder with a name that leaves room for that of a socket.
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "proxy")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// dial makes a client's connection, which ends with the test.
func (c *chain) dial(t testing.TB) conn {
	t.Helper()
	return dialAt(t, c.network, c.front.addrs[0])
}

func dialAt(t testing.TB, network, addr string) conn {
	t.Helper()
	nc, err := net.Dial(network, addr)
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close() })
	require.NoError(t, nc.SetDeadline(time.Now().Add(patience)))
	return nc.(conn)
}

// serve runs a backend on tcp or unix, with a goroutine for each connection; f need not close. It ends with the test.
func serve(t testing.TB, network string, f func(conn)) net.Addr {
	t.Helper()
	addr := "127.0.0.1:0"
	if network == "unix" {
		addr = filepath.Join(shortDir(t), "back")
	}
	ln, err := net.Listen(network, addr)
	require.NoError(t, err)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer nc.Close()
				nc.SetDeadline(time.Now().Add(patience))
				f(nc.(conn))
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		conns.Wait()
	})
	return ln.Addr()
}

// echo sends back what comes, and ends when the client does.
func echo(c conn) { _, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) }

// handOver is a backend that gives its connections to the test.
func handOver(t testing.TB, network string) (net.Addr, <-chan conn) {
	conns, over := make(chan conn, 16), make(chan struct{})
	addr := serve(t, network, func(c conn) {
		conns <- c
		<-over
	})
	t.Cleanup(func() { close(over) })
	return addr, conns
}

// silentListener takes TCP connections and says nothing, so that RDMA's handshake with it waits. It returns its address.
func silentListener(t testing.TB) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().String()
}

// receive takes from a channel, which must not take long.
func receive[T any](t testing.TB, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		buf := make([]byte, 1<<20)
		t.Fatalf("waited in vain\n%s", buf[:runtime.Stack(buf, true)])
	}
	return v
}

// eventually waits for what must happen.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain: " + what)
		}
	}
}

// roundTrip sends a line and wants it back.
func roundTrip(t testing.TB, c conn, line string) {
	t.Helper()
	_, err := io.WriteString(c, line)
	require.NoError(t, err)
	got := make([]byte, len(line))
	_, err = io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, line, string(got))
}
