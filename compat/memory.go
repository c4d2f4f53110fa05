package compat

import (
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

// note remembers a vain attempt. When there is no room, first what is over goes, then any.
func (m *memory) note(a attempt, d time.Duration) {
	if d < 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.until == nil {
		m.until = make(map[attempt]time.Time)
	}
	if _, known := m.until[a]; !known && len(m.until) >= maxRemembered {
		for b, until := range m.until {
			if !now.Before(until) {
				delete(m.until, b)
			}
		}
		for b := range m.until {
			if len(m.until) < maxRemembered {
				break
			}
			delete(m.until, b)
		}
	}
	m.until[a] = now.Add(d)
}

// forget is for an attempt that was not in vain.
func (m *memory) forget(a attempt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.until, a)
}
