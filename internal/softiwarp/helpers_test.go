package softiwarp

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// quiet is a logger for tests that provoke what it would tell.
var quiet = slog.New(slog.DiscardHandler)

const patience = 10 * time.Second

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// end is one end of a connection with all it needs, and 64 receives of 64 bytes posted.
type end struct {
	id cm.ID
	pd verbs.PD
	mr verbs.MR
	ch verbs.CompletionChannel
	cq verbs.CQ
	qp verbs.QP

	srq verbs.SRQ // of the pool it belongs to
	own bool      // all but id and qp are its own

	events   chan cm.Event
	got      []verbs.Completion
	wcs      [16]verbs.Completion
	sgl      [1]verbs.SGE
	wrs      [1]verbs.SendWR
	recvs    [1]verbs.RecvWR
	inFlight int
}

const (
	recvSlot = 64
	recvBit  = 1 << 63
)

type pairSize struct {
	memory int
	wr     int
	inline int

	pool      *end         // share all but id and qp with it
	goMemory  bool         // register memory of Go's heap
	access    verbs.Access // besides allAccess
	solicited bool         // as verbs.CQOptions.SolicitedOnly
}

func (z pairSize) populate() pairSize {
	if z.wr == 0 {
		z.wr = 64
	}
	if z.memory == 0 {
		z.memory = 1 << 16
	}
	return z
}

// make makes all that an end has besides id and qp.
func (e *end) make(t testing.TB, d verbs.Device, z pairSize) {
	t.Helper()
	e.own = true
	var err error
	e.pd, err = d.AllocPD()
	require.NoError(t, err)
	if n, access := z.memory+z.wr*recvSlot, allAccess|z.access; z.goMemory {
		e.mr, err = e.pd.RegMR(make([]byte, n), access)
	} else {
		e.mr, err = e.pd.AllocMR(n, access)
	}
	require.NoError(t, err)
	e.ch, err = d.CreateCompletionChannel()
	require.NoError(t, err)
	e.cq, err = d.CreateCQ(verbs.CQOptions{Depth: 4 * z.wr, Channel: e.ch, SolicitedOnly: z.solicited})
	require.NoError(t, err)
}

func newEnd(t testing.TB, id cm.ID, z pairSize) *end {
	t.Helper()
	z = z.populate()
	e := &end{id: id, events: make(chan cm.Event, 8)}
	id.Notify(func(ev cm.Event) { e.events <- ev })
	if p := z.pool; p != nil {
		e.pd, e.mr, e.ch, e.cq, e.srq = p.pd, p.mr, p.ch, p.cq, p.srq
	} else {
		e.make(t, id.Device(), z)
	}
	var err error
	e.qp, err = id.CreateQP(e.pd, verbs.QPOptions{SendCQ: e.cq, RecvCQ: e.cq, SRQ: e.srq, Cap: verbs.QPCap{
		MaxSendWR: z.wr, MaxRecvWR: z.wr, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: z.inline,
	}})
	require.NoError(t, err)
	if e.srq == nil {
		for i := range z.wr {
			e.postRecv(t, i)
		}
	}
	t.Cleanup(func() { e.close(t) })
	return e
}

func (e *end) close(t testing.TB) {
	if e.qp != nil {
		require.NoError(t, e.qp.Close())
		require.NoError(t, e.id.Close())
	}
	if !e.own {
		return
	}
	if e.srq != nil {
		require.NoError(t, e.srq.Close())
	}
	require.NoError(t, e.cq.Close())
	require.NoError(t, e.ch.Close())
	require.NoError(t, e.mr.Close())
	require.NoError(t, e.pd.Close())
}

func (e *end) slot(i int) int { return len(e.mr.Bytes()) - recvSlot*(i+1) }

func (e *end) sge(off, n int) []verbs.SGE {
	e.sgl[0] = verbs.SGE{Addr: e.mr.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}
	return e.sgl[:]
}

func (e *end) postRecv(t testing.TB, i int) {
	e.recvs[0] = verbs.RecvWR{ID: recvBit | uint64(i), SGL: e.sge(e.slot(i), recvSlot)}
	n, err := 0, error(nil)
	if e.srq != nil {
		n, err = e.srq.PostRecv(e.recvs[:])
	} else {
		n, err = e.qp.PostRecv(e.recvs[:])
	}
	if n != 1 || err != nil {
		t.Fatal(n, err)
	}
}

func (e *end) post(t testing.TB, wr verbs.SendWR) {
	e.wrs[0] = wr
	if _, err := e.qp.PostSend(e.wrs[:]); err != nil {
		t.Fatal(err)
	}
	e.inFlight++
}

func (e *end) send(t testing.TB, n int) {
	e.post(t, verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGL: e.sge(0, n)})
}

// poll takes what has completed, after waiting for it.
func (e *end) poll(t testing.TB) {
	for {
		n, err := e.cq.Poll(e.wcs[:])
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			e.got = append(e.got, e.wcs[:n]...)
			return
		}
		if err = e.ch.Wait(0); err != nil {
			t.Fatal(err)
		}
	}
}

// next takes the next completion that is a receive's, or a send's.
func (e *end) next(t testing.TB, recv bool) verbs.Completion {
	for {
		for i, wc := range e.got {
			if (wc.ID&recvBit != 0) == recv {
				e.got = append(e.got[:i], e.got[i+1:]...)
				return wc
			}
		}
		e.poll(t)
	}
}

// recv takes a message and posts its receive again.
func (e *end) recv(t testing.TB) verbs.Completion {
	wc := e.next(t, true)
	if wc.Status != verbs.StatusSuccess {
		t.Fatal(wc.Err())
	}
	e.postRecv(t, int(wc.ID&^recvBit))
	for i := len(e.got) - 1; i >= 0; i-- { // sends are of no interest here
		if e.got[i].ID&recvBit == 0 {
			e.got = append(e.got[:i], e.got[i+1:]...)
			e.inFlight--
		}
	}
	return wc
}

// reap waits for a send's completion.
func (e *end) reap(t testing.TB) verbs.Completion {
	wc := e.next(t, false)
	e.inFlight--
	return wc
}

// disconnected waits for the connection's end.
func (e *end) disconnected(t testing.TB) {
	t.Helper()
	select {
	case ev := <-e.events:
		require.Equal(t, cm.Disconnected, ev.Type)
	case <-time.After(patience):
		t.Fatal("no event")
	}
}

func param() cm.ConnParam { return cm.ConnParam{ResponderResources: 4, InitiatorDepth: 4} }

func loopback(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
}

func listen(t testing.TB, p cm.Provider, o cm.ListenOptions) cm.Listener {
	t.Helper()
	ln, err := p.Listen(loopback(0), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	return ln
}

// newPair makes a connection within this process.
func newPair(t testing.TB, cfg Config, z pairSize) (dialed, accepted *end) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	p := New(cfg)
	ln := listen(t, p, cm.ListenOptions{})
	return connectTo(t, p, ln, z)
}

func connectTo(t testing.TB, p cm.Provider, ln cm.Listener, z pairSize) (dialed, accepted *end) {
	t.Helper()
	return connectEnds(t, p, ln, z, z)
}

func connectEnds(t testing.TB, p cm.Provider, ln cm.Listener, zDialed, zAccepted pairSize) (dialed, accepted *end) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	id, err := p.Resolve(ctx, netip.AddrPort{}, ln.Addr())
	require.NoError(t, err)
	a := newEnd(t, id, zDialed)
	done := make(chan error, 1)
	go func() {
		_, err := id.Connect(ctx, param())
		done <- err
	}()
	req, err := ln.Accept(ctx)
	require.NoError(t, err)
	b := newEnd(t, req, zAccepted)
	require.NoError(t, req.Accept(ctx, param()))
	require.NoError(t, <-done)
	return a, b
}
