package compat

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/rpc"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/rconn/rdma/verbs/verbstest"
)

// hello tells what a request came by.
var hello = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	io.WriteString(w, kind(r.Context().Value(connKey{}).(net.Conn))+" "+r.Proto+" "+string(body))
})

type connKey struct{}

// serveHTTP serves hello until the end of the test.
func serveHTTP(t *testing.T, serve func(*http.Server) error) *http.Server {
	srv := &http.Server{Handler: hello, ConnContext: func(ctx context.Context, c net.Conn) context.Context {
		if t, ok := c.(*tls.Conn); ok {
			c = t.NetConn()
		}
		return context.WithValue(ctx, connKey{}, c)
	}}
	served := make(chan error, 1)
	go func() { served <- serve(srv) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		require.NoError(t, srv.Shutdown(ctx))
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	return srv
}

// One http.Server has clients by RDMA, by the software device and by plain TCP, at once.
func TestHTTP(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	ln := w.listen(t, w.listenConfig())
	serveHTTP(t, func(srv *http.Server) error { return srv.Serve(ln) })
	software := w.unhurriedDialer()
	software.RDMA.Config.Device = "software"
	var wg sync.WaitGroup
	for want, tr := range map[string]*http.Transport{
		"rdma": Transport(w.unhurriedDialer()), "software": Transport(software), "tcp": new(http.Transport),
	} {
		defer tr.CloseIdleConnections()
		for range 4 {
			wg.Go(func() {
				for range 10 {
					resp, err := (&http.Client{Transport: tr}).Post("http://"+ln.Addr().String(), "", strings.NewReader(strings.Repeat("x", 100_000)))
					if err != nil {
						t.Error(err)
						return
					}
					body, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					if head, rest, _ := strings.Cut(string(body), " HTTP/1.1 "); err != nil || head != want || len(rest) != 100_000 {
						t.Errorf("%s %d instead of %s, %v", head, len(rest), want, err)
					}
				}
			})
		}
	}
	wg.Wait()
}

// HTTP/2 over TLS, with certificates checked.
func TestHTTP2(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	tcp := httptest.NewUnstartedServer(nil) // for its certificate
	tcp.StartTLS()
	cert := tcp.TLS.Certificates[0]
	roots := x509.NewCertPool()
	roots.AddCert(tcp.Certificate())
	tcp.Close()
	ln := w.listen(t, w.listenConfig())
	serveHTTP(t, func(srv *http.Server) error {
		srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}}
		return srv.ServeTLS(ln, "", "")
	})
	for want, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
		"rdma": w.unhurriedDialer().DialContext, "tcp": new(net.Dialer).DialContext,
	} {
		tr := Transport(nil)
		tr.DialContext, tr.TLSClientConfig = dial, &tls.Config{RootCAs: roots}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr}).Get("https://" + ln.Addr().String())
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, errors.Join(err, resp.Body.Close()))
		require.Equal(t, want+" HTTP/2.0 ", string(body))
	}
}

// What http.DefaultTransport has is in the copy, and the copy's own dialer wins over each that it may have; HTTPS is left to DialTLSContext.
func TestTransportCopies(t *testing.T) {
	std := http.DefaultTransport
	defer func() { http.DefaultTransport = std }()
	theirs := std.(*http.Transport).Clone()
	http.DefaultTransport = theirs
	theirs.MaxConnsPerHost = 7
	theirs.DialContext = func(context.Context, string, string) (net.Conn, error) { return nil, errBoom }
	theirs.TLSClientConfig = &tls.Config{ServerName: "theirs"}
	theirs.DialTLSContext = func(context.Context, string, string) (net.Conn, error) { return nil, errBoom }

	w := newWorld(t, verbstest.Config{})
	ln := w.listen(t, w.listenConfig())
	serveHTTP(t, func(srv *http.Server) error { return srv.Serve(ln) })
	tr := Transport(w.unhurriedDialer())
	require.Equal(t, 7, tr.MaxConnsPerHost)
	require.Equal(t, "theirs", tr.TLSClientConfig.ServerName)
	require.NotSame(t, theirs.TLSClientConfig, tr.TLSClientConfig)
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Get("http://" + ln.Addr().String())
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, errors.Join(err, resp.Body.Close()))
	require.Equal(t, "rdma HTTP/1.1 ", string(body))
	_, err = (&http.Client{Transport: tr}).Get("https://" + ln.Addr().String())
	require.ErrorIs(t, err, errBoom)
}

// Without a Dialer, and when somebody has put something else in the place of http.DefaultTransport.
func TestTransport(t *testing.T) {
	tr := Transport(nil)
	require.True(t, tr.ForceAttemptHTTP2)
	std := http.DefaultTransport
	defer func() { http.DefaultTransport = std }()
	http.DefaultTransport = struct{ http.RoundTripper }{std}
	tr = Transport(nil)
	require.True(t, tr.ForceAttemptHTTP2)
	require.NotNil(t, tr.Proxy)
}

func TestListenAndServeErrors(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	require.ErrorIs(t, ListenAndServe(ln.Addr().String(), hello), syscall.EADDRINUSE)
	require.ErrorIs(t, ListenAndServeTLS(ln.Addr().String(), "", "", hello), syscall.EADDRINUSE)
	require.Error(t, ListenAndServeTLS("127.0.0.1:0", "no such file", "", hello))
	require.Equal(t, ":http", orPort("", ":http"))
	require.Equal(t, ":1", orPort(":1", ":http"))
}

// Arith is what net/rpc calls.
type Arith struct{}

// Double doubles.
func (Arith) Double(n int, result *int) error {
	*result = 2 * n
	return nil
}

// net/rpc, with a server that serves all.
func TestNetRPC(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	ln := w.listen(t, w.listenConfig())
	srv := rpc.NewServer()
	require.NoError(t, srv.Register(Arith{}))
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			work.Go(func() { srv.ServeConn(c) })
		}
	})
	for _, dial := range []func(string, string) (net.Conn, error){w.dialer().Dial, net.Dial} {
		c, err := dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		client := rpc.NewClient(c)
		var result int
		require.NoError(t, client.Call("Arith.Double", 21, &result))
		require.Equal(t, 42, result)
		require.NoError(t, client.Close())
	}
	require.NoError(t, ln.Close())
	work.Wait()
}

// A connection of which the first bytes were read is a net.Conn like others.
func TestNettestBegun(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, nil, nil, err
		}
		defer ln.Close()
		dialed, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			return nil, nil, nil, err
		}
		tcp, err := ln.Accept()
		if err != nil {
			return nil, nil, nil, err
		}
		dialed.Write([]byte("x"))
		b := &begun{Conn: tcp}
		if v := b.wait(time.Now().Add(time.Minute)); v != isPlain {
			t.Errorf("verdict %v", v)
		}
		b.Read(make([]byte, 1))
		return dialed, b, func() { dialed.Close(); b.Close() }, nil
	})
}

// What begun passes on, and what it cannot.
func TestBegun(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	c := dialTCP(t, ln.Addr())
	tcp, err := ln.Accept()
	require.NoError(t, err)
	b := &begun{Conn: tcp}
	require.NoError(t, b.CloseRead())
	require.NoError(t, b.SetLinger(0))
	require.NoError(t, b.CloseWrite())
	over(t, c)
	require.NoError(t, b.Close())
	require.Equal(t, isGone, b.wait(time.Now().Add(time.Minute)))

	b = &begun{Conn: struct{ net.Conn }{}}
	for _, err := range []error{b.CloseRead(), b.CloseWrite(), b.SetLinger(0)} {
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
}
