package softiwarp

import "unsafe"

// response is what the peer's READ or atomic request is owed.
type response struct {
	atomic   bool
	sinkSTag uint32
	sinkTO   uint64
	size     int
	source   seg
	id       uint32
	value    uint64
}

// responseQueue holds what is to be answered, in order. Its size is what this side has agreed to. Guarded by qp.mu.
type responseQueue struct {
	ring    []response
	head, n int
}

func (r *responseQueue) push(x response) {
	r.ring[(r.head+r.n)%len(r.ring)] = x
	r.n++
}

func (r *responseQueue) pop() response {
	x := r.ring[r.head]
	r.ring[r.head] = response{}
	r.head = (r.head + 1) % len(r.ring)
	r.n--
	return x
}

// expected is the peer's answer to a READ or an atomic.
type expected struct {
	pos    uint64 // of the request in the send queue
	atomic bool
	id     uint32
	stag   uint32 // where the next byte goes
	to     uint64
	left   int
}

// readQueue holds what the peer owes, in order. Guarded by qp.mu.
type readQueue struct {
	ring    []expected
	head, n int
}

func (r *readQueue) push(x expected) {
	r.ring[(r.head+r.n)%len(r.ring)] = x
	r.n++
}

func (r *readQueue) first() *expected {
	if r.n == 0 {
		return nil
	}
	return &r.ring[r.head]
}

func (r *readQueue) pop() {
	r.head = (r.head + 1) % len(r.ring)
	r.n--
}

// addr is the address of the first byte in work requests.
func (s *seg) addr() uint64 {
	return s.mr.base + uint64(uintptr(unsafe.Pointer(&s.b[0]))-s.mr.start)
}
