//go:build linux && cgo

package rdmacore

/*
#cgo noescape rc_nap
#cgo nocallback rc_nap
#include "shim.h"
*/
import "C"

import (
	"encoding/binary"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A nap is a sleep in the kernel on the completion channel itself, before the one in the runtime's poller. The thread that sleeps is the one
// that goes on: an event that comes soon wakes nothing else, where a goroutine in the poller takes a thread that polls, one that looks for work,
// and the search for who runs it. It costs a thread, so few waits of a process may nap at once, and not for long. And a call into C keeps Go's
// processor, with the goroutines and timers that stand in its queues, until sysmon looks: so nobody naps while a goroutine waits to be run, and a nap is
// short, for those that come meanwhile where all other processors are busy.

// naps of napTime are long for an answer, and short for a connection that is idle.
const (
	napTime = 2 * time.Millisecond
	naps    = 4
)

// askEvery is how old what fits knows may be.
const askEvery = time.Millisecond

// maxNaps bounds the threads. There is at most one for every two processors that Go uses.
const maxNaps = 8

// nap is a place to sleep at.
type nap struct {
	wake     int // an eventfd
	asked    time.Time
	runnable [1]metrics.Sample
}

// fits tells whether no goroutine waits for a processor, as it was within askEvery: to ask takes a lock of Go's scheduler.
func (n *nap) fits() bool {
	if now := time.Now(); now.Sub(n.asked) >= askEvery {
		n.asked = now
		metrics.Read(n.runnable[:])
	}
	v := n.runnable[0].Value
	return v.Kind() == metrics.KindUint64 && v.Uint64() == 0
}

// beds are the places that are free. They are made with the first device, and stay.
type beds struct {
	once sync.Once
	free chan *nap
}

// take returns a place, or nil if there is none.
func (b *beds) take() *nap {
	select {
	case n := <-b.free:
		return n
	default:
		return nil
	}
}

// make makes as many places as there can be descriptors for: none is no error.
func (b *beds) make() {
	b.free = make(chan *nap, maxNaps)
	for range min(maxNaps, runtime.GOMAXPROCS(0)/2) {
		if fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err == nil {
			b.free <- &nap{wake: fd, runnable: [...]metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}}}
		}
	}
}

func (b *beds) give(n *nap) { b.free <- n }

// rouse ends the sleep, or the next one.
func (n *nap) rouse() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	unix.Write(n.wake, one[:]) // fails only where it is full of the same
}

// nap sleeps until there is an event or an interrupt, or for napTime, and tells whether it was one of the two. Without a free place it does
// not sleep.
func (c *channel) nap() bool {
	if !c.naps.Try() {
		return false
	}
	n := c.dev.p.beds.take()
	if n == nil {
		return false
	}
	defer c.dev.p.beds.give(n)
	if !n.fits() {
		return false
	}
	c.leaveSet()
	c.napping.Store(n)
	found := atomic.LoadUint32(c.interruptWord()) != 0
	for i := 0; i < naps && !found && (i == 0 || n.fits()); i++ {
		if i == naps/2 {
			runtime.Gosched() // one that is not seen for 10 ms has its processor taken away
		}
		found = C.rc_nap(c.c, C.int(n.wake), C.int(napTime.Milliseconds())) != 0
	}
	c.napping.Store(nil)
	c.naps.Result(found)
	return found
}
