package rconn

import (
	"runtime"
	"time"
)

// yieldEvery is well below the 10 ms after which Go's runtime wants a goroutine to give way. From one that is in a call into C then,
// it takes the processor, and the thread that does so (sysmon) looks every 20 µs for a while: that costs more than a Gosched.
const yieldEvery = 5 * time.Millisecond

// turns tells when a goroutine last passed through the scheduler.
type turns struct{ last time.Time }

// unlock unlocks c.mu where a goroutine may be busy without parking for long. It passes through the scheduler from time to time.
func (c *Conn) unlock(t *turns, now time.Time) {
	due := now.Sub(t.last) > yieldEvery
	if due {
		t.last = now
	}
	c.mu.Unlock()
	if due {
		runtime.Gosched()
	}
}
