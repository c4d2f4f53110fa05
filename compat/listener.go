package compat

import (
	"errors"
	"net"
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

	pump sync.WaitGroup
}

var _ net.Listener = (*Listener)(nil)

func newListener(o *opening, rdma net.Listener) *Listener {
	l := &Listener{network: o.network, hall: o.hall, rdma: rdma, fronts: o.fronts}
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
					l.hall.ready.End(verbs.ErrDeviceRemoved)
				}
			}
			return
		}
		if !l.hall.ready.Put(c) {
			reset(c)
		}
	}
}

// Accept waits for a connection, a *rconn.Conn or a *net.TCPConn (on systems where first bytes cannot be looked at without reading them,
// Windows for one, another net.Conn around that). They come in the order in which it was known what they are. What goes wrong with
// one of them is logged and does not end Accept.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.hall.ready.Accept()
	if err != nil {
		return nil, opError("accept", l.network, l.addr, err)
	}
	return c, nil
}

// SetDeadline sets the time after which Accept fails, also one that waits now. The zero time means never.
func (l *Listener) SetDeadline(t time.Time) error {
	if err := l.hall.ready.SetDeadline(t); err != nil {
		return opError("set", l.network, l.addr, err)
	}
	return nil
}

// Addr is the listener's address, a *net.TCPAddr with the real port, the same at RDMA and at TCP.
func (l *Listener) Addr() net.Addr { return l.addr }

// Close stops listening. Accept returns net.ErrClosed; connections that it has not returned are reset.
func (l *Listener) Close() error {
	if !l.hall.ready.Close() {
		return opError("close", l.network, l.addr, net.ErrClosed)
	}
	var errs []error
	if l.rdma != nil {
		errs = append(errs, l.rdma.Close())
	}
	for _, f := range l.fronts {
		errs = append(errs, f.Close())
	}
	l.pump.Wait()
	l.hall.ready.Drain(reset)
	if err := errors.Join(errs...); err != nil {
		return opError("close", l.network, l.addr, err)
	}
	return nil
}
