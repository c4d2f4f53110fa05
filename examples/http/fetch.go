package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"path"
	"path/filepath"
	"sync"
	"time"

	"github.com/rconn/rdma/examples/internal/progress"
	"github.com/rconn/rdma/rconn"
)

// job is a file to fetch.
type job struct{ url, target string }

// jobsFor names the targets.
func jobsFor(urls []string, dir, out string) ([]job, error) {
	if out != "" && len(urls) > 1 {
		return nil, errors.New("-o names one file, and there are several URLs: use -dir")
	}
	var jobs []job
	taken := make(map[string]string)
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil {
			return nil, err
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("%s: want http://HOST/NAME", text)
		}
		target := out
		if target == "" {
			name := path.Base(u.Path)
			if name == "." || name == "/" || !filepath.IsLocal(name) {
				return nil, fmt.Errorf("%s names no file: say with -o where to", text)
			}
			target = filepath.Join(dir, name)
		}
		if other, ok := taken[target]; ok {
			return nil, fmt.Errorf("%s and %s would both be %s", other, text, target)
		}
		taken[target] = text
		jobs = append(jobs, job{text, target})
	}
	return jobs, nil
}

// fetcher fetches files.
type fetcher struct {
	client  *http.Client
	retries int
	backoff time.Duration // before the first retry; doubled for each that gets no further
	stall   time.Duration
	stats   bool
	display *progress.Display
}

// all fetches some files, n at once. One that fails does not keep the others.
func (f *fetcher) all(ctx context.Context, jobs []job, n int) error {
	errs := make([]error, len(jobs))
	free := make(chan struct{}, max(n, 1))
	var running sync.WaitGroup
	for i, j := range jobs {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			if err := f.one(ctx, j); err != nil {
				errs[i] = fmt.Errorf("%s: %w", j.url, err)
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// one fetches a file, in as many attempts as it takes.
func (f *fetcher) one(ctx context.Context, j job) error {
	bar := f.display.Add(filepath.Base(j.target))
	defer bar.Close()
	p, err := openPart(j.url, j.target)
	if err != nil {
		return err
	}
	defer p.close()
	var conn net.Conn // of the last attempt
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { conn = i.Conn }})
	had, start := p.size, time.Now()
	for failed := 0; ; {
		before := p.size
		if err = f.attempt(ctx, p, bar); err == nil {
			break
		}
		had = min(had, p.size)
		if p.size > before {
			failed = 0
		}
		if _, ok := errors.AsType[*permanent](err); ok || ctx.Err() != nil {
			return err
		}
		if failed++; failed > f.retries {
			return fmt.Errorf("%d attempts got no further: %w", failed, err)
		}
		wait := f.wait(failed)
		bar.Say(fmt.Sprintf("at %d bytes, again in %v: %v", p.size, wait.Round(time.Millisecond), err))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	took := time.Since(start)
	if err := p.finish(); err != nil {
		return err
	}
	f.report(p, conn, had, took)
	return nil
}

// wait is how long to wait after so many attempts that got no further: longer each time, 10 s at most, and not the same for all clients.
func (f *fetcher) wait(failed int) time.Duration {
	d := min(f.backoff<<min(failed-1, 16), 10*time.Second)
	return d/2 + rand.N(d/2+1)
}

// attempt asks once for what is missing, and takes what comes.
func (f *fetcher) attempt(ctx context.Context, p *part, bar *progress.Bar) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(f.stall, func() { cancel(fmt.Errorf("nothing came for %v", f.stall)) })
	defer stalled.Stop()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, nil)
	if err != nil {
		return permanently(err)
	}
	p.headers(req.Header)
	resp, err := f.client.Do(req)
	if err != nil {
		return cause(ctx, err)
	}
	defer resp.Body.Close()
	switch code := resp.StatusCode; {
	case code == http.StatusOK, code == http.StatusPartialContent && req.Header.Get("Range") != "":
		err = p.begin(resp)
	case code == http.StatusRequestedRangeNotSatisfiable:
		err = p.discard()
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		err = errors.New(resp.Status)
	default:
		err = permanently(errors.New(resp.Status))
	}
	if err != nil {
		return err
	}
	bar.Start(p.size, p.Total)
	body := reader(func(b []byte) (int, error) {
		stalled.Reset(f.stall)
		return resp.Body.Read(b)
	})
	if _, err := io.CopyBuffer(io.MultiWriter(p, bar), body, make([]byte, 256<<10)); err != nil {
		return cause(ctx, err)
	}
	return p.check()
}

// report says what was fetched, in the first line as sha256sum does.
func (f *fetcher) report(p *part, conn net.Conn, had int64, took time.Duration) {
	checked := "hash as at the server"
	if p.want == nil {
		checked = "the server told no hash to check"
	}
	before := ""
	if had > 0 {
		before = fmt.Sprintf(" (%d were here)", had)
	}
	over := "TCP"
	c, ok := conn.(*rconn.Conn)
	if ok {
		over = fmt.Sprintf("%s (%v)", c.Info().Device, c.Info().Transport)
	}
	lines := fmt.Sprintf("%x  %s\n%d bytes%s in %v, %.1f MiB/s, over %s, %s", p.hash.Sum(nil), p.target, p.size, before,
		took.Round(time.Millisecond), float64(p.size-had)/(1<<20)/took.Seconds(), over, checked)
	if ok && f.stats {
		st := c.Stats()
		lines += fmt.Sprintf("\n%d data messages received, %d grants sent, %d completions, %d waits, %d times asleep", st.DataReceived,
			st.GrantsSent, st.Completions, st.Waits, st.Parks)
	}
	f.display.Printf("%s", lines)
}

// permanent is an error that another attempt would meet too.
type permanent struct{ error }

func (e *permanent) Unwrap() error { return e.error }

func permanently(err error) error {
	if err == nil {
		return nil
	}
	return &permanent{err}
}

// cause is why ctx ended, if it did, else err without the URL, which is told elsewhere.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

type reader func([]byte) (int, error)

func (r reader) Read(b []byte) (int, error) { return r(b) }
