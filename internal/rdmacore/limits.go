package rdmacore

import (
	"context"
	"errors"
	"time"

	"github.com/rconn/rdma/cm"
)

const (
	// maxCalls is how many threads may be in calls that can block in the kernel for a while: register memory, create and
	// destroy objects, accept, disconnect.
	maxCalls = 8

	// maxCloses is the same for destroying QPs and cm ids, which has a bound of its own: on an interface that is down it
	// has been seen to take a minute, and that must not keep others from connecting.
	maxCloses = 8

	// maxBlockedConnects is how many threads may be in rdma_connect on iWARP devices, which returns only when TCP has
	// connected or given up.
	maxBlockedConnects = 16
)

// grace is how much longer than the context the kernel may try, so that the context's error wins.
const grace = time.Second

// kernelTimeout is how long the kernel may try, in milliseconds: at most limit, and not much longer than ctx.
func kernelTimeout(ctx context.Context, limit time.Duration) int {
	if deadline, ok := ctx.Deadline(); ok {
		if left := time.Until(deadline); left < limit { // which may be far from what an int holds
			limit = min(limit, max(left, 0)+grace)
		}
	}
	return int(limit.Milliseconds())
}

// slots bounds how many calls run at once.
type slots chan struct{}

func newSlots(n int) slots { return make(slots, n) }

// do runs f in a slot.
func (s slots) do(f func() error) error {
	s <- struct{}{}
	defer func() { <-s }()
	return f()
}

// take waits for a slot until ctx ends. It takes none for a ctx that has ended.
func (s slots) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s slots) give() { <-s }

// errTooManyConnects tells that ctx ended while the call waited its turn.
func errTooManyConnects(ctx context.Context) error {
	return errors.Join(cm.ErrTooManyConnects, ctx.Err())
}
