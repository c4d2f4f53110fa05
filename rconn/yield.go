package rconn

import (
	"runtime"
	"time"
)

// yieldEvery is well below the 10 ms after which Go's runtime wants a goroutine to give way. From one that is in a call into C then,
// it takes the processor, and the thread that does so (sysmon) looks every 20 µs for a while: that costs more than a Gosched.
const yieldEvery = 5 * time.Millisecond

// unlock unlocks c.mu where a call of s may be busy without parking for long. Such a call passes through the scheduler from time to time.
func (c *Conn) unlock(s *side, now time.Time) {
	due := now.Sub(s.yielded) > yieldEvery
	if due {
		s.yielded = now
	}
	c.mu.Unlock()
	if due {
		runtime.Gosched()
	}
}
