package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// vanish has a contender take a lock, by f, and end without giving it back. It returns the contender's number.
func vanish(ctx context.Context, addr netip.AddrPort, f func(*contender) error) (uint64, error) {
	c, err := join(ctx, addr)
	if err != nil {
		return 0, err
	}
	return c.id, errors.Join(f(c), c.close())
}

// deadHolder shows that a lock whose holder has died is never free again. It waits for it as long as patience is, and counts the tries.
func deadHolder(ctx context.Context, addr netip.AddrPort, patience time.Duration) (tries int, err error) {
	dead, err := vanish(ctx, addr, func(c *contender) error { return cas{}.acquire(ctx, c) })
	if err != nil {
		return 0, err
	}
	c, err := join(ctx, addr)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	switch err := (cas{}).acquire(short, c); {
	case err == nil:
		return 0, errors.New("got the lock of a dead holder")
	case !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
		return 0, err
	}
	// Nothing in the memory tells that the holder is dead. We know, because we have killed it, and so may break the lock.
	_, err = c.mem.Do(c.mem.CompareAndSwap(lockAt, dead, 0))
	return c.retries, err
}

// deadLessee shows that a lease ends without its holder. It returns how long the next one has waited.
func deadLessee(ctx context.Context, addr netip.AddrPort, l lease) (waited time.Duration, err error) {
	start := time.Now()
	_, err = vanish(ctx, addr, func(c *contender) error {
		_, err := l.acquire(ctx, c)
		return err
	})
	if err != nil {
		return 0, err
	}
	c, err := join(ctx, addr)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	g, err := l.acquire(ctx, c)
	if err != nil {
		return 0, err
	}
	if !g.takenOver {
		return 0, errors.New("the dead holder's lease was given back")
	}
	return time.Since(start), l.release(c, g)
}

// lateHolder shows what a lease does not prevent: a holder that has stood still for too long goes on as if it had the lock. Both
// holders add 1 to the counter. It returns by how much it has grown, and what the late holder was told.
func lateHolder(ctx context.Context, addr netip.AddrPort, l lease, fenced bool) (grown int, told error, err error) {
	late, err := join(ctx, addr)
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, late.close()) }()
	g, err := l.acquire(ctx, late)
	if err != nil {
		return 0, nil, err
	}
	seen, err := g.enter(late)
	if err != nil {
		return 0, nil, err
	}

	// Meanwhile the next holder waits for the end of the lease, and has its turn.
	next, err := join(ctx, addr)
	if err != nil {
		return 0, nil, err
	}
	if err := errors.Join(l.increment(ctx, next), next.close()); err != nil {
		return 0, nil, fmt.Errorf("next holder: %w", err)
	}

	if fenced {
		told = g.add(late, seen)
	} else {
		_, told = late.mem.Do(late.mem.Store(counterAt, seen+1))
	}
	now, err := counter(ctx, addr)
	return now - int(seen&valueMask), told, err
}
