package compat

import (
	"errors"
	"maps"
	"sync"
	"syscall"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// attempt is a way to an address.
type attempt struct{ network, address, way string }

// maxRemembered bounds a Dialer's memory.
const maxRemembered = 4096

// doubtful is how long an attempt is remembered that failed without telling much: with no answer in time, or as things do that work the
// next time. Each time in a row it is twice as long.
const doubtful = 5 * time.Second

// memory knows which attempts were in vain lately.
type memory struct {
	mu    sync.Mutex
	notes map[attempt]note
}

type note struct {
	until time.Time
	doubt time.Duration // how long this was, if it is doubtful
}

// isDefinite tells whether a failure says what the next one would: that no device has a route, that nobody listens at RDMA, or that the
// server speaks something else. A refusal by a program says no more than that it was busy.
func isDefinite(err error) bool {
	for _, e := range []error{verbs.ErrNoDevice, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EPROTO} {
		if errors.Is(err, e) {
			return true
		}
	}
	rejected, ok := errors.AsType[*cm.RejectedError](err)
	return ok && rejected.Reason == cm.RejectNoListener
}

// vain tells whether an attempt need not be made now.
func (m *memory) vain(a attempt) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, known := m.notes[a]
	return known && time.Now().Before(n.until)
}

// note remembers a vain attempt, at most for so long; err is nil if there was no answer. When there is no room, what is over goes; when
// nothing is over, all does.
func (m *memory) note(a attempt, err error, most time.Duration) {
	if most < 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	last, known := m.notes[a]
	if !known && len(m.notes) >= maxRemembered {
		maps.DeleteFunc(m.notes, func(_ attempt, n note) bool { return !now.Before(n.until) })
		if len(m.notes) >= maxRemembered {
			clear(m.notes)
		}
	}
	if m.notes == nil {
		m.notes = make(map[attempt]note)
	}
	if isDefinite(err) {
		m.notes[a] = note{until: now.Add(most)}
		return
	}
	if now.Before(last.until) {
		return // this one began before it was known: several dials at once are not several in a row
	}
	doubt := min(max(doubtful, 2*last.doubt), most)
	m.notes[a] = note{now.Add(doubt), doubt}
}

// forget is for an attempt that was not in vain.
func (m *memory) forget(a attempt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.notes, a)
}
