package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// status answers with a code.
func status(code int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
}

func TestSeveralFiles(t *testing.T) {
	s := newSite(t).start(t, "127.0.0.1:0")
	var now, most atomic.Int64
	s.answer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for n := now.Add(1); n > most.Load(); {
			most.Store(n)
		}
		defer now.Add(-1)
		s.files.ServeHTTP(w, r)
	}))
	dir := t.TempDir()
	var urls []string
	var want [][]byte
	for i, size := range []int{0, 1, 1000, mib, 3 * mib, 123456} {
		name := fmt.Sprint("file ", i)
		want = append(want, s.add(t, name, size))
		urls = append(urls, s.url+name)
	}
	jobs, err := jobsFor(append(urls, s.url+"none"), dir, "")
	require.NoError(t, err)
	printed, err := get(t, jobs)
	require.ErrorContains(t, err, s.url+"none: 404 Not Found")
	require.NotContains(t, err.Error(), "file", "one that fails does not keep the others")
	for i := range want {
		complete(t, jobs[i].target, want[i])
		require.Contains(t, printed, jobs[i].target+"\n")
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, len(want))
	require.LessOrEqual(t, most.Load(), int64(2), "get fetches two at once")
	require.Len(t, s.ranges(), len(jobs), "each is asked for once, what is not there too")
}

func TestErrorsThatPass(t *testing.T) {
	s := newSite(t).start(t, "127.0.0.1:0")
	data := s.add(t, "file", 3*mib)
	ignored := make(chan struct{})
	silent := func(*fetcher) {}
	impatient := func(f *fetcher) { f.stall = 300 * time.Millisecond }
	hangs := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-ignored })
	defer close(ignored)
	for name, c := range map[string]struct {
		first  http.Handler
		set    func(*fetcher)
		reason string
	}{
		"503":            {status(503), silent, "at 0 bytes, again in .*: 503 Service Unavailable"},
		"429":            {status(429), silent, "429 Too Many Requests"},
		"no answer":      {http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), silent, "again in .*: EOF"},
		"a broken body":  {cut{s.files, mib, abort}, silent, "at 1048576 bytes, again in .*: unexpected EOF"},
		"silence":        {hangs, impatient, "nothing came for 300ms"},
		"a stuck body":   {cut{s.files, mib, func() { <-ignored }}, impatient, "at 1048576 bytes, again in .*: nothing came for 300ms"},
		"another's hash": {wrongHash(s.files), silent, "at 0 bytes, again in .*: the hash is [0-9a-f]{64}, and 0{64} at the server"},
	} {
		t.Run(name, func(t *testing.T) {
			s.answer(c.first, s.files)
			printed := getOne(t, job{s.url + "file", filepath.Join(t.TempDir(), "copy")}, data, c.set)
			require.Regexp(t, c.reason, printed)
		})
	}
}

// wrongHash says that the hash is 0.
func wrongHash(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Want-Repr-Digest")
		w.Header().Set("Repr-Digest", "md5=:AAAA:, sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:")
		h.ServeHTTP(w, r)
	})
}

func TestErrorsThatRemain(t *testing.T) {
	s := newSite(t).start(t, "127.0.0.1:0")
	s.add(t, "file", 1000)
	for name, c := range map[string]struct {
		handler http.Handler
		asked   int
		reason  string
	}{
		"404":         {status(404), 1, "404 Not Found"},
		"403":         {status(403), 1, "403 Forbidden"},
		"204":         {status(204), 1, "204 No Content"},
		"500":         {status(500), 4, "4 attempts got no further: 500 Internal Server Error"},
		"wrong hash":  {wrongHash(s.files), 3, "0000 at the server"},
		"redirection": {http.RedirectHandler("/file", http.StatusFound), 4 * 10, "stopped after 10 redirects"},
	} {
		t.Run(name, func(t *testing.T) {
			s.ranges()
			s.answer(c.handler)
			dir := t.TempDir()
			_, err := get(t, []job{{s.url + "file", filepath.Join(dir, "copy")}})
			require.ErrorContains(t, err, c.reason)
			require.Len(t, s.ranges(), c.asked)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left, "nothing is left that nobody can use")
		})
	}
	t.Run("refused", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, ln.Close())
		printed, err := get(t, []job{{"http://" + ln.Addr().String() + "/file", filepath.Join(t.TempDir(), "copy")}})
		require.ErrorContains(t, err, "4 attempts got no further")
		require.ErrorContains(t, err, "refused")
		require.Contains(t, printed, "refused")
	})
	t.Run("cancelled", func(t *testing.T) {
		s.answer(status(503))
		jobs := []job{{s.url + "file", filepath.Join(t.TempDir(), "copy")}}
		_, err := get(t, jobs, func(f *fetcher) { f.backoff = time.Hour }, func(f *fetcher) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, f.all(ctx, jobs, 1), context.DeadlineExceeded)
			f.retries = 0
		})
		require.ErrorContains(t, err, "503")
	})
}

func TestTargetsThatCannotBe(t *testing.T) {
	s := newSite(t).start(t, "127.0.0.1:0")
	data := s.add(t, "file", 1000)
	dir := t.TempDir()
	fails := func(target, reason string) {
		t.Helper()
		_, err := get(t, []job{{s.url + "file", target}})
		require.ErrorContains(t, err, reason)
		require.Empty(t, s.ranges(), "not asked for")
	}
	fails(os.DevNull, "is no ordinary file")
	fails(dir, "is no ordinary file")
	fails(filepath.Join(dir, "none", "copy"), "no such file or directory")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "a"+partSuffix), 0o755))
	fails(filepath.Join(dir, "a"), "is a directory")

	target := filepath.Join(dir, "b")
	require.NoError(t, os.Mkdir(target+noteSuffix, 0o755))
	_, err := get(t, []job{{s.url + "file", target}})
	require.ErrorContains(t, err, "is a directory")
	require.Len(t, s.ranges(), 1, "not asked for again")

	target = filepath.Join(dir, "old")
	require.NoError(t, os.WriteFile(target, []byte("as it was"), 0o644))
	s.answer(status(404))
	_, err = get(t, []job{{s.url + "file", target}})
	require.Error(t, err)
	complete(t, target, []byte("as it was"))
	s.answer(s.files)
	getOne(t, job{s.url + "file", target}, data)
}

func TestJobs(t *testing.T) {
	jobs, err := jobsFor([]string{"http://h/a%20b?x=1", "https://h:1/c/d"}, "to", "")
	require.NoError(t, err)
	require.Equal(t, []job{{"http://h/a%20b?x=1", filepath.Join("to", "a b")}, {"https://h:1/c/d", filepath.Join("to", "d")}}, jobs)
	jobs, err = jobsFor([]string{"http://h"}, "to", "elsewhere/x")
	require.NoError(t, err)
	require.Equal(t, []job{{"http://h", "elsewhere/x"}}, jobs)
	for _, c := range []struct {
		urls        []string
		out, reason string
	}{
		{[]string{"http://h/a", "http://h/b"}, "x", "several URLs"},
		{[]string{"http://h/a", "http://i/a"}, "", "would both be"},
		{[]string{"http://h"}, "", "names no file"},
		{[]string{"http://h/"}, "", "names no file"},
		{[]string{"http://h/a/.."}, "", "names no file"},
		{[]string{"http://h/a/%2e%2e"}, "", "names no file"},
		{[]string{"ftp://h/a"}, "", "want http://"},
		{[]string{"h:80/a"}, "", "want http://"},
		{[]string{"/a"}, "", "want http://"},
		{[]string{"http://h/%"}, "", "invalid URL escape"},
	} {
		_, err := jobsFor(c.urls, "to", c.out)
		require.ErrorContains(t, err, c.reason, "%v", c.urls)
	}
}

func TestWait(t *testing.T) {
	f := &fetcher{backoff: time.Second / 4}
	for failed, most := range map[int]time.Duration{1: time.Second / 4, 2: time.Second / 2, 5: 4 * time.Second, 7: 10 * time.Second, 1000: 10 * time.Second} {
		for range 100 {
			w := f.wait(failed)
			require.GreaterOrEqual(t, w, most/2)
			require.LessOrEqual(t, w, most)
		}
	}
}

func TestValidator(t *testing.T) {
	const then, now = "Thu, 02 Jan 2020 03:04:05 GMT", "Thu, 02 Jan 2020 03:05:05 GMT"
	header := func(etag, modified, date string) http.Header {
		return http.Header{"Etag": {etag}, "Last-Modified": {modified}, "Date": {date}}
	}
	require.Equal(t, `"a"`, validator(header(`"a"`, then, now)))
	require.Equal(t, then, validator(header(`W/"a"`, then, now)))
	require.Equal(t, then, validator(header("", then, now)))
	require.Empty(t, validator(header("", then, then)), "it may change again in the same second")
	require.Empty(t, validator(header("", then, "")))
	require.Empty(t, validator(header("", "yesterday", now)))
}

// What the disk does not take is no reason to try again.
func TestDiskErrors(t *testing.T) {
	p, err := openPart("http://h/a", filepath.Join(t.TempDir(), "a"))
	require.NoError(t, err)
	require.NoError(t, p.file.Close())
	_, err = p.Write([]byte("a"))
	require.ErrorAs(t, err, new(*permanent))
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorAs(t, p.discard(), new(*permanent))
	require.ErrorIs(t, p.finish(), os.ErrClosed)
}

// A whole that cannot have its name, as when another program has the old file open on Windows, is there for the next run.
func TestNameIsTaken(t *testing.T) {
	target := filepath.Join(t.TempDir(), "a")
	p, err := openPart("http://h/a", target)
	require.NoError(t, err)
	p.Validator, p.Total = `"a"`, 3
	require.NoError(t, p.writeNote())
	_, err = p.Write([]byte("abc"))
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(target, 0o777))
	require.Error(t, p.finish())
	p.close()
	require.NoError(t, os.Remove(target))
	p, err = openPart("http://h/a", target)
	require.NoError(t, err)
	defer p.close()
	require.EqualValues(t, 2, p.size, "all but the byte that has to be asked for")
}
