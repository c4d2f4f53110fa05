package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/compat"
	"github.com/rconn/rdma/examples/internal/leak"
	"github.com/rconn/rdma/examples/internal/progress"
)

// The tests start their own binary as the program, and as a server that gets stuck.
func TestMain(m *testing.M) {
	switch os.Getenv("HTTP_EXAMPLE") {
	case "program":
		main()
	case "stuck":
		stuck(os.Args[1])
	default:
		os.Exit(m.Run())
	}
}

// stuck serves a folder, but no more of a file than a MiB.
func stuck(dir string) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		panic(err)
	}
	ln, err := compat.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(ln.Addr())
	panic(http.Serve(ln, cut{newFiles(root), mib, func() { select {} }}))
}

const mib = 1 << 20

// cut sends a part of what handler does, and then does something else.
type cut struct {
	http.Handler
	after int
	then  func()
}

func (c cut) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.Handler.ServeHTTP(&cutWriter{w, c.after, c.then}, r)
}

type cutWriter struct {
	http.ResponseWriter
	left int
	then func()
}

func (w *cutWriter) Write(b []byte) (int, error) {
	if len(b) <= w.left {
		w.left -= len(b)
		return w.ResponseWriter.Write(b)
	}
	if n, err := w.ResponseWriter.Write(b[:w.left]); err != nil {
		return n, err
	}
	if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
		return 0, err
	}
	w.then()
	panic(http.ErrAbortHandler)
}

func abort() {}

// site is a server in this process: its handlers serve one request each, the last one all that follow.
type site struct {
	dir, url string
	files    *files

	mu       sync.Mutex
	handlers []http.Handler
	requests []http.Header
}

func newSite(t *testing.T) *site {
	s := &site{dir: t.TempDir()}
	root, err := os.OpenRoot(s.dir)
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() })
	s.files = newFiles(root)
	s.answer(s.files)
	return s
}

// start serves. The server is closed at the end of the test, and then nothing may be left.
func (s *site) start(t *testing.T, addr string) *site {
	leak.Check(t)
	lc := compat.ListenConfig{}
	lc.RDMA.Config.Logger = slog.New(slog.DiscardHandler)
	ln, err := lc.Listen(t.Context(), "tcp", addr)
	require.NoError(t, err)
	srv := &http.Server{Handler: s}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	t.Cleanup(func() {
		srv.Close()
		require.ErrorIs(t, <-done, http.ErrServerClosed)
	})
	s.url = "http://" + ln.Addr().String() + "/"
	return s
}

func (s *site) answer(handlers ...http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers = handlers
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Header)
	h := s.handlers[0]
	if len(s.handlers) > 1 {
		s.handlers = s.handlers[1:]
	}
	s.mu.Unlock()
	h.ServeHTTP(w, r)
}

// ranges is the Range of each request since the last call.
func (s *site) ranges() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.requests {
		list = append(list, h.Get("Range"))
	}
	s.requests = nil
	return list
}

// add makes a file of random bytes.
func (s *site) add(t *testing.T, name string, size int) []byte {
	t.Helper()
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(size), byte(time.Now().UnixNano())}).Read(data)
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, name), data, 0o644))
	return data
}

// output takes what is printed.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// get fetches within this process.
func get(t *testing.T, jobs []job, set ...func(*fetcher)) (printed string, err error) {
	t.Helper()
	dialer := &compat.Dialer{}
	dialer.RDMA.Config.Logger = slog.New(slog.DiscardHandler)
	transport := compat.Transport(dialer)
	defer transport.CloseIdleConnections()
	var out output
	f := &fetcher{client: &http.Client{Transport: transport}, retries: 3, backoff: time.Millisecond, stall: time.Minute,
		display: progress.New(&out, len(jobs))}
	for _, s := range set {
		s(f)
	}
	err = f.all(t.Context(), jobs, 2)
	f.display.Close()
	return out.String(), err
}

// getOne fetches a file, which must then be what is wanted.
func getOne(t *testing.T, j job, want []byte, set ...func(*fetcher)) (printed string) {
	t.Helper()
	printed, err := get(t, []job{j}, set...)
	require.NoError(t, err, printed)
	complete(t, j.target, want)
	require.Contains(t, printed, fmt.Sprintf("%x  %s\n%d bytes", sha256.Sum256(want), j.target, len(want)))
	return printed
}

// complete wants a target to be there, and nothing beside it.
func complete(t *testing.T, target string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(target)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "another file of %d bytes", len(got))
	require.NoFileExists(t, target+partSuffix)
	require.NoFileExists(t, target+noteSuffix)
}

// program starts the program.
func program(t *testing.T, args ...string) (cmd *exec.Cmd, out *output) {
	t.Helper()
	return process(t, "program", args...)
}

func process(t *testing.T, kind string, args ...string) (*exec.Cmd, *output) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	out := new(output)
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = append(os.Environ(), "HTTP_EXAMPLE="+kind)
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, out
}

// address waits for a line of a server, and returns its last word.
func address(t *testing.T, out *output) string {
	t.Helper()
	var line string
	eventually(t, func() bool {
		for l := range strings.Lines(out.String()) {
			if strings.HasPrefix(l, "serving") || strings.HasPrefix(l, "127.0.0.1:") {
				line = l
			}
		}
		return strings.HasSuffix(line, "\n")
	})
	words := strings.Fields(line)
	return words[len(words)-1]
}

func eventually(t *testing.T, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "waited in vain")
	}
}

// sizeOf is the size of a file, -1 if there is none.
func sizeOf(name string) int64 {
	info, err := os.Stat(name)
	if err != nil {
		return -1
	}
	return info.Size()
}

// plain is a client that knows nothing of RDMA.
func plain(t *testing.T) *http.Client {
	tr := &http.Transport{DialContext: new(net.Dialer).DialContext, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func ask(t *testing.T, c *http.Client, method, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(body)
}
