package rconn

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// web is net/http on both ends.
type web struct {
	*httptest.Server
	client *http.Client
	dials  atomic.Int64
}

// newWeb serves h, over TLS with HTTP/2 if secure.
func newWeb(t *testing.T, dev device, secure bool, h http.HandlerFunc) *web {
	n := dev.network(t, Config{})
	w := &web{Server: httptest.NewUnstartedServer(h)}
	w.Listener.Close()
	w.Listener = n.listen(t, n.addr)
	if w.EnableHTTP2 = secure; secure {
		w.StartTLS()
	} else {
		w.Start()
	}
	t.Cleanup(w.Close)
	w.client = w.Client()
	tr := w.client.Transport.(*http.Transport)
	if secure {
		tr.TLSClientConfig.ServerName = "example.com" // what httptest's certificate is for
	}
	tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		w.dials.Add(1)
		return n.dialer().DialContext(ctx, network, w.Listener.Addr().String())
	}
	t.Cleanup(tr.CloseIdleConnections)
	return w
}

func (w *web) get(path string) (string, error) {
	resp, err := w.client.Get(w.URL + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func echoPath(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto, " ", r.URL.Path) }

func TestHTTPKeepAlive(t *testing.T) {
	forSome(t, func(t *testing.T, dev device) {
		w := newWeb(t, dev, false, echoPath)
		within(t, func() {
			for i := range 50 {
				got, err := w.get(fmt.Sprint("/", i))
				require.NoError(t, err)
				require.Equal(t, fmt.Sprint("HTTP/1.1 /", i), got)
			}
		})
		require.EqualValues(t, 1, w.dials.Load())
	})
}

// fault: DATA-3 (software)
func TestHTTPConcurrent(t *testing.T) {
	forSome(t, func(t *testing.T, dev device) {
		body := strings.Repeat("0123456789abcdef", 4096)
		for name, secure := range map[string]bool{"http1": false, "http2": true} {
			t.Run(name, func(t *testing.T) {
				w := newWeb(t, dev, secure, func(w http.ResponseWriter, r *http.Request) {
					b, _ := io.ReadAll(r.Body) // HTTP/1 answers only after the question
					fmt.Fprint(w, string(b), r.Proto)
				})
				want, n := body+"HTTP/1.1", 100
				if secure {
					want, n = body+"HTTP/2.0", 64
				}
				var wg sync.WaitGroup
				for range n {
					wg.Go(func() {
						resp, err := w.client.Post(w.URL, "text/plain", strings.NewReader(body))
						if err != nil {
							t.Error(err)
							return
						}
						defer resp.Body.Close()
						if got, err := io.ReadAll(resp.Body); err != nil || string(got) != want {
							t.Errorf("%d bytes, %v", len(got), err)
						}
					})
				}
				within(t, wg.Wait)
			})
		}
	})
}

// The server closes right behind its answer.
//
// fault: CLOSE-4 (software)
func TestHTTPConnectionClose(t *testing.T) {
	forSome(t, func(t *testing.T, dev device) {
		const rounds = 50
		body := make([]byte, 1<<20)
		stream(5).Read(body)
		w := newWeb(t, dev, false, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Connection", "close")
			w.Header().Set("Transfer-Encoding", "identity") // neither length nor chunks: the end of the stream ends the body
			w.Write(body)
		})
		within(t, func() {
			for range rounds {
				resp, err := w.client.Get(w.URL)
				require.NoError(t, err)
				require.Empty(t, resp.TransferEncoding)
				require.EqualValues(t, -1, resp.ContentLength)
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				require.NoError(t, err)
				require.True(t, bytes.Equal(body, got), "%d bytes", len(got))
			}
		})
		require.EqualValues(t, rounds, w.dials.Load())
	})
}

func TestHTTPExpectContinue(t *testing.T) {
	forSome(t, func(t *testing.T, dev device) {
		w := newWeb(t, dev, false, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/no" {
				http.Error(w, "no", http.StatusForbidden)
				return
			}
			n, _ := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n)
		})
		w.client.Transport.(*http.Transport).ExpectContinueTimeout = time.Minute
		within(t, func() {
			for path, want := range map[string]string{"/yes": "200 100000", "/no": "403 no\n"} {
				req, err := http.NewRequest(http.MethodPost, w.URL+path, bytes.NewReader(make([]byte, 100000)))
				require.NoError(t, err)
				req.Header.Set("Expect", "100-continue")
				resp, err := w.client.Do(req)
				require.NoError(t, err)
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				require.NoError(t, err)
				require.Equal(t, want, fmt.Sprint(resp.StatusCode, " ", string(b)))
			}
		})
	})
}

func TestHTTPHijack(t *testing.T) {
	forSome(t, func(t *testing.T, dev device) {
		w := newWeb(t, dev, false, func(w http.ResponseWriter, r *http.Request) {
			c, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			rw.Flush()
			io.Copy(c, rw)
			c.Close()
		})
		within(t, func() {
			req, err := http.NewRequest(http.MethodGet, w.URL, nil)
			require.NoError(t, err)
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "echo")
			resp, err := w.client.Do(req)
			require.NoError(t, err)
			rw := resp.Body.(io.ReadWriteCloser)
			for range 100 {
				_, err := rw.Write([]byte("ping"))
				require.NoError(t, err)
				b := make([]byte, 4)
				_, err = io.ReadFull(rw, b)
				require.NoError(t, err)
				require.Equal(t, "ping", string(b))
			}
			require.NoError(t, rw.Close())
		})
	})
}

// Shutdown lets the request in progress finish.
func TestHTTPShutdownDrains(t *testing.T) {
	forSome(t, func(t *testing.T, dev device) {
		begun, finish := make(chan bool), make(chan bool)
		w := newWeb(t, dev, false, func(w http.ResponseWriter, r *http.Request) {
			begun <- true
			<-finish
			fmt.Fprint(w, "done")
		})
		within(t, func() {
			got := make(chan string)
			go func() {
				s, err := w.get("/")
				got <- fmt.Sprint(s, err)
			}()
			<-begun
			down := make(chan error)
			go func() { down <- w.Config.Shutdown(context.Background()) }()
			time.Sleep(10 * time.Millisecond)
			finish <- true
			require.Equal(t, "done<nil>", <-got)
			require.NoError(t, <-down)
		})
	})
}

// A TLS session ends with its close_notify, both ways.
func TestTLS(t *testing.T) {
	forSome(t, func(t *testing.T, dev device) {
		certs := httptest.NewUnstartedServer(nil)
		certs.StartTLS()
		defer certs.Close()
		n := dev.network(t, Config{})
		d, a := n.pair(t)
		server := tls.Server(a, certs.TLS)
		client := tls.Client(d, &tls.Config{InsecureSkipVerify: true})
		within(t, func() {
			go func() {
				io.Copy(server, server)
				server.Close()
			}()
			sent := bytes.Repeat([]byte("secret"), 100000)
			go func() {
				client.Write(sent)
				client.CloseWrite()
			}()
			got, err := io.ReadAll(client)
			require.NoError(t, err)
			require.True(t, bytes.Equal(sent, got))
			require.NoError(t, client.Close())
		})
	})
}
