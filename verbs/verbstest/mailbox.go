package verbstest

import "sync"

// mailbox hands values to a function one at a time and in order, on a goroutine that lives only while there are any.
// What comes before there is a function waits for it.
type mailbox[T any] struct {
	mu      sync.Mutex
	f       func(T)
	queue   []T
	running bool
	closed  bool
}

func (m *mailbox[T]) put(v T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.queue = append(m.queue, v)
	m.start()
}

func (m *mailbox[T]) listen(f func(T)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.f = f
	m.start()
}

// close drops what was not handed over; a call that runs may go on.
func (m *mailbox[T]) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.queue = nil
}

func (m *mailbox[T]) start() {
	if !m.running && m.f != nil && len(m.queue) > 0 {
		m.running = true
		go m.run()
	}
}

func (m *mailbox[T]) run() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.f != nil && len(m.queue) > 0 {
		f, v := m.f, m.queue[0]
		m.queue = m.queue[1:]
		m.mu.Unlock()
		f(v)
		m.mu.Lock()
	}
	m.running = false
}
