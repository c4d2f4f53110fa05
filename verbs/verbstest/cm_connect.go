package verbstest

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// Connect implements cm.Resolved.
func (i *id) Connect(ctx context.Context, p cm.ConnParam) (cm.ConnParam, error) {
	fail := func(err error) (cm.ConnParam, error) {
		return cm.ConnParam{}, &cm.Error{Op: "connect", Addr: i.remote, Err: err}
	}
	if err := i.dev.call(Connect); err != nil {
		return fail(err)
	}
	if err := i.start(ctx, idle, &p, cm.MaxRequestData); err != nil {
		i.fab.mu.Unlock()
		return fail(err)
	}
	result := make(chan answer, 1)
	i.answer = result
	i.state = connecting
	i.message(
		func() *Device { return i.target() },
		func() { i.arriveAt(i.target()) },
		func() { i.unanswered() })
	i.fab.mu.Unlock()

	select {
	case a := <-result:
		if a.err != nil {
			return fail(a.err)
		}
		return a.param, nil
	case <-ctx.Done():
		i.giveUp()
		return fail(ctx.Err())
	}
}

// start checks what Connect and Accept have in common.
func (i *id) start(ctx context.Context, state idState, p *cm.ConnParam, limit int) error {
	attr := &i.dev.attr
	switch {
	case i.closed:
		return verbs.ErrClosed
	case i.state == over && i.passive:
		return syscall.ECONNRESET // the peer gave up meanwhile
	case i.state != state || i.qp == nil || i.qp.closed || p.RetryCount > 7 || p.RNRRetryCount > 7 || p.AckTimeout > 31 ||
		p.MinRNRTimer > 31:
		return os.NewSyscallError("rdma_connect", syscall.EINVAL)
	case len(p.PrivateData) > limit:
		return &verbs.LimitError{What: "bytes of private data", Got: uint64(len(p.PrivateData)), Max: uint64(limit)}
	case int(p.ResponderResources) > attr.MaxQPRdAtom:
		return &verbs.LimitError{What: "responder resources", Got: uint64(p.ResponderResources), Max: uint64(attr.MaxQPRdAtom)}
	case int(p.InitiatorDepth) > attr.MaxQPInitRdAtom:
		return &verbs.LimitError{What: "READs outstanding", Got: uint64(p.InitiatorDepth), Max: uint64(attr.MaxQPInitRdAtom)}
	}
	if err := ctx.Err(); err != nil {
		i.shut()
		return err
	}
	p.PrivateData = slices.Clone(p.PrivateData)
	i.mine = *p
	return nil
}

// giveUp is called when the context of Connect or Accept ends.
func (i *id) giveUp() {
	i.fab.mu.Lock()
	defer i.fab.mu.Unlock()
	i.answer = nil
	i.shut()
}

// target is the device that has the remote address. IB and iWARP do not hear each other.
func (i *id) target() *Device {
	d := i.fab.device(i.remote.Addr().WithZone(""))
	if d == nil || d.iwarp() != i.dev.iwarp() {
		return nil
	}
	return d
}

// arriveAt is the arrival of a request at a device.
func (i *id) arriveAt(d *Device) {
	if i.state != connecting {
		return
	}
	local := netip.AddrPortFrom(d.zone(i.remote.Addr()), i.remote.Port())
	l := d.host.listenerAt(local)
	if l == nil {
		i.fab.in(&i.messages, i.fab.delay(), func() { i.refused(cm.RejectNoListener, nil) })
		return
	}
	req := newID(d, local, d.zoned(i.local))
	req.passive = true
	req.state = requested
	req.peer, i.peer = i, req
	req.request = cm.ConnParam{
		PrivateData: d.padded(i.mine.PrivateData, cm.MaxRequestData),
		// As in rdma_cm, what one side asks for the other sees from its own end.
		ResponderResources: i.mine.InitiatorDepth,
		InitiatorDepth:     i.mine.ResponderResources,
		RetryCount:         i.mine.RetryCount,
		RNRRetryCount:      i.mine.RNRRetryCount,
	}
	req.unseen = !req.notify(cm.ConnectRequest, func() { l.take(req) })
}

// padded is private data as the receiving side sees it.
func (d *Device) padded(data []byte, size int) []byte {
	if d.iwarp() {
		size = len(data)
	}
	b := make([]byte, size)
	copy(b, data)
	return b
}

// unanswered ends an attempt that nobody answered.
func (i *id) unanswered() {
	if i.state == connecting {
		i.state = over
		i.notify(cm.Unreachable, func() { i.reply(answer{err: syscall.ETIMEDOUT}) })
	}
}

// refused is the arrival of a reject.
func (i *id) refused(reason int, private []byte) {
	if i.state != connecting {
		return
	}
	i.state = over
	if i.qp != nil {
		i.qp.toError()
	}
	if i.dev.iwarp() {
		reason = int(syscall.ECONNREFUSED)
	}
	err := &cm.RejectedError{Reason: reason, PrivateData: i.dev.padded(private, cm.MaxRejectData)}
	i.notify(cm.Rejected, func() { i.reply(answer{err: err}) })
}

// abandoned is the news that the dialing side has given up.
func (i *id) abandoned() {
	switch i.state {
	case requested:
		i.state = over
		i.event(cm.Event{Type: cm.Rejected})
		if i.unseen {
			i.free()
		}
	case accepting:
		i.state = over
		i.qp.toError()
		i.reply(answer{err: syscall.ECONNRESET})
	case connected:
		if i.dev.iwarp() {
			i.streamEnded()
		} else {
			i.disconnected()
		}
	}
}

// Param implements cm.Request.
func (i *id) Param() cm.ConnParam {
	p := i.request
	p.PrivateData = slices.Clone(p.PrivateData)
	return p
}

// Accept implements cm.Request.
func (i *id) Accept(ctx context.Context, p cm.ConnParam) error {
	fail := func(err error) error { return &cm.Error{Op: "accept", Addr: i.remote, Err: err} }
	if err := i.dev.call(Accept); err != nil {
		return fail(err)
	}
	if err := i.start(ctx, requested, &p, cm.MaxReplyData); err != nil {
		i.fab.mu.Unlock()
		return fail(err)
	}
	result := make(chan answer, 1)
	i.answer = result
	i.state = accepting
	i.setUp(i.request, p)
	i.message(
		func() *Device { return i.peer.dev },
		func() { i.peer.accepted(p) },
		func() {
			if i.state == accepting {
				i.state = over
				i.reply(answer{err: syscall.ETIMEDOUT})
			}
		})
	if i.dev.iwarp() {
		i.establish(cm.ConnParam{}) // no third message there
	}
	i.fab.mu.Unlock()

	select {
	case a := <-result:
		if a.err != nil {
			return fail(a.err)
		}
		return nil
	case <-ctx.Done():
		i.giveUp()
		return fail(ctx.Err())
	}
}

// setUp brings the QP to life. request is the dialing side's parameters, own this side's.
func (i *id) setUp(request, own cm.ConnParam) {
	attr := verbs.QPAttr{MaxRdAtomic: own.InitiatorDepth, MaxDestRdAtomic: own.ResponderResources}
	if !i.dev.iwarp() {
		attr = verbs.QPAttr{
			Access:          verbs.AccessRemoteWrite,
			Port:            1,
			PathMTU:         pathMTU,
			AH:              i.path(),
			DestQPNum:       i.peer.qp.num,
			RQPSN:           i.peer.qp.firstPSN(),
			SQPSN:           i.qp.firstPSN(),
			AckTimeout:      own.AckTimeout,
			RetryCount:      request.RetryCount,
			RNRRetry:        request.RNRRetryCount,
			MinRNRTimer:     own.MinRNRTimer,
			MaxRdAtomic:     own.InitiatorDepth,
			MaxDestRdAtomic: own.ResponderResources,
		}
		if own.ResponderResources > 0 { // as the kernel does
			attr.Access |= verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
		}
		if attr.AckTimeout == 0 && i.passive {
			attr.AckTimeout = i.peer.mine.AckTimeout // it travels with the request
		}
		if attr.AckTimeout == 0 {
			attr.AckTimeout = 19 // the kernel's choice, about two seconds
		}
	}
	i.qp.connect(attr)
}

// path is the way to the peer's device.
func (i *id) path() verbs.AHAttr {
	return verbs.AHAttr{
		Port: 1, LID: i.peer.dev.lid, Global: true, GID: i.remote.Addr().WithZone("").As16(),
		GIDIndex: slices.Index(i.dev.gids, i.local.Addr().WithZone("").As16()), HopLimit: 64,
	}
}

// firstPSN is what a QP of the CM begins with.
func (q *qp) firstPSN() uint32 { return q.num * 0x9e3779 & maxPSN }

// accepted is the arrival of the peer's agreement.
func (i *id) accepted(p cm.ConnParam) {
	if i.state != connecting || i.qp == nil || i.qp.closed {
		i.tell((*id).abandoned)
		return
	}
	reply := cm.ConnParam{
		PrivateData:        i.dev.padded(p.PrivateData, cm.MaxReplyData),
		ResponderResources: p.InitiatorDepth,
		InitiatorDepth:     p.ResponderResources,
		RNRRetryCount:      p.RNRRetryCount,
	}
	// Each side tries again after RNR as often as the other says.
	rules := i.mine
	rules.RNRRetryCount = p.RNRRetryCount
	i.setUp(rules, i.mine)
	if !i.dev.iwarp() {
		i.tell(func(peer *id) {
			if peer.state == accepting {
				peer.establish(cm.ConnParam{})
			}
		})
	}
	i.establish(reply)
}

func (i *id) establish(p cm.ConnParam) {
	i.state = connected
	i.notify(cm.Established, func() { i.reply(answer{param: p}) })
	i.qp.pathChanged()
	if i.peer.qp != nil {
		i.peer.qp.pathChanged()
	}
}

// Reject implements cm.Request.
func (i *id) Reject(private []byte) error {
	if err := i.dev.call(Reject); err != nil {
		return &cm.Error{Op: "reject", Addr: i.remote, Err: err}
	}
	defer i.fab.mu.Unlock()
	var err error
	switch {
	case i.closed:
		err = verbs.ErrClosed
	case len(private) > cm.MaxRejectData:
		err = &verbs.LimitError{What: "bytes of private data", Got: uint64(len(private)), Max: cm.MaxRejectData}
	case i.state == over:
		err = syscall.ECONNRESET
	case i.state != requested:
		err = os.NewSyscallError("rdma_reject", syscall.EINVAL)
	}
	if err != nil {
		return &cm.Error{Op: "reject", Addr: i.remote, Err: err}
	}
	i.refuse(cm.RejectConsumer, slices.Clone(private))
	return nil
}

func (i *id) refuse(reason int, private []byte) {
	i.state = over
	i.tell(func(peer *id) { peer.refused(reason, private) })
}
