package softiwarp

import (
	"sync"

	"github.com/rconn/rdma/verbs"
)

// refs counts the objects made from one, which closes only without any.
type refs struct {
	mu     sync.Mutex
	n      int
	closed bool
}

// acquire takes a reference, or fails with ErrClosed.
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
	r.n--
	r.mu.Unlock()
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

// close marks the object closed. last tells whether this call did.
func (r *refs) close() (last bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return false, nil
	case r.n > 0:
		return false, verbs.ErrBusy
	}
	r.closed = true
	return true, nil
}
