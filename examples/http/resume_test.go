package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// partly leaves a part of so many bytes of a file at target, as an earlier run does that gave up.
func (s *site) partly(t *testing.T, j job, bytes int) {
	t.Helper()
	for _, suffix := range []string{"", partSuffix, noteSuffix} {
		require.NoError(t, os.RemoveAll(j.target+suffix))
	}
	s.answer(cut{s.files, bytes, abort})
	_, err := get(t, []job{j}, func(f *fetcher) { f.retries = 0 })
	require.Error(t, err)
	require.EqualValues(t, bytes, sizeOf(j.target+partSuffix))
	require.NoFileExists(t, j.target)
	s.ranges()
	s.answer(s.files)
}

func TestResumeInOneRun(t *testing.T) {
	s := newSite(t).start(t, "127.0.0.1:0")
	data := s.add(t, "file", 3*mib)
	s.answer(cut{s.files, mib, abort}, cut{s.files, 100, abort}, s.files)
	printed := getOne(t, job{s.url + "file", filepath.Join(t.TempDir(), "copy")}, data)
	require.Equal(t, []string{"", "bytes=1048576-", "bytes=1048676-"}, s.ranges())
	require.Contains(t, printed, "copy: at 1048576 bytes, again in ")
	require.NotContains(t, printed, "were here")
	require.Contains(t, printed, "over software0 (iWARP), hash as at the server")
}

// A client that is killed leaves what it had, and the next one goes on there.
func TestResumeAfterTheClientIsKilled(t *testing.T) {
	for _, policy := range []string{"prefer", "require", "tcp-only"} {
		t.Run(policy, func(t *testing.T) { testClientIsKilled(t, policy) })
	}
}

func testClientIsKilled(t *testing.T, policy string) {
	s := newSite(t).start(t, "127.0.0.1:0")
	data := s.add(t, "file", 3*mib)
	release := make(chan struct{})
	s.answer(cut{s.files, mib, func() { <-release }}, s.files)
	defer close(release)
	dir := t.TempDir()
	target := filepath.Join(dir, "file")

	client, _ := program(t, "-policy", policy, "-dir", dir, s.url+"file")
	eventually(t, func() bool { return sizeOf(target+partSuffix) == mib })
	require.NoError(t, client.Process.Kill())
	require.Error(t, client.Wait())
	require.NoFileExists(t, target)

	client, out := program(t, "-policy", policy, "-dir", dir, s.url+"file")
	require.NoError(t, client.Wait(), out)
	complete(t, target, data)
	require.Contains(t, out.String(), "3145728 bytes (1048576 were here) in ")
	require.Equal(t, policy == "tcp-only", strings.Contains(out.String(), "over TCP, hash as at the server"), out)
	require.Equal(t, []string{"", "bytes=1048576-"}, s.ranges())
}

// Of two clients that fetch the same target the second one is told so, and does no harm to the first. One that was killed keeps nobody off.
func TestTwoClientsOfOneTarget(t *testing.T) {
	s := newSite(t).start(t, "127.0.0.1:0")
	data := s.add(t, "file", 3*mib)
	release := make(chan struct{})
	s.answer(cut{s.files, mib, func() { <-release }}, s.files)
	target := filepath.Join(t.TempDir(), "copy")

	first, out := program(t, "-o", target, s.url+"file")
	eventually(t, func() bool { return sizeOf(target+partSuffix) == mib })
	for _, name := range []string{"file", "other"} {
		second, refused := program(t, "-o", target, s.url+name)
		require.Error(t, second.Wait())
		require.Equal(t, 1, second.ProcessState.ExitCode())
		require.Contains(t, refused.String(), target+" is being fetched already: wait for that, or choose another name with -o\n")
	}
	require.EqualValues(t, mib, sizeOf(target+partSuffix))
	close(release) // breaks the connection; the first client goes on
	require.NoError(t, first.Wait(), out)
	complete(t, target, data)
	require.Equal(t, []string{"", "bytes=1048576-"}, s.ranges())
}

// Who claims a part while another download gives it its last name, or removes it, has a part of its own.
func TestClaimsInTurn(t *testing.T) {
	name := filepath.Join(t.TempDir(), "copy"+partSuffix)
	var clients sync.WaitGroup
	for i := range 4 {
		clients.Go(func() {
			for n := 0; n < 500; {
				file, err := claim(name)
				if err != nil {
					if !assert.ErrorIs(t, err, errClaimed) {
						return
					}
					continue
				}
				n++
				mine, err := file.Stat()
				assert.NoError(t, err)
				now, err := os.Stat(name)
				assert.True(t, err == nil && os.SameFile(mine, now), "the claim is of a file that has another name")
				assert.NoError(t, os.Rename(name, name+strconv.Itoa(i)))
				file.Close()
			}
		})
	}
	clients.Wait()
}

// A client outlives a server that is killed and started again.
func TestResumeAfterTheServerIsKilled(t *testing.T) {
	s := newSite(t)
	data := s.add(t, "file", 3*mib)
	server, out := process(t, "stuck", s.dir)
	addr := address(t, out)
	target := filepath.Join(t.TempDir(), "file")

	done := make(chan error, 1)
	go func() {
		_, err := get(t, []job{{"http://" + addr + "/file", target}}, func(f *fetcher) { f.retries, f.backoff = 1000, 10*time.Millisecond })
		done <- err
	}()
	eventually(t, func() bool { return sizeOf(target+partSuffix) == mib })
	require.NoError(t, server.Process.Kill())
	require.Error(t, server.Wait())
	s.start(t, addr)
	require.NoError(t, <-done)
	complete(t, target, data)
	require.Equal(t, []string{"bytes=1048576-"}, s.ranges())
}

// A signal ends the client in order; what it had remains.
func TestInterrupt(t *testing.T) {
	s := newSite(t).start(t, "127.0.0.1:0")
	data := s.add(t, "file", 3*mib)
	release := make(chan struct{})
	s.answer(cut{s.files, mib, func() { <-release }}, s.files)
	defer close(release)
	target := filepath.Join(t.TempDir(), "copy")

	client, out := program(t, "-o", target, s.url+"file")
	eventually(t, func() bool { return sizeOf(target+partSuffix) == mib })
	require.NoError(t, client.Process.Signal(os.Interrupt))
	require.Error(t, client.Wait())
	require.Equal(t, 1, client.ProcessState.ExitCode())
	require.Contains(t, out.String(), "http: interrupted; the same command goes on from here\n")

	getOne(t, job{s.url + "file", target}, data)
	require.Equal(t, []string{"", "bytes=1048576-"}, s.ranges())
}

func TestFileThatHasChangedIsFetchedAnew(t *testing.T) {
	s := newSite(t).start(t, "127.0.0.1:0")
	j := job{s.url + "file", filepath.Join(t.TempDir(), "copy")}
	change := func(size int) []byte {
		data := s.add(t, "file", size)
		when := time.Now().Add(time.Duration(size) * time.Second) // the clock of the file system is coarse
		require.NoError(t, os.Chtimes(filepath.Join(s.dir, "file"), when, when))
		return data
	}
	for _, size := range []int{2 * mib, 3 * mib, mib / 2} {
		t.Run(strconv.Itoa(size)+" between two runs", func(t *testing.T) {
			s.add(t, "file", 2*mib)
			s.partly(t, j, mib)
			getOne(t, j, change(size))
			require.Equal(t, []string{"bytes=1048576-"}, s.ranges())
		})
	}
	t.Run("in one run", func(t *testing.T) {
		s.add(t, "file", 2*mib)
		var data []byte
		s.answer(cut{s.files, mib, func() { data = change(3 * mib) }}, s.files)
		printed, err := get(t, []job{j})
		require.NoError(t, err, printed)
		complete(t, j.target, data)
	})
	t.Run("under another URL", func(t *testing.T) {
		s.add(t, "file", 2*mib)
		data := s.add(t, "other", 2*mib)
		s.partly(t, j, mib)
		getOne(t, job{s.url + "other", j.target}, data)
		require.Equal(t, []string{""}, s.ranges())
	})
}

// What an earlier run had is checked too.
func TestDamagedPart(t *testing.T) {
	s := newSite(t).start(t, "127.0.0.1:0")
	data := s.add(t, "file", 2*mib)
	j := job{s.url + "file", filepath.Join(t.TempDir(), "copy")}
	for name, c := range map[string]struct {
		damage func(part []byte) []byte
		want   []string // ranges
	}{
		"a bit":     {func(b []byte) []byte { b[1000] ^= 1; return b }, []string{"bytes=1048576-", ""}},
		"cut short": {func(b []byte) []byte { return b[:1000] }, []string{"bytes=1000-"}},
		"complete":  {func([]byte) []byte { return data }, []string{"bytes=2097151-"}},
		"too long":  {func([]byte) []byte { return append(data[:len(data):len(data)], 1, 2, 3) }, []string{"bytes=2097151-"}},
		"empty":     {func([]byte) []byte { return nil }, []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			s.partly(t, j, mib)
			part, err := os.ReadFile(j.target + partSuffix)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(j.target+partSuffix, c.damage(part), 0o644))
			getOne(t, j, data)
			require.Equal(t, c.want, s.ranges())
		})
	}
	for name, note := range map[string]string{"no note": "", "a note that is no JSON": "{", "a note of nothing": "{}"} {
		t.Run(name, func(t *testing.T) {
			s.partly(t, j, mib)
			require.NoError(t, os.WriteFile(j.target+noteSuffix, []byte(note), 0o644))
			getOne(t, j, data)
			require.Equal(t, []string{""}, s.ranges())
		})
	}
}

// Other servers tell versions apart in other ways, or not at all.
func TestResumeFromOtherServers(t *testing.T) {
	old := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	content := func(data []byte, modified time.Time, headers ...string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			http.ServeContent(w, r, "", modified, strings.NewReader(string(data)))
		})
	}
	raw := func(data []byte, status int, headers ...string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.WriteHeader(status)
			_, _ = w.Write(data)
		})
	}
	s := newSite(t).start(t, "127.0.0.1:0")
	data := s.add(t, "file", 3*mib)
	tagged := content(data, old, "ETag", `"1"`)
	const rest = "bytes=1048576-"
	for name, c := range map[string]struct {
		first, second http.Handler // and then files
		want          []string
	}{
		"ETag":                      {tagged, tagged, []string{"", rest}},
		"weak ETag, old date":       {content(data, old, "ETag", `W/"1"`), nil, []string{"", rest}}, // files has another date, so the whole comes
		"date alone, old":           {content(data, old), content(data, old), []string{"", rest}},
		"date alone, new":           {content(data, time.Now()), nil, []string{"", ""}},
		"neither":                   {content(data, time.Time{}), nil, []string{"", ""}},
		"no ranges any more":        {tagged, raw(data, 200), []string{"", rest}},
		"no size":                   {raw(data, 200, "ETag", `"1"`, "Trailer", "X"), raw(data, 200), []string{"", rest}},
		"another range":             {tagged, raw(data[mib-1:], 206, "ETag", `"1"`, "Content-Range", "bytes 1048575-3145727/3145728"), []string{"", rest, ""}},
		"another size":              {tagged, raw(data[mib:], 206, "ETag", `"1"`, "Content-Range", "bytes 1048576-3145727/3145729"), []string{"", rest, ""}},
		"another version in 206":    {tagged, raw(data[mib:], 206, "ETag", `"2"`, "Content-Range", "bytes 1048576-3145727/3145728"), []string{"", rest, ""}},
		"206 with no Content-Range": {tagged, raw(data[mib:], 206, "ETag", `"1"`), []string{"", rest, ""}},
		"a shorter range":           {tagged, raw(data[mib:2*mib], 206, "ETag", `"1"`, "Content-Range", "bytes 1048576-2097151/3145728"), []string{"", rest, "bytes=2097152-"}},
		"more than the range":       {tagged, raw(data, 206, "ETag", `"1"`, "Content-Range", "bytes 1048576-3145727/3145728"), []string{"", rest, ""}},
		"range not satisfiable":     {tagged, raw(nil, 416), []string{"", rest, ""}},
		"206 without being asked":   {raw(nil, 503), raw(data, 206), nil},
		"no hash":                   {tagged, tagged, []string{"", rest}},
	} {
		t.Run(name, func(t *testing.T) {
			second := c.second
			if second == nil {
				second = s.files
			}
			s.answer(cut{c.first, mib, abort}, second, s.files)
			j := job{s.url + "file", filepath.Join(t.TempDir(), "copy")}
			if c.want == nil {
				_, err := get(t, []job{j})
				require.ErrorContains(t, err, "206 Partial Content")
				s.ranges()
				return
			}
			getOne(t, j, data)
			require.Equal(t, c.want, s.ranges())
		})
	}
}
