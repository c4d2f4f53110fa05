package compat

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/rconn/rdma/internal/acceptqueue"
	"github.com/rconn/rdma/internal/lograte"
)

// Connections that are looked at cost a goroutine each, so their number is bounded; more wait in TCP's backlog. When three quarters of the
// places are taken, newcomers get hastyPart of the time, so that clients that say nothing do not hold up the others for long.
const (
	maxLooks  = 1024
	hastyPart = 2

	// requestTime is for the rest of an MPA request that has begun, and hastyRequest when places get scarce. It comes in one packet, so
	// the time is for those that networks lose or cut.
	requestTime  = 2 * time.Second
	hastyRequest = 250 * time.Millisecond
)

// hall is where the connections of a listener come together for Accept.
type hall struct {
	log     *slog.Logger
	silence time.Duration
	ready   *acceptqueue.Queue[net.Conn]
	looks   chan struct{} // places for connections that are looked at
	warn    lograte.Limiter
}

func (h *hall) scarce() bool { return len(h.looks) > maxLooks/4*3 }

// front looks at the connections of one TCP listener. Those with a complete MPA request come out of its Accept, for the software device,
// which so never waits for a peer; the others go to the hall.
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

// newFront makes a front, which does nothing before start.
func newFront(h *hall, tcp net.Listener) *front {
	return &front{hall: h, tcp: tcp, mpa: make(chan net.Conn), done: make(chan struct{}), held: make(map[looker]struct{})}
}

// newPlainFront makes a front for plain TCP alone.
func newPlainFront(h *hall, tcp net.Listener) *front {
	f := newFront(h, tcp)
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
			f.hall.warn.Warn(f.hall.log, "tcp listener", "addr", f.Addr(), "err", err, "pause", pause)
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
		v := l.now()
		if v != undecided && v != isKey {
			f.hand(l.conn(), v)
			continue
		}
		select {
		case f.hall.looks <- struct{}{}:
			f.work.Go(func() {
				defer func() { <-f.hall.looks }()
				f.examine(l, v)
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

// examine waits for what the first look did not tell.
func (f *front) examine(l looker, v verdict) {
	if !f.hold(l) {
		reset(l.conn())
		return
	}
	limit, rest := f.hall.silence, requestTime
	if f.hall.scarce() {
		limit, rest = limit/hastyPart, hastyRequest
	}
	if v == undecided {
		v = l.wait(time.Now().Add(limit))
	}
	for end := time.Now().Add(rest); v == undecided || v == isKey; {
		v = l.wait(end)
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

// hand gives a connection to whom it is for. Plain ones wait while the hall is full, and with them what comes after, in TCP's backlog.
func (f *front) hand(conn net.Conn, v verdict) {
	switch v {
	case isPlain:
		if f.hall.ready.Put(conn) {
			return
		}
	case isMPA:
		select {
		case f.mpa <- conn:
			return
		case <-f.done:
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
	})
	return err
}
