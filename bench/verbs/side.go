package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

const (
	maxSize  = 16 << 20
	maxDepth = 64      // operations outstanding
	inFlight = 8 << 20 // bytes outstanding, if that is less
	control  = 8       // bytes of a request, a grant, a READ that only waits
	reads    = 16      // READs and atomics outstanding
)

var errGone = errors.New("the connection has ended")

// request is what the dialing side asks of the other process.
type request struct {
	kind kind
	size int
	op   verbs.Opcode
}

// side is one end of a connection.
type side struct {
	request
	id   cm.ID
	pd   verbs.PD
	mr   verbs.MR // depth slots of the size, for what is sent; as many for what comes; control bytes
	ch   verbs.CompletionChannel
	cq   verbs.CQ
	qp   verbs.QP
	spin time.Duration

	depth     int // of the queue
	peerAddr  uint64
	peerRKey  uint32
	gone      atomic.Bool
	wcs       [32]verbs.Completion
	received  int // completions of receives
	completed int // completions of sends
	next      int // slot
	unwatched int // sends posted since one was signaled
	taken     []verbs.RecvWR
}

// newSide makes the objects and posts the receives, so that nothing the peer sends finds none.
func newSide(id cm.ID, q request, spin time.Duration) (*side, error) {
	s := &side{request: q, id: id, spin: spin, depth: min(maxDepth, max(inFlight/q.size, 4))}
	if err := s.build(); err != nil {
		s.free()
		return nil, err
	}
	id.Notify(func(e cm.Event) {
		if e.Ends() {
			s.gone.Store(true)
			s.ch.Interrupt()
		}
	})
	return s, nil
}

func (s *side) build() (err error) {
	dev := s.id.Device()
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	if dev.Attr().Caps.Send.Has(verbs.OpAtomicFetchAndAdd) {
		access |= verbs.AccessRemoteAtomic
	}
	if s.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	if s.mr, err = s.pd.AllocMR(2*s.depth*s.size+control, access); err != nil {
		return err
	}
	clear(s.mr.Bytes()) // page faults come now
	if s.ch, err = dev.CreateCompletionChannel(); err != nil {
		return err
	}
	if s.cq, err = dev.CreateCQ(verbs.CQOptions{Depth: 4 * maxDepth, Channel: s.ch}); err != nil {
		return err
	}
	s.qp, err = s.id.CreateQP(s.pd, verbs.QPOptions{
		SendCQ: s.cq, RecvCQ: s.cq,
		Cap: verbs.QPCap{MaxSendWR: 2 * maxDepth, MaxRecvWR: maxDepth, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	for i := range s.depth {
		s.taken = append(s.taken, s.receive(uint64(i)))
	}
	return s.refill()
}

// receive is a work request for the slot of that number.
func (s *side) receive(slot uint64) verbs.RecvWR {
	if s.op == verbs.OpRDMAWriteWithImm && s.kind == echo { // what comes needs no memory
		return verbs.RecvWR{ID: slot}
	}
	at := s.mr.Addr() + uint64((s.depth+int(slot))*s.size)
	return verbs.RecvWR{ID: slot, SGL: []verbs.SGE{{Addr: at, Length: uint32(s.size), LKey: s.mr.LKey()}}}
}

// refill posts the receives again that were taken.
func (s *side) refill() error {
	if len(s.taken) == 0 {
		return nil
	}
	_, err := s.qp.PostRecv(s.taken)
	s.taken = s.taken[:0]
	return err
}

// wr is a work request of the full size, with the next slot here and at the peer.
func (s *side) wr(op verbs.Opcode) verbs.SendWR {
	slot := s.next % s.depth
	s.next++
	wr := verbs.SendWR{Opcode: op, SGL: []verbs.SGE{{Addr: s.mr.Addr() + uint64(slot*s.size), Length: uint32(s.size), LKey: s.mr.LKey()}}}
	if op != verbs.OpSend {
		wr.RemoteAddr, wr.RKey = s.peerAddr+uint64((s.depth+slot)*s.size), s.peerRKey
	}
	wr.CompareAdd = 1 // what is not there: a compare-and-swap swaps nothing, which costs the same
	return wr
}

// short is a work request for a few bytes after the slots.
func (s *side) short(op verbs.Opcode) verbs.SendWR {
	at := uint64(2 * s.depth * s.size)
	wr := verbs.SendWR{Opcode: op, SGL: []verbs.SGE{{Addr: s.mr.Addr() + at, Length: control, LKey: s.mr.LKey()}}}
	if op != verbs.OpSend {
		wr.RemoteAddr, wr.RKey = s.peerAddr+at, s.peerRKey
	}
	return wr
}

// postUnwatched posts a request whose completion nobody waits for. The queue needs one now and then.
func (s *side) postUnwatched(wr verbs.SendWR) error {
	if s.unwatched++; s.unwatched == maxDepth/4 {
		wr.Flags, s.unwatched = verbs.Signaled, 0
	}
	_, err := s.qp.PostSend([]verbs.SendWR{wr})
	return err
}

// postAndWait waits for the completion of the last request.
func (s *side) postAndWait(wrs []verbs.SendWR) error {
	completed := s.completed + 1
	wrs[len(wrs)-1].Flags = verbs.Signaled
	if _, err := s.qp.PostSend(wrs); err != nil {
		return err
	}
	return s.until(func() bool { return s.completed == completed })
}

// until takes completions until a condition on their numbers holds.
func (s *side) until(done func() bool) error {
	for !done() {
		gone := s.gone.Load() // before Poll: what has arrived comes before the end
		n, err := s.cq.Poll(s.wcs[:])
		switch {
		case err != nil:
			return err
		case n == 0 && gone:
			return errGone
		case n == 0:
			if err := s.ch.Wait(s.spin); err != nil {
				return err
			}
		}
		for i := range s.wcs[:n] {
			if err := s.count(&s.wcs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *side) count(wc *verbs.Completion) error {
	switch {
	case wc.Status == verbs.StatusWRFlushErr:
		return errGone
	case wc.Err() != nil:
		return wc.Err()
	case wc.Opcode < verbs.WCRecv:
		s.completed++
	default:
		s.received++
		s.taken = append(s.taken, s.receive(wc.ID))
	}
	return nil
}

// close ends the connection.
func (s *side) close() {
	_ = s.id.Disconnect()
	s.free()
}

// free closes the objects, users first.
func (s *side) free() {
	if s.qp != nil {
		_ = s.qp.Close()
	}
	if s.cq != nil {
		_ = s.cq.Close()
	}
	if s.ch != nil {
		_ = s.ch.Close()
	}
	if s.mr != nil {
		_ = s.mr.Close()
	}
	if s.pd != nil {
		_ = s.pd.Close()
	}
	_ = s.id.Close()
}

// dial makes the measuring end.
func dial(ctx context.Context, addr netip.AddrPort, q request, spin time.Duration) (*side, error) {
	id, err := resolve(ctx, addr)
	if err != nil {
		return nil, err
	}
	s, err := newSide(id, q, spin)
	if err != nil {
		return nil, err
	}
	reply, err := id.Connect(ctx, s.param())
	if err == nil {
		err = s.setPeer(reply.PrivateData)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// param carries the request, and this side's memory.
func (s *side) param() cm.ConnParam {
	b := []byte{byte(s.kind), byte(s.op)}
	b = binary.BigEndian.AppendUint32(b, uint32(s.size))
	b = binary.BigEndian.AppendUint64(b, s.mr.Addr())
	b = binary.BigEndian.AppendUint32(b, s.mr.RKey())
	attr := s.id.Device().Attr()
	return cm.ConnParam{
		PrivateData: b, RetryCount: 7, RNRRetryCount: 7, MinRNRTimer: 1,
		ResponderResources: uint8(min(reads, attr.MaxQPRdAtom)), InitiatorDepth: uint8(min(reads, attr.MaxQPInitRdAtom)),
	}
}

const paramSize = 1 + 1 + 4 + 8 + 4

func parseRequest(b []byte) (q request, err error) {
	if len(b) < paramSize {
		return q, fmt.Errorf("%d bytes of private data, want %d", len(b), paramSize)
	}
	q = request{kind(b[0]), int(binary.BigEndian.Uint32(b[2:])), verbs.Opcode(b[1])}
	if q.size < control || q.size > maxSize {
		return q, fmt.Errorf("a request for %d bytes", q.size)
	}
	return q, nil
}

func (s *side) setPeer(b []byte) error {
	if len(b) < paramSize {
		return fmt.Errorf("%d bytes of private data, want %d", len(b), paramSize)
	}
	s.peerAddr, s.peerRKey = binary.BigEndian.Uint64(b[6:]), binary.BigEndian.Uint32(b[14:])
	return nil
}

// resolve asks the providers in order; one that has no device for the address leaves it to the next.
func resolve(ctx context.Context, remote netip.AddrPort) (id cm.Resolved, err error) {
	err = verbs.ErrNoDevice
	for _, p := range rdma.Providers() {
		if id, err = p.Resolve(ctx, netip.AddrPort{}, remote); !errors.Is(err, verbs.ErrNoDevice) {
			break
		}
	}
	return id, err
}

func listen(local netip.AddrPort) (ln cm.Listener, err error) {
	err = verbs.ErrNoDevice
	for _, p := range rdma.Providers() {
		if ln, err = p.Listen(local, cm.ListenOptions{}); !errors.Is(err, verbs.ErrNoDevice) {
			break
		}
	}
	return ln, err
}
