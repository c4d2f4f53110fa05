package rdmacore

import (
	"context"
	"errors"

	"github.com/rconn/rdma/cm"
)

const (
	// maxCalls is how many threads may be in calls that can block in the kernel for a while: register memory, create and
	// destroy objects, accept, disconnect.
	maxCalls = 8

	// maxBlockedConnects is how many threads may be in rdma_connect on iWARP devices, which returns only when TCP has
	// connected or given up.
	maxBlockedConnects = 16
)

// slots bounds how many calls run at once.
type slots chan struct{}

func newSlots(n int) slots { return make(slots, n) }

// do runs f in a slot.
func (s slots) do(f func() error) error {
	s <- struct{}{}
	defer func() { <-s }()
	return f()
}

// take waits for a slot until ctx ends.
func (s slots) take(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	default:
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
