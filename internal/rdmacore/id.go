//go:build linux && cgo

package rdmacore

/*
#include "shim.h"
*/
import "C"

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// id is one end of a connection: a cm id of librdmacm. It is a cm.Resolved or a cm.Request.
type id struct {
	p             *provider
	handle        uint64
	m             *machine
	local, remote netip.AddrPort
	param         cm.ConnParam // of a request
	dev           *device      // set before the user sees the id
	owner         atomic.Pointer[device]
	refs          refs          // the QP
	depth         atomic.Uint32 // the initiator depth that was asked for

	// op is held during a C call on the id, and by a connect that blocks in the kernel: who closes waits for it.
	op    sync.Mutex
	c     *C.struct_rdma_cm_id // nil once closed
	stuck bool                 // iWARP: the kernel connects; unless it has answered, destroying the id waits for it

	mu   sync.Mutex
	qp   *qp  // nil before CreateQP and after its Close
	made bool // there was a QP
}

// newID makes an id for a connection to be dialed.
func (p *provider) newID() (*id, error) {
	i := &id{p: p, m: newMachine(stateIdle)}
	i.handle = p.cm.ids.add(i)
	err := p.calls.do(func() error {
		return sysErr("rdma_create_id", int(C.rc_create_id(p.cm.channel, C.uint64_t(i.handle), &i.c)))
	})
	if err != nil {
		p.cm.ids.remove(i.handle)
		return nil, err
	}
	return i, nil
}

// bind finds the id's device and the addresses of both ends. The device stays until the id is closed.
func (i *id) bind() error {
	i.op.Lock()
	defer i.op.Unlock()
	ctx := C.rc_id_context(i.c)
	if ctx == nil {
		return noDevice("the connection has none")
	}
	d, err := i.p.deviceOf(ctx)
	if err != nil {
		return err
	}
	if err := d.acquire(); err != nil {
		return err
	}
	i.dev = d
	i.owner.Store(d)
	i.local, i.remote = idAddrs(i.c)
	if ip := i.local.Addr(); ip.Is6() && ip.IsLinkLocalUnicast() {
		zone := ip.Zone()
		if zone == "" { // the kernel keeps no scope id on the accepting side
			zone = d.zoneOf(ip)
		}
		i.local, i.remote = withZone(i.local, zone), withZone(i.remote, zone)
	}
	return nil
}

func idAddrs(c *C.struct_rdma_cm_id) (src, dst netip.AddrPort) {
	var s, d [sockaddrSize]byte
	C.rc_id_addrs(c, (*C.uint8_t)(&s[0]), (*C.uint8_t)(&d[0]))
	return decodeSockaddr(s), decodeSockaddr(d)
}

func (i *id) Device() verbs.Device { return i.dev }

func (i *id) LocalAddr() netip.AddrPort { return i.local }

func (i *id) RemoteAddr() netip.AddrPort { return i.remote }

func (i *id) Notify(f func(cm.Event)) { i.m.setNotify(f) }

// deliver takes an event from the dispatcher.
func (i *id) deliver(ev event) {
	if d := i.owner.Load(); d != nil && ev.typ == cm.DeviceRemoval {
		d.markRemoved() // before the user hears of it
	}
	i.m.handle(ev)
}

// mayCreateQP checks that the id has no QP and never had one. Called with op held.
func (i *id) mayCreateQP() error {
	if i.c == nil {
		return verbs.ErrClosed
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.made {
		return sysErr("rdma_create_qp", int(syscall.EINVAL))
	}
	return nil
}

// setQP notes the QP while it is open.
func (i *id) setQP(q *qp) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.qp = q
	i.made = true
}

// openQP is the QP that a connection is made with.
func (i *id) openQP() (*qp, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.qp == nil {
		return nil, errNoQP
	}
	return i.qp, nil
}

var errNoQP = errors.New("the connection has no queue pair: CreateQP comes first")

// call makes a C call on the id, in a slot that it waits for until ctx ends.
func (i *id) call(ctx context.Context, bound slots, name string, f func() C.int) error {
	i.op.Lock()
	defer i.op.Unlock()
	if err := bound.take(ctx); err != nil {
		return err
	}
	defer bound.give()
	if i.c == nil {
		return verbs.ErrClosed
	}
	return sysErr(name, int(f()))
}

// Disconnect moves the QP to the error state and tells the peer.
func (i *id) Disconnect() error {
	up, err := i.m.established()
	if err != nil || !up {
		return err
	}
	err = i.call(context.Background(), i.p.calls, "rdma_disconnect", func() C.int { return C.rc_disconnect(i.c) })
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTCONN) {
		err = nil // the connection is over already
	}
	return i.dev.orRemoved(err)
}

func (i *id) Close() error {
	return i.refs.close(func() error {
		unanswered := i.m.close()
		i.op.Lock()
		defer i.op.Unlock()
		bound := i.p.closes
		if i.stuck && unanswered {
			bound = i.p.connects
		}
		err := bound.do(func() error { return sysErr("rdma_destroy_id", int(C.rc_destroy_id(i.c))) })
		if err != nil {
			return err
		}
		i.c = nil
		i.p.cm.ids.remove(i.handle)
		if i.dev != nil {
			i.dev.release()
		}
		return nil
	})
}

// request is for listeners only.
func (i *id) request(_ event, c *C.struct_rdma_cm_id) { go i.p.refuse(c) }
