//go:build linux && cgo

package rdmacore

/*
#cgo noescape rc_spin
#cgo nocallback rc_spin
#cgo noescape rc_arm
#cgo nocallback rc_arm
#cgo noescape rc_drain
#cgo nocallback rc_drain
#include "shim.h"
*/
import "C"

import (
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rconn/rdma/internal/backoff"
	"github.com/rconn/rdma/verbs"
)

// channel is a completion channel. Its descriptor is in a set (epoll) of its own, which is in the runtime's poller, and not while Wait
// naps: the event that ends a nap would wake the poller's thread as well.
type channel struct {
	dev   *device
	fd    int
	set   *os.File
	setFD int             // of the set
	inSet bool            // the descriptor is in the set
	conn  syscall.RawConn // of the set
	refs  refs            // CQs

	waiting sync.Mutex // held by Wait
	closing atomic.Bool
	parks   atomic.Uint64
	spins   backoff.Gate // Wait's, as the next
	naps    backoff.Gate
	napping atomic.Pointer[nap] // where Wait naps

	word sync.Mutex // keeps the interrupt word from being freed under Interrupt
	gone bool

	mu    sync.Mutex // the CQs, and all of c but the interrupt word and what is Wait's
	c     *C.struct_rc_channel
	cqs   []*cq
	drain func(uintptr) bool // (*channel).drainEvents, made once so that Wait does not allocate
}

// spinSlice bounds a stretch of spinning, during which the CQs are locked.
const spinSlice = 100 * time.Microsecond

var (
	errTwoWaiters = errors.New("another goroutine waits on the RDMA completion channel already")
	longAgo       = time.Unix(1, 0)
)

func (d *device) CreateCompletionChannel() (verbs.CompletionChannel, error) {
	if err := d.acquire(); err != nil {
		return nil, err
	}
	c := &channel{dev: d}
	c.drain = c.drainEvents
	err := d.p.calls.do(func() error {
		return sysErr("ibv_create_comp_channel", int(C.rc_create_channel(d.ctx, &c.c)))
	})
	if err != nil {
		d.release()
		return nil, err
	}
	c.fd = int(C.rc_channel_fd(c.c))
	if err := c.makeSet(); err != nil {
		c.destroy()
		return nil, err
	}
	d.mu.Lock()
	d.channels[c] = struct{}{}
	d.mu.Unlock()
	return c, nil
}

func (c *channel) makeSet() error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	c.setFD = fd
	c.set = os.NewFile(uintptr(fd), "completion channel")
	if c.conn, err = c.set.SyscallConn(); err == nil {
		err = c.set.SetReadDeadline(time.Time{}) // fails if the poller did not take it
	}
	if err != nil {
		return err
	}
	return c.joinSet()
}

func (c *channel) joinSet() error {
	if c.inSet {
		return nil
	}
	err := unix.EpollCtl(c.setFD, unix.EPOLL_CTL_ADD, c.fd, &unix.EpollEvent{Events: unix.EPOLLIN})
	c.inSet = err == nil
	return os.NewSyscallError("epoll_ctl", err)
}

func (c *channel) leaveSet() {
	if c.inSet {
		unix.EpollCtl(c.setFD, unix.EPOLL_CTL_DEL, c.fd, nil)
		c.inSet = false
	}
}

// Wait follows the order that loses no event: poll, arm, poll again, park.
func (c *channel) Wait(spin time.Duration) error {
	if !c.waiting.TryLock() {
		if c.closing.Load() {
			return verbs.ErrClosed
		}
		return errTwoWaiters
	}
	defer c.waiting.Unlock()

	if done, err := c.interrupted(); done {
		return err
	}
	if found, err := c.spin(spin); found || err != nil {
		return err
	}
	for {
		if done, err := c.interrupted(); done { // a spin may have ended by one
			return err
		}
		if found, err := c.arm(); found || err != nil {
			return err
		}
		c.parks.Add(1)
		if woken, err := c.sleep(); woken || err != nil {
			return err
		}
	}
}

// interrupted reports whether Wait has to end before it looks for completions, and how. It takes an interrupt.
func (c *channel) interrupted() (bool, error) {
	if c.closing.Load() {
		return true, verbs.ErrClosed
	}
	// The deadline first: an interrupt between the two lines leaves a past deadline, which costs one round, and is not lost.
	if atomic.LoadUint32(c.interruptWord()) != 0 {
		c.set.SetReadDeadline(time.Time{})
		if atomic.SwapUint32(c.interruptWord(), 0) != 0 {
			return true, c.dev.check()
		}
	}
	if err := c.dev.check(); err != nil {
		return true, err
	}
	return false, nil
}

// interruptWord is in C memory because a spin looks at it.
func (c *channel) interruptWord() *uint32 { return (*uint32)(unsafe.Pointer(&c.c.interrupt)) }

// spin watches the CQs in C, unless that has not helped lately: on few processors one that spins keeps away the very work it waits for.
// It reports completions; an interrupt ends it too.
func (c *channel) spin(d time.Duration) (bool, error) {
	if d <= 0 || !c.spins.Try() {
		return false, nil
	}
	for first := true; d > 0; first = false {
		slice := min(d, spinSlice)
		d -= slice
		c.lock()
		r := C.rc_spin(c.c, C.int64_t(slice))
		c.unlock()
		if r < 0 {
			return false, sysErr("ibv_poll_cq", -int(r))
		}
		if r > 0 {
			if r != C.RC_AT_ONCE || !first {
				c.spins.Result(true)
			}
			return atomic.LoadUint32(c.interruptWord()) == 0, nil
		}
	}
	c.spins.Result(false)
	return false, nil
}

// arm asks for an event of each CQ, then looks at them again.
func (c *channel) arm() (bool, error) {
	c.lock()
	r := C.rc_arm(c.c)
	c.unlock()
	if r < 0 {
		return false, c.failure("ibv_req_notify_cq", -int(r))
	}
	return r > 0, nil
}

// sleep waits for an event or an interrupt, and tells whether it was an event.
func (c *channel) sleep() (bool, error) {
	c.c.taken = 0
	if !c.nap() {
		if err := c.park(); err != nil {
			return false, err
		}
	}
	if c.c.taken >= 0 {
		return c.c.taken > 0, nil
	}
	return false, c.failure("ibv_get_cq_event", -int(c.c.taken))
}

// failure is the error of a call on the channel.
func (c *channel) failure(call string, errno int) error {
	if e := syscall.Errno(errno); e != syscall.EIO && e != syscall.ENODEV {
		return sysErr(call, errno)
	}
	c.dev.markRemoved() // the kernel has cut the descriptor off
	return verbs.ErrDeviceRemoved
}

// park sleeps without a thread.
func (c *channel) park() error {
	if err := c.joinSet(); err != nil {
		return err
	}
	err := c.conn.Read(c.drain)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.set.SetReadDeadline(time.Time{}) // before Wait looks at the word again
		return nil
	case err != nil:
		return verbs.ErrClosed
	}
	return nil
}

// drainEvents takes all events there are. False: none, wait for the descriptor.
func (c *channel) drainEvents(uintptr) bool {
	return C.rc_drain(c.c) != 0 || atomic.LoadUint32(c.interruptWord()) != 0
}

// lock keeps others from the CQs of the channel.
func (c *channel) lock() {
	c.mu.Lock()
	for _, q := range c.cqs {
		q.mu.Lock()
	}
}

func (c *channel) unlock() {
	for _, q := range c.cqs {
		q.mu.Unlock()
	}
	c.mu.Unlock()
}

func (c *channel) attach(q *cq) error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := sysErr("realloc", int(C.rc_attach_cq(c.c, q.c))); err != nil {
		return err
	}
	c.cqs = append(c.cqs, q)
	c.rouse() // a Wait that sleeps has not armed it: one more round
	return nil
}

func (c *channel) detach(q *cq) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	C.rc_detach_cq(c.c, q.c)
	c.cqs = slices.DeleteFunc(c.cqs, func(o *cq) bool { return o == q })
}

func (c *channel) Parks() uint64 { return c.parks.Load() }

func (c *channel) Interrupt() {
	c.word.Lock()
	defer c.word.Unlock()
	if c.gone {
		return
	}
	atomic.StoreUint32(c.interruptWord(), 1)
	c.rouse()
}

// rouse ends a sleep.
func (c *channel) rouse() {
	if n := c.napping.Load(); n != nil {
		n.rouse()
	}
	c.set.SetReadDeadline(longAgo)
}

// Close succeeds or the channel is lost: there is no way back once nobody may wait, and a channel without CQs is never refused.
func (c *channel) Close() error {
	var err error
	if busy := c.refs.close(func() error {
		c.closing.Store(true)
		c.Interrupt()
		c.waiting.Lock() // for good: nobody waits any more
		c.word.Lock()
		c.gone = true
		c.word.Unlock()
		c.dev.mu.Lock()
		delete(c.dev.channels, c)
		c.dev.mu.Unlock()
		err = c.destroy()
		return nil
	}); busy != nil {
		return busy
	}
	return err
}

func (c *channel) destroy() error {
	err := c.dev.p.calls.do(func() error {
		return sysErr("ibv_destroy_comp_channel", int(C.rc_destroy_channel(c.c)))
	})
	if c.set != nil {
		c.set.Close()
	}
	unix.Close(c.fd)
	c.dev.release()
	return err
}
