//go:build guest

package tests

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/internal/rdmacore"
	"github.com/rconn/rdma/verbs"
)

var system = rdmacore.Provider()

// params are what the project's connections use.
var params = cm.ConnParam{RetryCount: 6, RNRRetryCount: 7, AckTimeout: 14, MinRNRTimer: 5}

// end is one end of a connection with everything that belongs to it.
type end struct {
	id   cm.ID
	ch   verbs.CompletionChannel
	cq   verbs.CQ
	pd   verbs.PD
	mr   verbs.MR
	qp   verbs.QP
	seen chan cm.Event
}

const (
	queueDepth = 64
	memorySize = 1 << 20
)

func allAccess() verbs.Access {
	return verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
}

// newEnd makes the objects of a connection on an id. On failure those made are closed, the id too.
func newEnd(id cm.ID) (*end, error) {
	e := &end{id: id, seen: make(chan cm.Event, 16)}
	if err := e.make(); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

func (e *end) make() (err error) {
	id := e.id
	dev := id.Device()
	if e.ch == nil {
		if e.ch, err = dev.CreateCompletionChannel(); err != nil {
			return fmt.Errorf("channel: %w", err)
		}
	}
	if e.cq, err = dev.CreateCQ(verbs.CQOptions{Depth: 2 * queueDepth, Channel: e.ch}); err != nil {
		return fmt.Errorf("CQ: %w", err)
	}
	if e.pd, err = dev.AllocPD(); err != nil {
		return fmt.Errorf("PD: %w", err)
	}
	if e.mr, err = e.pd.AllocMR(memorySize, allAccess()); err != nil {
		return fmt.Errorf("MR: %w", err)
	}
	e.qp, err = id.(interface {
		CreateQP(verbs.PD, verbs.QPOptions) (verbs.QP, error)
	}).CreateQP(e.pd, verbs.QPOptions{SendCQ: e.cq, RecvCQ: e.cq, Cap: verbs.QPCap{
		MaxSendWR: queueDepth, MaxRecvWR: queueDepth, MaxInline: 64,
	}})
	if err != nil {
		return fmt.Errorf("QP: %w", err)
	}
	id.Notify(func(ev cm.Event) {
		select {
		case e.seen <- ev:
		default:
		}
	})
	return nil
}

// close closes what there is, in order.
func (e *end) close() error {
	var errs []error
	begin := time.Now()
	note := func(what string, err error) {
		if took := time.Since(begin); took > patience {
			fmt.Printf("close %s took %v\n", what, took)
		}
		begin = time.Now()
		if err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", what, err))
		}
	}
	if e.qp != nil {
		note("QP", e.qp.Close())
	}
	if e.cq != nil {
		note("CQ", e.cq.Close())
	}
	if e.ch != nil {
		note("channel", e.ch.Close())
	}
	if e.mr != nil {
		note("MR", e.mr.Close())
	}
	if e.pd != nil {
		note("PD", e.pd.Close())
	}
	note("id", e.id.Close())
	return errors.Join(errs...)
}

// recv posts n receives of size bytes each, at the end of the memory.
func (e *end) recv(n, size int) error {
	for i := range n {
		wr := verbs.RecvWR{ID: uint64(1000 + i)}
		if size > 0 {
			wr.SGL = []verbs.SGE{e.sge(memorySize-(i+1)*size, size)}
		}
		if _, err := e.qp.PostRecv([]verbs.RecvWR{wr}); err != nil {
			return err
		}
	}
	return nil
}

func (e *end) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: e.mr.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}
}

// post posts one send request.
func (e *end) post(wr verbs.SendWR) error {
	wr.Flags |= verbs.Signaled
	_, err := e.qp.PostSend([]verbs.SendWR{wr})
	return err
}

// next waits for a completion.
func (e *end) next(spin, limit time.Duration) (verbs.Completion, error) {
	expired := false
	var mu sync.Mutex
	timer := time.AfterFunc(limit, func() {
		mu.Lock()
		expired = true
		mu.Unlock()
		e.ch.Interrupt()
	})
	defer timer.Stop()
	var wc [1]verbs.Completion
	for {
		if n, err := e.cq.Poll(wc[:]); n > 0 || err != nil {
			return wc[0], err
		}
		mu.Lock()
		over := expired
		mu.Unlock()
		if over {
			return wc[0], fmt.Errorf("no completion in %v", limit)
		}
		if err := e.ch.Wait(spin); err != nil {
			return wc[0], err
		}
	}
}

func (e *end) event(t *testing.T, want cm.EventType, limit time.Duration) {
	t.Helper()
	timeout := time.After(limit)
	for {
		select {
		case ev := <-e.seen:
			if ev.Type == want {
				return
			}
		case <-timeout:
			t.Fatalf("no %v in %v", want, limit)
		}
	}
}

func listen(t *testing.T, at string) cm.Listener {
	t.Helper()
	ln, err := system.Listen(netip.AddrPortFrom(netip.MustParseAddr(at), 0), cm.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// closing are the ends of dials that failed.
var closing sync.WaitGroup

// dial makes the dialing end of a connection, with receives posted.
func dial(ctx context.Context, to netip.AddrPort, p cm.ConnParam) (e *end, reply cm.ConnParam, err error) {
	// On siw the RDMA CM may pick a local port that TCP still holds for an earlier connection to the same listener.
	for range 3 {
		if e, reply, err = dialOnce(ctx, to, p); !errors.Is(err, syscall.EADDRNOTAVAIL) {
			break
		}
	}
	return e, reply, err
}

func dialOnce(ctx context.Context, to netip.AddrPort, p cm.ConnParam) (*end, cm.ConnParam, error) {
	id, err := system.Resolve(ctx, netip.AddrPort{}, to)
	if err != nil {
		return nil, cm.ConnParam{}, err
	}
	e, err := newEnd(id)
	if err != nil {
		return nil, cm.ConnParam{}, err
	}
	if err := e.recv(8, 4096); err != nil {
		return nil, cm.ConnParam{}, errors.Join(err, e.close())
	}
	reply, err := id.Connect(ctx, p)
	if err != nil { // on iWARP it waits for the kernel
		closing.Go(func() {
			if err := e.close(); err != nil {
				panic(err)
			}
		})
		return nil, cm.ConnParam{}, err
	}
	return e, reply, nil
}

// accept makes the accepting end.
func accept(ctx context.Context, ln cm.Listener, p cm.ConnParam) (*end, cm.ConnParam, error) {
	req, err := ln.Accept(ctx)
	if err != nil {
		return nil, cm.ConnParam{}, err
	}
	e, err := newEnd(req)
	if err != nil {
		return nil, cm.ConnParam{}, err
	}
	if err := e.recv(8, 4096); err != nil {
		return nil, cm.ConnParam{}, errors.Join(err, e.close())
	}
	if err := req.Accept(ctx, p); err != nil {
		return nil, cm.ConnParam{}, errors.Join(err, e.close())
	}
	return e, req.Param(), nil
}

// connect makes a connection within the process: both ends, dialer first.
func connect(t *testing.T, ln cm.Listener, to netip.AddrPort) (a, b *end) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		var err error
		b, _, err = accept(ctx, ln, params)
		done <- err
	}()
	a, _, err := dial(ctx, to, params)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return a, b
}

func pair(t *testing.T) (a, b *end) {
	t.Helper()
	ln := listen(t, addr)
	a, b = connect(t, ln, ln.Addr())
	t.Cleanup(func() {
		if err := errors.Join(a.close(), b.close()); err != nil {
			t.Error(err)
		}
	})
	return a, b
}
