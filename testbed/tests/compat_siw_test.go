//go:build guest

package tests

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rconn/rdma/compat"
	"github.com/rconn/rdma/rconn"
)

// An iWARP device of the kernel has the TCP ports of its addresses: a listener of compat serves RDMA alone there, and says so. A listener on
// all addresses serves plain TCP at the others.
func TestSiwCompatListen(t *testing.T) {
	for _, host := range []string{addr, ""} {
		t.Run(host, func(t *testing.T) { testSiwCompatListen(t, host) })
	}
}

func testSiwCompatListen(t *testing.T, host string) {
	var log lockedBuffer
	cfg := rconn.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	lc := compat.ListenConfig{RDMA: rconn.ListenConfig{Config: cfg}}
	ln, err := lc.Listen(t.Context(), "tcp4", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	said := log.String()
	if !strings.Contains(said, "level=WARN") || !strings.Contains(said, "plain TCP is not served") || !strings.Contains(said, "addr="+addr) {
		t.Errorf("the log does not say that plain TCP is not served at %s:\n%s", addr, said)
	}
	t.Log("seen: ", strings.TrimSpace(said))

	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "this is "+r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
	}), ConnContext: func(ctx context.Context, c net.Conn) context.Context {
		if rc, ok := c.(*rconn.Conn); ok {
			t.Log("seen: a client on ", rc.Info().Device)
		}
		return ctx
	}}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	defer func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != http.ErrServerClosed {
			t.Error(err)
		}
	}()

	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	at := net.JoinHostPort(addr, port)
	for _, policy := range []compat.Policy{compat.Require, compat.Prefer} {
		if err := fetch(t, &compat.Dialer{Policy: policy, RDMA: rconn.Dialer{Config: cfg}}, at); err != nil {
			t.Error(policy, err)
		}
	}
	// A plain client is not served. Its connection is refused, or ended by the kernel when it sees that this is no MPA.
	if err := fetch(t, &compat.Dialer{Policy: compat.TCPOnly}, at); err == nil {
		t.Error("a client of plain TCP was served at an address of an iWARP device")
	} else {
		t.Log("seen: plain TCP: ", err)
	}
	if host == "" {
		if err := fetch(t, &compat.Dialer{Policy: compat.TCPOnly}, net.JoinHostPort("127.0.0.1", port)); err != nil {
			t.Error("plain TCP on loopback: ", err)
		}
	}
}

// fetch gets a page by one connection.
func fetch(t *testing.T, d *compat.Dialer, at string) error {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tr := compat.Transport(d)
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+at, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && string(body) != "this is "+at {
		t.Errorf("%s answers %q", at, body)
	}
	return err
}
