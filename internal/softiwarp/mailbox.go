package softiwarp

import "sync"

// mailbox calls a function for each value, one at a time and in order, on a goroutine that lives while there are any. Values that
// come before the function wait for it.
type mailbox[T any] struct {
	mu      sync.Mutex
	f       func(T)
	values  []T
	running bool
	closed  bool
}

func (m *mailbox[T]) put(v T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.values = append(m.values, v)
		m.wake()
	}
}

// listen sets the function.
func (m *mailbox[T]) listen(f func(T)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.f = f
	m.wake()
}

// close drops what was not delivered. A call may still run.
func (m *mailbox[T]) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed, m.values = true, nil
}

func (m *mailbox[T]) wake() {
	if !m.running && m.f != nil && len(m.values) > 0 {
		m.running = true
		go m.deliver()
	}
}

func (m *mailbox[T]) deliver() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.f != nil && len(m.values) > 0 {
		f, v := m.f, m.values[0]
		m.values = m.values[1:]
		m.mu.Unlock()
		f(v)
		m.mu.Lock()
	}
	m.running = false
}
