package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/rconn/rdma/examples/internal/remote"
	"github.com/rconn/rdma/verbs"
)

// The lock server's memory. Each word has a cache line of its own, as it would on one host.
const (
	lockAt    = 64 * iota // the compare-and-swap lock: 0, or its holder
	nextAt                // the ticket lock: the next ticket to be drawn
	servingAt             // the ticket whose turn it is
	leaseAt               // the lease, see lease.go
	clockAt               // the server's clock, in ticks: the one word that the server itself writes
	counterAt             // what the locks protect, see lease.go
	idsAt                 // how many contenders there have been
	startAt               // how many have come to the start, see contender.ready
	memSize
)

// contender is a connection that wants the lock again and again.
type contender struct {
	mem     *remote.Memory
	id      uint64 // not 0
	retries int
}

// join connects a contender. Numbers are given out by fetch-and-add too.
func join(ctx context.Context, addr netip.AddrPort) (*contender, error) {
	mem, err := remote.Dial(ctx, addr, 8)
	if err != nil {
		return nil, err
	}
	n, err := mem.Do(mem.FetchAdd(idsAt, 1))
	if err != nil {
		return nil, errors.Join(err, mem.Close())
	}
	return &contender{mem: mem, id: n + 1}, nil
}

func (c *contender) close() error { return c.mem.Close() }

// ready waits until as many contenders have come to the start as there are to be.
func (c *contender) ready(ctx context.Context, all int) error {
	before, err := c.mem.Do(c.mem.FetchAdd(startAt, 1))
	if err != nil {
		return err
	}
	goal := (before/uint64(all) + 1) * uint64(all)
	for {
		n, err := c.mem.Do(c.mem.Load(startAt))
		if err != nil || n >= goal {
			return err
		}
		if err := sleep(ctx, maxBackoff); err != nil {
			return err
		}
	}
}

// A locker is a kind of lock. last is the WRITE to be done before it is released; both are posted together.
type locker interface {
	acquire(ctx context.Context, c *contender) error
	release(c *contender, last verbs.SendWR) error
}

// increment is what a lock is to protect: READ, add 1, WRITE.
func increment(ctx context.Context, c *contender, l locker) error {
	if err := l.acquire(ctx, c); err != nil {
		return err
	}
	n, err := c.mem.Do(c.mem.Load(counterAt))
	if err != nil {
		return err
	}
	return l.release(c, c.mem.Store(counterAt, n+1))
}

// none shows what a lock is for.
type none struct{}

func (none) acquire(context.Context, *contender) error { return nil }

// release has a READ follow the WRITE, because on iWARP a WRITE may still be on its way when it has completed.
func (none) release(c *contender, last verbs.SendWR) error {
	_, err := c.mem.Do(last, c.mem.Load(counterAt))
	return err
}

// cas is a spin lock by compare-and-swap. Who comes next is chance.
type cas struct{}

func (cas) acquire(ctx context.Context, c *contender) error {
	b := backoff{ctx: ctx}
	for {
		was, err := c.mem.Do(c.mem.CompareAndSwap(lockAt, 0, c.id))
		if err != nil || was == 0 {
			return err
		}
		c.retries++
		if err := b.wait(); err != nil {
			return err
		}
	}
}

// release is an atomic too, not a WRITE of 0: atomics need not be atomic to WRITEs. It is executed after the WRITEs before it, and its
// completion tells that the peer's memory has them.
func (cas) release(c *contender, last verbs.SendWR) error {
	was, err := c.mem.Do(last, c.mem.CompareAndSwap(lockAt, c.id, 0))
	if err == nil && was != c.id {
		err = errLost
	}
	return err
}

var errLost = errors.New("somebody else has the lock")

// backoff waits longer each time, up to maxBackoff, and never as long as another contender that began at the same time. Each try costs the
// device an atomic on the very word that the holder needs to release.
type backoff struct {
	ctx  context.Context
	next time.Duration
}

const (
	minBackoff = 10 * time.Microsecond
	maxBackoff = time.Millisecond
)

func (b *backoff) wait() error {
	b.next = min(max(2*b.next, minBackoff), maxBackoff)
	return sleep(b.ctx, b.next/2+rand.N(b.next/2))
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ticket is a fair lock by fetch-and-add: one draws a number, and is served in its order.
type ticket struct{}

func (ticket) acquire(ctx context.Context, c *contender) error {
	mine, err := c.mem.Do(c.mem.FetchAdd(nextAt, 1))
	if err != nil {
		return err
	}
	for {
		now, err := c.mem.Do(c.mem.Load(servingAt))
		if err != nil || now == mine {
			return err
		}
		c.retries++
		// There are so many before us, and no need to look before they can be done.
		if err := sleep(ctx, time.Duration(mine-now)*minBackoff); err != nil {
			return err
		}
	}
}

func (ticket) release(c *contender, last verbs.SendWR) error {
	_, err := c.mem.Do(last, c.mem.FetchAdd(servingAt, 1))
	return err
}
