package rconn

import (
	"fmt"
	"syscall"
	"time"
)

// keepalive finds a peer whose device does not answer any more, also for a connection on which nobody waits. It is a timer, not a
// goroutine: a connection from which nothing was heard for idle gets a probe, one that is still silent after timeout
// is broken. Guarded by Conn.mu.
type keepalive struct {
	timer         *time.Timer
	idle, timeout time.Duration
	heard         time.Time // when the peer's device last gave a sign of life
	probing       bool      // a probe was due since
	owed          bool      // it was not collected yet
}

// startKeepalive starts the timer, unless keepalive is off.
func (c *Conn) startKeepalive() {
	k := &c.keepalive
	k.idle, k.timeout, k.heard = c.cfg.KeepAlive, c.cfg.KeepAliveTimeout, time.Now()
	if k.idle > 0 && c.ep.canProbe() {
		k.timer = time.AfterFunc(k.until(k.idle), c.keepaliveTick)
	}
}

// keepaliveSteps is into how many steps the idle time is divided.
const keepaliveSteps = 8

// keepaliveEpoch is where the steps of all connections' timers begin.
var keepaliveEpoch = time.Now()

// until is the time d, made longer to the next step: so the timers of many connections expire together, and an idle process wakes up for
// all of them at once.
func (k *keepalive) until(d time.Duration) time.Duration {
	step := k.idle / keepaliveSteps
	if step <= 0 {
		return d
	}
	at := time.Since(keepaliveEpoch) + d
	rest := (step - at%step) % step
	if d+rest < d {
		return d // as good as never
	}
	return d + rest
}

func (c *Conn) stopKeepalive() {
	if c.keepalive.timer != nil {
		c.keepalive.timer.Stop()
	}
}

// heard notes a sign of life. One that ends a probe starts the idle time again.
func (c *Conn) heard() {
	k := &c.keepalive
	k.heard = time.Now()
	if k.probing && !c.closed {
		k.probing, k.owed = false, false
		k.timer.Reset(k.until(k.idle))
	}
}

func (c *Conn) keepaliveTick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.err != nil {
		return
	}
	c.progress() // what has arrived and was not looked at yet
	k := &c.keepalive
	silent := time.Since(k.heard)
	switch {
	case c.closed || c.err != nil || c.stream.Ended():
		return
	case silent < k.idle:
		k.timer.Reset(k.until(k.idle - silent))
	case !k.probing:
		k.probing = true
		k.timer.Reset(k.timeout) // before c.mu is unlocked: the answer may come at once, and sets it again
		c.probe()
	default:
		c.fail(broken(syscall.ETIMEDOUT, fmt.Errorf("keepalive: the peer's device has not answered for %v", k.timeout)))
	}
	c.turn()
	c.attend()
}

// probe asks the peer's device, as soon as there is room for a request. The program there does not see it.
func (c *Conn) probe() {
	c.keepalive.owed = true
	c.post()
}
