package compat

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/rconn/rdma/verbs"
)

// Listener waits for connections of RDMA, of the software device and of plain TCP. It is a net.Listener; all methods may be called from
// several goroutines.
type Listener struct {
	network string
	addr    net.Addr
	hall    *hall
	rdma    net.Listener // package rconn's; nil: none
	fronts  []*front

	done chan struct{} // closed by Close
	lost chan struct{} // closed when nothing is left to listen on
	pump sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	deadline time.Time
	moved    chan struct{} // closed and replaced when the deadline changes
}

var _ net.Listener = (*Listener)(nil)

func newListener(o *opening, rdma net.Listener) *Listener {
	l := &Listener{
		network: o.network, hall: o.hall, rdma: rdma, fronts: o.fronts, done: make(chan struct{}), lost: make(chan struct{}),
		moved: make(chan struct{}),
	}
	if rdma != nil {
		l.addr = rdma.Addr()
		l.pump.Go(l.gather)
	} else {
		l.addr = l.fronts[0].Addr()
	}
	for _, f := range l.fronts {
		f.start()
	}
	return l
}

// gather takes package rconn's connections to the hall.
func (l *Listener) gather() {
	for {
		c, err := l.rdma.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				l.hall.log.Warn("rdma listener ended", "addr", l.addr, "err", err)
				if len(l.fronts) == 0 {
					close(l.lost)
				}
			}
			return
		}
		select {
		case l.hall.ready <- c:
		case <-l.done:
			reset(c)
		}
	}
}

// Accept waits for a connection, a *rconn.Conn or a *net.TCPConn (on systems where first bytes cannot be looked at without reading them,
// Windows for one, another net.Conn around that). They come in the order in which it was known what they are. What goes wrong with
// one of them is logged and does not end Accept.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		l.mu.Lock()
		closed, deadline, moved := l.closed, l.deadline, l.moved
		l.mu.Unlock()
		if closed {
			return nil, opError("accept", l.network, l.addr, net.ErrClosed)
		}
		c, err := l.accept(deadline, moved)
		switch {
		case err == errMoved:
			continue
		case err != nil:
			return nil, opError("accept", l.network, l.addr, err)
		}
		return c, nil
	}
}

var errMoved = errors.New("deadline moved")

func (l *Listener) accept(deadline time.Time, moved chan struct{}) (net.Conn, error) {
	var expired <-chan time.Time
	if !deadline.IsZero() {
		left := time.Until(deadline)
		if left <= 0 {
			return nil, os.ErrDeadlineExceeded
		}
		t := time.NewTimer(left)
		defer t.Stop()
		expired = t.C
	}
	select {
	case c := <-l.hall.ready:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-l.lost:
		return nil, verbs.ErrDeviceRemoved
	case <-expired:
		return nil, os.ErrDeadlineExceeded
	case <-moved:
		return nil, errMoved
	}
}

// SetDeadline sets the time after which Accept fails, also one that waits now. The zero time means never.
func (l *Listener) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return opError("set", l.network, l.addr, net.ErrClosed)
	}
	l.deadline = t
	close(l.moved)
	l.moved = make(chan struct{})
	return nil
}

// Addr is the listener's address, a *net.TCPAddr with the real port, the same at RDMA and at TCP.
func (l *Listener) Addr() net.Addr { return l.addr }

// Close stops listening. Accept returns net.ErrClosed; connections that it has not returned are reset.
func (l *Listener) Close() error {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.mu.Unlock()
	if closed {
		return opError("close", l.network, l.addr, net.ErrClosed)
	}
	close(l.done)
	var errs []error
	if l.rdma != nil {
		errs = append(errs, l.rdma.Close())
	}
	for _, f := range l.fronts {
		errs = append(errs, f.Close())
	}
	l.pump.Wait()
	for {
		select {
		case c := <-l.hall.ready:
			reset(c)
		default:
			if err := errors.Join(errs...); err != nil {
				return opError("close", l.network, l.addr, err)
			}
			return nil
		}
	}
}
