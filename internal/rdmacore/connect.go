//go:build linux && cgo

package rdmacore

/*
#include "shim.h"
*/
import "C"

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

const (
	// resolveTimeout ends Resolve where ctx has no deadline, and is how long the kernel looks for a route.
	resolveTimeout = 10 * time.Second

	// addrTimeout is how long the kernel looks for an address. Like TCP, which gives up after three ARP requests.
	addrTimeout = 3 * time.Second
)

// Resolve asks the kernel for device and route. An address that nobody answers for is EHOSTUNREACH after three seconds.
func (p *provider) Resolve(ctx context.Context, local, remote netip.AddrPort) (cm.Resolved, error) {
	i, err := p.resolve(ctx, local, remote)
	if err != nil {
		return nil, err
	}
	return i, nil
}

func (p *provider) resolve(ctx context.Context, local, remote netip.AddrPort) (*id, error) {
	fail := func(op string, err error) (*id, error) {
		return nil, &cm.Error{Op: op, Addr: remote, Err: err}
	}
	src, dst, err := resolveAddrs(local, remote)
	if err != nil {
		return fail(opResolveAddr, err)
	}
	if err := ctx.Err(); err != nil {
		return fail(opResolveAddr, err)
	}
	if err := p.start(); err != nil {
		return fail(opResolveAddr, err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, resolveTimeout)
		defer cancel()
	}
	i, err := p.newID()
	if err != nil {
		return fail(opResolveAddr, err)
	}
	if err := i.resolveAddr(ctx, src, dst); err != nil {
		go i.Close() // the kernel may take its time to cancel
		return fail(opResolveAddr, err)
	}
	if err := i.resolveRoute(ctx); err != nil {
		go i.Close()
		return fail(opResolveRoute, err)
	}
	return i, nil
}

// resolveAddrs checks and encodes the two ends. src is nil where the kernel chooses.
func resolveAddrs(local, remote netip.AddrPort) (src, dst *[sockaddrSize]byte, err error) {
	if remote, err = checkAddr(remote); err != nil {
		return nil, nil, err
	}
	if remote.Addr().IsUnspecified() {
		return nil, nil, noDevice("none serves loopback, which an unspecified address means when dialing")
	}
	d, err := encodeSockaddr(remote)
	if err != nil || !local.Addr().IsValid() {
		return nil, &d, err
	}
	if local, err = checkAddr(local); err != nil {
		return nil, nil, err
	}
	s, err := encodeSockaddr(local)
	return &s, &d, err
}

func (i *id) resolveAddr(ctx context.Context, src, dst *[sockaddrSize]byte) error {
	if err := i.m.begin(stateIdle, stateResolvingAddr); err != nil {
		return err
	}
	timeout := kernelTimeout(ctx, addrTimeout)
	err := i.call(ctx, i.p.calls, "rdma_resolve_addr", func() C.int {
		var s *C.uint8_t
		if src != nil {
			s = (*C.uint8_t)(&src[0])
		}
		return C.rc_resolve_addr(i.c, s, (*C.uint8_t)(&dst[0]), C.int(timeout))
	})
	if err != nil {
		return addrErr(err)
	}
	if _, err := i.m.await(ctx); err != nil {
		return err
	}
	return i.bind()
}

func (i *id) resolveRoute(ctx context.Context) error {
	if err := i.m.begin(stateAddrResolved, stateResolvingRoute); err != nil {
		return err
	}
	timeout := kernelTimeout(ctx, resolveTimeout)
	err := i.call(ctx, i.p.calls, "rdma_resolve_route", func() C.int {
		return C.rc_resolve_route(i.c, C.int(timeout))
	})
	if err != nil {
		return addrErr(err)
	}
	_, err = i.m.await(ctx)
	return err
}

// Connect makes the C call in a goroutine of its own: on iWARP it returns only when TCP has connected or given up.
func (i *id) Connect(ctx context.Context, p cm.ConnParam) (cm.ConnParam, error) {
	fail := func(err error) (cm.ConnParam, error) {
		return cm.ConnParam{}, &cm.Error{Op: opConnect, Addr: i.remote, Err: err}
	}
	q, err := i.ready(&p, cm.MaxRequestData)
	if err != nil {
		return fail(err)
	}
	if err := i.m.begin(stateResolved, stateConnecting); err != nil {
		return fail(err)
	}
	if ctx.Err() != nil { // which is not for lack of a turn
		_, err := i.m.await(ctx)
		return fail(err)
	}
	iwarp := i.dev.attr.Transport == verbs.TransportIWARP
	bound := i.p.calls
	if iwarp {
		bound = i.p.connects
	}
	var started atomic.Bool
	go func() {
		err := i.call(ctx, bound, "rdma_connect", func() C.int {
			started.Store(true)
			errno := i.connect(&p)
			i.stuck = iwarp && errno == 0 // waits for the peer's answer now
			return errno
		})
		if err != nil {
			i.m.fail(i.dev.orRemoved(connectErr(err)))
		}
	}()
	ev, err := i.m.await(ctx)
	switch {
	case err != nil && ctx.Err() != nil && iwarp && !started.Load():
		return fail(errTooManyConnects(ctx))
	case err != nil:
		return fail(err)
	}
	q.setMinRNR(p.MinRNRTimer)
	return ev.conn, nil
}

// ready checks what a connection needs before it can be made.
func (i *id) ready(p *cm.ConnParam, private int) (*qp, error) {
	if err := i.refs.open(); err != nil {
		return nil, err
	}
	if err := i.dev.check(); err != nil {
		return nil, err
	}
	if err := checkConnParam(&i.dev.attr, p, private); err != nil {
		return nil, err
	}
	q, err := i.openQP()
	if err == nil {
		i.depth.Store(uint32(p.InitiatorDepth))
	}
	return q, err
}

func (i *id) connect(p *cm.ConnParam) C.int {
	conn, errno := i.prepare(p)
	if errno != 0 {
		return errno
	}
	return C.rc_connect(i.c, &conn)
}

// prepare sets the ack timeout, which has to come first, and encodes the rest.
func (i *id) prepare(p *cm.ConnParam) (C.struct_rc_conn, C.int) {
	conn := C.struct_rc_conn{
		private_len:         C.uint8_t(len(p.PrivateData)),
		responder_resources: C.uint8_t(p.ResponderResources),
		initiator_depth:     C.uint8_t(p.InitiatorDepth),
		retry_count:         C.uint8_t(p.RetryCount),
		rnr_retry_count:     C.uint8_t(p.RNRRetryCount),
	}
	for n, b := range p.PrivateData {
		conn.private_data[n] = C.uint8_t(b)
	}
	if p.AckTimeout == 0 || i.dev.attr.Transport == verbs.TransportIWARP {
		return conn, 0
	}
	return conn, C.rc_set_ack_timeout(i.c, C.int(p.AckTimeout))
}

// setMinRNR shortens what the kernel has left at 655 ms. It fails only on a connection that has ended already.
func (q *qp) setMinRNR(timer uint8) {
	if timer != 0 {
		_ = q.Modify(verbs.QPAttr{MinRNRTimer: timer}, verbs.AttrMinRNRTimer)
	}
}

// Param is what the peer sent.
func (i *id) Param() cm.ConnParam { return i.param }

// Accept answers a request.
func (i *id) Accept(ctx context.Context, p cm.ConnParam) error {
	fail := func(err error) error { return &cm.Error{Op: opAccept, Addr: i.remote, Err: err} }
	q, err := i.ready(&p, cm.MaxReplyData)
	if err != nil {
		return fail(err)
	}
	if err := i.m.begin(stateRequested, stateAccepting); err != nil {
		return fail(err)
	}
	set := make(chan struct{})
	go func() {
		defer close(set)
		err := i.call(ctx, i.p.calls, "rdma_accept", func() C.int { return i.accept(&p) })
		if err != nil {
			i.m.fail(i.dev.orRemoved(acceptErr(err)))
			return
		}
		q.setMinRNR(p.MinRNRTimer) // the QP is connected now, and the peer may send at once
	}()
	if _, err := i.m.await(ctx); err != nil {
		return fail(err)
	}
	<-set
	return nil
}

func (i *id) accept(p *cm.ConnParam) C.int {
	conn, errno := i.prepare(p)
	if errno != 0 {
		return errno
	}
	return C.rc_accept(i.c, &conn)
}

// Reject refuses a request.
func (i *id) Reject(private []byte) error {
	fail := func(err error) error { return &cm.Error{Op: opReject, Addr: i.remote, Err: err} }
	if err := checkPrivate(private, cm.MaxRejectData); err != nil {
		return fail(err)
	}
	if err := i.m.begin(stateRequested, stateEnded); err != nil {
		return fail(err)
	}
	err := i.call(context.Background(), i.p.calls, "rdma_reject", func() C.int {
		var data [cm.MaxRejectData]byte
		n := copy(data[:], private)
		return C.rc_reject(i.c, (*C.uint8_t)(&data[0]), C.int(n))
	})
	if err != nil {
		return fail(i.dev.orRemoved(err))
	}
	return nil
}
