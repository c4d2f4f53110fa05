package verbstest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

type listener struct {
	host    *Host
	addr    netip.AddrPort
	dev     verbs.Device // nil if addr is unspecified
	backlog int
	queue   []*id
	changed chan struct{} // closed, and made anew, when there is something to look at
	err     error         // why no request comes any more
	closed  bool
}

// Listen implements cm.Provider.
func (h *Host) Listen(local netip.AddrPort, o cm.ListenOptions) (cm.Listener, error) {
	if err := h.before(Listen); err != nil {
		return nil, err
	}
	h.fab.mu.Lock()
	defer h.fab.mu.Unlock()
	addr, err := h.listenAddr(local)
	if err != nil {
		return nil, &cm.Error{Op: "listen", Addr: local, Err: err}
	}
	l := &listener{host: h, addr: addr, backlog: o.Backlog, changed: make(chan struct{})}
	if i := slices.IndexFunc(h.devices, func(d *Device) bool { return d.has(addr.Addr()) }); i >= 0 {
		l.dev = h.devices[i]
	}
	if l.backlog <= 0 {
		l.backlog = cm.DefaultBacklog
	}
	h.listeners = append(h.listeners, l)
	h.count(&h.objects.Listeners, 1)
	return l, nil
}

// listenAddr checks an address to listen on and completes it.
func (h *Host) listenAddr(local netip.AddrPort) (netip.AddrPort, error) {
	none := netip.AddrPort{}
	a := local.Addr()
	switch {
	case h.dead:
		return none, verbs.ErrDeviceRemoved
	case !a.IsValid():
		return none, syscall.EINVAL
	case a.IsLoopback():
		return none, fmt.Errorf("loopback addresses are not on the fabric: %w", verbs.ErrNoDevice)
	case len(h.devices) == 0:
		return none, fmt.Errorf("host %s of the fabric: %w", h.name, verbs.ErrNoDevice)
	}
	if !a.IsUnspecified() {
		i := slices.IndexFunc(h.devices, func(d *Device) bool { return d.has(a) })
		if i < 0 {
			return none, syscall.EADDRNOTAVAIL
		}
		a = h.devices[i].zone(a)
	}
	port, err := h.bind(a, local.Port())
	return netip.AddrPortFrom(a, port), err
}

// listenerAt finds the listener for a request, the one for just this address first.
func (h *Host) listenerAt(local netip.AddrPort) *listener {
	var found *listener
	for _, l := range h.listeners {
		switch {
		case l.addr == local:
			return l
		case l.addr.Port() == local.Port() && l.addr.Addr().IsUnspecified() && l.addr.Addr().Is4() == local.Addr().Is4():
			found = l
		}
	}
	return found
}

// take queues a request for Accept.
func (l *listener) take(req *id) {
	if l.closed || l.err != nil || len(l.queue) >= l.backlog {
		req.free()
		return
	}
	l.queue = append(l.queue, req)
	l.signal()
}

func (l *listener) signal() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *listener) Addr() netip.AddrPort { return l.addr }

func (l *listener) Device() verbs.Device { return l.dev }

func (l *listener) Accept(ctx context.Context) (cm.Request, error) {
	fail := func(err error) (cm.Request, error) {
		return nil, &cm.Error{Op: "accept", Addr: l.addr, Err: err}
	}
	if err := l.host.before(AcceptRequest); err != nil {
		return nil, err
	}
	mu := &l.host.fab.mu
	mu.Lock()
	defer mu.Unlock()
	for {
		switch {
		case l.closed:
			return fail(verbs.ErrClosed)
		case ctx.Err() != nil:
			return fail(ctx.Err())
		case len(l.queue) > 0:
			req := l.queue[0]
			l.queue = l.queue[1:]
			return req, nil
		case l.err != nil:
			return fail(l.err)
		}
		changed := l.changed
		mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		mu.Lock()
	}
}

// end makes Accept fail from now on.
func (l *listener) end(err error) {
	l.err = err
	l.signal()
}

func (l *listener) Close() error {
	l.host.fab.mu.Lock()
	defer l.host.fab.mu.Unlock()
	l.close()
	return nil
}

func (l *listener) close() {
	if l.closed {
		return
	}
	l.closed = true
	for _, req := range l.queue {
		req.free()
	}
	l.queue = nil
	l.signal()
	l.host.listeners = slices.DeleteFunc(l.host.listeners, func(k *listener) bool { return k == l })
	l.host.count(&l.host.objects.Listeners, -1)
}
