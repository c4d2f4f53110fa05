package rconn

import (
	"context"
	"time"
)

// race makes one connection by the first of n ways that can. They are tried in order; the next one starts when one has failed, or
// when it takes longer than delay (negative: only on failure). The connections of losers are reset. It returns the first
// error that is more than the lack of a device.
func race(ctx context.Context, n int, delay time.Duration, try func(ctx context.Context, way int) (*Conn, error)) (*Conn, error) {
	if n == 1 {
		return try(ctx, 0)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	type result struct {
		way int
		c   *Conn
		err error
	}
	results := make(chan result, n)
	started, running := 0, 0
	start := func() {
		way := started
		started, running = started+1, running+1
		go func() {
			c, err := try(ctx, way)
			results <- result{way, c, err}
		}()
	}
	slow := time.NewTimer(max(0, delay))
	defer slow.Stop()
	errs := make([]error, n)
	for start(); running > 0; {
		var impatient <-chan time.Time
		if started < n && delay >= 0 {
			impatient = slow.C
		}
		select {
		case <-impatient:
		case r := <-results:
			running--
			if r.err == nil {
				go func() {
					for range running {
						if loser := <-results; loser.c != nil {
							abort(loser.c)
						}
					}
				}()
				return r.c, nil
			}
			errs[r.way] = r.err
		}
		if started < n && ctx.Err() == nil {
			start()
			slow.Reset(max(0, delay))
		}
	}
	return nil, firstReal(errs)
}
