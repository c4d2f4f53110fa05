package rdmacore

import (
	"sync"

	"github.com/rconn/rdma/verbs"
)

// refs counts the users of an object: its children and calls in progress. An object closes only without any.
type refs struct {
	mu     sync.Mutex
	n      int
	closed bool

	closing sync.Mutex // held by close: a second one returns when the object is gone, not before
}

// acquire takes a reference, or ErrClosed.
func (r *refs) acquire() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return verbs.ErrClosed
	}
	r.n++
	return nil
}

func (r *refs) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n--
}

// open is nil or ErrClosed.
func (r *refs) open() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return verbs.ErrClosed
	}
	return nil
}

// close destroys the object with destroy unless it is in use (ErrBusy) or closed already (nil). If destroy fails the
// object stays open.
func (r *refs) close(destroy func() error) error {
	r.closing.Lock()
	defer r.closing.Unlock()
	r.mu.Lock()
	switch {
	case r.closed:
		r.mu.Unlock()
		return nil
	case r.n > 0:
		r.mu.Unlock()
		return verbs.ErrBusy
	}
	r.closed = true
	r.mu.Unlock()

	err := destroy()
	if err != nil {
		r.mu.Lock()
		r.closed = false
		r.mu.Unlock()
	}
	return err
}
