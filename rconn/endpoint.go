package rconn

import (
	"encoding/binary"
	"errors"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/ring"
	"github.com/rconn/rdma/verbs"
)

// endpoint holds the verbs objects of one connection and the stream that works on them.
type endpoint struct {
	cfg  Config // as fits the device
	id   cm.ID
	pool *pool // where the memory comes from and goes to; nil: it is not kept
	memory
	channel verbs.CompletionChannel
	cq      verbs.CQ
	qp      verbs.QP
	bigSend verbs.MR // rings that grew, nil before
	bigRecv verbs.MR

	stream   *ring.Stream
	variant  ring.Variant
	receives int
	slots    []byte // iWARP: where messages arrive, MessageSize bytes for each receive
	inline   int
	acked    bool // the completion of a write means that the peer's device has it
	reads    bool // READs were granted
	accepted bool // this side answered the request

	signalAll bool // a completion frees the memory of its own request only

	// Scratch for batches, so that posting allocates nothing.
	out    *batch // work requests that wait to be posted
	spare  *batch
	recvs  []verbs.RecvWR // one for each receive, by slot
	freed  []uint64       // slots of completed receives, to be posted again
	repost []verbs.RecvWR
	wcs    [32]verbs.Completion
}

// tableSpace keeps the receive ring apart from the table, which shares a cache line with nothing.
const tableSpace = 64

// recvBit marks the work request ID of a receive; the rest is its slot. Those of sends are the stream's numbers.
const recvBit = 1 << 63

// newEndpoint makes the objects for a connection on id, with memory of the pool, if not nil, and posts the receives. When it fails, id is
// still the caller's.
func newEndpoint(id cm.ID, cfg Config, pool *pool) (*endpoint, error) {
	e, err := tryEndpoint(id, cfg, pool)
	if pool.makesRoom(err) {
		e, err = tryEndpoint(id, cfg, pool)
	}
	return e, err
}

func tryEndpoint(id cm.ID, cfg Config, pool *pool) (*endpoint, error) {
	e := &endpoint{id: id, pool: pool, out: new(batch), spare: new(batch)}
	if err := e.build(cfg); err != nil {
		if ferr := e.free(); ferr != nil {
			cfg.Logger.Warn("rdma objects not released", "remote", id.RemoteAddr(), "err", ferr)
		}
		return nil, err
	}
	return e, nil
}

func (e *endpoint) build(cfg Config) error {
	dev := e.id.Device()
	attr := dev.Attr()
	cfg, err := cfg.fit(attr)
	if err != nil {
		return err
	}
	e.cfg = cfg
	rc := ring.Config{Credits: cfg.Credits, SendQueue: cfg.SendQueue}
	if attr.Transport == verbs.TransportIWARP {
		rc.Variant = ring.Separate
	}
	e.variant, e.receives, e.acked, e.signalAll = rc.Variant, rc.Receives(), attr.Caps.WriteAcked, !attr.Caps.FreesEarlier
	if e.variant != ring.Immediate {
		e.pool = nil // on iWARP a peer may invalidate a key, for whoever comes next too
	}
	if err := e.provide(&rc, cfg); err != nil {
		return err
	}
	if e.channel, err = dev.CreateCompletionChannel(); err != nil {
		return err
	}
	depth := cfg.SendQueue + e.receives
	if e.signalAll {
		depth++ // on soft-iWARP the READ of a keepalive may complete when all behind it has, and its place in the queue is taken again
	}
	if e.cq, err = dev.CreateCQ(verbs.CQOptions{Depth: depth, Channel: e.channel}); err != nil {
		return err
	}
	e.qp, err = e.id.CreateQP(e.pd, verbs.QPOptions{
		Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{
			MaxSendWR: cfg.SendQueue, MaxRecvWR: e.receives, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: wantInline,
		},
	})
	if err != nil {
		return err
	}
	e.inline = min(e.qp.Cap().MaxInline, wantInline)
	if e.stream, err = ring.New(rc); err != nil {
		return err
	}
	return e.postAll()
}

// provide gets the connection's memory.
func (e *endpoint) provide(rc *ring.Config, cfg Config) error {
	slots := 0
	if rc.Variant == ring.Separate {
		slots = e.receives * ring.MessageSize
	}
	ringEnd := tableSpace + cfg.RecvBuffer
	if err := e.obtain(ring.SendSize(cfg.SendBuffer, rc.SendQueue), ringEnd+slots); err != nil {
		return err
	}
	mem := e.recv.Bytes()
	rc.Send = e.send.Bytes()
	rc.Table, rc.TableAddr, rc.TableRKey = mem[:ring.TableSize:ring.TableSize], e.recv.Addr(), e.recv.RKey()
	rc.Recv, rc.RecvAddr, rc.RecvRKey = mem[tableSpace:ringEnd:ringEnd], e.recv.Addr()+tableSpace, e.recv.RKey()
	e.slots = mem[ringEnd:]
	return nil
}

// obtain takes memory from the pool, or else registers it.
func (e *endpoint) obtain(send, recv int) error {
	dev, ok := e.id.Device(), false
	if e.pool != nil {
		e.memory, ok = e.pool.take(dev, send, recv)
	}
	if ok {
		return nil
	}
	return e.memory.register(dev, send, recv)
}

// postAll prepares the receives and posts them all.
func (e *endpoint) postAll() error {
	e.recvs = make([]verbs.RecvWR, e.receives)
	e.repost = make([]verbs.RecvWR, 0, e.receives)
	e.freed = make([]uint64, 0, e.receives)
	for i := range e.recvs {
		e.recvs[i].ID = recvBit | uint64(i)
		if e.variant == ring.Separate {
			addr := e.recv.Addr() + uint64(len(e.recv.Bytes())-len(e.slots)+i*ring.MessageSize)
			e.recvs[i].SGL = []verbs.SGE{{Addr: addr, Length: ring.MessageSize, LKey: e.recv.LKey()}}
		}
	}
	_, err := e.qp.PostRecv(e.recvs)
	return err
}

// message is what a completed receive brought.
func (e *endpoint) message(wc *verbs.Completion) (ring.Message, error) {
	slot := wc.ID &^ recvBit
	e.freed = append(e.freed, slot)
	if e.variant == ring.Separate {
		return ring.Message(binary.LittleEndian.Uint32(e.slots[slot*ring.MessageSize:])), nil
	}
	if wc.Flags&verbs.WCWithImm == 0 {
		return 0, &ring.ProtocolError{Reason: "a SEND where only WRITE WITH IMM is spoken"}
	}
	return ring.Message(wc.Imm), nil
}

// canProbe tells whether the peer's device can be asked for a sign of life. On iWARP only a READ is answered.
func (e *endpoint) canProbe() bool { return e.acked || e.reads }

// param is what goes with a request or an answer. Retries are six, not seven: some devices take seven as for ever, and a dead
// link would never be found. Receiver-not-ready is retried for ever: control messages may have to wait.
func (e *endpoint) param(cfg Config) cm.ConnParam {
	p := cm.ConnParam{
		PrivateData: e.stream.Handshake().Append(nil), RetryCount: 6, RNRRetryCount: 7,
		AckTimeout: cfg.AckTimeout, MinRNRTimer: 1,
	}
	if e.variant == ring.Separate {
		// One READ each way, of nothing, for keepalive. Some iWARP devices also read when they connect.
		p.InitiatorDepth, p.ResponderResources = 1, 1
	}
	return p
}

// answer is param for the answer to a request: READs as far as the request offers and wants them.
func (e *endpoint) answer(cfg Config, req cm.ConnParam) cm.ConnParam {
	p := e.param(cfg)
	p.InitiatorDepth, p.ResponderResources = min(1, req.InitiatorDepth), min(1, req.ResponderResources)
	return p
}

// free closes the objects in the only order that works: what uses before what is used. It copes with a half-built endpoint.
func (e *endpoint) free() error {
	var errs []error
	keep := false
	if e.qp != nil {
		// Flushed first, so that the device is done with the memory. One that was removed is not.
		flushed := e.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState)
		errs = append(errs, e.qp.Close())
		keep = e.pool != nil && flushed == nil
	}
	if e.cq != nil {
		errs = append(errs, e.cq.Close())
	}
	if e.channel != nil {
		errs = append(errs, e.channel.Close())
	}
	for _, mr := range []verbs.MR{e.bigRecv, e.bigSend} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	err := errors.Join(errs...)
	if keep && err == nil && e.pool.put(e.memory) {
		return nil
	}
	return errors.Join(err, e.memory.free())
}

// release ends the connection and frees the objects and the ID. Failures are nobody's to handle: they are logged.
func (e *endpoint) release(cfg Config) {
	_ = e.id.Disconnect()
	if err := errors.Join(e.free(), e.id.Close()); err != nil {
		cfg.Logger.Warn("rdma objects not released", "remote", e.id.RemoteAddr(), "err", err)
	}
}
