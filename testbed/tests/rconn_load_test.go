//go:build guest

package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rconn/rdma/rconn"
)

// Reads and writes of random sizes, up to three rings, both ways at once: not a byte is lost, repeated or changed. A million operations,
// or as many as a minute has room for.
//
// fault: DATA-1, FLOW-5
func TestRxeStreamRandomSizes(t *testing.T) { testRandomSizes(t, time.Minute, 100_000) }

// fault: DATA-1
func TestSiwStreamRandomSizes(t *testing.T) { testRandomSizes(t, 10*time.Second, 4_000) }

const million = 1_000_000

func testRandomSizes(t *testing.T, limit time.Duration, atLeast int64) {
	noRNR(t)
	var ops, bytes atomic.Int64
	begin := time.Now()
	var wg sync.WaitGroup
	for _, size := range []int{64, 1000, 4096} {
		c, a, err := streamPair(t, rconn.Config{SendBuffer: size, RecvBuffer: size, Credits: 64, SendQueue: 64})
		if err != nil {
			t.Fatal(err)
		}
		// Of all magnitudes, or small ones would be rare and everything full all the time.
		random := func() int { return 1 + rand.N(min(3*size, 2<<rand.N(bits.Len(uint(3*size))))) }
		for _, c := range []net.Conn{c, a} {
			c.SetDeadline(begin.Add(limit + patience))
			wg.Go(func() {
				var s source
				buf := make([]byte, 3*size)
				for time.Since(begin) < limit && ops.Load() < million {
					for range 50 {
						b := buf[:random()]
						s.fill(b)
						if _, err := c.Write(b); err != nil {
							t.Errorf("after %d bytes: %v", s.at, err)
							return
						}
						ops.Add(1)
					}
				}
				if err := c.(*rconn.Conn).CloseWrite(); err != nil {
					t.Error(err)
				}
				bytes.Add(int64(s.at))
			})
			wg.Go(func() {
				var s sink
				buf := make([]byte, 3*size)
				for {
					n, err := c.Read(buf[:random()])
					ops.Add(1)
					if _, werr := s.Write(buf[:n]); werr != nil {
						t.Error(werr)
						return
					}
					if err != nil {
						if err != io.EOF {
							t.Errorf("after %d bytes: %v", s.at, err)
						}
						bytes.Add(-int64(s.at))
						return
					}
				}
			})
		}
		t.Cleanup(func() {
			go c.Close()
			a.Close()
		})
	}
	wg.Wait()
	t.Logf("seen: %d reads and writes in %v", ops.Load(), time.Since(begin).Round(time.Millisecond))
	if ops.Load() < atLeast {
		t.Errorf("want at least %d", atLeast)
	}
	if lost := bytes.Load(); lost != 0 {
		t.Errorf("%d bytes were written and not read", lost)
	}
}

// Many requests at once: HTTP/1 on many connections, HTTP/2 over TLS with as many streams on one.
//
// fault: FLOW-5
func TestRxeHTTPLoad(t *testing.T) {
	noRNR(t)
	body := make([]byte, 100_000)
	new(source).fill(body)
	for _, x := range []struct {
		proto    string
		secure   bool
		requests int
		maxConns int64
	}{
		{"HTTP/1.1", false, 100, 100}, {"HTTP/2.0", true, 64, 1},
	} {
		t.Run(x.proto, func(t *testing.T) {
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				fmt.Fprint(w, r.Proto, string(b))
			}))
			srv.Listener.Close()
			cfg := smallStreams
			cfg.HandshakeTimeout = patience // a hundred at once
			ln := listenStream(t, "0", cfg)
			srv.Listener = ln
			if srv.EnableHTTP2 = x.secure; x.secure {
				srv.StartTLS()
			} else {
				srv.Start()
			}
			defer srv.Close()
			client := srv.Client()
			client.Timeout = 2 * patience
			tr := client.Transport.(*http.Transport)
			var dials atomic.Int64
			tr.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				dials.Add(1)
				return streamDialer(cfg).DialContext(ctx, network, ln.Addr().String())
			}
			if x.secure {
				tr.TLSClientConfig.ServerName = "example.com" // httptest's certificate is for it
			}
			ask := func() error {
				resp, err := client.Post(srv.URL, "", strings.NewReader(string(body)))
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				got, err := io.ReadAll(resp.Body)
				if want := x.proto + string(body); err == nil && string(got) != want {
					err = errors.New("wrong answer")
				}
				return err
			}
			if err := ask(); err != nil { // HTTP/2 then has its connection
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for range x.requests {
				wg.Go(func() {
					if err := ask(); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if n := dials.Load(); n > x.maxConns {
				t.Errorf("%d connections", n)
			}
		})
	}
}
