package verbstest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// station is a device with what QPs that are connected by hand need. There is one memory region of 4 pages.
type station struct {
	t      *testing.T
	host   *Host
	dev    *Device
	pd     verbs.PD
	mr     verbs.MR
	ch     verbs.CompletionChannel
	cq     verbs.CQ
	qp     verbs.QP // the first that was made
	async  chan verbs.AsyncEvent
	closes []func() error
}

// atHand runs a test in virtual time with two hosts. It checks at the end that nothing is left.
func atHand(t *testing.T, dc DeviceConfig, f func(t *testing.T, fab *Fabric, a, b *station)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fab := NewFabric(Config{Latency: latency, Device: dc})
		t.Cleanup(func() { CheckLeaks(t, fab); fab.Close() })
		f(t, fab, newStation(t, fab.Host("a", "10.0.0.1")), newStation(t, fab.Host("b", "10.0.0.2")))
	})
}

func newStation(t *testing.T, h *Host) *station {
	t.Helper()
	e := &station{t: t, host: h, dev: h.Device(0), async: make(chan verbs.AsyncEvent, 64)}
	t.Cleanup(e.close)
	stop := e.dev.Watch(func(ev verbs.AsyncEvent) { e.async <- ev })
	e.later(func() error { stop(); return nil })
	var err error
	e.pd, err = e.dev.AllocPD()
	require.NoError(t, err)
	e.later(e.pd.Close)
	e.mr, err = e.pd.AllocMR(4*pageSize, allAccess|verbs.AccessRemoteAtomic)
	require.NoError(t, err)
	e.later(e.mr.Close)
	e.ch, err = e.dev.CreateCompletionChannel()
	require.NoError(t, err)
	e.later(e.ch.Close)
	e.cq, err = e.dev.CreateCQ(verbs.CQOptions{Depth: 256, Channel: e.ch})
	require.NoError(t, err)
	e.later(e.cq.Close)
	return e
}

func (e *station) later(f func() error) { e.closes = append(e.closes, f) }

// close closes everything, last first.
func (e *station) close() {
	for i := len(e.closes) - 1; i >= 0; i-- {
		require.NoError(e.t, e.closes[i]())
	}
	e.closes = nil
}

// make makes a QP with 8 entries in each queue.
func (e *station) make(typ verbs.QPType, s verbs.SRQ) verbs.QP {
	e.t.Helper()
	qp, err := e.pd.CreateQP(verbs.QPOptions{
		Type: typ, SendCQ: e.cq, RecvCQ: e.cq, SRQ: s,
		Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64},
	})
	require.NoError(e.t, err)
	e.later(qp.Close)
	if e.qp == nil {
		e.qp = qp
	}
	return qp
}

func (e *station) shared(entries int) verbs.SRQ {
	e.t.Helper()
	s, err := e.pd.CreateSRQ(verbs.SRQOptions{MaxWR: entries})
	require.NoError(e.t, err)
	e.later(s.Close)
	return s
}

// by is how the tests connect: a sender that is not answered gives up after (3+1) * 67 ms.
func by() verbs.ByHand {
	return verbs.ByHand{
		PSN: 0xfffffe, QKey: 0x1234, RetryCount: 3, MaxRdAtomic: 4, MaxDestRdAtomic: 4,
		Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic,
	}
}

const unanswered = 4 * 4096 * time.Nanosecond << 14

// join connects two QPs.
func join(a, b *station, qa, qb verbs.QP, change ...func(a, b *verbs.ByHand)) {
	a.t.Helper()
	ha, hb := by(), by()
	hb.PSN = 0x77
	for _, f := range change {
		f(&ha, &hb)
	}
	require.NoError(a.t, ha.Init(qa))
	require.NoError(a.t, hb.Init(qb))
	la, err := ha.Local(a.dev, qa)
	require.NoError(a.t, err)
	lb, err := hb.Local(b.dev, qb)
	require.NoError(a.t, err)
	require.NoError(a.t, ha.Connect(qa, lb))
	require.NoError(a.t, hb.Connect(qb, la))
}

// joined is a QP of a type on each station, connected.
func joined(a, b *station, typ verbs.QPType, change ...func(a, b *verbs.ByHand)) {
	a.t.Helper()
	join(a, b, a.make(typ, nil), b.make(typ, nil), change...)
}

// handle is the way to another station.
func (e *station) handle(to *station) verbs.AH {
	e.t.Helper()
	local, err := by().Local(to.dev, to.qp)
	require.NoError(e.t, err)
	h, err := e.pd.CreateAH(by().Path(local))
	require.NoError(e.t, err)
	e.later(h.Close)
	return h
}

func (e *station) piece(off, n int) []verbs.SGE {
	return []verbs.SGE{{Addr: e.mr.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}}
}

// remote has a request name a peer's memory.
func (e *station) remote(wr verbs.SendWR, off int) verbs.SendWR {
	wr.RemoteAddr, wr.RKey = e.mr.Addr()+uint64(off), e.mr.RKey()
	return wr
}

func (e *station) post(qp verbs.QP, wrs ...verbs.SendWR) {
	e.t.Helper()
	n, err := qp.PostSend(wrs)
	require.NoError(e.t, err)
	require.Equal(e.t, len(wrs), n)
}

type receiver interface {
	PostRecv([]verbs.RecvWR) (int, error)
}

// recv posts a receive of 256 bytes at a page of its own.
func (e *station) recv(to receiver, id uint64) {
	e.t.Helper()
	_, err := to.PostRecv([]verbs.RecvWR{{ID: id, SGL: e.piece(pageSize+256*int(id), 256)}})
	require.NoError(e.t, err)
}

// next waits for a completion.
func (e *station) next() verbs.Completion {
	e.t.Helper()
	for {
		var wc [1]verbs.Completion
		n, err := e.cq.Poll(wc[:])
		require.NoError(e.t, err)
		if n > 0 {
			return wc[0]
		}
		require.NoError(e.t, e.ch.Wait(0))
	}
}

// gets expects a completion.
func (e *station) gets(id uint64, status verbs.Status) verbs.Completion {
	e.t.Helper()
	wc := e.next()
	require.Equal(e.t, status, wc.Status, "request %d", wc.ID)
	require.Equal(e.t, id, wc.ID)
	return wc
}

// quiet expects that nothing completes for a long time.
func (e *station) quiet() {
	e.t.Helper()
	time.Sleep(time.Minute)
	n, err := e.cq.Poll(make([]verbs.Completion, 1))
	require.NoError(e.t, err)
	require.Zero(e.t, n)
}

// told expects an asynchronous event of a QP.
func (e *station) told(typ verbs.AsyncEventType, qp verbs.QP) {
	e.t.Helper()
	require.Equal(e.t, verbs.AsyncEvent{Type: typ, QPNum: qp.Num()}, <-e.async)
}

// untold expects that no asynchronous event has come.
func (e *station) untold() {
	e.t.Helper()
	synctest.Wait()
	require.Empty(e.t, e.async)
}

func (e *station) moves(qp verbs.QP, to verbs.QPState) {
	e.t.Helper()
	require.NoError(e.t, qp.Modify(verbs.QPAttr{State: to}, verbs.AttrState))
}
