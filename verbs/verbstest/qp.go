package verbstest

import (
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/rconn/rdma/verbs"
)

// qp is a queue pair. What is common to the transports stands here, the protocols in roce.go and iwarp.go.
type qp struct {
	fab        *Fabric
	dev        *Device
	id         *id
	pd         *pd
	num        uint32
	send, recv *cq
	cap        verbs.QPCap
	signalAll  bool
	attr       verbs.QPAttr
	initiator  uint8 // READs that this side may have outstanding
	responder  uint8 // READs of the peer that it answers
	gone       bool  // the device is through with it
	closed     bool

	sq   []*sendReq // posted and not completed, oldest first
	next int        // the first in sq that was not executed
	rq   []recvReq  // posted and not used up

	// Queue entries are free again when a completion is polled. Positions count requests since the QP was made.
	sqPosted, sqFreed uint64
	rqPosted, rqFreed uint64

	tx, acks, sendLane, recvLane lane

	halted bool   // a request has failed and waits for its completion
	stall  *stall // why sq[next] waits (roce.go)
	reads  int    // READs executed and not completed

	out *stream // what TCP has taken over (iwarp.go)
}

type sendReq struct {
	verbs.SendWR
	pos     uint64
	payload []byte // Inline, or what a READ has brought
	arrived bool   // its packets are at the peer's device; on iWARP, it is TCP's turn
	acked   bool   // the answer is here
	done    bool   // it can complete
	local   bool   // it failed before it left
	status  verbs.Status
}

func (r *sendReq) length() uint64 {
	if len(r.Inline) > 0 {
		return uint64(len(r.Inline))
	}
	return length(r.SGL)
}

type recvReq struct {
	verbs.RecvWR
	pos uint64
}

// CreateQP implements cm.ID.
func (i *id) CreateQP(vpd verbs.PD, o verbs.QPOptions) (verbs.QP, error) {
	d := i.dev
	if err := d.call(CreateQP); err != nil {
		return nil, err
	}
	defer d.fab.mu.Unlock()
	if i.closed {
		return nil, verbs.ErrClosed
	}
	p, ok1 := vpd.(*pd)
	send, ok2 := o.SendCQ.(*cq)
	recv, ok3 := o.RecvCQ.(*cq)
	switch {
	case vpd == nil || o.SendCQ == nil || o.RecvCQ == nil || i.qpMade:
		return nil, os.NewSyscallError("rdma_create_qp", syscall.EINVAL)
	case !ok1 || !ok2 || !ok3 || p.dev != d || send.dev != d || recv.dev != d:
		return nil, verbs.ErrForeign
	case p.closed || send.closed || recv.closed:
		return nil, verbs.ErrClosed
	case o.Type != verbs.RC:
		return nil, &verbs.UnsupportedError{Device: d.cfg.Name, What: "a " + o.Type.String() + " queue pair"}
	}
	capacity, err := d.grant(o.Cap)
	if err != nil {
		return nil, err
	}
	if d.qps >= d.attr.MaxQP {
		return nil, os.NewSyscallError("rdma_create_qp", syscall.ENOMEM)
	}
	d.fab.nextQPNum++
	q := &qp{
		fab: d.fab, dev: d, id: i, pd: p, num: d.fab.nextQPNum, send: send, recv: recv, cap: capacity, signalAll: o.SignalAll,
		attr: verbs.QPAttr{State: verbs.QPInit},
	}
	if d.iwarp() {
		q.out = &stream{fab: d.fab, id: i}
	}
	i.qp, i.qpMade = q, true
	d.fab.qps[q] = true
	d.qps++
	p.qps++
	send.qps++
	recv.qps++
	d.host.count(&d.host.objects.QPs, 1)
	return q, nil
}

// grant rounds up what is asked of a QP, or names the limit.
func (d *Device) grant(c verbs.QPCap) (verbs.QPCap, error) {
	for _, l := range []struct {
		what     string
		got, max int
	}{
		{"send queue entries", c.MaxSendWR, d.attr.MaxQPWR},
		{"receive queue entries", c.MaxRecvWR, d.attr.MaxQPWR},
		{"scatter/gather entries of a send", c.MaxSendSGE, d.attr.MaxSGE},
		{"scatter/gather entries of a receive", c.MaxRecvSGE, d.attr.MaxSGE},
	} {
		if l.got < 0 {
			return c, os.NewSyscallError("rdma_create_qp", syscall.EINVAL)
		}
		if l.got > l.max {
			return c, &verbs.LimitError{What: l.what, Got: uint64(l.got), Max: uint64(l.max)}
		}
	}
	return verbs.QPCap{
		MaxSendWR:  granted(c.MaxSendWR, d.attr.MaxQPWR),
		MaxRecvWR:  granted(c.MaxRecvWR, d.attr.MaxQPWR),
		MaxSendSGE: max(c.MaxSendSGE, 1),
		MaxRecvSGE: max(c.MaxRecvSGE, 1),
		MaxInline:  min(max(c.MaxInline, 0), d.attr.Caps.MaxInline),
	}, nil
}

func (q *qp) Num() uint32      { return q.num }
func (q *qp) Cap() verbs.QPCap { return q.cap }

// usable says why no call can work.
func (q *qp) usable() error {
	if q.closed {
		return verbs.ErrClosed
	}
	return q.dev.check()
}

func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	for i := range wrs {
		err := q.dev.host.before(PostSend)
		if err == nil {
			q.fab.mu.Lock()
			err = q.postSend(wrs[i])
			q.fab.mu.Unlock()
		}
		if err != nil {
			return i, err
		}
	}
	return len(wrs), nil
}

func (q *qp) postSend(wr verbs.SendWR) error {
	if err := q.usable(); err != nil {
		return err
	}
	invalid := os.NewSyscallError("ibv_post_send", syscall.EINVAL)
	sge := q.cap.MaxSendSGE
	if wr.Opcode == verbs.OpRDMARead {
		sge = min(sge, q.dev.attr.MaxSGERead)
	}
	switch {
	case !q.dev.attr.Caps.Send.Has(wr.Opcode):
		return &verbs.UnsupportedError{Device: q.dev.cfg.Name, What: wr.Opcode.String()}
	case len(wr.Inline) > 0 && wr.Opcode == verbs.OpRDMARead:
		return invalid
	case len(wr.Inline) > q.cap.MaxInline:
		return &verbs.LimitError{What: "bytes of inline payload", Got: uint64(len(wr.Inline)), Max: uint64(q.cap.MaxInline)}
	case len(wr.Inline) == 0 && len(wr.SGL) > sge:
		return &verbs.LimitError{What: "scatter/gather entries", Got: uint64(len(wr.SGL)), Max: uint64(sge)}
	case q.attr.State != verbs.QPRTS && q.attr.State != verbs.QPError:
		return invalid
	case q.sqPosted-q.sqFreed >= uint64(q.cap.MaxSendWR):
		return verbs.ErrQueueFull
	}
	wr.SGL = slices.Clone(wr.SGL)
	wr.Inline = slices.Clone(wr.Inline)
	r := &sendReq{SendWR: wr, pos: q.sqPosted, payload: wr.Inline}
	q.sqPosted++
	q.sq = append(q.sq, r)
	if q.attr.State == verbs.QPError {
		q.late()
		return nil
	}
	// On iWARP, too, memory is read as late as a completion allows.
	q.fab.in(&q.tx, q.fab.delay(), func() {
		r.arrived = true
		if q.out != nil {
			q.handOver()
		} else {
			q.advance()
		}
	})
	return nil
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	for i := range wrs {
		err := q.dev.host.before(PostRecv)
		if err == nil {
			q.fab.mu.Lock()
			err = q.postRecv(wrs[i])
			q.fab.mu.Unlock()
		}
		if err != nil {
			return i, err
		}
	}
	return len(wrs), nil
}

func (q *qp) postRecv(wr verbs.RecvWR) error {
	if err := q.usable(); err != nil {
		return err
	}
	switch {
	case len(wr.SGL) > q.cap.MaxRecvSGE:
		return &verbs.LimitError{What: "scatter/gather entries", Got: uint64(len(wr.SGL)), Max: uint64(q.cap.MaxRecvSGE)}
	case q.rqPosted-q.rqFreed >= uint64(q.cap.MaxRecvWR):
		return verbs.ErrQueueFull
	}
	wr.SGL = slices.Clone(wr.SGL)
	q.rq = append(q.rq, recvReq{wr, q.rqPosted})
	q.rqPosted++
	if q.attr.State == verbs.QPError {
		q.late()
		return nil
	}
	q.tellPeer()
	return nil
}

// tellPeer has the peer look whether what it waits for has come.
func (q *qp) tellPeer() {
	if peer := q.peer(); peer != nil {
		peer.peerChanged()
	}
}

// peer is the QP at the other end, nil if there is none (yet, or any more).
func (q *qp) peer() *qp {
	if q.id.peer == nil {
		return nil
	}
	return q.id.peer.qp
}

// polled frees queue entries: a completion's own, and those of the requests before it that completed silently.
func (q *qp) polled(e cqe) {
	if e.recv {
		q.rqFreed = e.pos + 1
	} else {
		q.sqFreed = e.pos + 1
	}
}

// complete ends the oldest send request.
func (q *qp) complete(status verbs.Status) {
	r := q.sq[0]
	q.sq[0] = nil
	q.sq = q.sq[1:]
	q.next = max(q.next-1, 0)
	if status == verbs.StatusSuccess && !q.signalAll && r.Flags&verbs.Signaled == 0 {
		return
	}
	wc := verbs.Completion{ID: r.ID, Status: status, Opcode: wcOpcode(r.Opcode), QPNum: q.num}
	if r.Opcode == verbs.OpRDMARead {
		wc.ByteLen = uint32(r.length())
	}
	q.push(q.send, &q.sendLane, q.dev.sendDelay, cqe{wc, q, false, r.pos})
}

// completeRecv ends the oldest receive request.
func (q *qp) completeRecv(wc verbs.Completion) {
	r := q.rq[0]
	q.rq[0] = recvReq{}
	q.rq = q.rq[1:]
	wc.ID, wc.QPNum = r.ID, q.num
	if wc.Opcode < verbs.WCRecv {
		wc.Opcode = verbs.WCRecv
	}
	q.push(q.recv, &q.recvLane, q.dev.recvDelay, cqe{wc, q, true, r.pos})
}

func (q *qp) push(c *cq, l *lane, delay time.Duration, e cqe) {
	if e.Status != verbs.StatusSuccess {
		e.Completion = verbs.Completion{ID: e.ID, Status: e.Status, QPNum: e.QPNum} // the rest means nothing
	}
	c.coming++
	q.fab.in(l, delay, func() {
		c.coming--
		if !q.gone {
			c.push(e)
		}
		c.signal()
	})
}

func wcOpcode(op verbs.Opcode) verbs.WCOpcode {
	switch op {
	case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm:
		return verbs.WCRDMAWrite
	case verbs.OpRDMARead:
		return verbs.WCRDMARead
	}
	return verbs.WCSend
}

// flush completes whatever is outstanding in a QP in the error state.
func (q *qp) flush() {
	for len(q.sq) > 0 {
		q.complete(verbs.StatusWRFlushErr)
	}
	for len(q.rq) > 0 {
		q.completeRecv(verbs.Completion{Status: verbs.StatusWRFlushErr})
	}
}

// late deals with what was posted in the error state.
func (q *qp) late() {
	if !q.dev.cfg.LoseInError {
		q.flush()
	}
}

func (q *qp) toError() {
	if q.gone || q.attr.State == verbs.QPError {
		return
	}
	q.attr.State = verbs.QPError
	q.stall = nil
	q.next = 0
	q.flush()
	q.tellPeer()
}

// fatal is an error that the device finds by itself.
func (q *qp) fatal(e verbs.AsyncEventType) {
	if !q.gone && q.attr.State != verbs.QPError {
		q.dev.async(verbs.AsyncEvent{Type: e, QPNum: q.num})
		q.toError()
	}
}

// ready makes a connected QP able to send and to receive.
func (q *qp) ready(attr verbs.QPAttr, initiator, responder uint8) {
	if q.gone || q.attr.State != verbs.QPInit {
		return
	}
	q.attr = attr
	q.attr.State = verbs.QPRTS
	q.initiator, q.responder = initiator, responder
	if peer := q.peer(); peer != nil {
		peer.pathChanged() // it may have sent already
	}
}

func (q *qp) operational() bool { return !q.gone && q.attr.State == verbs.QPRTS }

// uses reports whether an outstanding request names a memory region.
func (q *qp) uses(key uint32) bool {
	in := func(sgl []verbs.SGE) bool {
		return slices.ContainsFunc(sgl, func(s verbs.SGE) bool { return s.LKey == key && s.Length > 0 })
	}
	return slices.ContainsFunc(q.sq, func(r *sendReq) bool { return len(r.Inline) == 0 && in(r.SGL) }) ||
		slices.ContainsFunc(q.rq, func(r recvReq) bool { return in(r.SGL) })
}

func (q *qp) Query() (verbs.QPAttr, error) {
	if err := q.dev.host.before(Query); err != nil {
		return verbs.QPAttr{}, err
	}
	q.fab.mu.Lock()
	defer q.fab.mu.Unlock()
	if err := q.usable(); err != nil {
		return verbs.QPAttr{}, err
	}
	return q.attr, nil
}

func (q *qp) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := q.dev.host.before(Modify); err != nil {
		return err
	}
	q.fab.mu.Lock()
	defer q.fab.mu.Unlock()
	if err := q.usable(); err != nil {
		return err
	}
	invalid := mask&^(verbs.AttrState|verbs.AttrMinRNRTimer) != 0 ||
		mask&verbs.AttrState != 0 && attr.State != verbs.QPError && attr.State != q.attr.State ||
		mask&verbs.AttrMinRNRTimer != 0 && (attr.MinRNRTimer > 31 || q.attr.State != verbs.QPRTS)
	if invalid {
		return os.NewSyscallError("ibv_modify_qp", syscall.EINVAL)
	}
	if mask&verbs.AttrMinRNRTimer != 0 && !q.dev.iwarp() {
		q.attr.MinRNRTimer = attr.MinRNRTimer
	}
	if mask&verbs.AttrState != 0 && attr.State == verbs.QPError {
		q.toError()
		if q.out != nil {
			q.id.streamEnded()
		}
	}
	return nil
}

func (q *qp) Close() error {
	q.fab.mu.Lock()
	defer q.fab.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	q.destroy()
	q.dev.qps--
	q.pd.qps--
	q.send.qps--
	q.recv.qps--
	q.dev.host.count(&q.dev.host.objects.QPs, -1)
	if q.out != nil {
		q.id.streamEnded()
	}
	return nil
}

// destroy stops the QP without a completion, and takes back those not polled.
func (q *qp) destroy() {
	q.attr.State = verbs.QPError
	q.gone = true
	q.stall = nil
	q.sq, q.rq = nil, nil
	q.next = 0
	q.send.drop(q)
	q.recv.drop(q)
	delete(q.fab.qps, q)
	q.tellPeer()
}

// ackTimeout is the time after which a request is sent again.
func (q *qp) ackTimeout() time.Duration {
	return 4096 * time.Nanosecond << q.attr.AckTimeout
}
