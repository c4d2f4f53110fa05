package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// serveHTTP answers each request with as many bytes as its path says.
func (w *worker) serveHTTP() {
	var body [1 << 20]byte
	s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.URL.Path[1:])
		if err != nil || n < 0 || n > len(body) {
			http.Error(rw, "want /SIZE", http.StatusBadRequest)
			return
		}
		rw.Header().Set("Content-Length", strconv.Itoa(n))
		_, _ = rw.Write(body[:n])
	})}
	if err := s.Serve(w.ln); !errors.Is(err, net.ErrClosed) {
		w.fail(err)
	}
	if err := s.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		w.fail(err)
	}
}

// requests makes requests, on so many connections at once.
func (t task) requests(q request) (time.Duration, []float64, error) {
	tr := &http.Transport{
		DialContext:     func(context.Context, string, string) (net.Conn, error) { return q.Transport.dial(q.Addr) },
		MaxConnsPerHost: t.Conns, MaxIdleConnsPerHost: t.Conns, DisableCompression: true,
	}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr}
	url := fmt.Sprintf("http://bench/%d", t.Size)
	one := func() error {
		resp, err := client.Get(url)
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, resp.Body)
		if err == nil && n != int64(t.Size) {
			err = fmt.Errorf("%s: %d bytes", resp.Status, n)
		}
		return errors.Join(err, resp.Body.Close())
	}
	if err := one(); err != nil {
		return 0, nil, err
	}
	var left atomic.Int64
	left.Store(int64(t.Count))
	times := make([][]time.Duration, t.Conns)
	errs := make([]error, t.Conns)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range t.Conns {
		wg.Go(func() {
			for left.Add(-1) >= 0 && errs[i] == nil {
				before := time.Now()
				errs[i] = one()
				times[i] = append(times[i], time.Since(before))
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	var all []time.Duration
	for _, ts := range times {
		all = append(all, ts...)
	}
	return took, quantiles(all, 1), errors.Join(errs...)
}
