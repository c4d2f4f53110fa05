//go:build linux && cgo

package rdmacore

/*
#include "shim.h"
*/
import "C"

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// listener is a cm id that listens. The dispatcher takes requests from the kernel at once, so the backlog is kept here.
type listener struct {
	p       *provider
	handle  uint64
	c       *C.struct_rdma_cm_id
	addr    netip.AddrPort
	dev     verbs.Device // nil if addr is unspecified
	backlog int
	m       *machine
	refs    refs

	wake chan struct{} // capacity 1: the queue is not empty
	done chan struct{} // closed when nothing can come any more

	mu    sync.Mutex
	queue []*id
	err   error // why done is closed
}

func (p *provider) Listen(local netip.AddrPort, o cm.ListenOptions) (cm.Listener, error) {
	fail := func(err error) (cm.Listener, error) {
		return nil, &cm.Error{Op: opListen, Addr: local, Err: err}
	}
	addr, err := checkAddr(local)
	if err != nil {
		return fail(err)
	}
	sockaddr, err := encodeSockaddr(addr)
	if err != nil {
		return fail(err)
	}
	if err := p.start(); err != nil {
		return fail(err)
	}
	l := &listener{
		p: p, backlog: o.Backlog, m: newMachine(stateListening),
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if l.backlog <= 0 {
		l.backlog = cm.DefaultBacklog
	}
	l.backlog = min(l.backlog, math.MaxInt32)
	l.handle = p.cm.ids.add(l)
	if err := p.calls.do(func() error { return l.listen(&sockaddr, addr.Addr().Is6()) }); err != nil {
		p.cm.ids.remove(l.handle)
		if errors.Is(err, syscall.EADDRNOTAVAIL) && isLocal(addr.Addr()) {
			// The RDMA CM's word for a port of which another listener has all addresses, or one of those wanted.
			err = sysErr("rdma_listen", int(syscall.EADDRINUSE))
		}
		return fail(addrErr(err))
	}
	bound, _ := idAddrs(l.c)
	l.addr = withZone(bound, addr.Addr().Zone())
	if ctx := C.rc_id_context(l.c); ctx != nil && !addr.Addr().IsUnspecified() {
		if l.dev, err = p.deviceOf(ctx); err != nil {
			return fail(errors.Join(err, l.Close()))
		}
	}
	return l, nil
}

// isLocal tells whether ip is unspecified or an address of this host.
func isLocal(ip netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	return err == nil && (ip.IsUnspecified() || slices.ContainsFunc(addrs, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip.WithZone("").AsSlice())
	}))
}

func (l *listener) listen(sockaddr *[sockaddrSize]byte, only6 bool) error {
	errno := C.rc_create_id(l.p.cm.channel, C.uint64_t(l.handle), &l.c)
	if errno != 0 {
		return sysErr("rdma_create_id", int(errno))
	}
	var afonly C.int
	if only6 {
		afonly = 1
	}
	errno = C.rc_listen(l.c, (*C.uint8_t)(&sockaddr[0]), afonly, C.int(l.backlog))
	if errno != 0 {
		C.rc_destroy_id(l.c)
	}
	return sysErr("rdma_listen", int(errno))
}

func (l *listener) Addr() netip.AddrPort { return l.addr }

func (l *listener) Device() verbs.Device { return l.dev }

// Accept skips requests whose device is gone, and those that their peers have given up as far as the kernel tells.
func (l *listener) Accept(ctx context.Context) (cm.Request, error) {
	fail := func(err error) (cm.Request, error) {
		return nil, &cm.Error{Op: opAccept, Addr: l.addr, Err: err}
	}
	for {
		if err := ctx.Err(); err != nil {
			l.pass()
			return fail(err)
		}
		i, err := l.next()
		switch {
		case err != nil:
			return fail(err)
		case i != nil && i.m.now() == stateRequested && i.bind() == nil:
			return i, nil
		case i != nil:
			go i.Close()
			continue
		}
		select {
		case <-l.wake:
		case <-l.done:
		case <-ctx.Done():
		}
	}
}

// next takes a request from the queue, nil if there is none.
func (l *listener) next() (*id, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	if len(l.queue) == 0 {
		return nil, nil
	}
	i := l.queue[0]
	l.queue = l.queue[1:]
	if len(l.queue) > 0 {
		l.signal() // for another Accept
	}
	return i, nil
}

// pass leaves what may have woken this Accept, which does not take it, to another.
func (l *listener) pass() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) > 0 {
		l.signal()
	}
}

func (l *listener) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// end has Accept fail from now on, and returns the requests that nobody accepted.
func (l *listener) end(err error) []*id {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		close(l.done)
	}
	left := l.queue
	l.queue = nil
	return left
}

// deliver takes an event of the listener itself: that its device was removed.
func (l *listener) deliver(ev event) {
	if l.m.handle(ev)&actFail != 0 {
		go rejectAll(l.end(verbs.ErrDeviceRemoved))
	}
}

// request queues a connect request.
func (l *listener) request(ev event, c *C.struct_rdma_cm_id) {
	i := &id{p: l.p, c: c, m: newMachine(stateRequested), param: ev.conn}
	i.handle = l.p.cm.ids.add(i)
	C.rc_set_handle(c, C.uint64_t(i.handle))
	if l.m.handle(ev) != actRequest || !l.enqueue(i) {
		go rejectAll([]*id{i})
	}
}

func (l *listener) enqueue(i *id) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || len(l.queue) >= l.backlog {
		return false
	}
	l.queue = append(l.queue, i)
	l.signal()
	return true
}

// rejectAll refuses requests that the user has not seen.
func rejectAll(ids []*id) {
	for _, i := range ids {
		i.Reject(nil)
		i.Close()
	}
}

func (l *listener) Close() error {
	return l.refs.close(func() error {
		left := l.end(verbs.ErrClosed)
		l.m.close()
		rejectAll(left)
		err := l.p.closes.do(func() error { return sysErr("rdma_destroy_id", int(C.rc_destroy_id(l.c))) })
		if err == nil {
			l.p.cm.ids.remove(l.handle)
		}
		return err
	})
}
