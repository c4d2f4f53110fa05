// Package acceptqueue is what stands behind a net.Listener's Accept, SetDeadline and Close where connections are not made by Accept
// itself: they wait in a Queue.
package acceptqueue

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// Queue has connections of type C that wait for Accept, in order. All methods may be called from several goroutines.
type Queue[C any] struct {
	waiting chan C
	closed  chan struct{} // closed by Close
	ended   chan struct{} // closed by End

	mu       sync.Mutex
	why      error // of the end
	deadline time.Time
	moved    chan struct{} // closed and replaced when the deadline changes
}

// New makes a queue in which as many as bound wait.
func New[C any](bound int) *Queue[C] {
	return &Queue[C]{
		waiting: make(chan C, bound), closed: make(chan struct{}), ended: make(chan struct{}), moved: make(chan struct{}),
	}
}

// Put adds a connection, waiting for room. False: the queue was closed, and the connection is the caller's to end.
func (q *Queue[C]) Put(c C) bool {
	if q.IsClosed() {
		return false
	}
	select {
	case q.waiting <- c:
		return true
	case <-q.closed:
		return false
	}
}

// Accept takes a connection, waiting for one. It fails with os.ErrDeadlineExceeded, with net.ErrClosed, or, when nothing
// waits, with the reason given to End.
func (q *Queue[C]) Accept() (C, error) {
	for {
		q.mu.Lock()
		deadline, moved := q.deadline, q.moved
		q.mu.Unlock()
		c, err := q.accept(deadline, moved)
		if err != errMoved {
			return c, err
		}
	}
}

// errMoved never leaves Accept.
var errMoved = errors.New("deadline moved")

func (q *Queue[C]) accept(deadline time.Time, moved chan struct{}) (c C, err error) {
	if q.IsClosed() {
		return c, net.ErrClosed
	}
	var expired <-chan time.Time
	if !deadline.IsZero() {
		left := time.Until(deadline)
		if left <= 0 {
			return c, os.ErrDeadlineExceeded
		}
		t := time.NewTimer(left)
		defer t.Stop()
		expired = t.C
	}
	select {
	case c := <-q.waiting: // before the end
		return c, nil
	default:
	}
	select {
	case c := <-q.waiting:
		return c, nil
	case <-q.closed:
		return c, net.ErrClosed
	case <-q.ended:
		return c, q.why
	case <-expired:
		return c, os.ErrDeadlineExceeded
	case <-moved:
		return c, errMoved
	}
}

// SetDeadline sets the time after which Accept fails, also one that waits now. The zero time means never. It fails with net.ErrClosed.
func (q *Queue[C]) SetDeadline(t time.Time) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.IsClosed() {
		return net.ErrClosed
	}
	q.deadline = t
	close(q.moved)
	q.moved = make(chan struct{})
	return nil
}

// End tells that nothing will come any more, and why. The first reason counts.
func (q *Queue[C]) End(why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.why == nil {
		q.why = why
		close(q.ended)
	}
}

// Close has Accept, Put and SetDeadline fail from now on. False: it was closed before.
func (q *Queue[C]) Close() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.IsClosed() {
		return false
	}
	close(q.closed)
	return true
}

// IsClosed tells whether Close was called.
func (q *Queue[C]) IsClosed() bool {
	select {
	case <-q.closed:
		return true
	default:
		return false
	}
}

// Drain gives what nobody accepted to f. It is for after Close, when every Put has returned.
func (q *Queue[C]) Drain(f func(C)) {
	for {
		select {
		case c := <-q.waiting:
			f(c)
		default:
			return
		}
	}
}

// Len is how many wait.
func (q *Queue[C]) Len() int { return len(q.waiting) }
