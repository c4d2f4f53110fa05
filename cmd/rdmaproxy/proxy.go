package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rconn/rdma/verbs"
)

// proxy is a running set of rules.
type proxy struct {
	cfg   *config
	start time.Time
	slots chan struct{} // one for each connection of all rules
	conns sync.WaitGroup
	cut   atomic.Int64 // connections that were reset because the process stopped
	stop  context.Context
	now   context.Context
}

func newProxy(cfg *config) *proxy {
	return &proxy{cfg: cfg, start: time.Now(), slots: make(chan struct{}, cfg.maxConns)}
}

// run listens until stop ends, then waits for the connections, at most for -drain or until now ends; what is left then is reset. The
// error is that of a listener.
func (p *proxy) run(stop context.Context, fail context.CancelCauseFunc, now context.Context, atOnce func()) error {
	p.stop, p.now = stop, now
	listeners, err := p.listen()
	if err != nil {
		return err
	}
	page, err := p.serveMetrics()
	if err != nil {
		closeAll(listeners)
		return err
	}
	defer page.Close()

	var accepting sync.WaitGroup
	for i, r := range p.cfg.rules {
		accepting.Go(func() {
			if err := p.serve(r, listeners[i]); err != nil {
				fail(fmt.Errorf("%s: %w", r.name, err))
			}
		})
	}
	<-stop.Done()
	closeAll(listeners)
	accepting.Wait()

	drained := time.AfterFunc(p.cfg.drain, atOnce)
	defer drained.Stop()
	p.conns.Wait()
	if err := context.Cause(stop); err != context.Canceled {
		return err
	}
	return nil
}

// listen opens the listeners of all rules, or none.
func (p *proxy) listen() ([]net.Listener, error) {
	var listeners []net.Listener
	for _, r := range p.cfg.rules {
		ln, err := r.from.listen(p.stop, p.cfg)
		if err != nil {
			closeAll(listeners)
			return nil, err
		}
		p.cfg.log.Info("listening", "rule", r.name, "address", ln.Addr().String())
		listeners = append(listeners, ln)
	}
	return listeners, nil
}

func closeAll(listeners []net.Listener) {
	for _, ln := range listeners {
		_ = ln.Close()
	}
}

// serve accepts until the listener is closed. An error means that it is lost for good.
func (p *proxy) serve(r *rule, ln net.Listener) error {
	pause := 5 * time.Millisecond
	for {
		nc, err := ln.Accept()
		switch {
		case p.stop.Err() != nil:
			if err == nil {
				reset(nc.(conn))
			}
			return nil
		case errors.Is(err, verbs.ErrDeviceRemoved), errors.Is(err, net.ErrClosed):
			return err
		case err != nil:
			// Such as a lack of file descriptors, which may pass.
			r.counters.errors[kindAccept].Add(1)
			p.cfg.log.Warn("accept", "rule", r.name, "err", err, "again_in", pause)
			select {
			case <-time.After(pause):
			case <-p.stop.Done():
			}
			pause = min(2*pause, time.Second)
			continue
		}
		pause = 5 * time.Millisecond
		c := nc.(conn)
		r.counters.accepted.Add(1)
		if !p.admit(r) {
			reset(c)
			return nil
		}
		p.conns.Go(func() {
			defer p.release(r)
			p.handle(r, c)
		})
	}
}

// admit waits for a place below the limits. The connection that was just accepted waits with it, later ones in the listener's
// queue. It returns false when the process is stopping.
func (p *proxy) admit(r *rule) bool {
	r.counters.waiting.Add(1)
	defer r.counters.waiting.Add(-1)
	if r.slots != nil {
		select {
		case r.slots <- struct{}{}:
		case <-p.stop.Done():
			return false
		}
	}
	select {
	case p.slots <- struct{}{}:
		return true
	case <-p.stop.Done():
		return false
	}
}

func (p *proxy) release(r *rule) {
	<-p.slots
	if r.slots != nil {
		<-r.slots
	}
}

// handle carries one connection from its dial to its end.
func (p *proxy) handle(r *rule, client conn) {
	log := p.cfg.log.With("rule", r.name, "client", client.RemoteAddr().String())
	ctx, cancel := context.WithTimeout(p.now, p.cfg.dialTimeout)
	backend, err := r.to.dial(ctx, p.cfg)
	cancel()
	if err != nil {
		reset(client)
		if p.now.Err() != nil {
			p.cut.Add(1)
		}
		r.counters.failed.Add(1)
		r.counters.errors[kindDial].Add(1)
		log.Warn("cannot dial, client reset", "err", err)
		return
	}
	c := newPair(client, backend, &r.counters)
	r.add(c)
	err = c.carry(p.now, p.cfg.idle)
	r.remove(c)

	log = log.With("bytes_up", c.up.Load(), "bytes_down", c.down.Load(), "duration", time.Since(c.start).Round(time.Microsecond))
	if err == nil {
		log.Debug("connection ended")
		return
	}
	if err == errStopped {
		p.cut.Add(1)
	}
	r.counters.errors[kindOf(err)].Add(1)
	log.Warn("connection reset", "err", err)
}

func (r *rule) add(c *pair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pairs[c] = struct{}{}
}

func (r *rule) remove(c *pair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pairs, c)
}
