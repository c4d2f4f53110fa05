package main

import (
	"crypto/sha256"
	"encoding/base64"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Who knows nothing of RDMA, such as curl and a browser, is served by plain TCP on the same port.
func TestPlainClient(t *testing.T) {
	s := newSite(t).start(t, "127.0.0.1:0")
	data := s.add(t, "file.js", 1000)
	c := plain(t)
	resp, body := ask(t, c, "GET", s.url+"file.js")
	require.Equal(t, string(data), body)
	require.Equal(t, "text/javascript; charset=utf-8", resp.Header.Get("Content-Type"))
	require.Empty(t, resp.Header.Get("Repr-Digest"), "nobody wanted it")
	etag := resp.Header.Get("ETag")
	require.Regexp(t, `^"[0-9a-f]+-3e8"$`, etag)

	resp, body = ask(t, c, "GET", s.url+"file.js", "Range", "bytes=10-19", "If-Range", etag, "Want-Repr-Digest", "sha-512=1, sha-256=10")
	require.Equal(t, 206, resp.StatusCode)
	require.Equal(t, string(data[10:20]), body)
	sum := sha256.Sum256(data)
	require.Equal(t, "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":", resp.Header.Get("Repr-Digest"), "of the whole")

	resp, _ = ask(t, c, "GET", s.url+"file.js", "If-None-Match", etag)
	require.Equal(t, 304, resp.StatusCode)
	resp, body = ask(t, c, "HEAD", s.url+"file.js")
	require.EqualValues(t, 1000, resp.ContentLength)
	require.Empty(t, body)
	_, body = ask(t, c, "GET", s.url)
	require.Contains(t, body, `<a href="file.js">`)
}

func TestFolders(t *testing.T) {
	s := newSite(t).start(t, "127.0.0.1:0")
	s.add(t, "file", 10)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o644))
	require.NoError(t, os.Symlink(secret, filepath.Join(s.dir, "link")))
	require.NoError(t, os.Symlink("file", filepath.Join(s.dir, "inner")))
	require.NoError(t, os.Mkdir(filepath.Join(s.dir, "sub"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "sub", "index.html"), []byte("the index"), 0o644))
	c := plain(t)
	for path, want := range map[string]string{"inner": "", "sub/": "the index", "sub": "the index"} {
		resp, body := ask(t, c, "GET", s.url+path)
		require.Equal(t, 200, resp.StatusCode, path)
		require.Contains(t, body, want)
	}
	for _, path := range []string{"link", "none", "../secret", "sub/../../secret", "%2e%2e/secret", "none/"} {
		resp, body := ask(t, c, "GET", s.url+path)
		require.GreaterOrEqual(t, resp.StatusCode, 400, path)
		require.NotContains(t, body, "secret")
	}
}

// The hash of a version is computed once, however many ask at the same time, and that of the next one anew.
func TestHashOfVersions(t *testing.T) {
	s := newSite(t)
	want := func(data []byte) {
		t.Helper()
		file, err := os.Open(filepath.Join(s.dir, "file"))
		require.NoError(t, err)
		defer file.Close()
		info, err := file.Stat()
		require.NoError(t, err)
		reads := &countReads{ReaderAt: file}
		var asking sync.WaitGroup
		for range 8 {
			asking.Go(func() {
				sum, err := s.files.hash("file", info.ModTime().String(), reads, info.Size())
				if wanted := sha256.Sum256(data); err != nil || string(sum) != string(wanted[:]) {
					t.Errorf("%x, %v", sum, err)
				}
			})
		}
		asking.Wait()
		require.EqualValues(t, len(data), reads.bytes, "read once")
	}
	want(s.add(t, "file", 2*mib))
	data := s.add(t, "file", 2*mib)
	when := time.Now().Add(time.Hour)
	require.NoError(t, os.Chtimes(filepath.Join(s.dir, "file"), when, when))
	want(data)

	_, err := s.files.hash("short", "1", strings.NewReader("abc"), 4)
	require.Error(t, err)
	sum, err := s.files.hash("short", "1", strings.NewReader("abcd"), 4)
	require.NoError(t, err, "an error is not kept")
	wanted := sha256.Sum256([]byte("abcd"))
	require.Equal(t, wanted[:], sum)
}

type countReads struct {
	io.ReaderAt
	mu    sync.Mutex
	bytes int
}

func (c *countReads) ReadAt(b []byte, at int64) (int, error) {
	n, err := c.ReaderAt.ReadAt(b, at)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes += n
	return n, err
}

// The program serves until it is told to stop, and prints lines where there is no terminal.
func TestProgram(t *testing.T) {
	s := newSite(t)
	data, second := s.add(t, "a", 2*mib), s.add(t, "b", 1000)
	server, out := program(t, "-listen", "127.0.0.1:0", "-dir", s.dir)
	url := "http://" + address(t, out) + "/"

	dir := t.TempDir()
	client, printed := program(t, "-dir", dir, "-v", url+"a", url+"b")
	require.NoError(t, client.Wait(), printed)
	complete(t, filepath.Join(dir, "a"), data)
	complete(t, filepath.Join(dir, "b"), second)
	require.NotContains(t, printed.String(), "\x1b")
	require.Regexp(t, `(?m)^2097152 bytes in \S+, \S+ MiB/s, over software0 \(iWARP\), hash as at the server\n\d+ data messages received, `, printed)
	require.Contains(t, printed.String(), "took=software")

	client, printed = program(t, "-policy", "tcp-only", "-o", filepath.Join(dir, "c"), url+"a")
	require.NoError(t, client.Wait(), printed)
	complete(t, filepath.Join(dir, "c"), data)
	require.Contains(t, printed.String(), "over TCP, hash as at the server")

	client, printed = program(t, "-dir", dir, url+"none")
	require.Error(t, client.Wait())
	require.Contains(t, printed.String(), "http: "+url+"none: 404 Not Found\n")
	client, printed = program(t)
	require.Error(t, client.Wait())
	require.Equal(t, 2, client.ProcessState.ExitCode())
	require.Contains(t, printed.String(), "usage: http -listen")

	require.NoError(t, server.Process.Signal(syscall.SIGTERM))
	require.NoError(t, server.Wait(), out)
}

// With the policy require there is RDMA alone.
func TestProgramRequiresRDMA(t *testing.T) {
	s := newSite(t)
	data := s.add(t, "a", 1000)
	_, out := program(t, "-policy", "require", "-listen", "127.0.0.1:0", "-dir", s.dir)
	url := "http://" + address(t, out) + "/a"
	getOne(t, job{url, filepath.Join(t.TempDir(), "a")}, data)
	resp, err := plain(t).Get(url)
	if err == nil {
		resp.Body.Close()
	}
	require.Error(t, err)
}
