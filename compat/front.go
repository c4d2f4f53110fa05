package compat

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"
)

// Connections that are looked at cost a goroutine each, so their number is bounded; more wait in TCP's backlog. When half of the places
// are taken, newcomers get hastyPart of the time, so that clients that say nothing do not hold up the others for long.
const (
	maxLooks  = 256
	hastyPart = 8
)

// hall is where the connections of a listener come together for Accept.
type hall struct {
	log     *slog.Logger
	silence time.Duration
	ready   chan net.Conn
	looks   chan struct{} // places for connections that are looked at
}

// front looks at the connections of one TCP listener. Those with an MPA request come out of its Accept, for the software device; the
// others go to the hall.
type front struct {
	hall *hall
	tcp  net.Listener
	mpa  chan net.Conn // nil: there is no software device, and nothing to look at
	done chan struct{}
	once sync.Once
	work sync.WaitGroup

	mu   sync.Mutex
	held map[looker]struct{} // those that are looked at
}

var _ net.Listener = (*front)(nil)

// newFront makes a front, which does nothing before start. backlog bounds the MPA requests that wait for the software device.
func newFront(h *hall, tcp net.Listener, backlog int) *front {
	return &front{
		hall: h, tcp: tcp, mpa: make(chan net.Conn, backlog), done: make(chan struct{}), held: make(map[looker]struct{}),
	}
}

// newPlainFront makes a front for plain TCP alone.
func newPlainFront(h *hall, tcp net.Listener) *front {
	f := newFront(h, tcp, 0)
	f.mpa = nil
	return f
}

func (f *front) start() { f.work.Go(f.serve) }

// serve takes TCP connections. One that has said enough already goes on at once, the others get a place and a goroutine.
func (f *front) serve() {
	for pause := time.Duration(0); ; {
		conn, err := f.tcp.Accept()
		switch {
		case err == nil:
			pause = 0
		case f.isClosed() || errors.Is(err, net.ErrClosed):
			return
		default: // out of descriptors, most likely
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			f.hall.log.Warn("tcp listener", "addr", f.Addr(), "err", err, "pause", pause)
			select {
			case <-time.After(pause):
			case <-f.done:
			}
			continue
		}
		if f.mpa == nil {
			f.hand(conn, isPlain)
			continue
		}
		l := newLooker(conn)
		if v := l.now(); v != undecided {
			f.hand(l.conn(), v)
			continue
		}
		select {
		case f.hall.looks <- struct{}{}:
			f.work.Go(func() {
				defer func() { <-f.hall.looks }()
				f.examine(l)
			})
		case <-f.done:
			reset(conn)
		}
	}
}

func (f *front) isClosed() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// examine waits for the first bytes. Each byte of the key buys the time for the next, so a client has sixteen times the limit at most.
func (f *front) examine(l looker) {
	if !f.hold(l) {
		reset(l.conn())
		return
	}
	limit := f.hall.silence
	if len(f.hall.looks) > maxLooks/2 {
		limit /= hastyPart
	}
	v := undecided
	for v == undecided {
		v = l.wait(limit)
	}
	f.mu.Lock()
	delete(f.held, l)
	f.mu.Unlock()
	f.hand(l.conn(), v)
}

// hold notes a connection for Close. False: it is too late.
func (f *front) hold(l looker) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isClosed() {
		return false
	}
	f.held[l] = struct{}{}
	return true
}

// hand gives a connection to whom it is for. Plain ones wait while the hall is full; the software device is faster than its peers, so
// when too many wait for it something is wrong, and they must not hold up the others.
func (f *front) hand(conn net.Conn, v verdict) {
	switch v {
	case isPlain:
		select {
		case f.hall.ready <- conn:
			return
		case <-f.done:
		}
	case isMPA:
		select {
		case f.mpa <- conn:
			return
		default:
			f.hall.log.Debug("too many MPA requests at once", "local", f.Addr(), "remote", conn.RemoteAddr())
		}
	}
	reset(conn)
}

// Accept gives the connections with an MPA request.
func (f *front) Accept() (net.Conn, error) {
	select {
	case conn := <-f.mpa:
		return conn, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

// Addr is the TCP listener's.
func (f *front) Addr() net.Addr { return f.tcp.Addr() }

// Close closes the TCP listener and resets what nobody has taken.
func (f *front) Close() error {
	var err error
	f.once.Do(func() {
		f.mu.Lock()
		close(f.done)
		for l := range f.held {
			reset(l.conn())
		}
		f.mu.Unlock()
		err = f.tcp.Close()
		f.work.Wait()
		for {
			select {
			case conn := <-f.mpa:
				reset(conn)
				continue
			default:
			}
			break
		}
	})
	return err
}
