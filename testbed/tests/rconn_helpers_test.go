//go:build guest

package tests

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/rconn"
)

// kernel has the kernel's devices and no other: what they fail to do shall not be done by software instead.
var kernel = []cm.Provider{system}

// listenStream listens on the guest's device.
func listenStream(t testing.TB, port string, cfg rconn.Config) net.Listener {
	t.Helper()
	lc := rconn.ListenConfig{Config: cfg, Providers: kernel}
	ln, err := lc.Listen(t.Context(), "rdma", net.JoinHostPort(addr, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// streamDialer dials with the guest's device.
func streamDialer(cfg rconn.Config) *rconn.Dialer {
	return &rconn.Dialer{Config: cfg, Timeout: patience, Providers: kernel}
}

// streams makes connections of rconn over the guest's device.
func streams(t testing.TB, cfg rconn.Config) (dial, accept func() (net.Conn, error)) {
	t.Helper()
	ln, d := listenStream(t, "0", cfg), streamDialer(cfg)
	return func() (net.Conn, error) { return d.Dial("rdma", ln.Addr().String()) }, ln.Accept
}

// countedStreams is streams, with what there is when all connections are closed.
func countedStreams(t *testing.T, cfg rconn.Config) (dial, accept func() (net.Conn, error), from map[string]int) {
	t.Helper()
	base(t)
	dial, accept = streams(t, cfg)
	time.Sleep(100 * time.Millisecond)
	return dial, accept, counts(t)
}

// both makes the two ends of one connection.
func both(dial, accept func() (net.Conn, error)) (dialed, accepted net.Conn, err error) {
	ch := make(chan error, 1)
	go func() {
		var err error
		accepted, err = accept()
		ch <- err
	}()
	if dialed, err = dial(); err != nil {
		return nil, nil, err // nobody will be accepted
	}
	return dialed, accepted, <-ch
}

// streamPair makes one connection.
func streamPair(t testing.TB, cfg rconn.Config) (dialed, accepted net.Conn, err error) {
	return both(streams(t, cfg))
}

// smallStreams are for many connections: a guest makes them fast enough.
var smallStreams = rconn.Config{SendBuffer: 64 << 10, RecvBuffer: 64 << 10, Credits: 32, SendQueue: 32}

// noRNR wants the device never to find a receive missing while the test runs. siw does not count that: there it would be the end of the
// connection.
func noRNR(t *testing.T) {
	t.Helper()
	if isSiw() {
		return
	}
	before := rnrErrors(t)
	t.Cleanup(func() {
		if n := rnrErrors(t) - before; n != 0 {
			t.Errorf("receives ran out %d times", n)
		}
	})
}

// rnrErrors is the sum of the device's counts of receiver-not-ready.
func rnrErrors(t *testing.T) (n int) {
	t.Helper()
	for _, name := range []string{"rcvd_rnr_err", "send_rnr_err"} {
		b, err := os.ReadFile("/sys/class/infiniband/rxe0/ports/1/hw_counters/" + name)
		if err != nil {
			t.Fatal(err)
		}
		k, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		n += k
	}
	return n
}

// noise is what the bytes of checked streams are, over and over: the same in all processes, and of a prime length, so that no lost or
// repeated piece of a ring goes unnoticed.
var noise = func() []byte {
	b := make([]byte, 65521)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b)
	return b
}()

// source is an endless reader of noise.
type source struct{ at int }

// next is the noise that comes next, up to n bytes of it.
func (s *source) next(n int) []byte {
	b := noise[s.at%len(noise):]
	b = b[:min(n, len(b))]
	s.at += len(b)
	return b
}

func (s *source) Read(p []byte) (int, error) { return copy(p, s.next(len(p))), nil }

// fill fills p.
func (s *source) fill(p []byte) {
	for len(p) > 0 {
		p = p[copy(p, s.next(len(p))):]
	}
}

// sink takes noise, and fails at the first byte that is another.
type sink struct{ source }

func (s *sink) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		at := s.at
		want := s.next(len(rest))
		if !bytes.Equal(rest[:len(want)], want) {
			return 0, fmt.Errorf("wrong bytes between %d and %d of the stream", at, at+len(want))
		}
		rest = rest[len(want):]
	}
	return len(p), nil
}
