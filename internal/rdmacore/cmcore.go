//go:build linux && cgo

package rdmacore

/*
#include "shim.h"
*/
import "C"

import (
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/rconn/rdma/cm"
)

// cmCore is the provider's part of connection management: librdmacm's event channel, and whom its events are for.
type cmCore struct {
	mu      sync.Mutex
	channel *C.struct_rdma_event_channel // nil until the first connection

	// events is held while librdmacm takes an event, because it then works on the QP of the event's id, and while a QP is taken from it.
	events sync.Mutex

	ids registry[target]
}

// target is what events are for. Its methods are called by the dispatcher and must not block.
type target interface {
	deliver(ev event)
	request(ev event, c *C.struct_rdma_cm_id) // a connect request came, and its id
}

// retryEvent is how long the dispatcher waits when it could not take an event.
const retryEvent = 100 * time.Millisecond

// start opens the event channel and starts the dispatcher, once.
func (p *provider) start() error {
	c := &p.cm
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.channel != nil {
		return nil
	}
	if err := ready(); err != nil {
		return err
	}
	var channel *C.struct_rdma_event_channel
	var fd C.int
	if err := sysErr("rdma_create_event_channel", int(C.rc_cm_open(&channel, &fd))); err != nil {
		return libraryErr(err)
	}
	// librdmacm needs its descriptor for every command; the poller gets its own.
	conn, err := pollDup(int(fd), devCM)
	if err != nil {
		C.rc_cm_close(channel)
		return err
	}
	c.channel = channel
	go p.dispatch(conn)
	return nil
}

// pollDup puts a duplicate of a descriptor into the runtime's poller, for good.
func pollDup(fd int, name string) (syscall.RawConn, error) {
	fd, err := dupCloexec(fd)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	conn, err := file.SyscallConn()
	if err == nil {
		err = file.SetReadDeadline(time.Time{}) // fails if the poller did not take it
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return conn, nil
}

// dispatch takes events for ever. It parks in the runtime's poller.
func (p *provider) dispatch(conn syscall.RawConn) {
	var ev C.struct_rc_cm_event
	conn.Read(func(uintptr) bool {
		for p.takeEvent(&ev) {
		}
		return false
	})
}

// takeEvent hands one event to its target. False: there is none.
func (p *provider) takeEvent(c *C.struct_rc_cm_event) bool {
	p.cm.events.Lock()
	errno := syscall.Errno(C.rc_cm_event(p.cm.channel, c))
	p.cm.events.Unlock()
	switch errno {
	case 0:
	case syscall.EAGAIN:
		return false
	case syscall.EINTR:
		return true
	default: // out of memory, say: the event is still there, and the poller tells of it only once
		time.Sleep(retryEvent)
		return true
	}
	ev := event{
		typ:    cm.EventType(c._type),
		status: int(c.status),
		lost:   syscall.Errno(c.err),
		conn:   connParam(&c.conn),
	}
	t := p.cm.ids.find(uint64(c.handle))
	switch {
	case c.new_id == nil && t != nil:
		t.deliver(ev)
	case c.new_id != nil && t != nil:
		t.request(ev, c.new_id)
	case c.new_id != nil: // the listener was closed meanwhile
		C.rc_set_handle(c.new_id, 0)
		go p.refuse(c.new_id)
	}
	return true
}

// refuse rejects a request that nobody has seen.
func (p *provider) refuse(c *C.struct_rdma_cm_id) {
	p.closes.do(func() error {
		C.rc_reject(c, nil, 0)
		C.rc_destroy_id(c)
		return nil
	})
}

// detachQP has librdmacm forget the id's QP, so that events that come do not touch it any more.
func (c *cmCore) detachQP(i *id) {
	c.events.Lock()
	defer c.events.Unlock()
	C.rc_detach_qp(i.c)
}

// connParam copies what came with an event.
func connParam(c *C.struct_rc_conn) cm.ConnParam {
	p := cm.ConnParam{
		ResponderResources: uint8(c.responder_resources),
		InitiatorDepth:     uint8(c.initiator_depth),
		RetryCount:         uint8(c.retry_count),
		RNRRetryCount:      uint8(c.rnr_retry_count),
	}
	for _, b := range c.private_data[:c.private_len] {
		p.PrivateData = append(p.PrivateData, byte(b))
	}
	return p
}
