package softiwarp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/internal/lograte"
	"github.com/rconn/rdma/verbs"
)

const (
	// maxHandshakes bounds the connections of a listener whose MPA request has not come yet; more wait in TCP's backlog. When all places
	// are taken and one more comes, those that have been there for hastyTime have to go, so that peers that say nothing do not hold up the
	// others for long. A request follows its connection at once, but in a burst of dials from few processors it may take a while.
	maxHandshakes = 1024
	hastyTime     = time.Second

	// closingTime is what they have when the listener closes: a request that is on its way is to be rejected, not cut off.
	closingTime = 100 * time.Millisecond
)

// listener gives out requests.
type listener struct {
	p       *provider
	tcp     net.Listener
	addr    netip.AddrPort
	backlog int
	slots   chan struct{}
	done    chan struct{} // closed with the listener
	loops   sync.WaitGroup
	warn    lograte.Limiter

	mu      sync.Mutex
	queue   []*id
	pending map[*half]struct{}
	changed chan struct{} // closed, and made anew, when there is something to look at
	closed  bool
}

// half is a connection whose MPA request has not come.
type half struct {
	conn  net.Conn
	since time.Time
	hasty bool // it has hastyTime
}

// Listen implements cm.Provider. A listener handed in with the options is closed with the one returned.
func (p *provider) Listen(local netip.AddrPort, o cm.ListenOptions) (cm.Listener, error) {
	l := &listener{
		p: p, tcp: o.TCP, backlog: o.Backlog, slots: make(chan struct{}, maxHandshakes), pending: make(map[*half]struct{}),
		changed: make(chan struct{}), done: make(chan struct{}),
	}
	if l.backlog <= 0 {
		l.backlog = cm.DefaultBacklog
	}
	if l.tcp == nil {
		lc := net.ListenConfig{KeepAlive: -1} // see establish
		lc.SetMultipathTCP(false)
		var err error
		if l.tcp, err = lc.Listen(context.Background(), network("tcp", local), local.String()); err != nil {
			return nil, &cm.Error{Op: "listen", Addr: local, Err: reason(context.Background(), err)}
		}
	}
	if l.addr = addrPort(l.tcp.Addr()); !l.addr.IsValid() {
		l.addr = local
	}
	p.dev.count(&p.dev.open.listeners, 1)
	if p.dev.cfg.PortMapper {
		p.mapper.start()
	}
	l.loops.Go(l.serve)
	return l, nil
}

func (l *listener) Addr() netip.AddrPort { return l.addr }

// Device is nil for an unspecified address, as the contract wants it, although no other device shares the port.
func (l *listener) Device() verbs.Device {
	if l.addr.Addr().IsUnspecified() {
		return nil
	}
	return l.p.dev
}

// serve takes TCP connections.
func (l *listener) serve() {
	pause := time.Duration(0)
	for {
		conn, err := l.tcp.Accept()
		switch {
		case err == nil:
			pause = 0
			select {
			case l.slots <- struct{}{}:
			default:
				l.hurry()
				l.slots <- struct{}{}
			}
			h := &half{conn: conn, since: time.Now()}
			if !l.hold(h) {
				_ = conn.Close()
				return
			}
			l.loops.Go(func() { l.handshake(h) })
			continue
		case l.isClosed() || errors.Is(err, net.ErrClosed):
			l.end()
			return
		}
		// Out of descriptors, most likely.
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		l.warn.Warn(l.p.dev.cfg.Logger, "iwarp listener", "addr", l.addr, "err", err, "pause", pause)
		select {
		case <-time.After(pause):
		case <-l.done:
		}
	}
}

func (l *listener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// hold notes a connection whose request has not come. False: the listener is closed.
func (l *listener) hold(h *half) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.pending[h] = struct{}{}
	return true
}

// hurry shortens the time of those that are being waited for.
func (l *listener) hurry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := range l.pending {
		if !h.hasty && !l.closed {
			h.hasty = true
			_ = h.conn.SetDeadline(l.deadline(h))
		}
	}
}

// deadline is that of a connection whose request has not come.
func (l *listener) deadline(h *half) time.Time {
	limit := l.p.dev.cfg.RequestTimeout
	if h.hasty {
		limit = min(limit, hastyTime)
	}
	return h.since.Add(limit)
}

// handshake reads a request and queues it.
func (l *listener) handshake(h *half) {
	defer func() { <-l.slots }()
	conn, d := h.conn, l.p.dev
	// For a net.Conn that does not know deadlines.
	last := time.AfterFunc(2*d.cfg.RequestTimeout, func() { _ = conn.Close() })
	defer last.Stop()
	l.mu.Lock()
	deadline := l.deadline(h)
	if l.closed {
		deadline = time.Now().Add(closingTime)
	}
	_ = conn.SetDeadline(deadline)
	l.mu.Unlock()
	var f mpaFrame
	err := f.read(conn, mpaRequestKey)

	l.mu.Lock()
	_ = conn.SetDeadline(time.Time{})
	delete(l.pending, h)
	i := d.newID(addrPort(conn.LocalAddr()), addrPort(conn.RemoteAddr()))
	i.conn, i.frame, i.state = conn, f, requested
	wanted := err == nil && f.flags&mpaMarkers == 0
	if queued := wanted && !l.closed && len(l.queue) < l.backlog; queued {
		l.queue = append(l.queue, i)
		l.wake()
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	if err != nil && !errors.Is(err, errMPAWords) {
		d.cfg.Logger.Debug("iwarp: no connection", "remote", i.remote, "err", err)
		i.state = over // nothing to answer
		_ = conn.Close()
	}
	_ = i.Close()
}

func (l *listener) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *listener) Accept(ctx context.Context) (cm.Request, error) {
	fail := func(err error) (cm.Request, error) {
		return nil, &cm.Error{Op: "accept", Addr: l.addr, Err: err}
	}
	for {
		l.mu.Lock()
		changed := l.changed
		switch {
		case l.closed:
			l.mu.Unlock()
			return fail(verbs.ErrClosed)
		case ctx.Err() != nil:
			l.mu.Unlock()
			return fail(ctx.Err())
		case len(l.queue) > 0:
			i := l.queue[0]
			l.queue[0] = nil
			l.queue = l.queue[1:]
			l.mu.Unlock()
			return i, nil
		}
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (l *listener) Close() error {
	l.end()
	l.loops.Wait()
	return nil
}

// end closes the TCP listener and refuses all that was not accepted.
func (l *listener) end() {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	l.closed = true
	close(l.done)
	queue := l.queue
	l.queue = nil
	for h := range l.pending {
		_ = h.conn.SetDeadline(time.Now().Add(closingTime))
	}
	l.wake()
	l.mu.Unlock()
	_ = l.tcp.Close()
	for _, i := range queue {
		_ = i.Close()
	}
	if l.p.dev.cfg.PortMapper {
		l.p.mapper.stop()
	}
	l.p.dev.count(&l.p.dev.open.listeners, -1)
}
