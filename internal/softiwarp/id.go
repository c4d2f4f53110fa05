package softiwarp

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// idState is how far a connection has come.
type idState uint8

const (
	idle idState = iota
	requested
	busy // a Connect or Accept is in progress
	connected
	over
)

// id is one end of a connection: cm.Resolved on the dialing, cm.Request on the accepting side.
type id struct {
	dev    *device
	remote netip.AddrPort
	bind   netip.AddrPort // what the user wants to dial from
	conn   net.Conn       // accepting: the connection that asks
	frame  mpaFrame       // accepting: the request
	events mailbox[cm.Event]
	told   atomic.Bool // of the end

	mu     sync.Mutex
	local  netip.AddrPort
	state  idState
	qp     *qp // nil: none, or closed
	qpMade bool
	closed bool
}

var (
	_ cm.Resolved = (*id)(nil)
	_ cm.Request  = (*id)(nil)
)

func (d *device) newID(local, remote netip.AddrPort) *id {
	d.count(&d.open.ids, 1)
	return &id{dev: d, local: local, remote: remote}
}

func (i *id) Device() verbs.Device       { return i.dev }
func (i *id) RemoteAddr() netip.AddrPort { return i.remote }

func (i *id) LocalAddr() netip.AddrPort {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.local
}

func (i *id) Notify(f func(cm.Event)) { i.events.listen(f) }

// disconnected tells of the end, once.
func (i *id) disconnected() {
	if !i.told.Swap(true) {
		i.events.put(cm.Event{Type: cm.Disconnected})
	}
}

func (i *id) Disconnect() error {
	i.mu.Lock()
	q, closed := i.qp, i.closed
	i.mu.Unlock()
	if closed {
		return verbs.ErrClosed
	}
	if q != nil {
		q.disconnect()
	}
	return nil
}

// disconnect ends a connection that was made.
func (q *qp) disconnect() {
	q.release()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == verbs.QPRTS {
		q.stop(ending{})
	}
}

func (i *id) qpClosed() {
	i.mu.Lock()
	i.qp = nil
	i.mu.Unlock()
}

func (i *id) Close() error {
	i.mu.Lock()
	if i.closed {
		i.mu.Unlock()
		return nil
	}
	if i.qp != nil {
		i.mu.Unlock()
		return verbs.ErrBusy
	}
	unanswered := i.state == requested
	i.closed, i.state = true, over
	i.mu.Unlock()
	if unanswered {
		i.refuse(nil)
	}
	i.events.close()
	i.dev.count(&i.dev.open.ids, -1)
	return nil
}

// start checks what Connect and Accept have in common, and begins. The caller says how it went with finish.
func (i *id) start(from idState, p *cm.ConnParam, limit int) (*qp, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return nil, verbs.ErrClosed
	}
	if i.state != from || i.qp == nil {
		return nil, os.NewSyscallError("connect", syscall.EINVAL)
	}
	attr := &i.dev.attr
	for _, l := range [...]struct {
		what     string
		got, max int
	}{
		{"bytes of private data", len(p.PrivateData), limit},
		{"responder resources", int(p.ResponderResources), attr.MaxQPRdAtom},
		{"READs outstanding", int(p.InitiatorDepth), attr.MaxQPInitRdAtom},
		{"retries", int(p.RetryCount), 7},
		{"RNR retries", int(p.RNRRetryCount), 7},
		{"ack timeout", int(p.AckTimeout), 31},
		{"RNR timer", int(p.MinRNRTimer), 31},
	} {
		if l.got > l.max {
			return nil, &verbs.LimitError{What: l.what, Got: uint64(l.got), Max: uint64(l.max)}
		}
	}
	i.state = busy
	return i.qp, nil
}

func (i *id) finish(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.state = connected
	if err != nil {
		i.state = over
	}
}
