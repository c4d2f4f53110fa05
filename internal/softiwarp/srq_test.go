package softiwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// newPool makes what the accepting ends of several connections share: memory, a CQ with its channel, and an SRQ of z.wr entries, of
// which the first posted are posted.
func newPool(t testing.TB, d verbs.Device, z pairSize, posted int) *end {
	t.Helper()
	z = z.populate()
	e := new(end)
	e.make(t, d, z)
	var err error
	e.srq, err = e.pd.CreateSRQ(verbs.SRQOptions{MaxWR: z.wr})
	require.NoError(t, err)
	t.Cleanup(func() { e.close(t) })
	for i := range posted {
		e.postRecv(t, i)
	}
	return e
}

// watch collects the device's events.
func watch(t testing.TB, d verbs.Device) chan verbs.AsyncEvent {
	events := make(chan verbs.AsyncEvent, 64)
	t.Cleanup(d.Watch(func(e verbs.AsyncEvent) { events <- e }))
	return events
}

func nextEvent(t testing.TB, events chan verbs.AsyncEvent) verbs.AsyncEvent {
	t.Helper()
	select {
	case e := <-events:
		return e
	case <-time.After(patience):
		t.Fatal("no event")
		panic("unreachable")
	}
}

// taken polls the pool's next receive and returns its number and payload. It does not post it again.
func (e *end) taken(t testing.TB) (wc verbs.Completion, payload []byte) {
	t.Helper()
	wc = e.next(t, true)
	at := e.slot(int(wc.ID &^ recvBit))
	return wc, e.mr.Bytes()[at:][:wc.ByteLen]
}

func (e *end) left() int {
	s := e.srq.(*srq)
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.queue.tail - s.queue.head)
}

type srqFixture struct {
	p    *provider
	ln   cm.Listener
	pool *end
}

func newSRQFixture(t testing.TB, cfg Config, z pairSize, posted int) *srqFixture {
	t.Helper()
	cfg.Logger = quiet
	p := New(cfg).(*provider)
	t.Cleanup(func() { eventually(t, "nothing is left open", func() bool { return p.dev.leaks() == nil }) })
	f := &srqFixture{p: p, ln: listen(t, p, cm.ListenOptions{})}
	f.pool = newPool(t, p.dev, z, posted)
	return f
}

// connect makes a connection whose accepting end belongs to the pool.
func (f *srqFixture) connect(t testing.TB) (dialed, accepted *end) {
	t.Helper()
	return connectEnds(t, f.p, f.ln, pairSize{inline: 64}, pairSize{pool: f.pool})
}

// victim is connect with a peer that sends whatever a test wants.
func (f *srqFixture) victim(t testing.TB) (*rawPeer, *end) {
	t.Helper()
	peer, v := victim(t, f.ln, enhanced(0), param(), pairSize{pool: f.pool})
	peer.t = t
	peer.write(peer.fpdu(tagged(opWrite, 1, 0), nil))
	return peer, v
}

// begin sends the first part of a SEND.
func (p *rawPeer) begin(msn uint32, payload string) {
	h := untagged(opSend, qnSend, msn)
	h.last = false
	p.write(p.fpdu(h, []byte(payload)))
}

func (p *rawPeer) finish(msn uint32, offset int, payload string) {
	h := untagged(opSend, qnSend, msn)
	h.mo = uint32(offset)
	p.write(p.fpdu(h, []byte(payload)))
}

// TestSRQShared has three connections take from one SRQ, entry by entry in the order of posting, with every kind of message that
// needs one.
func TestSRQShared(t *testing.T) {
	for _, cfg := range []Config{{}, {CRC: true}, {MaxFPDU: minFPDU}} {
		f := newSRQFixture(t, cfg, pairSize{}, 64)
		var xs, ys []*end
		for range 3 {
			x, y := f.connect(t)
			xs, ys = append(xs, x), append(ys, y)
		}
		for i := range 60 {
			x, y := xs[i*i%3], ys[i*i%3]
			payload := bytes.Repeat([]byte{byte(i)}, i)
			wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, Inline: payload}
			switch i % 3 {
			case 1:
				wr.Opcode, wr.Imm = verbs.OpSendWithImm, uint32(i)
			case 2:
				wr = verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.Signaled, Imm: uint32(i)}
			}
			x.post(t, wr)
			wc, got := f.pool.taken(t)
			require.NoError(t, wc.Err())
			require.Equal(t, recvBit|uint64(i), wc.ID)
			require.Equal(t, y.qp.Num(), wc.QPNum)
			if i%3 < 2 {
				require.Equal(t, payload, got)
			}
			if i%3 > 0 {
				require.EqualValues(t, i, wc.Imm)
			}
			x.reap(t)
		}
		require.Equal(t, 4, f.pool.left())
		require.Equal(t, verbs.QPCap{MaxSendWR: 64, MaxSendSGE: 4}, ys[0].qp.Cap())
		n, err := ys[0].qp.PostRecv(make([]verbs.RecvWR, 1))
		require.Zero(t, n)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
}

// TestSRQEmpty has a peer send when the SRQ is empty: its connection ends as with an empty receive queue, the others live, and use
// what is posted then.
func TestSRQEmpty(t *testing.T) {
	for name, op := range map[string]uint8{"send": opSend, "immediate": opImmediate} {
		t.Run(name, func(t *testing.T) {
			f := newSRQFixture(t, Config{}, pairSize{}, 1)
			x, y := f.connect(t)
			peer, v := f.victim(t)
			events := watch(t, f.p.dev)
			message := func(msn uint32) []byte { return peer.fpdu(untagged(op, qnSend, msn), make([]byte, immediateSize)) }
			peer.write(append(message(1), message(2)...))
			peer.terminated(&faultNoBuffer)
			v.disconnected(t)
			wc, _ := f.pool.taken(t)
			require.NoError(t, wc.Err())
			require.Equal(t, v.qp.Num(), wc.QPNum)
			require.Equal(t, verbs.AsyncEvent{Type: verbs.EventQPReqErr, QPNum: v.qp.Num()}, nextEvent(t, events))
			require.Equal(t, verbs.AsyncEvent{Type: verbs.EventQPLastWQEReached, QPNum: v.qp.Num()}, nextEvent(t, events))

			f.pool.postRecv(t, 1)
			x.post(t, verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("abc")})
			wc, got := f.pool.taken(t)
			require.Equal(t, y.qp.Num(), wc.QPNum)
			require.Equal(t, "abc", string(got))
		})
	}
}

// TestSRQInterleaved has two peers send their messages in parts by turns: each keeps the entry that it began.
func TestSRQInterleaved(t *testing.T) {
	f := newSRQFixture(t, Config{}, pairSize{}, 3)
	p1, v1 := f.victim(t)
	p2, v2 := f.victim(t)
	p1.begin(1, "one")
	eventually(t, "the first has begun", func() bool { return f.pool.left() == 2 })
	p2.begin(1, "two")
	eventually(t, "the second has begun", func() bool { return f.pool.left() == 1 })
	p2.finish(1, 3, " and more")
	wc, got := f.pool.taken(t)
	require.Equal(t, recvBit|uint64(1), wc.ID)
	require.Equal(t, v2.qp.Num(), wc.QPNum)
	require.Equal(t, "two and more", string(got))
	p1.finish(1, 3, " only")
	wc, got = f.pool.taken(t)
	require.Equal(t, recvBit|uint64(0), wc.ID)
	require.Equal(t, v1.qp.Num(), wc.QPNum)
	require.Equal(t, "one only", string(got))
	require.Equal(t, 1, f.pool.left())
}

// TestSRQDiesWithinSend ends a connection while it holds an entry, in several ways: that entry alone is flushed, and then comes the event
// that the QP takes no more; what is left serves the others.
func TestSRQDiesWithinSend(t *testing.T) {
	for name, die := range map[string]func(*testing.T, *rawPeer, *end){
		"peer closes": func(t *testing.T, p *rawPeer, _ *end) { require.NoError(t, p.conn.Close()) },
		"peer resets": func(t *testing.T, p *rawPeer, _ *end) {
			require.NoError(t, p.conn.(*net.TCPConn).SetLinger(0))
			require.NoError(t, p.conn.Close())
		},
		"peer is wrong": func(t *testing.T, p *rawPeer, _ *end) { p.finish(1, 77, "x") },
		"disconnect":    func(t *testing.T, _ *rawPeer, v *end) { require.NoError(t, v.id.Disconnect()) },
		"modify": func(t *testing.T, _ *rawPeer, v *end) {
			require.NoError(t, v.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newSRQFixture(t, Config{}, pairSize{}, 2)
			x, y := f.connect(t)
			peer, v := f.victim(t)
			events := watch(t, f.p.dev)
			peer.begin(1, "begun")
			eventually(t, "it has begun", func() bool { return f.pool.left() == 1 })
			die(t, peer, v)
			v.disconnected(t)
			wc, _ := f.pool.taken(t)
			require.Equal(t, verbs.Completion{ID: recvBit, Status: verbs.StatusWRFlushErr, QPNum: v.qp.Num()}, wc)
			for nextEvent(t, events) != (verbs.AsyncEvent{Type: verbs.EventQPLastWQEReached, QPNum: v.qp.Num()}) {
			}

			x.post(t, verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("next")})
			wc, got := f.pool.taken(t)
			require.Equal(t, recvBit|uint64(1), wc.ID)
			require.Equal(t, y.qp.Num(), wc.QPNum)
			require.Equal(t, "next", string(got))
			require.Empty(t, events)
		})
	}
}

// TestSRQQPCloses closes a QP that holds an entry: no completion is left of it, nor an event, and the queue has room for as many as
// before.
func TestSRQQPCloses(t *testing.T) {
	f := newSRQFixture(t, Config{}, pairSize{wr: 4}, 4)
	events := watch(t, f.p.dev)
	peer, v := f.victim(t)
	peer.finish(1, 0, "whole")
	peer.begin(2, "begun")
	eventually(t, "the second has begun", func() bool { return f.pool.left() == 2 })
	require.NoError(t, v.qp.Close())
	n, err := f.pool.cq.Poll(make([]verbs.Completion, 4))
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = f.pool.srq.PostRecv(make([]verbs.RecvWR, 3))
	require.Equal(t, 2, n)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	_, v = f.victim(t)
	require.NoError(t, v.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState))
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventQPLastWQEReached, QPNum: v.qp.Num()}, nextEvent(t, events), "of the next")
}

// TestSRQRoom counts the entries that are free: it is the poll of a completion that frees one, whatever way it ended.
func TestSRQRoom(t *testing.T) {
	f := newSRQFixture(t, Config{}, pairSize{wr: 8}, 8)
	free := func(want int) {
		t.Helper()
		require.EqualValues(t, 8-want, f.pool.srq.(*srq).used.Load())
		if want == 0 {
			n, err := f.pool.srq.PostRecv(make([]verbs.RecvWR, 1))
			require.Zero(t, n)
			require.ErrorIs(t, err, verbs.ErrQueueFull)
		}
	}
	free(0)
	peer, v := f.victim(t)
	peer.finish(1, 0, "whole")
	f.pool.there(t, 1)
	peer.begin(2, "begun")
	eventually(t, "the second has begun", func() bool { return f.pool.left() == 6 })
	free(0)
	f.pool.next(t, true)
	free(1)
	require.NoError(t, v.id.Disconnect())
	f.pool.next(t, true)
	free(2)

	// A CQ that is too small, and breaks.
	small, err := f.p.dev.CreateCQ(verbs.CQOptions{Depth: 1})
	require.NoError(t, err)
	pool := *f.pool
	pool.cq = small
	peer, v = victim(t, f.ln, enhanced(0), param(), pairSize{pool: &pool})
	peer.t = t
	peer.finish(1, 0, "one")
	peer.finish(2, 0, "two")
	v.disconnected(t)
	free(3)
	n, err := small.Poll(make([]verbs.Completion, 2))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	free(4)
	require.NoError(t, v.qp.Close())
	require.NoError(t, small.Close())

	_, err = f.pool.srq.PostRecv(make([]verbs.RecvWR, 4))
	require.NoError(t, err)
	free(0)
}

// TestSRQErrorState has a message come by a QP in the error state: it takes no entry.
func TestSRQErrorState(t *testing.T) {
	f := newSRQFixture(t, Config{}, pairSize{}, 2)
	_, v := f.victim(t)
	require.NoError(t, v.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState))
	require.Equal(t, &faultNoBuffer, v.qp.(*qp).beginReceive(opSend))
	require.Equal(t, 2, f.pool.left())
}

// TestSRQUnconnected moves a QP that was never connected to the error state.
func TestSRQUnconnected(t *testing.T) {
	f := newSRQFixture(t, Config{}, pairSize{}, 2)
	events := watch(t, f.p.dev)
	v := newEnd(t, f.p.dev.newID(loopback(1), loopback(2)), pairSize{pool: f.pool})
	require.NoError(t, v.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState))
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventQPLastWQEReached, QPNum: v.qp.Num()}, nextEvent(t, events))
	require.Equal(t, 2, f.pool.left())
}

// TestSRQObjects has the rules of making and closing.
func TestSRQObjects(t *testing.T) {
	p := New(Config{Logger: quiet}).(*provider)
	d := p.dev
	pd, err := d.AllocPD()
	require.NoError(t, err)
	for _, o := range []verbs.SRQOptions{{}, {MaxWR: -1}, {MaxWR: 1, MaxSGE: -1}} {
		_, err = pd.CreateSRQ(o)
		require.ErrorIs(t, err, syscall.EINVAL, "%+v", o)
	}
	var limit *verbs.LimitError
	for _, o := range []verbs.SRQOptions{{MaxWR: d.attr.MaxSRQWR + 1}, {MaxWR: 1, MaxSGE: d.attr.MaxSRQSGE + 1}} {
		_, err = pd.CreateSRQ(o)
		require.ErrorAs(t, err, &limit, "%+v", o)
	}
	s, err := pd.CreateSRQ(verbs.SRQOptions{MaxWR: 3, MaxSGE: 2})
	require.NoError(t, err)
	attr, err := s.Query()
	require.NoError(t, err)
	require.Equal(t, verbs.SRQAttr{MaxWR: 3, MaxSGE: 2}, attr)
	n, err := s.PostRecv([]verbs.RecvWR{{}, {SGL: make([]verbs.SGE, 3)}})
	require.Equal(t, 1, n)
	require.ErrorAs(t, err, &limit)
	require.ErrorIs(t, s.SetLimit(-1), syscall.EINVAL)
	require.ErrorAs(t, s.SetLimit(4), &limit)
	require.ErrorIs(t, pd.Close(), verbs.ErrBusy)
	require.ErrorContains(t, d.leaks(), "open")

	cq, err := d.CreateCQ(verbs.CQOptions{Depth: 4})
	require.NoError(t, err)
	id := d.newID(loopback(1), loopback(2))
	create := func(pd verbs.PD, s verbs.SRQ) (verbs.QP, error) {
		return id.CreateQP(pd, verbs.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: s, Cap: verbs.QPCap{MaxRecvWR: 1 << 30, MaxRecvSGE: -1}})
	}
	otherPD, err := d.AllocPD()
	require.NoError(t, err)
	_, err = create(otherPD, s)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.NoError(t, otherPD.Close())
	_, err = create(pd, struct{ verbs.SRQ }{s})
	require.ErrorIs(t, err, verbs.ErrForeign)
	strangePD, err := New(Config{}).(*provider).dev.AllocPD()
	require.NoError(t, err)
	strange, err := strangePD.CreateSRQ(verbs.SRQOptions{MaxWR: 1})
	require.NoError(t, err)
	_, err = create(pd, strange)
	require.ErrorIs(t, err, verbs.ErrForeign)

	qp, err := create(pd, s)
	require.NoError(t, err)
	require.ErrorIs(t, s.Close(), verbs.ErrBusy)
	require.NoError(t, qp.Close())
	for range 2 {
		require.NoError(t, s.Close())
	}
	_, err = s.PostRecv(nil)
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = s.Query()
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.ErrorIs(t, s.SetLimit(1), verbs.ErrClosed)
	id2 := d.newID(loopback(1), loopback(2))
	_, err = id2.CreateQP(pd, verbs.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: s})
	require.ErrorIs(t, err, verbs.ErrClosed)

	require.NoError(t, cq.Close())
	require.NoError(t, id.Close())
	require.NoError(t, id2.Close())
	require.NoError(t, pd.Close())
	_, err = pd.CreateSRQ(verbs.SRQOptions{MaxWR: 1})
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.NoError(t, d.leaks())
}

// TestSRQManyPost has many goroutines post at once while peers send numbered messages: none is lost, none comes twice, and each
// connection's come in order.
func TestSRQManyPost(t *testing.T) {
	const clients, messages, posters = 4, 400, 8
	for _, cfg := range []Config{{}, {CRC: true}, {MaxFPDU: minFPDU}} {
		f := newSRQFixture(t, cfg, pairSize{wr: 128}, 0)
		tickets := make(chan struct{}, 1<<16) // messages that may be sent
		slots := make(chan int, 128)
		for i := range 128 {
			slots <- i
		}
		var posting sync.WaitGroup
		for range posters {
			posting.Go(func() {
				for i := range slots {
					at := f.pool.mr.Addr() + uint64(f.pool.slot(i))
					wr := verbs.RecvWR{ID: recvBit | uint64(i), SGL: []verbs.SGE{{Addr: at, Length: recvSlot, LKey: f.pool.mr.LKey()}}}
					if n, err := f.pool.srq.PostRecv([]verbs.RecvWR{wr}); n != 1 || err != nil {
						t.Error(n, err)
					}
					tickets <- struct{}{}
				}
			})
		}
		var sending sync.WaitGroup
		numbers := make(map[uint32]uint32)
		for range clients {
			x, y := f.connect(t)
			numbers[y.qp.Num()] = 0
			sending.Go(func() {
				var b [8]byte
				for i := range uint32(messages) {
					<-tickets
					binary.BigEndian.PutUint32(b[:], y.qp.Num())
					binary.BigEndian.PutUint32(b[4:], i)
					x.post(t, verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, Inline: b[:]})
					x.reap(t)
				}
			})
		}
		for range clients * messages {
			wc, got := f.pool.taken(t)
			require.NoError(t, wc.Err())
			require.Equal(t, wc.QPNum, binary.BigEndian.Uint32(got))
			require.Equal(t, numbers[wc.QPNum], binary.BigEndian.Uint32(got[4:]))
			numbers[wc.QPNum]++
			slots <- int(wc.ID &^ recvBit)
		}
		sending.Wait()
		close(slots)
		posting.Wait()
		require.Equal(t, 128, f.pool.left())
	}
}

// TestSRQClosesUnderPosters closes the queue while others post to it and ask it.
func TestSRQClosesUnderPosters(t *testing.T) {
	for range 50 {
		p := New(Config{Logger: quiet}).(*provider)
		e := new(end)
		e.make(t, p.dev, pairSize{}.populate())
		s, err := e.pd.CreateSRQ(verbs.SRQOptions{MaxWR: 1 << 12})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				wrs := []verbs.RecvWR{{SGL: []verbs.SGE{{Addr: e.mr.Addr(), Length: 8, LKey: e.mr.LKey()}}}}
				for {
					n, err := s.PostRecv(wrs)
					if errors.Is(err, verbs.ErrClosed) && n == 0 {
						return
					}
					if err != nil && !errors.Is(err, verbs.ErrQueueFull) {
						t.Error(err)
						return
					}
					_, _ = s.Query()
				}
			})
		}
		require.NoError(t, s.Close())
		wg.Wait()
		e.close(t)
		require.NoError(t, p.dev.leaks())
	}
}

// TestSRQBadEntry posts an entry whose memory there is not, and one that is too short: the connection that takes it ends.
func TestSRQBadEntry(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*verbs.SGE)
		want   *fault
		status verbs.Status
	}{
		"key":       {func(s *verbs.SGE) { s.LKey ^= 1 }, &faultLocal, verbs.StatusLocProtErr},
		"bounds":    {func(s *verbs.SGE) { s.Addr = ^uint64(0) }, &faultLocal, verbs.StatusLocProtErr},
		"too short": {func(s *verbs.SGE) { s.Length = 4 }, &faultTooLong, verbs.StatusLocLenErr},
	} {
		t.Run(name, func(t *testing.T) {
			f := newSRQFixture(t, Config{}, pairSize{}, 0)
			sge := verbs.SGE{Addr: f.pool.mr.Addr(), Length: 64, LKey: f.pool.mr.LKey()}
			c.change(&sge)
			_, err := f.pool.srq.PostRecv([]verbs.RecvWR{{ID: recvBit | 7, SGL: []verbs.SGE{sge}}, {ID: recvBit | 8}})
			require.NoError(t, err)
			peer, v := f.victim(t)
			peer.finish(1, 0, "hello")
			peer.terminated(c.want)
			wc := f.pool.next(t, true)
			require.Equal(t, verbs.Completion{ID: recvBit | 7, Status: c.status, QPNum: v.qp.Num()}, wc)
			require.Equal(t, 1, f.pool.left())
			require.True(t, bytes.Equal(f.pool.mr.Bytes(), make([]byte, len(f.pool.mr.Bytes()))))
		})
	}
}

// TestSRQMemoryCloses closes the region of an entry that is being filled.
func TestSRQMemoryCloses(t *testing.T) {
	f := newSRQFixture(t, Config{}, pairSize{}, 0)
	m, err := f.pool.pd.AllocMR(os.Getpagesize(), verbs.AccessLocalWrite)
	require.NoError(t, err)
	_, err = f.pool.srq.PostRecv([]verbs.RecvWR{{ID: recvBit, SGL: []verbs.SGE{{Addr: m.Addr(), Length: 64, LKey: m.LKey()}}}})
	require.NoError(t, err)
	peer, v := f.victim(t)
	peer.begin(1, "begun")
	eventually(t, "it has begun", func() bool { return f.pool.left() == 0 })
	require.NoError(t, m.Close())
	peer.finish(1, 5, "more")
	peer.terminated(&faultLocal)
	v.disconnected(t)
	require.Equal(t, verbs.StatusWRFlushErr, f.pool.next(t, true).Status)
}

// TestSRQAllocations receives through an SRQ without allocating.
func TestSRQAllocations(t *testing.T) {
	f := newSRQFixture(t, Config{}, pairSize{}, 64)
	x, _ := f.connect(t)
	round := func() {
		x.send(t, 64)
		f.pool.recv(t)
		x.reap(t)
	}
	for range 100 {
		round()
	}
	require.Less(t, testing.AllocsPerRun(500, round), 0.5)
}
