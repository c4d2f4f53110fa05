package verbstest

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

func (s *suite) srqCases() []testCase {
	return []testCase{
		{"SRQ", s.srq, srqs},
		{"SRQOrder", s.srqOrder, srqs},
		{"SRQMany", s.srqMany, srqs},
		{"SRQOwnQueue", s.srqOwnQueue, srqs},
		{"SRQEmpty", s.srqEmpty, srqs},
		{"SRQFull", s.srqFull, srqs},
		{"SRQLimits", s.srqLimits, srqs},
		{"SRQClose", s.srqClose, srqs},
		{"SRQForeign", s.srqForeign, srqs},
		{"SRQLimitEvent", s.srqLimitEvent, srqs},
		{"SRQSurvives", s.srqSurvives, srqs},
		{"SRQBadEntry", s.srqBadEntry, srqs},
		{"SRQWriteImm", s.srqWriteImm, need(srqs).and(operations(verbs.OpRDMAWriteWithImm))},
	}
}

// pool is a shared receive queue of the accepting end, with memory: entry i has the 64 bytes at 64*i.
type pool struct {
	t   *testing.T
	dev verbs.Device
	pd  verbs.PD
	mr  verbs.MR
	srq verbs.SRQ
}

const poolSlots = 1 << 10

// pool makes one. Its cleanup comes after that of the sides that are made later.
func (s *suite) pool(t *testing.T, entries int) *pool {
	t.Helper()
	p := &pool{t: t, dev: s.peerDevice(t)}
	var err error
	p.pd, err = p.dev.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.pd.Close()) })
	p.mr, err = p.pd.AllocMR(64*poolSlots, allAccess)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.mr.Close()) })
	p.srq, err = p.pd.CreateSRQ(verbs.SRQOptions{MaxWR: entries})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.srq.Close()) })
	return p
}

func (p *pool) slot(i int) []byte { return p.mr.Bytes()[64*i : 64*i+64] }

// post posts the entries from first to last.
func (p *pool) post(first, last int) {
	p.t.Helper()
	var wrs []verbs.RecvWR
	for i := first; i <= last; i++ {
		wrs = append(wrs, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{piece(p.mr, 64*i, 64)}})
	}
	n, err := p.srq.PostRecv(wrs)
	require.NoError(p.t, err)
	require.Equal(p.t, len(wrs), n)
}

// pairs makes connections whose accepting ends share the queue.
func (s *suite) pairs(t *testing.T, p *pool, n int) (as, bs []*side) {
	t.Helper()
	for range n {
		a, b := s.pairAs(t, end{size{}, param()}, end{size{pd: p.pd, srq: p.srq}, param()})
		as, bs = append(as, a), append(bs, b)
	}
	return as, bs
}

// take sends one message of n bytes and expects that it takes an entry.
func (p *pool) take(entry int, a, b *side, n int) {
	p.t.Helper()
	fill(a.mr.Bytes()[:n], byte(entry))
	a.post(sendWR(1, a.sge(0, n)))
	wc := b.received(uint64(entry), n) // looks at QPNum
	require.Equal(p.t, verbs.WCRecv, wc.Opcode)
	require.True(p.t, has(p.slot(entry)[:n], byte(entry)))
	a.sent(1, verbs.WCSend)
}

func (s *suite) srq(t *testing.T) {
	p := s.pool(t, 16)
	as, bs := s.pairs(t, p, 3)
	p.post(0, 8)
	for i, c := range []int{0, 0, 1, 2, 1, 0, 2, 2, 1} {
		p.take(i, as[c], bs[c], i+1)
	}
	q, err := p.srq.Query()
	require.NoError(t, err)
	require.GreaterOrEqual(t, q.MaxWR, 16)
	require.GreaterOrEqual(t, q.MaxSGE, 1)
	require.Zero(t, q.Limit)
	for _, b := range bs {
		require.NoError(t, b.poll())
		require.Empty(t, b.recvs)
	}
	// The QPs have send queues of their own, as ever.
	as[0].postRecv(1, as[0].slot(0))
	bs[0].post(sendWR(1, bs[0].sge(0, 8)))
	as[0].received(1, 8)
	bs[0].sent(1, verbs.WCSend)
}

// srqOrder sends many by one connection before any completion is looked at: entries are used up in order.
func (s *suite) srqOrder(t *testing.T) {
	p := s.pool(t, 32)
	as, bs := s.pairs(t, p, 1)
	a, b := as[0], bs[0]
	p.post(0, 7)
	p.post(8, 15)
	fill(a.mr.Bytes()[:2000], 1)
	for i := range 16 {
		a.post(sendWR(uint64(i), a.sge(100*i, 2*i)))
		a.sent(uint64(i), verbs.WCSend)
	}
	for i := range 16 {
		b.received(uint64(i), 2*i)
		require.Equal(t, a.mr.Bytes()[100*i:102*i], p.slot(i)[:2*i])
	}
}

// srqMany has many connections send at the same time. Each message arrives once, in the order of its connection, in an entry that no
// other has.
func (s *suite) srqMany(t *testing.T) {
	const connections, rounds, burst = 4, 20, 8
	p := s.pool(t, connections*burst)
	as, bs := s.pairs(t, p, connections)
	p.post(0, connections*burst-1)
	for round := range rounds {
		for c, a := range as {
			for i := range burst {
				at := 64 * i
				copy(a.mr.Bytes()[at:], fmt.Sprintf("%4d%4d%4d", c, round, i))
				a.post(sendWR(uint64(i), a.sge(at, 12)))
			}
		}
		free := make(map[uint64]bool)
		for c, b := range bs {
			for i := range burst {
				wc := b.nextRecv()
				require.NoError(t, wc.Err())
				require.False(t, free[wc.ID], "an entry was used twice")
				free[wc.ID] = true
				require.Equal(t, fmt.Sprintf("%4d%4d%4d", c, round, i), string(p.slot(int(wc.ID))[:12]))
			}
		}
		require.Len(t, free, connections*burst)
		for _, a := range as {
			for i := range burst {
				a.sent(uint64(i), verbs.WCSend)
			}
		}
		for id := range free {
			p.post(int(id), int(id))
		}
	}
}

// srqOwnQueue has no use for a receive queue of the QP's own, nor for its size.
func (s *suite) srqOwnQueue(t *testing.T) {
	p := s.pool(t, 4)
	as, bs := s.pairs(t, p, 1)
	n, err := bs[0].qp.PostRecv([]verbs.RecvWR{{SGL: bs[0].slot(0)}})
	require.Zero(t, n)
	require.ErrorIs(t, err, syscall.EINVAL)
	p.post(0, 0)
	p.take(0, as[0], bs[0], 8)

	id := s.resolve(t, netip.AddrPortFrom(s.Addr, 7471))
	e := s.equipped(t, id.Device(), size{}.orDefaults())
	srq, err := e.pd.CreateSRQ(verbs.SRQOptions{MaxWR: 4})
	require.NoError(t, err)
	attr := e.dev.Attr()
	qp, err := id.CreateQP(e.pd, e.options(size{sendWR: 4, sendSGE: 1, recvWR: attr.MaxQPWR + 1, recvSGE: attr.MaxSGE + 1, srq: srq}))
	require.NoError(t, err)
	require.NoError(t, qp.Close())
	require.NoError(t, srq.Close())
}

// srqEmpty sends when there is no entry: on InfiniBand it waits for one, on iWARP the connection ends, that one alone.
func (s *suite) srqEmpty(t *testing.T) {
	p := s.pool(t, 4)
	as, bs := s.pairs(t, p, 2)
	fill(as[0].mr.Bytes()[:8], 1)
	as[0].post(sendWR(1, as[0].sge(0, 8)))
	if as[0].dev.Attr().Caps.RNR {
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, as[0].poll())
		require.Empty(t, as[0].sends)
		p.post(0, 0)
		bs[0].received(0, 8)
		as[0].sent(1, verbs.WCSend)
		require.True(t, has(p.slot(0)[:8], 1))
	} else {
		as[0].disconnected()
		bs[0].disconnected()
	}
	p.post(1, 1)
	p.take(1, as[1], bs[1], 8)
}

// srqFull posts more than fits, and goes on after a completion.
func (s *suite) srqFull(t *testing.T) {
	p := s.pool(t, 8)
	as, bs := s.pairs(t, p, 1)
	q, err := p.srq.Query()
	require.NoError(t, err)
	var wrs []verbs.RecvWR
	for i := range 4*q.MaxWR + 32 {
		wrs = append(wrs, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{piece(p.mr, 0, 64)}})
	}
	took, err := p.srq.PostRecv(wrs)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.GreaterOrEqual(t, took, q.MaxWR)
	require.Less(t, took, len(wrs))
	n, err := p.srq.PostRecv(wrs[took:])
	require.Zero(t, n)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	for i := range took {
		as[0].post(sendWR(1, as[0].sge(0, 8)))
		bs[0].received(uint64(i), 8)
		as[0].sent(1, verbs.WCSend)
		if i == 2 {
			n, err = p.srq.PostRecv(wrs[took : took+1])
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}
	}
	as[0].post(sendWR(1, as[0].sge(0, 8)))
	bs[0].received(uint64(took), 8)
	n, err = p.srq.PostRecv(nil)
	require.NoError(t, err)
	require.Zero(t, n)
}

func (s *suite) srqLimits(t *testing.T) {
	p := s.pool(t, 4)
	attr := p.dev.Attr()
	require.Positive(t, attr.MaxSRQWR)
	require.Positive(t, attr.MaxSRQSGE)
	for _, c := range []struct {
		o   verbs.SRQOptions
		max int
	}{
		{verbs.SRQOptions{MaxWR: attr.MaxSRQWR + 1}, attr.MaxSRQWR},
		{verbs.SRQOptions{MaxWR: 4, MaxSGE: attr.MaxSRQSGE + 1}, attr.MaxSRQSGE},
	} {
		_, err := p.pd.CreateSRQ(c.o)
		limit, ok := errors.AsType[*verbs.LimitError](err)
		require.True(t, ok, "%+v: %v", c.o, err)
		require.EqualValues(t, c.max, limit.Max)
		require.EqualValues(t, c.max+1, limit.Got)
		require.NotEmpty(t, limit.What)
	}
	for _, o := range []verbs.SRQOptions{{}, {MaxWR: -1}, {MaxWR: 1, MaxSGE: -1}} {
		_, err := p.pd.CreateSRQ(o)
		require.ErrorIs(t, err, syscall.EINVAL, "%+v", o)
	}

	pieces := min(attr.MaxSRQSGE, 3)
	srq, err := p.pd.CreateSRQ(verbs.SRQOptions{MaxWR: 1, MaxSGE: pieces})
	require.NoError(t, err)
	q, err := srq.Query()
	require.NoError(t, err)
	require.GreaterOrEqual(t, q.MaxWR, 1)
	require.GreaterOrEqual(t, q.MaxSGE, pieces)
	sgl := make([]verbs.SGE, q.MaxSGE+1)
	for i := range sgl {
		sgl[i] = piece(p.mr, i, 1)
	}
	n, err := srq.PostRecv([]verbs.RecvWR{{SGL: sgl}})
	require.Zero(t, n)
	_, ok := errors.AsType[*verbs.LimitError](err)
	require.True(t, ok, "%v", err)
	n, err = srq.PostRecv([]verbs.RecvWR{{SGL: sgl[:q.MaxSGE]}})
	require.NoError(t, err)
	require.Equal(t, 1, n)

	_, ok = errors.AsType[*verbs.LimitError](srq.SetLimit(q.MaxWR + 1))
	require.True(t, ok)
	require.ErrorIs(t, srq.SetLimit(-1), syscall.EINVAL)
	require.NoError(t, srq.Close()) // what is left in it is gone
}

func (s *suite) srqClose(t *testing.T) {
	p := s.pool(t, 4)
	_, bs := s.pairs(t, p, 1)
	require.ErrorIs(t, p.srq.Close(), verbs.ErrBusy)
	p.post(0, 0) // nothing has changed by that
	bs[0].close()

	extra, err := p.pd.CreateSRQ(verbs.SRQOptions{MaxWR: 4})
	require.NoError(t, err)
	require.NoError(t, p.srq.Close())
	require.NoError(t, p.mr.Close())
	require.ErrorIs(t, p.pd.Close(), verbs.ErrBusy)
	require.NoError(t, extra.Close())
	require.NoError(t, extra.Close())

	n, err := extra.PostRecv([]verbs.RecvWR{{}})
	require.Zero(t, n)
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = extra.Query()
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.ErrorIs(t, extra.SetLimit(1), verbs.ErrClosed)
	e := s.side(t, s.resolve(t, netip.AddrPortFrom(s.Addr, 7471)), size{})
	other, err := e.pd.CreateSRQ(verbs.SRQOptions{MaxWR: 4})
	require.NoError(t, err)
	require.NoError(t, other.Close())
	_, err = s.resolve(t, netip.AddrPortFrom(s.Addr, 7471)).CreateQP(e.pd, e.options(size{sendWR: 4, sendSGE: 1, srq: other}))
	require.ErrorIs(t, err, verbs.ErrClosed)

	require.NoError(t, p.pd.Close())
	_, err = p.pd.CreateSRQ(verbs.SRQOptions{MaxWR: 4})
	require.ErrorIs(t, err, verbs.ErrClosed)
}

type otherSRQ struct{ verbs.SRQ }

func (s *suite) srqForeign(t *testing.T) {
	id := s.resolve(t, netip.AddrPortFrom(s.Addr, 7471))
	e := s.equipped(t, id.Device(), size{}.orDefaults())
	srq, err := e.pd.CreateSRQ(verbs.SRQOptions{MaxWR: 4})
	require.NoError(t, err)
	defer func() { require.NoError(t, srq.Close()) }()
	_, err = id.CreateQP(e.pd, e.options(size{sendWR: 4, sendSGE: 1, srq: otherSRQ{srq}}))
	require.ErrorIs(t, err, verbs.ErrForeign)

	pd, err := e.dev.AllocPD()
	require.NoError(t, err)
	defer func() { require.NoError(t, pd.Close()) }()
	_, err = id.CreateQP(pd, e.options(size{sendWR: 4, sendSGE: 1, srq: srq}))
	require.ErrorIs(t, err, syscall.EINVAL, "an SRQ of another PD")
}

func (s *suite) srqLimitEvent(t *testing.T) {
	p := s.pool(t, 32)
	w := s.watcher(t, p.dev)
	reached := func(n int) {
		t.Helper()
		s.come(t, w, n, verbs.EventSRQLimitReached, aboutSRQ(p.srq))
	}
	armed := func(n int) {
		t.Helper()
		q, err := p.srq.Query()
		require.NoError(t, err)
		require.Equal(t, n, q.Limit)
	}
	as, bs := s.pairs(t, p, 1)
	a, b := as[0], bs[0]
	p.post(0, 7)
	require.NoError(t, p.srq.SetLimit(6))
	armed(6)
	p.take(0, a, b, 8)
	p.take(1, a, b, 8)
	reached(0) // 6 are left
	p.take(2, a, b, 8)
	reached(1)
	if !s.SRQLimitStays {
		armed(0)
	}
	p.take(3, a, b, 8)
	p.take(4, a, b, 8)
	reached(1) // once

	require.NoError(t, p.srq.SetLimit(3))
	reached(1) // 3 are left
	p.take(5, a, b, 8)
	reached(2)

	p.post(8, 9)
	require.NoError(t, p.srq.SetLimit(3))
	require.NoError(t, p.srq.SetLimit(0))
	armed(0)
	p.take(6, a, b, 8)
	p.take(7, a, b, 8)
	reached(2) // disarmed

	// At once, when there are fewer.
	require.NoError(t, p.srq.SetLimit(3))
	if s.SRQLimitLate {
		p.take(8, a, b, 8)
	}
	reached(3)
}

// srqSurvives has one of two QPs die: the entries stay for the other.
func (s *suite) srqSurvives(t *testing.T) {
	p := s.pool(t, 16)
	w := s.watcher(t, p.dev)
	as, bs := s.pairs(t, p, 2)
	p.post(0, 7)
	p.take(0, as[0], bs[0], 8)
	p.take(1, as[1], bs[1], 8)
	require.NoError(t, bs[0].qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState))
	for i := 2; i < 4; i++ {
		p.take(i, as[1], bs[1], 8)
	}
	require.NoError(t, bs[0].poll())
	require.Empty(t, bs[0].recvs, "entries are not a QP's")
	as[0].close()
	bs[0].close()
	for i := 4; i < 8; i++ {
		p.take(i, as[1], bs[1], 8)
	}
	for _, e := range w.of(verbs.EventQPLastWQEReached, func(verbs.AsyncEvent) bool { return true }) {
		require.Equal(t, bs[0].qp.Num(), e.QPNum)
	}
}

// srqBadEntry has a message take an entry that is too short, or names memory that it may not: that connection ends, others go on.
func (s *suite) srqBadEntry(t *testing.T) {
	for name, sge := range map[string]func(p *pool) verbs.SGE{
		"too short": func(p *pool) verbs.SGE { return piece(p.mr, 0, 4) },
		"wrong key": func(p *pool) verbs.SGE {
			sge := piece(p.mr, 0, 64)
			sge.LKey ^= 0x5a5a00
			return sge
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := s.pool(t, 16)
			as, bs := s.pairs(t, p, 2)
			n, err := p.srq.PostRecv([]verbs.RecvWR{{ID: 50, SGL: []verbs.SGE{sge(p)}}})
			if err != nil {
				require.Zero(t, n)
				return
			}
			p.post(1, 2)
			a, b := as[0], bs[0]
			a.post(sendWR(1, a.sge(0, 64)))
			wc := b.nextRecv()
			require.NotEqual(t, verbs.StatusSuccess, wc.Status)
			require.EqualValues(t, 50, wc.ID)
			if a.iwarp() {
				a.disconnected()
			} else {
				require.NotEqual(t, verbs.StatusSuccess, a.nextSend().Status)
			}
			require.Equal(t, make([]byte, 60), p.slot(0)[4:])
			p.take(1, as[1], bs[1], 8)
			p.take(2, as[1], bs[1], 8)
		})
	}
}

// srqWriteImm uses up an entry, whose memory stays as it is.
func (s *suite) srqWriteImm(t *testing.T) {
	p := s.pool(t, 16)
	as, bs := s.pairs(t, p, 2)
	p.post(0, 2)
	for i := range 2 {
		a, b := as[i], bs[i]
		fill(a.mr.Bytes()[:100], 1)
		a.post(a.writeImmWR(1, a.sge(0, 100), b, 500, uint32(i)))
		wc := b.received(uint64(i), 100)
		require.Equal(t, verbs.WCRecvRDMAWithImm, wc.Opcode)
		require.EqualValues(t, i, wc.Imm)
		require.True(t, has(b.mr.Bytes()[500:600], 1))
		require.Equal(t, make([]byte, 64), p.slot(i))
		a.sent(1, verbs.WCRDMAWrite)
	}
	p.take(2, as[0], bs[0], 8)
}
