package rconn

import "time"

// On iWARP the accepting side must not send before the dialing side has (RFC 5044, section 7.1): what follows the answer too closely makes
// some initiators, Linux's soft-iWARP among them, fail their connect. rsockets on the dialing side send an update as soon as they are
// polled; for a peer that does not, the gate opens by itself, late enough for a busy machine: at 50 ms connects failed on one.
const gateTime = time.Second

// shut keeps the connection from sending until open is called.
func (c *Conn) shut() {
	c.gated = true
	time.AfterFunc(gateTime, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.gated && !c.released {
			c.gated = false
			c.progress()
			c.attend()
		}
	})
}
