package compat

import (
	"context"
	"net"
	"time"
)

// way is one way to connect.
type way struct {
	name     string
	patience time.Duration // until the next way starts beside this one; negative: not before this one has failed
	dial     func(context.Context) (net.Conn, error)
}

// outcome is how a way went until one was taken.
type outcome struct {
	started time.Time // zero: not at all
	ended   bool
	took    time.Duration // so far, if it has not ended
	err     error
}

// race makes one connection by the first of the ways that can, starting them in order. Losers are given up, and closed in order if
// they connect all the same. The index is that of the winner, -1 if all failed. When ctx has a deadline each way gets a fair part of
// what is left before the next one starts.
func race(ctx context.Context, ways []way) (net.Conn, int, []outcome) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	type result struct {
		way int
		c   net.Conn
		err error
	}
	results := make(chan result, len(ways))
	outcomes := make([]outcome, len(ways))
	var impatience <-chan time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	started, running := 0, 0
	start := func() {
		i := started
		started, running = started+1, running+1
		outcomes[i].started = time.Now()
		go func() {
			c, err := ways[i].dial(ctx)
			results <- result{i, c, err}
		}()
		impatience = nil
		if p := ways[i].patience; p >= 0 && started < len(ways) {
			timer.Reset(share(ctx, p, len(ways)-i))
			impatience = timer.C
		}
	}
	for start(); running > 0; {
		select {
		case <-impatience:
		case r := <-results:
			running--
			o := &outcomes[r.way]
			o.ended, o.took, o.err = true, time.Since(o.started), r.err
			if r.err == nil {
				for i := range outcomes[:started] {
					if o := &outcomes[i]; !o.ended {
						o.took = time.Since(o.started)
					}
				}
				go func() {
					for range running {
						if loser := <-results; loser.err == nil {
							_ = loser.c.Close()
						}
					}
				}()
				return r.c, r.way, outcomes
			}
			if r.way != started-1 {
				continue // the latest one still has its time
			}
		}
		if started < len(ways) && ctx.Err() == nil {
			start()
		} else {
			impatience = nil
		}
	}
	return nil, -1, outcomes
}

// share is a way's patience, and no more than its part of the time when so many are still to be tried.
func share(ctx context.Context, patience time.Duration, tries int) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, max(0, time.Until(deadline)/time.Duration(tries)))
	}
	return patience
}
