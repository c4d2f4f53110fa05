package main

import (
	"context"
	"errors"
	"time"
)

// lease is a compare-and-swap lock that does not outlive its holder for long. Its word is the time when the lease ends, by the
// server's clock, and the holder; released, the word keeps the time and has no holder.
//
//	 63             16 15       0
//	| ends, in ticks  | holder   |
//
// Each grant ends later than the one before, if only by a tick, so the word is also the holder's fencing token: of two holders the later one has the
// greater token.
type lease struct{ lasts time.Duration }

const (
	holderBits = 16
	holderMask = 1<<holderBits - 1
)

// ticks are the clock's unit: 10 µs, shorter than any lease is held, so that the tick by which each grant ends later does not add up. The
// clock itself is set once in a millisecond.
func ticks(d time.Duration) uint64 { return uint64(d / (10 * time.Microsecond)) }

func leaseWord(ends, holder uint64) uint64 { return ends<<holderBits | holder }

// grant is a lease that was won.
type grant struct {
	word      uint64
	takenOver bool // from a holder that let it run out
}

func (l lease) acquire(ctx context.Context, c *contender) (grant, error) {
	b := backoff{ctx: ctx}
	for {
		was, err := c.mem.Do(c.mem.Load(leaseAt))
		if err != nil {
			return grant{}, err
		}
		now, err := c.mem.Do(c.mem.Load(clockAt))
		if err != nil {
			return grant{}, err
		}
		ended, held := was>>holderBits, was&holderMask != 0
		if !held || now > ended {
			mine := leaseWord(max(now+ticks(l.lasts), ended+1), c.id)
			// It fails if the word is not what it was any more, so it does not matter how old what was read has become.
			found, err := c.mem.Do(c.mem.CompareAndSwap(leaseAt, was, mine))
			if err != nil || found == was {
				return grant{mine, held}, err
			}
		}
		c.retries++
		if err := b.wait(); err != nil {
			return grant{}, err
		}
	}
}

// release gives the lease back, unless somebody has taken it over.
func (l lease) release(c *contender, g grant) error {
	was, err := c.mem.Do(c.mem.CompareAndSwap(leaseAt, g.word, leaseWord(g.word>>holderBits, 0)))
	if err == nil && was != g.word {
		err = errLost
	}
	return err
}

// The fenced counter holds the token of its last writer's lease beside the value, in one word, so that the check and the change can be one
// compare-and-swap. A WRITE could not be refused: whoever still believes in his lease would overwrite what his successor has written.
//
//	 63             24 23       0
//	| ends, in ticks  | value    |
const (
	valueBits = 24
	valueMask = 1<<valueBits - 1
)

var errFenced = errors.New("the counter has seen a later lease")

// enter puts the token on the counter: from here on no earlier holder can change it. It returns the word that is there now.
func (g grant) enter(c *contender) (uint64, error) {
	token := g.word >> holderBits
	for {
		was, err := c.mem.Do(c.mem.Load(counterAt))
		if err != nil {
			return 0, err
		}
		if was>>valueBits > token {
			return 0, errFenced
		}
		mine := token<<valueBits | was&valueMask
		found, err := c.mem.Do(c.mem.CompareAndSwap(counterAt, was, mine))
		if err != nil || found == was {
			return mine, err
		}
	}
}

// add adds 1 to the counter, if nobody has entered after the holder has.
func (g grant) add(c *contender, entered uint64) error {
	found, err := c.mem.Do(c.mem.CompareAndSwap(counterAt, entered, entered+1))
	if err == nil && found != entered {
		err = errFenced
	}
	return err
}

// increment adds 1 to the counter under a lease. errFenced: too late, and nothing has happened.
func (l lease) increment(ctx context.Context, c *contender) error {
	g, err := l.acquire(ctx, c)
	if err != nil {
		return err
	}
	entered, err := g.enter(c)
	if err == nil {
		err = g.add(c, entered)
	}
	if err != nil {
		return err
	}
	if err := l.release(c, g); !errors.Is(err, errLost) {
		return err
	}
	return nil // taken over, but the counter was ours in time
}
