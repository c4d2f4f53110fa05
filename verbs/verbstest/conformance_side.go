package verbstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// size describes one end of a connection of the suite. Zero fields have defaults.
type size struct {
	sendWR, recvWR   int
	sendSGE, recvSGE int
	recvDepth        int // of the receive CQ
	inline           int
	memory           int
	signalAll        bool
	solicited        bool      // the receive CQ wants solicited events only
	solicitedSends   bool      // the send CQ does
	pd               verbs.PD  // of another side, which is closed later
	srq              verbs.SRQ // likewise
	recvs            int       // posted from the start, memory slots of 64 bytes from the end
}

// side is one end of a connection, with everything it needs.
type side struct {
	t              *testing.T
	patience       time.Duration
	id             cm.ID // nil: connected by hand
	hand           verbs.ByHand
	local          verbs.Endpoint // by hand: what the peer needs to know
	dev            verbs.Device
	pd             verbs.PD
	guest          bool // pd is another side's
	mr             verbs.MR
	regions        []verbs.MR // besides mr
	ahs            []verbs.AH
	ch             verbs.CompletionChannel
	sendCQ, recvCQ verbs.CQ
	qp             verbs.QP
	sends, recvs   []verbs.Completion // polled, not taken
	events         chan cm.Event
}

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead

// side equips an ID.
func (s *suite) side(t *testing.T, id cm.ID, z size) *side {
	t.Helper()
	e, err := s.trySide(t, id, z)
	require.NoError(t, err)
	return e
}

// trySide is side for an ID that may be no good any more, so that CreateQP fails.
func (s *suite) trySide(t *testing.T, id cm.ID, z size) (*side, error) {
	t.Helper()
	z = z.orDefaults()
	e := s.equipped(t, id.Device(), z)
	e.id = id
	var err error
	if e.qp, err = id.CreateQP(e.pd, e.options(z)); err != nil {
		return e, err
	}
	e.postFirst(z)
	return e, nil
}

func (z size) orDefaults() size {
	for _, d := range []struct {
		field *int
		value int
	}{{&z.sendWR, 16}, {&z.recvWR, 16}, {&z.memory, 1 << 16}, {&z.sendSGE, 1}, {&z.recvSGE, 1}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if z.recvDepth == 0 {
		z.recvDepth = 4*z.recvWR + 64 // devices may take more requests than they say, see queueFull
	}
	return z
}

// equipped is a side with everything but its QP.
func (s *suite) equipped(t *testing.T, d verbs.Device, z size) *side {
	t.Helper()
	require.NotNil(t, d)
	e := &side{t: t, patience: s.Patience, dev: d, events: make(chan cm.Event, 16)}
	t.Cleanup(e.close)
	var err error
	if e.pd, e.guest = z.pd, z.pd != nil; !e.guest {
		e.pd, err = e.dev.AllocPD()
		require.NoError(t, err)
	}
	e.mr, err = e.pd.AllocMR(z.memory, allAccess)
	require.NoError(t, err)
	e.ch, err = e.dev.CreateCompletionChannel()
	require.NoError(t, err)
	e.sendCQ, err = e.dev.CreateCQ(verbs.CQOptions{Depth: 4*z.sendWR + 64, Channel: e.ch, SolicitedOnly: z.solicitedSends})
	require.NoError(t, err)
	e.recvCQ, err = e.dev.CreateCQ(verbs.CQOptions{Depth: z.recvDepth, Channel: e.ch, SolicitedOnly: z.solicited})
	require.NoError(t, err)
	return e
}

// options are those of the side's QP.
func (e *side) options(z size) verbs.QPOptions {
	return verbs.QPOptions{
		SendCQ: e.sendCQ, RecvCQ: e.recvCQ, SRQ: z.srq, SignalAll: z.signalAll,
		Cap: verbs.QPCap{
			MaxSendWR: z.sendWR, MaxRecvWR: z.recvWR, MaxSendSGE: z.sendSGE, MaxRecvSGE: z.recvSGE, MaxInline: z.inline,
		},
	}
}

func (e *side) postFirst(z size) {
	e.t.Helper()
	for i := range z.recvs {
		e.postRecv(uint64(i), e.slot(i))
	}
}

// close is in the only right order, and harmless after the test has closed some itself.
func (e *side) close() {
	if e.qp != nil {
		require.NoError(e.t, e.qp.Close())
	}
	for _, ah := range e.ahs {
		require.NoError(e.t, ah.Close())
	}
	if e.recvCQ != nil {
		require.NoError(e.t, e.recvCQ.Close())
	}
	if e.sendCQ != nil {
		require.NoError(e.t, e.sendCQ.Close())
	}
	if e.ch != nil {
		require.NoError(e.t, e.ch.Close())
	}
	for _, mr := range e.regions {
		require.NoError(e.t, mr.Close())
	}
	if e.mr != nil {
		require.NoError(e.t, e.mr.Close())
	}
	if e.pd != nil && !e.guest {
		require.NoError(e.t, e.pd.Close())
	}
	if e.id != nil {
		require.NoError(e.t, e.id.Close())
	}
}

// pair makes a connection.
func (s *suite) pair(t *testing.T, z size) (a, b *side) {
	t.Helper()
	return s.pairAs(t, end{z, param()}, end{z, param()})
}

func (s *suite) pairAs(t *testing.T, dial, accept end) (a, b *side) {
	t.Helper()
	if s.byHand {
		return s.connectByHand(t, verbs.RC, dial, accept)
	}
	return s.connectAs(t, s.listen(t, cm.ListenOptions{}), dial, accept)
}

func (s *suite) connect(t *testing.T, ln cm.Listener, z size) (a, b *side) {
	t.Helper()
	return s.connectAs(t, ln, end{z, param()}, end{z, param()})
}

// end is how one end of a connection is made.
type end struct {
	size
	param cm.ConnParam
}

func (s *suite) connectAs(t *testing.T, ln cm.Listener, dial, accept end) (a, b *side) {
	t.Helper()
	ctx := s.ctx(t)
	id := s.resolve(t, ln.Addr())
	a = s.side(t, id, dial.size)
	done := make(chan error, 1)
	go func() {
		_, err := id.Connect(ctx, dial.param)
		done <- err
	}()
	req, err := ln.Accept(ctx)
	require.NoError(t, err)
	b = s.side(t, req, accept.size)
	require.NoError(t, req.Accept(ctx, accept.param))
	require.NoError(t, <-done)
	return a, b
}

// region registers more memory, which is closed with the side.
func (e *side) region(size int, access verbs.Access) verbs.MR {
	e.t.Helper()
	mr, err := e.pd.AllocMR(size, access)
	require.NoError(e.t, err)
	e.regions = append(e.regions, mr)
	return mr
}

// sge is a piece of the side's memory.
func (e *side) sge(off, n int) []verbs.SGE {
	return []verbs.SGE{{Addr: e.mr.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}}
}

// slot is the memory of the i-th receive.
func (e *side) slot(i int) []verbs.SGE { return e.sge(e.slotAt(i), 64) }

func (e *side) slotAt(i int) int { return len(e.mr.Bytes()) - 64*(i+1) }

func (e *side) postRecv(id uint64, sgl []verbs.SGE) {
	e.t.Helper()
	n, err := e.qp.PostRecv([]verbs.RecvWR{{ID: id, SGL: sgl}})
	require.NoError(e.t, err)
	require.Equal(e.t, 1, n)
}

func (e *side) post(wrs ...verbs.SendWR) {
	e.t.Helper()
	n, err := e.qp.PostSend(wrs)
	require.NoError(e.t, err)
	require.Equal(e.t, len(wrs), n)
}

// sendWR, writeWR and readWR are signaled work requests; the latter two name the peer's memory.
func sendWR(id uint64, sgl []verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.Signaled, SGL: sgl}
}

func (e *side) writeWR(id uint64, sgl []verbs.SGE, peer *side, at int) verbs.SendWR {
	return verbs.SendWR{
		ID: id, Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: sgl,
		RemoteAddr: peer.mr.Addr() + uint64(at), RKey: peer.mr.RKey(),
	}
}

// at has a work request name another memory of the peer.
func at(wr verbs.SendWR, mr verbs.MR, off int) verbs.SendWR {
	wr.RemoteAddr, wr.RKey = mr.Addr()+uint64(off), mr.RKey()
	return wr
}

func (e *side) readWR(id uint64, sgl []verbs.SGE, peer *side, at int) verbs.SendWR {
	wr := e.writeWR(id, sgl, peer, at)
	wr.Opcode = verbs.OpRDMARead
	return wr
}

// poll moves completions from the device to the side.
func (e *side) poll() error {
	var wc [8]verbs.Completion
	for {
		n, err := e.sendCQ.Poll(wc[:])
		if err != nil {
			return err
		}
		e.sends = append(e.sends, wc[:n]...)
		m, err := e.recvCQ.Poll(wc[:])
		if err != nil {
			return err
		}
		e.recvs = append(e.recvs, wc[:m]...)
		if n+m == 0 {
			return nil
		}
	}
}

var errNoCompletion = errors.New("no completion came")

// await waits until there is something in from, one of the side's lists.
func (e *side) await(from *[]verbs.Completion, spin time.Duration) (verbs.Completion, error) {
	expired := make(chan struct{})
	timer := time.AfterFunc(e.patience, func() { close(expired); e.ch.Interrupt() })
	defer timer.Stop()
	for {
		if err := e.poll(); err != nil {
			return verbs.Completion{}, err
		}
		if len(*from) > 0 {
			wc := (*from)[0]
			*from = (*from)[1:]
			select {
			case <-expired:
				return wc, fmt.Errorf("lost wake-up: completion %+v was there and Wait slept on", wc)
			default:
				return wc, nil
			}
		}
		select {
		case <-expired:
			return verbs.Completion{}, errNoCompletion
		default:
		}
		if err := e.ch.Wait(spin); err != nil {
			return verbs.Completion{}, err
		}
	}
}

func (e *side) nextSend() verbs.Completion {
	e.t.Helper()
	wc, err := e.await(&e.sends, 0)
	require.NoError(e.t, err)
	require.Equal(e.t, e.qp.Num(), wc.QPNum)
	return wc
}

func (e *side) nextRecv() verbs.Completion {
	e.t.Helper()
	wc, err := e.await(&e.recvs, 0)
	require.NoError(e.t, err)
	require.Equal(e.t, e.qp.Num(), wc.QPNum)
	return wc
}

// sent expects the next send completion to be a success.
func (e *side) sent(id uint64, op verbs.WCOpcode) {
	e.t.Helper()
	wc := e.nextSend()
	require.NoError(e.t, wc.Err())
	require.Equal(e.t, id, wc.ID)
	require.Equal(e.t, op, wc.Opcode)
}

// received expects the next receive completion to be a success, with n bytes.
func (e *side) received(id uint64, n int) verbs.Completion {
	e.t.Helper()
	wc := e.nextRecv()
	require.NoError(e.t, wc.Err())
	require.Equal(e.t, id, wc.ID)
	require.Equal(e.t, n, int(wc.ByteLen))
	return wc
}

// sync returns when what the peer has posted before it, too, is in this side's memory. Both need a receive slot.
func (e *side) sync(peer *side) {
	e.t.Helper()
	e.postRecv(999, e.slot(0))
	peer.post(sendWR(999, peer.sge(0, 1)))
	for peer.nextSend().ID != 999 {
	}
	e.received(999, 1)
}

// listen has the side's events collected from now on; earlier ones wait for it.
func (e *side) listen() { e.id.Notify(func(ev cm.Event) { e.events <- ev }) }

// disconnected waits for the event that ends the connection.
func (e *side) disconnected() {
	e.t.Helper()
	e.listen()
	ctx, cancel := context.WithTimeout(e.t.Context(), e.patience)
	defer cancel()
	select {
	case ev := <-e.events:
		require.True(e.t, ev.Ends(), "event %v", ev)
	case <-ctx.Done():
		require.Fail(e.t, "no event told of the end of the connection")
	}
}

func (e *side) iwarp() bool { return e.dev.Attr().Transport == verbs.TransportIWARP }

// fill writes a pattern that no shift maps onto itself.
func fill(b []byte, seed byte) {
	x := uint32(seed) + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
}

func filled(n int, seed byte) []byte {
	b := make([]byte, n)
	fill(b, seed)
	return b
}

// has reports whether memory holds the pattern.
func has(b []byte, seed byte) bool { return slices.Equal(b, filled(len(b), seed)) }
