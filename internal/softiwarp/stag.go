package softiwarp

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
)

// stags finds memory regions by their keys.
type stags struct {
	mu sync.RWMutex
	m  map[uint32]*mr
}

// add gives the region a random key. False: there are as many as may be.
func (s *stags) add(r *mr, limit int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.m) >= limit {
		return false
	}
	for {
		var b [4]byte
		_, _ = rand.Read(b[:]) // it never fails
		// 0 stands for no region; 1 is what others put into messages without bytes.
		if key := binary.BigEndian.Uint32(b[:]); key > 1 && s.m[key] == nil {
			r.key = key
			s.m[key] = r
			return true
		}
	}
}

func (s *stags) remove(key uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, key)
}

func (s *stags) find(key uint32) *mr {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.m[key]
}
