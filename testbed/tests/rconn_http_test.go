//go:build guest

package tests

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/rconn/rdma/rconn"
)

// An unmodified net/http server on rconn serves a real file to a Go client and to curl, a C program that knows
// nothing of RDMA: librspreload turns its sockets into rsockets.
func TestRxeHTTPFile(t *testing.T) {
	file := make([]byte, 4<<20)
	rand.Read(file)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), file, 0o644); err != nil {
		t.Fatal(err)
	}
	ln, err := rconn.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.FileServer(http.Dir(dir))}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	defer func() {
		srv.Close()
		if err := <-served; err != http.ErrServerClosed {
			t.Error(err)
		}
	}()
	url := "http://" + ln.Addr().String() + "/file"

	t.Run("go", func(t *testing.T) {
		tr := &http.Transport{DialContext: (&rconn.Dialer{}).DialContext}
		defer tr.CloseIdleConnections()
		for range 2 { // the second time on the same connection
			resp, err := (&http.Client{Transport: tr, Timeout: patience}).Get(url)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || !bytes.Equal(got, file) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
		}
	})
	t.Run("curl", func(t *testing.T) {
		preload, err := filepath.Glob("/usr/lib/*/rsocket/librspreload.so")
		if err != nil || len(preload) != 1 {
			t.Fatal("librspreload.so is missing:", preload, err)
		}
		out := filepath.Join(dir, "curl")
		run(t, "env", "LD_PRELOAD="+preload[0], "curl", "--silent", "--show-error", "--fail", "-o", out, url)
		got, err := os.ReadFile(out)
		if err != nil || !bytes.Equal(got, file) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	})
}
