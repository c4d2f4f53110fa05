package rdmacore

import "sync"

// registry maps the handles that C keeps to Go's objects.
type registry[T any] struct {
	mu   sync.Mutex
	next uint64
	m    map[uint64]T
}

// add gives an object a handle. There is no handle 0.
func (r *registry[T]) add(t T) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil {
		r.m = make(map[uint64]T)
	}
	r.next++
	r.m[r.next] = t
	return r.next
}

func (r *registry[T]) remove(handle uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.m, handle)
}

// find is the object, or nothing if it was removed.
func (r *registry[T]) find(handle uint64) T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.m[handle]
}
