//go:build guest

package tests

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rconn/rdma/rconn"
)

// site is an unmodified net/http server on rconn with a real file.
type site struct {
	dir, url string
	file     []byte
	conns    atomic.Int64 // connections accepted
}

// newSite serves a file of size bytes on the guest's device.
func newSite(t *testing.T, size int) *site {
	ln, err := rconn.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	return serveSite(t, size, ln)
}

func serveSite(t *testing.T, size int, ln net.Listener) *site {
	s := &site{dir: t.TempDir(), file: make([]byte, size)}
	rand.Read(s.file)
	if err := os.WriteFile(filepath.Join(s.dir, "file"), s.file, 0o644); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir(s.dir)))
	mux.HandleFunc("POST /hash", func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		fmt.Fprintf(w, "%d %v %x", n, err, h.Sum(nil))
	})
	mux.HandleFunc("/close", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		w.Write(s.file)
	})
	srv := &http.Server{Handler: mux, ConnState: func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			s.conns.Add(1)
		}
	}}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	t.Cleanup(func() {
		srv.Close()
		if err := <-served; err != http.ErrServerClosed {
			t.Error(err)
		}
	})
	s.url = "http://" + ln.Addr().String()
	return s
}

// A Go client fetches the file twice on one connection.
//
// fault: FLOW-5
func TestBothHTTPGo(t *testing.T) {
	noRNR(t)
	s := newSite(t, 4<<20)
	tr := &http.Transport{DialContext: streamDialer(rconn.Config{}).DialContext}
	defer tr.CloseIdleConnections()
	for range 2 {
		resp, err := (&http.Client{Transport: tr, Timeout: patience}).Get(s.url + "/file")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !bytes.Equal(got, s.file) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	if n := s.conns.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// curl, a C program that knows nothing of RDMA: librspreload turns its sockets into rsockets.
//
// fault: FLOW-5
func TestBothHTTPCurl(t *testing.T) {
	noRNR(t)
	testCurl(t, newSite(t, 16<<20))
}

// testCurl fetches from a site with a file of 16 MiB.
func testCurl(t *testing.T, s *site) {
	preload, err := filepath.Glob("/usr/lib/*/rsocket/librspreload.so")
	if err != nil || len(preload) != 1 {
		t.Fatal("librspreload.so is missing:", preload, err)
	}
	curl := func(args ...string) string {
		return run(t, append([]string{"env", "LD_PRELOAD=" + preload[0], "curl", "--silent", "--show-error"}, args...)...)
	}
	equal := func(t *testing.T, path string) {
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, s.file) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	t.Run("16 MiB", func(t *testing.T) {
		out := filepath.Join(t.TempDir(), "out")
		curl("--fail", "-o", out, s.url+"/file")
		equal(t, out)
	})
	t.Run("two on one connection", func(t *testing.T) {
		before := s.conns.Load()
		got := curl("-o", "/dev/null", "-o", "/dev/null", "-w", "%{http_code} %{size_download}\n", s.url+"/file", s.url+"/none")
		if want := "200 16777216\n404 19\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if n := s.conns.Load() - before; n != 1 {
			t.Errorf("%d connections", n)
		}
	})
	t.Run("Connection: close", func(t *testing.T) {
		out := filepath.Join(t.TempDir(), "out")
		curl("--fail", "-o", out, s.url+"/close")
		equal(t, out)
	})
	t.Run("POST of 1 MiB", func(t *testing.T) {
		body := filepath.Join(t.TempDir(), "body")
		if err := os.WriteFile(body, s.file[:1<<20], 0o644); err != nil {
			t.Fatal(err)
		}
		got := curl("--data-binary", "@"+body, s.url+"/hash")
		if want := fmt.Sprintf("1048576 <nil> %x", sha256.Sum256(s.file[:1<<20])); strings.TrimSpace(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
