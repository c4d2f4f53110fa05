package compat

import (
	"maps"
	"sync"
	"time"
)

// attempt is a way to an address.
type attempt struct{ address, way string }

// maxRemembered bounds a Dialer's memory.
const maxRemembered = 4096

// memory knows which attempts were in vain lately.
type memory struct {
	mu    sync.Mutex
	until map[attempt]time.Time
}

// vain tells whether an attempt need not be made now.
func (m *memory) vain(a attempt) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	until, known := m.until[a]
	return known && time.Now().Before(until)
}

// note remembers a vain attempt. When there is no room, what is over goes; when nothing is over, all does.
func (m *memory) note(a attempt, d time.Duration) {
	if d < 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if _, known := m.until[a]; !known && len(m.until) >= maxRemembered {
		maps.DeleteFunc(m.until, func(_ attempt, until time.Time) bool { return !now.Before(until) })
		if len(m.until) >= maxRemembered {
			clear(m.until)
		}
	}
	if m.until == nil {
		m.until = make(map[attempt]time.Time)
	}
	m.until[a] = now.Add(d)
}

// forget is for an attempt that was not in vain.
func (m *memory) forget(a attempt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.until, a)
}
