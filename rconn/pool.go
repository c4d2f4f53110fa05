package rconn

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rconn/rdma/verbs"
)

// pool keeps the memory of a listener's connections that have ended for those that come: to register it is a good part of the work for
// a connection. The keys stay the same, and former peers know them. But a key is good on queue pairs of its protection domain only,
// which goes with the memory, and of those there is never more than one: that of the connection that has the memory. So what is kept is that
// of connections that ended in order, on devices that were fine.
type pool struct {
	logger *slog.Logger

	mu     sync.Mutex
	spare  []memory // the last one is taken first
	bytes  int      // of all of it, and of what is being scrubbed
	unused int      // so many, from the first one on, were not taken since the last tick
	timer  *time.Timer
	closed bool

	freeing sync.Mutex // not together with mu: freeing takes a while
	freed   atomic.Int64
}

const (
	poolBytes = 1 << 20         // kept at most, since it is locked: five connections with rings of the default size
	poolTime  = 2 * time.Second // memory that is not needed for so long is freed, at the next tick
)

// take returns memory of those sizes, if there is some.
func (p *pool) take(dev verbs.Device, send, recv int) (m memory, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, m := range slices.Backward(p.spare) {
		if m.is(dev, send, recv) {
			p.remove(i, i+1)
			return m, true
		}
	}
	return m, false
}

// put keeps memory that no queue pair reaches any more. False: there is no place for it.
func (p *pool) put(m memory) bool {
	if !p.reserve(m.size()) {
		return false
	}
	m.scrub()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.spare = append(p.spare, m)
	if len(p.spare) == 1 {
		p.wind()
	}
	return true
}

// reserve makes a place.
func (p *pool) reserve(size int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.bytes+size > poolBytes {
		return false
	}
	p.bytes += size
	return true
}

// wind sets the time of the next tick.
func (p *pool) wind() {
	p.unused = len(p.spare)
	if p.timer == nil {
		p.timer = time.AfterFunc(poolTime, p.tick)
	} else {
		p.timer.Reset(poolTime)
	}
}

// tick frees what nobody needed since the last one. It is also what lets go of a device that was removed.
func (p *pool) tick() {
	p.mu.Lock()
	old := p.remove(0, p.unused)
	if len(p.spare) > 0 {
		p.wind()
	}
	p.mu.Unlock()
	p.free(old)
}

// drop frees all, and tells whether there was any, also if another call is just freeing it.
func (p *pool) drop() bool {
	before := p.freed.Load()
	p.mu.Lock()
	all := p.remove(0, len(p.spare))
	p.mu.Unlock()
	p.free(all)
	return p.freed.Load() != before
}

// makesRoom tells whether to try again what failed for want of memory, since the pool had some. A nil pool has none.
func (p *pool) makesRoom(err error) bool {
	return p != nil && errors.Is(err, syscall.ENOMEM) && p.drop()
}

// close is the last drop.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	p.drop()
}

// remove takes spare[i:j] out.
func (p *pool) remove(i, j int) []memory {
	out := slices.Clone(p.spare[i:j])
	p.spare = slices.Delete(p.spare, i, j)
	for k := range out {
		p.bytes -= out[k].size()
	}
	p.unused -= max(0, min(j, p.unused)-i)
	return out
}

func (p *pool) free(old []memory) {
	p.freeing.Lock()
	defer p.freeing.Unlock()
	for k := range old {
		if err := old[k].free(); err != nil {
			p.logger.Warn("rdma memory not released", "err", err)
		}
	}
	p.freed.Add(int64(len(old)))
}
