package main

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"
)

// load is what clients do to a pool.
type load struct {
	words   int
	readers int
	writers int
	every   time.Duration // of a writer, between updates
	lasts   time.Duration
}

// result is what came of it.
type result struct {
	reads   int // whole vectors handed out
	torn    int // of them, mixed from several versions
	retries int // reads that a writer had overtaken, and that were done again
	updates int
	took    time.Duration
}

// run has readers and writers at work, each on a connection of its own.
func run(ctx context.Context, addr netip.AddrPort, w way, l load) (total result, err error) {
	start := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	client := func(work func(*pool, *result) error) {
		wg.Go(func() {
			var r result
			err := l.client(ctx, addr, w, func(p *pool) error { return work(p, &r) })
			if err != nil {
				cancel() // one that fails ends all
			}
			mu.Lock()
			defer mu.Unlock()
			total.add(r)
			errs = append(errs, err)
		})
	}
	// The buffers may hold what another way has left there.
	if err := l.client(ctx, addr, w, (*pool).update); err != nil {
		return total, err
	}
	until := start.Add(l.lasts)
	for range l.readers {
		client(func(p *pool, r *result) error { return r.read(p, until) })
	}
	for range l.writers {
		client(func(p *pool, r *result) error { return r.write(ctx, p, until, l.every) })
	}
	wg.Wait()
	total.took = time.Since(start)
	return total, errors.Join(errs...)
}

// client connects for some work.
func (l load) client(ctx context.Context, addr netip.AddrPort, w way, work func(*pool) error) error {
	p, err := openPool(ctx, addr, w, l.words)
	if err != nil {
		return err
	}
	return errors.Join(work(p), p.mem.Close())
}

func (r *result) read(p *pool, until time.Time) error {
	for time.Now().Before(until) {
		b, err := p.read()
		if errors.Is(err, errOvertaken) {
			r.retries++
			continue
		}
		if err != nil {
			return err
		}
		r.reads++
		if _, ok := check(b); !ok {
			r.torn++
		}
	}
	return nil
}

func (r *result) write(ctx context.Context, p *pool, until time.Time, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for time.Now().Before(until) {
		if err := p.update(); err != nil {
			return err
		}
		r.updates++
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (r *result) add(x result) {
	r.reads += x.reads
	r.torn += x.torn
	r.retries += x.retries
	r.updates += x.updates
}
