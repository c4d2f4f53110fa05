//go:build guest

package tests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// The bounds that rdmacore documents.
const (
	maxCalls           = 8 + 8 // with those that destroy
	maxBlockedConnects = 16
)

// base makes one connection, so that what stays for the life of the process is there, and counts.
func base(t *testing.T) map[string]int {
	t.Helper()
	ln := listen(t, addr)
	a, b := connect(t, ln, ln.Addr())
	if err := errors.Join(a.close(), b.close(), ln.Close()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	return counts(t)
}

func counts(t *testing.T) map[string]int {
	t.Helper()
	c := resources(t)
	c["goroutine"] = runtime.NumGoroutine()
	return c
}

// backTo waits until all counts are at the base again. Go keeps threads, so those may be as many as may have been blocked at once.
func backTo(t *testing.T, base map[string]int, limit time.Duration) {
	t.Helper()
	closing.Wait()
	var now map[string]int
	for deadline := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		now = counts(t)
		rest := maps.Clone(now)
		maps.DeleteFunc(rest, func(k string, n int) bool {
			if k == "thread" {
				return n <= base[k]+maxCalls+maxBlockedConnects+4
			}
			return n <= base[k]
		})
		if len(rest) == 0 {
			t.Logf("base %v, now %v", base, now)
			return
		}
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Fatalf("base %v, now %v, too many %v\n%s", base, now, rest, buf[:runtime.Stack(buf, true)])
		}
	}
}

// A failure is a dial that cannot succeed.
type failure struct {
	name string
	dial func(ctx context.Context) error
	want []error
}

func dialer(to netip.AddrPort) func(context.Context) error {
	return func(ctx context.Context) error {
		e, _, err := dial(ctx, to, params)
		if err == nil {
			return errors.Join(errors.New("succeeded"), e.close())
		}
		return err
	}
}

// TestBothCoreFailures runs 1000 dials that fail, 40 at a time, each with a deadline of at most 500 ms.
//
// fault: CONN-1, CONN-9, MEM-2
func TestBothCoreFailures(t *testing.T) {
	holes(t)
	mute := listen(t, addr) // never accepts
	rejecter := listen(t, addr)
	go func() {
		for {
			req, err := rejecter.Accept(context.Background())
			if err != nil {
				return
			}
			req.Reject(nil)
			req.Close()
		}
	}()
	want := base(t)
	timeout := []error{context.DeadlineExceeded, context.Canceled}
	failures := []failure{
		{"refused", dialer(at(addr, 4711)), append(timeout, syscall.ECONNREFUSED)},
		{"rejected", dialer(rejecter.Addr()), append(timeout, syscall.ECONNREFUSED)},
		{"unused address", dialer(at(unusedIP, 4711)), timeout},
		{"no route", dialer(at(noRouteIP, 4711)), append(timeout, syscall.ENETUNREACH)},
		{"no device", dialer(at(foreignIP, 4711)), append(timeout, verbs.ErrNoDevice)},
		{"no QP", func(ctx context.Context) error {
			id, err := system.Resolve(ctx, netip.AddrPort{}, mute.Addr())
			if err != nil {
				return err
			}
			_, err = id.Connect(ctx, params)
			return errors.Join(err, id.Close())
		}, nil},
		{"small device", func(ctx context.Context) error {
			id, err := system.Resolve(ctx, netip.AddrPort{}, mute.Addr())
			if err != nil {
				return err
			}
			defer id.Close()
			pd, err := id.Device().AllocPD()
			if err != nil {
				return err
			}
			defer pd.Close()
			cq, err := id.Device().CreateCQ(verbs.CQOptions{Depth: 1})
			if err != nil {
				return err
			}
			defer cq.Close()
			_, err = id.CreateQP(pd, verbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1 << 24}})
			return err
		}, append(timeout, syscall.EINVAL)},
	}
	if !isSiw() { // there, only as many as the bound; see TestSiwCoreBlackHoles
		failures = append(failures,
			failure{"black hole", dialer(at(blackHoleIP, 4711)), timeout},
			failure{"mute", dialer(mute.Addr()), append(timeout, syscall.ECONNREFUSED)}) // refused beyond the backlog
	}

	var wg sync.WaitGroup
	gate := make(chan struct{}, 40)
	errs := make(chan error, 1000)
	for n := range 1000 {
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			f := failures[n%len(failures)]
			limit := rand.N(500 * time.Millisecond) // ends at every step
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			if n%3 == 0 {
				time.AfterFunc(limit/2, cancel)
			}
			err := f.dial(ctx)
			if err == nil {
				errs <- fmt.Errorf("%s: no error", f.name)
				return
			}
			ok := f.want == nil
			for _, w := range f.want {
				ok = ok || errors.Is(err, w)
			}
			if !ok {
				errs <- fmt.Errorf("%s: %w", f.name, err)
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	// What the mute listener has queued is part of no dial.
	if err := errors.Join(mute.Close(), rejecter.Close()); err != nil {
		t.Error(err)
	}
	want["cm_id"] -= 2
	backTo(t, want, 15*time.Second)
}

// TestSiwCoreBlackHoles: connects that block in the kernel are bounded, a dial over the bound fails on time by name, and in the end
// nothing is left.
//
// fault: CONN-9
func TestSiwCoreBlackHoles(t *testing.T) {
	holes(t)
	want := base(t)
	const extra = 4
	var wg sync.WaitGroup
	var mu sync.Mutex
	tooMany := 0
	for range maxBlockedConnects + extra {
		wg.Go(func() {
			begin := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
			defer cancel()
			id, err := system.Resolve(ctx, netip.AddrPort{}, at(blackHoleIP, 4711))
			if err != nil {
				t.Error(err)
				return
			}
			e, err := newEnd(id)
			if err != nil {
				t.Error(err)
				return
			}
			_, err = id.Connect(ctx, params)
			if took := time.Since(begin); took > 500*time.Millisecond+2*soon {
				t.Errorf("took %v", took)
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("connect to a black hole: %v", err)
			}
			mu.Lock()
			if errors.Is(err, cm.ErrTooManyConnects) {
				tooMany++
			}
			mu.Unlock()
			if err := e.close(); err != nil { // waits for the kernel
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if tooMany != extra {
		t.Errorf("%d connects were over the bound, want %d", tooMany, extra)
	}
	backTo(t, want, 15*time.Second)
	ln := listen(t, addr)
	a, b := connect(t, ln, ln.Addr())
	if err := errors.Join(a.close(), b.close()); err != nil {
		t.Error(err)
	}
}

// TestBothCoreOpenClose: 200 connections leave nothing behind, and take few threads.
//
// fault: CLOSE-2
func TestBothCoreOpenClose(t *testing.T) {
	want := base(t)
	ln := listen(t, addr)
	var wg sync.WaitGroup
	gate := make(chan struct{}, 8)
	go func() {
		for {
			b, _, err := accept(context.Background(), ln, params)
			if err != nil {
				if !errors.Is(err, verbs.ErrClosed) {
					t.Error(err)
				}
				return
			}
			b.next(0, patience)
			b.close()
		}
	}()
	for range 200 {
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
			defer cancel()
			a, _, err := dial(ctx, ln.Addr(), params)
			if err == nil {
				err = a.post(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("x")})
				_, lost := a.next(0, patience)
				err = errors.Join(err, lost, a.close())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	backTo(t, want, 15*time.Second)
}
