package verbstest

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// clients connects n QPs of a to as many of b with one SRQ.
func clients(a, b *station, n int, s verbs.SRQ, change ...func(a, b *verbs.ByHand)) (qa, qb []verbs.QP) {
	for range n {
		qa = append(qa, a.make(verbs.RC, nil))
		qb = append(qb, b.make(verbs.RC, s))
		join(a, b, qa[len(qa)-1], qb[len(qb)-1], change...)
	}
	return qa, qb
}

// Several senders find the SRQ empty. Each receive that is posted serves one of them.
func TestSRQWithWaitingSenders(t *testing.T) {
	atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
		s := b.shared(8)
		qa, qb := clients(a, b, 4, s)
		for i, qp := range qa {
			a.post(qp, sendWR(uint64(i), a.piece(i, 1+i)))
		}
		a.quiet()
		number := make(map[uint32]int)
		for i, qp := range qb {
			number[qp.Num()] = i
		}
		served := make(map[int]bool)
		for i := range 4 {
			b.recv(s, uint64(i))
			wc := b.gets(uint64(i), verbs.StatusSuccess)
			from, known := number[wc.QPNum]
			require.True(t, known)
			require.EqualValues(t, 1+from, wc.ByteLen)
			served[from] = true
			a.gets(uint64(from), verbs.StatusSuccess)
			b.quiet()
			a.quiet()
		}
		require.Len(t, served, 4)

		// Their own patience counts, and a sender that fails leaves the rest waiting.
		impatient, _ := clients(a, b, 1, s, func(a, _ *verbs.ByHand) { a.RNRRetry = 1 })
		a.post(qa[0], sendWR(10, nil))
		a.post(impatient[0], sendWR(11, nil))
		a.gets(11, verbs.StatusRNRRetryExcErr)
		b.moves(qb[0], verbs.QPError) // and a receiver that fails turns its sender away
		a.post(qa[1], sendWR(12, nil))
		a.gets(10, verbs.StatusRetryExcErr)
		a.quiet()
		b.recv(s, 5)
		b.gets(5, verbs.StatusSuccess)
		a.gets(12, verbs.StatusSuccess)
	})
}

// An entry is free when its completion was polled, or is dropped with its QP.
func TestSRQEntriesAreFreeWhenPolled(t *testing.T) {
	atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
		s := b.shared(4)
		qa, qb := clients(a, b, 2, s)
		for i := range 4 {
			b.recv(s, uint64(i))
			a.post(qa[i%2], sendWR(9, nil))
		}
		full := func() {
			t.Helper()
			_, err := s.PostRecv([]verbs.RecvWR{{}})
			require.ErrorIs(t, err, verbs.ErrQueueFull)
		}
		full()
		for range 4 {
			a.gets(9, verbs.StatusSuccess)
		}
		time.Sleep(time.Second)
		full() // all are used up, but nobody has polled
		b.gets(0, verbs.StatusSuccess)
		b.recv(s, 4)
		full()
		b.dev.DelayCompletions(0, time.Second)
		a.post(qa[1], sendWR(9, nil)) // its completion is on its way
		a.gets(9, verbs.StatusSuccess)
		require.NoError(t, qb[1].Close()) // with two that were not polled, and that one
		require.Equal(t, 2, s.(*srq).used, "that of the other QP, and the one on its way")
		time.Sleep(2 * time.Second)
		require.Equal(t, 1, s.(*srq).used)
		for i := range 3 {
			b.recv(s, uint64(i))
		}
		full()
		b.gets(2, verbs.StatusSuccess) // of the first QP
		b.recv(s, 3)
		full()
	})
}

func TestSRQLimit(t *testing.T) {
	for name, dc := range map[string]DeviceConfig{"ib": ib, "iwarp": iwarp} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fab := NewFabric(Config{Device: dc})
				t.Cleanup(func() { CheckLeaks(t, fab); fab.Close() })
				b := newStation(t, fab.Host("b", "10.0.0.2"))
				s := b.shared(4)
				told := func() {
					t.Helper()
					require.Equal(t, verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: s}, <-b.async)
				}
				limit := func(want int) {
					t.Helper()
					attr, err := s.Query()
					require.NoError(t, err)
					require.Equal(t, verbs.SRQAttr{MaxWR: 4, MaxSGE: 1, Limit: want}, attr)
				}
				require.NoError(t, s.SetLimit(1)) // at once: there is none
				told()
				limit(0)
				for i := range 4 {
					b.recv(s, uint64(i))
				}
				require.NoError(t, s.SetLimit(4))
				limit(4)
				b.untold()
				require.NoError(t, s.SetLimit(0))
				limit(0)
				require.Error(t, s.SetLimit(-1))
				var beyond *verbs.LimitError
				require.ErrorAs(t, s.SetLimit(5), &beyond)
			})
		})
	}
	atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
		s := b.shared(4)
		qa, qb := clients(a, b, 1, s)
		for i := range 4 {
			b.recv(s, uint64(i))
		}
		require.NoError(t, s.SetLimit(3))
		for i := range 4 {
			a.post(qa[0], sendWR(0, nil))
			b.gets(uint64(i), verbs.StatusSuccess)
			if i == 1 { // two are left
				require.Equal(t, verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: s}, <-b.async)
			}
			b.untold()
		}

		// The error state takes nothing of the SRQ, and says so behind the last completion.
		b.recv(s, 5)
		b.recv(s, 6)
		b.dev.DelayCompletions(0, time.Second)
		a.post(qa[0], sendWR(0, nil))
		time.Sleep(time.Millisecond)
		b.moves(qb[0], verbs.QPError)
		time.Sleep(time.Millisecond)
		b.untold()
		b.told(verbs.EventQPLastWQEReached, qb[0])
		b.gets(5, verbs.StatusSuccess)
		b.quiet()
		require.Equal(t, 1, s.(*srq).rq.len())
	})
}

// SEND with invalidate of a key that is none uses up the entry, which was written to.
func TestSRQAndARefusedInvalidate(t *testing.T) {
	dc := DeviceConfig{Attr: func(a *verbs.DeviceAttr) { a.Caps.Send |= verbs.Opcodes(verbs.OpSendWithInv) }}
	atHand(t, dc, func(t *testing.T, _ *Fabric, a, b *station) {
		s := b.shared(4)
		qa, qb := clients(a, b, 1, s)
		b.recv(s, 1)
		b.recv(s, 2)
		a.post(qa[0], verbs.SendWR{Opcode: verbs.OpSendWithInv, SGL: a.piece(0, 8), InvalidateRKey: 5})
		a.gets(0, verbs.StatusRemAccessErr)
		b.gets(1, verbs.StatusWRFlushErr)
		b.told(verbs.EventQPAccessErr, qb[0])
		b.told(verbs.EventQPLastWQEReached, qb[0])
		b.quiet()
	})
}

func TestSRQOfConnections(t *testing.T) {
	for name, dc := range map[string]DeviceConfig{"ib": ib, "iwarp": iwarp} {
		t.Run(name, func(t *testing.T) {
			virtually(t, dc, size{}, func(t *testing.T, n *network) {
				s, err := n.b.pd.CreateSRQ(verbs.SRQOptions{MaxWR: 4})
				require.NoError(t, err)
				id := n.resolve(t, n.ln.Addr())
				qp, err := n.a.pd.CreateQP(verbs.QPOptions{SendCQ: n.a.sendCQ, RecvCQ: n.a.sendCQ})
				if dc.Transport == verbs.TransportIWARP {
					var lacks *verbs.UnsupportedError
					require.ErrorAs(t, err, &lacks)
					_, err = n.a.pd.CreateAH(verbs.AHAttr{Port: 1})
					require.ErrorAs(t, err, &lacks)
				} else {
					require.NoError(t, err)
					require.NoError(t, qp.Close())
				}
				a := n.side(t, id, size{})
				done := make(chan error, 1)
				go func() { _, err := id.Connect(t.Context(), param()); done <- err }()
				req, err := n.ln.Accept(t.Context())
				require.NoError(t, err)
				shared, err := req.CreateQP(n.b.pd, verbs.QPOptions{SendCQ: n.b.sendCQ, RecvCQ: n.b.recvCQ, SRQ: s, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1 << 20}})
				require.NoError(t, err)
				require.Zero(t, shared.Cap().MaxRecvWR)
				require.NoError(t, req.Accept(t.Context(), param()))
				require.NoError(t, <-done)
				_, err = s.PostRecv([]verbs.RecvWR{{ID: 7, SGL: n.b.sge(0, 64)}, {ID: 8}})
				require.NoError(t, err)
				a.post(sendWR(1, a.sge(0, 10)))
				a.sent(1, verbs.WCSend)
				wc, err := n.b.await(&n.b.recvs, 0)
				require.NoError(t, err)
				require.Equal(t, []any{uint64(7), uint32(10), shared.Num()}, []any{wc.ID, wc.ByteLen, wc.QPNum})
				require.NoError(t, a.id.Disconnect())
				require.NoError(t, req.Disconnect())
				n.b.quiet()
				require.NoError(t, shared.Close())
				require.NoError(t, req.Close())
				require.NoError(t, s.Close())
			})
		})
	}
}

func TestSRQIsNotForOthers(t *testing.T) {
	atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
		s := a.shared(1)
		pd, err := a.dev.AllocPD()
		require.NoError(t, err)
		o := verbs.QPOptions{SendCQ: a.cq, RecvCQ: a.cq, SRQ: s}
		_, err = pd.CreateQP(o)
		require.EqualError(t, err, "ibv_create_qp: invalid argument")
		require.NoError(t, pd.Close())
		o.SendCQ, o.RecvCQ = b.cq, b.cq
		_, err = b.pd.CreateQP(o)
		require.ErrorIs(t, err, verbs.ErrForeign)
		o.SRQ = struct{ verbs.SRQ }{s}
		_, err = b.pd.CreateQP(o)
		require.ErrorIs(t, err, verbs.ErrForeign)

		closed, err := b.pd.CreateSRQ(verbs.SRQOptions{MaxWR: 1})
		require.NoError(t, err)
		require.NoError(t, closed.Close())
		require.NoError(t, closed.Close())
		o.SRQ = closed
		_, err = b.pd.CreateQP(o)
		require.ErrorIs(t, err, verbs.ErrClosed)
		_, err = closed.PostRecv(make([]verbs.RecvWR, 1))
		require.ErrorIs(t, err, verbs.ErrClosed)
		_, err = closed.Query()
		require.ErrorIs(t, err, verbs.ErrClosed)
		require.ErrorIs(t, closed.SetLimit(1), verbs.ErrClosed)

		qp := a.make(verbs.UD, s)
		require.NoError(t, by().Init(qp))
		_, err = qp.PostRecv(make([]verbs.RecvWR, 1))
		require.EqualError(t, err, "ibv_post_recv: invalid argument")
	})
	for i, o := range []verbs.SRQOptions{{}, {MaxWR: -1}, {MaxWR: 1, MaxSGE: -1}, {MaxWR: 1 << 15}, {MaxWR: 1, MaxSGE: 17}} {
		atHand(t, ib, func(t *testing.T, _ *Fabric, a, _ *station) {
			_, err := a.pd.CreateSRQ(o)
			require.Error(t, err, fmt.Sprint(i))
		})
	}
	atHand(t, DeviceConfig{Attr: func(a *verbs.DeviceAttr) { a.MaxSRQ = 0 }}, func(t *testing.T, _ *Fabric, a, _ *station) {
		_, err := a.pd.CreateSRQ(verbs.SRQOptions{MaxWR: 1})
		var lacks *verbs.UnsupportedError
		require.ErrorAs(t, err, &lacks)
	})
}
