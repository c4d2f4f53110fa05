package main

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rconn/rdma/rconn"
)

// What ends a pair besides its two peers.
var (
	errIdle    = errors.New("nothing was carried for as long as -idle")
	errStopped = errors.New("rdmaproxy stopped before the connection ended")
)

// errGone says that a peer has closed: it takes nothing more, but what it sent is good.
var errGone = errors.New("the peer has closed")

// side is one of the two connections of a pair.
type side struct {
	conn
	writing sync.Mutex
	broken  error // the reset that a Write met
}

// Write remembers a reset: the system tells of it once, and Read may see no more than an end then.
func (s *side) Write(b []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	n, err := s.conn.Write(b)
	if errors.Is(err, syscall.ECONNRESET) {
		s.broken = err
	}
	return n, err
}

// ended looks whether an end that was read is one, or hides a reset. RDMA tells of a reset whenever it is asked.
func (s *side) ended() error {
	if _, ok := s.conn.(*rconn.Conn); ok || !toldOnce {
		return nil
	}
	err := alive(s.conn)
	if !errors.Is(err, syscall.EPIPE) {
		return err
	}
	s.writing.Lock() // after the Write in progress, which ends now
	defer s.writing.Unlock()
	return s.broken
}

// pair is a connection of a client, and the one to the backend that carries it on.
type pair struct {
	client, backend side
	total           *counters // of the rule
	start           time.Time
	up, down        atomic.Int64 // bytes carried to the backend, to the client
	last            atomic.Int64 // when something was last carried, since start

	once  sync.Once
	cause error // why it was reset; nil: it ended in order
}

func newPair(client, backend conn, total *counters) *pair {
	return &pair{client: side{conn: client}, backend: side{conn: backend}, total: total, start: time.Now()}
}

// end tells that a direction has come to its end, or why it cannot.
type end struct {
	err    error
	silent <-chan struct{} // closed when its source sends nothing more; nil: it is dead
}

// carry copies both ways until both have ended. A direction that ends is ended toward the other peer too, and what breaks on one
// side is reset on the other.
func (p *pair) carry(now context.Context, idle time.Duration) error {
	var flows sync.WaitGroup
	over := make(chan struct{})
	ends := make(chan end, 4) // of two flows and two probes; nobody waits to send
	flow := func(dst, src *side, bytes, total *atomic.Int64) {
		err := p.flow(dst, src, bytes, total)
		silent := make(chan struct{})
		ends <- end{err, silent}
		switch err {
		case nil:
			flows.Go(func() { probe(src.conn, over, ends) })
		case errGone:
			// The other direction goes on, so this peer must not wait for us to take what it sends.
			_, _ = io.Copy(io.Discard, src)
		}
		close(silent)
	}
	flows.Go(func() { flow(&p.backend, &p.client, &p.up, &p.total.up) })
	flows.Go(func() { flow(&p.client, &p.backend, &p.down, &p.total.down) })

	p.end(p.wait(ends, now, idle))
	close(over)
	flows.Wait()
	return p.cause
}

// lingerTime is how long a peer that sends to one that has closed may go on with that. To close its connection while it sends would reset
// it, and what it has not taken yet would be lost.
const lingerTime = 3 * time.Second

// wait returns nil when both directions have come to an end, or why that is not to be waited for.
func (p *pair) wait(ends <-chan end, now context.Context, idle time.Duration) error {
	var sending []<-chan struct{}
	var quiet <-chan time.Time
	if idle > 0 {
		quiet = time.After(idle)
	}
	for left := 2; left > 0; {
		select {
		case e := <-ends:
			if e.err != nil && e.err != errGone {
				return e.err
			}
			if e.silent != nil {
				sending = append(sending, e.silent)
			}
			left--
		case <-quiet:
			since := time.Since(p.start) - time.Duration(p.last.Load())
			if since >= idle {
				return errIdle
			}
			quiet = time.After(idle - since)
		case <-now.Done():
			return errStopped
		}
	}
	limit := time.NewTimer(lingerTime)
	defer limit.Stop()
	for _, silent := range sending {
		select {
		case <-silent:
		case <-limit.C:
			return nil
		case <-now.Done():
			return errStopped
		}
	}
	return nil
}

// end closes both connections: in order, or by a reset.
func (p *pair) end(cause error) {
	p.once.Do(func() {
		p.cause = cause
		var closing sync.WaitGroup
		for _, c := range []conn{p.client.conn, p.backend.conn} {
			closing.Go(func() {
				if cause != nil {
					reset(c)
				} else {
					_ = c.Close() // of RDMA: waits until the peer has everything
				}
			})
		}
		closing.Wait()
	})
}

// flow carries one direction. It returns nil when src has ended and dst was told.
func (p *pair) flow(dst, src *side, bytes, total *atomic.Int64) error {
	err := relay(dst, src, func(n int) {
		bytes.Add(int64(n))
		total.Add(int64(n))
		p.last.Store(int64(time.Since(p.start)))
	})
	if err != nil {
		return err
	}
	if err := src.ended(); err != nil {
		return err
	}
	if err := dst.CloseWrite(); errors.Is(err, syscall.ENOTCONN) {
		return errGone
	} else if err != nil {
		return err
	}
	return nil
}

// probeTime is how often a peer that has ended its direction is looked at: nothing is read from it any more, so that its
// death would be seen only when there is something to write.
const probeTime = time.Second

// probe reports a peer that is gone.
func probe(c conn, over <-chan struct{}, ends chan<- end) {
	t := time.NewTicker(probeTime)
	defer t.Stop()
	for {
		select {
		case <-over:
			return
		case <-t.C:
		}
		if err := alive(c); err != nil {
			ends <- end{err: writeError(err)}
			return
		}
	}
}

// writeError finds out whether a peer that cannot be written to has closed or is broken.
func writeError(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return errGone
	}
	return err
}
