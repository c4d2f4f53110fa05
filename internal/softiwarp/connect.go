package softiwarp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// rejectTime is how long a rejected connection stays open for the peer to read why, and maxRejects how many do at once: the others are
// closed as soon as the reject is sent.
const (
	rejectTime = time.Second
	maxRejects = 64
)

// Connect implements cm.Resolved.
func (i *id) Connect(ctx context.Context, p cm.ConnParam) (cm.ConnParam, error) {
	reply, err := i.connect(ctx, &p)
	if err != nil {
		return cm.ConnParam{}, &cm.Error{Op: "connect", Addr: i.remote, Err: err}
	}
	return reply, nil
}

func (i *id) connect(ctx context.Context, p *cm.ConnParam) (reply cm.ConnParam, err error) {
	q, err := i.start(idle, p, cm.MaxRequestData)
	if err != nil {
		return reply, err
	}
	defer func() { i.finish(err) }()
	conn, err := i.dialTCP(ctx)
	if err != nil {
		return reply, err
	}
	reply, err = i.setUp(ctx, q, conn, p)
	if err != nil {
		_ = conn.Close()
	}
	return reply, err
}

func (i *id) dialTCP(ctx context.Context) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1} // see establish
	d.SetMultipathTCP(false)
	if specified(i.bind) || i.bind.Port() != 0 {
		d.LocalAddr = net.TCPAddrFromAddrPort(i.bind)
	}
	conn, err := d.DialContext(ctx, network("tcp", i.remote), i.remote.String())
	if err != nil {
		err = reason(ctx, err)
		if errors.Is(err, syscall.ECONNREFUSED) {
			err = &cm.RejectedError{Reason: int(syscall.ECONNREFUSED)}
		}
		return nil, err
	}
	i.mu.Lock()
	i.local = addrPort(conn.LocalAddr())
	i.mu.Unlock()
	return conn, nil
}

// setUp does MPA's part on the dialing side.
func (i *id) setUp(ctx context.Context, q *qp, conn net.Conn, p *cm.ConnParam) (reply cm.ConnParam, err error) {
	request := mpaFrame{
		flags: mpaEnhanced, revision: mpaRevision, private: p.PrivateData,
		ird: uint16(p.ResponderResources), ord: uint16(p.InitiatorDepth),
	}
	if i.dev.cfg.CRC {
		request.flags |= mpaCRC
	}
	var answer mpaFrame
	err = within(ctx, conn, i.dev.cfg.ReplyTimeout, func() error {
		if _, err := conn.Write(request.append(nil, mpaRequestKey)); err != nil {
			return err
		}
		return answer.read(conn, mpaReplyKey)
	})
	if errors.Is(err, errReset) {
		return reply, &cm.RejectedError{Reason: int(syscall.ECONNRESET)} // as the kernel has it: the listener closed, most likely
	}
	if err != nil {
		return reply, err
	}
	switch {
	case answer.flags&mpaReject != 0:
		return reply, &cm.RejectedError{Reason: int(syscall.ECONNREFUSED), PrivateData: answer.private}
	case answer.flags&mpaMarkers != 0:
		return reply, fmt.Errorf("%w: the peer wants MPA markers", syscall.EPROTO)
	case i.dev.cfg.CRC && answer.flags&mpaCRC == 0:
		return reply, fmt.Errorf("%w: the peer does without CRCs", syscall.EPROTO)
	}
	s := setup{withCRC: answer.flags&mpaCRC != 0, ird: int(p.ResponderResources), ord: int(p.InitiatorDepth)}
	if answer.ord != mpaNoDepth {
		if answer.ord > maxDepth {
			return reply, fmt.Errorf("%w: the peer wants %d READs answered at once", syscall.EPROTO, answer.ord)
		}
		s.ird = int(answer.ord) // as much as the peer uses; more than we offered is no harm
	}
	if answer.ird != mpaNoDepth {
		s.ord = min(s.ord, int(answer.ird))
	}
	// The other side may not send before it has heard something (RFC 5044, section 7.1.2): a WRITE of nothing, of which its program
	// learns nothing.
	opening := header{op: opWrite, tagged: true, last: true, stag: 1}
	if _, err := conn.Write(sealFPDU(opening.append(nil), 0, s.withCRC)); err != nil {
		return reply, ended(err)
	}
	if err := q.establish(conn, s); err != nil {
		return reply, err
	}
	return cm.ConnParam{
		PrivateData: answer.private, ResponderResources: depth(answer.ord), InitiatorDepth: depth(answer.ird),
	}, nil
}

// depth is a number of READs as the other side sees it.
func depth(n uint16) uint8 {
	if n == mpaNoDepth {
		return 1
	}
	return uint8(min(n, maxDepth))
}

// within runs f, which reads and writes conn, until the limit, or until ctx is done. What f has done is done, also when ctx ends just then:
// the peer may know already.
func within(ctx context.Context, conn net.Conn, limit time.Duration, f func() error) error {
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return ended(err)
	}
	given := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetDeadline(longAgo)
		close(given)
	})
	err := f()
	if !stop() {
		<-given
		if err != nil {
			return ctx.Err()
		}
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	return ended(err)
}

// ended is the error for a connection that ended while it was being made.
func ended(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return syscall.ETIMEDOUT
	case errors.Is(err, errMPAKey), errors.Is(err, errMPARevision), errors.Is(err, errMPALength), errors.Is(err, errMPAWords):
		return fmt.Errorf("%w: %w", syscall.EPROTO, err)
	case errors.Is(err, verbs.ErrClosed):
		return err
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return errReset
	}
	return errEnded
}

var (
	errReset = fmt.Errorf("%w instead of an answer", syscall.ECONNRESET)
	errEnded = fmt.Errorf("%w: the peer closed the connection instead of answering", syscall.ECONNRESET)
)

// read reads a frame, and not a byte more: FPDUs may follow.
func (f *mpaFrame) read(r io.Reader, key string) error {
	var head [mpaHeaderSize]byte
	if err := readHeader(r, head[:], key); err != nil {
		return err
	}
	n, err := f.parseHeader(head[:], key)
	if err != nil {
		return err
	}
	private := make([]byte, n)
	if _, err := io.ReadFull(r, private); err != nil {
		return err
	}
	if !f.parsePrivate(private) {
		return errMPAWords
	}
	return nil
}

// readHeader fills head, or fails at the first byte that is not the key's: a server of another protocol that greets in fewer bytes
// than a header has waits for an answer then.
func readHeader(r io.Reader, head []byte, key string) error {
	for have := 0; have < len(head); {
		n, err := r.Read(head[have:])
		have += n
		k := min(have, len(key))
		switch {
		case string(head[:k]) != key[:k]:
			return errMPAKey
		case have == len(head):
			return nil
		case err == io.EOF && have > 0:
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		}
	}
	return nil
}

// Param implements cm.Request.
func (i *id) Param() cm.ConnParam {
	return cm.ConnParam{
		PrivateData:        slices.Clone(i.frame.private),
		ResponderResources: depth(i.frame.ord),
		InitiatorDepth:     depth(i.frame.ird),
	}
}

// Accept implements cm.Request.
func (i *id) Accept(ctx context.Context, p cm.ConnParam) error {
	if err := i.accept(ctx, &p); err != nil {
		return &cm.Error{Op: "accept", Addr: i.remote, Err: err}
	}
	return nil
}

func (i *id) accept(ctx context.Context, p *cm.ConnParam) (err error) {
	q, err := i.start(requested, p, cm.MaxReplyData)
	if err != nil {
		return err
	}
	defer func() { i.finish(err) }()
	if err = ctx.Err(); err == nil {
		err = i.agree(ctx, q, p)
	}
	if err != nil {
		_ = i.conn.Close()
	}
	return err
}

// agree does MPA's part on the accepting side.
func (i *id) agree(ctx context.Context, q *qp, p *cm.ConnParam) error {
	reply := i.reply(0, p.PrivateData)
	s := setup{
		withCRC: reply.flags&mpaCRC != 0, gated: true, ird: int(p.ResponderResources), ord: int(p.InitiatorDepth),
	}
	if i.frame.ird != mpaNoDepth {
		s.ord = min(s.ord, int(i.frame.ird))
	}
	reply.ird, reply.ord = uint16(s.ird), uint16(s.ord)
	if i.frame.peerToPeer {
		s.rtr = i.frame.rtr.choose()
		reply.peerToPeer, reply.rtr = true, s.rtr
	}
	err := within(ctx, i.conn, i.dev.cfg.ReplyTimeout, func() error {
		_, err := i.conn.Write(reply.append(nil, mpaReplyKey))
		return err
	})
	if err != nil {
		return err
	}
	if err := q.establish(i.conn, s); err != nil || s.rtr == 0 {
		return err
	}
	return q.awaitOpening(ctx)
}

// reply is an answer to the request, with its flags and revision.
func (i *id) reply(flags uint8, private []byte) mpaFrame {
	f := mpaFrame{flags: flags | i.frame.flags&(mpaCRC|mpaEnhanced), revision: i.frame.revision, private: private}
	if i.dev.cfg.CRC {
		f.flags |= mpaCRC
	}
	return f
}

// Reject implements cm.Request.
func (i *id) Reject(private []byte) error {
	i.mu.Lock()
	var err error
	switch {
	case i.closed:
		err = verbs.ErrClosed
	case len(private) > cm.MaxRejectData:
		err = &verbs.LimitError{What: "bytes of private data", Got: uint64(len(private)), Max: cm.MaxRejectData}
	case i.state != requested:
		err = os.NewSyscallError("reject", syscall.EINVAL)
	default:
		i.state = over
	}
	i.mu.Unlock()
	if err != nil {
		return &cm.Error{Op: "reject", Addr: i.remote, Err: err}
	}
	i.refuse(slices.Clone(private))
	return nil
}

// refuse sends a reject and lets the peer read it, in the background.
func (i *id) refuse(private []byte) {
	f := i.reply(mpaReject, private)
	i.dev.reject(i.conn, &f)
}

func (d *device) reject(conn net.Conn, f *mpaFrame) {
	d.count(&d.open.streams, 1)
	go func() {
		defer d.count(&d.open.streams, -1)
		defer conn.Close()
		last := time.AfterFunc(2*rejectTime, func() { _ = conn.Close() })
		defer last.Stop()
		_ = conn.SetDeadline(time.Now().Add(rejectTime))
		if _, err := conn.Write(f.append(nil, mpaReplyKey)); err != nil {
			return
		}
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		if d.rejects.Add(1) <= maxRejects {
			_, _ = io.Copy(io.Discard, conn)
		}
		d.rejects.Add(-1)
	}()
}

// keepAlive finds a peer's host that is gone, also when nothing is sent.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 9}

// gateTime is how long the accepting side waits for the first FPDU before it sends one itself.
const gateTime = 30 * time.Millisecond

// setup is what MPA has agreed on.
type setup struct {
	withCRC  bool
	ird, ord int
	gated    bool     // the peer has to begin
	rtr      rtrKinds // in this way, if not 0
}

// establish brings the QP to life on the connection, which is the QP's then.
func (q *qp) establish(conn net.Conn, s setup) error {
	mss := 0
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetNoDelay(true)
		_ = tcp.SetKeepAliveConfig(keepAlive)
		mss = tune(tcp, &q.dev.cfg)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.state != verbs.QPInit {
		return verbs.ErrClosed
	}
	q.stream = newStream(conn)
	q.withCRC, q.maxPayload, q.ird, q.ord = s.withCRC, q.dev.cfg.payload(mss), s.ird, s.ord
	q.responses.ring = make([]response, max(s.ird, 1))
	q.reads.ring = make([]expected, max(s.ord, 1))
	q.out.init(q)
	q.rx.init(q)
	q.rtr, q.opened, q.ended = s.rtr, make(chan struct{}), make(chan struct{})
	q.gated = s.gated
	if s.gated && s.rtr == 0 { // who has agreed to begin does
		q.gate = time.AfterFunc(gateTime, q.openGate)
	}
	q.state = verbs.QPRTS
	q.dev.count(&q.dev.open.streams, 1)
	q.duty.start(q.stream.raw == nil)
	go q.serve()
	return nil
}

// openGate lets the accepting side send.
func (q *qp) openGate() {
	q.mu.Lock()
	q.gated = false
	q.startSending()
}

// firstFPDU notes that the dialing side has begun. It returns the way that was agreed on.
func (q *qp) firstFPDU() rtrKinds {
	close(q.opened)
	if q.gate != nil {
		q.gate.Stop()
	}
	q.mu.Lock()
	q.gated = false // what waited is sent after this read
	q.mu.Unlock()
	return q.rtr
}

// awaitOpening waits until a peer-to-peer connection's first FPDU has come.
func (q *qp) awaitOpening(ctx context.Context) error {
	timer := time.NewTimer(q.dev.cfg.RequestTimeout)
	defer timer.Stop()
	err := error(syscall.ETIMEDOUT)
	select {
	case <-q.opened:
		return nil
	case <-q.ended:
		select {
		case <-q.opened:
			return nil // what was sent is to be read
		default:
			return errEnded
		}
	case <-timer.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	q.disconnect()
	return err
}
