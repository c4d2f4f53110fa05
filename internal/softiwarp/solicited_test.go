package softiwarp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// waiting starts a Wait.
func (e *end) waiting() chan error {
	done := make(chan error, 1)
	go func() { done <- e.ch.Wait(0) }()
	return done
}

func returns(t testing.TB, waited chan error) {
	t.Helper()
	select {
	case err := <-waited:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("Wait does not return")
	}
}

// drain polls until n completions have come, without waiting.
func (e *end) drain(t testing.TB, n int) {
	t.Helper()
	for got := 0; got < n; {
		k, err := e.cq.Poll(e.wcs[:])
		require.NoError(t, err)
		got += k
	}
	k, err := e.cq.Poll(e.wcs[:])
	require.NoError(t, err)
	require.Zero(t, k)
}

// there waits until n completions are in the CQ.
func (e *end) there(t testing.TB, n int) {
	t.Helper()
	eventually(t, "completions are there", func() bool { return int(e.cq.(*cq).ready.Load()) == n })
}

// TestSolicited sends what does not rouse a waiter, and then what does, by every operation that uses up a receive; first while the
// servant receives, later while the waiter does it himself.
func TestSolicited(t *testing.T) {
	const quiets = 6
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv, verbs.OpRDMAWriteWithImm} {
		t.Run(op.String(), func(t *testing.T) {
			x, y := connectEnds(t, p, ln, pairSize{}, pairSize{solicited: true})
			send := func(flags verbs.SendFlags) {
				wr := verbs.SendWR{Opcode: op, Flags: flags | verbs.Signaled, SGL: x.sge(0, 8), RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()}
				if op == verbs.OpSendWithInv {
					m, err := y.pd.AllocMR(8, allAccess)
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, m.Close()) })
					wr.InvalidateRKey = m.RKey()
				}
				x.post(t, wr)
				x.reap(t)
			}
			for round := range 4 {
				waited := y.waiting()
				for i := range quiets {
					send(0)
					y.there(t, i+1)
					require.Empty(t, waited)
				}
				if round > 0 {
					eventually(t, "the waiter receives", func() bool { return y.qp.(*qp).duty.holds(waiter) })
				}
				send(verbs.Solicited)
				returns(t, waited)
				y.drain(t, quiets+1)
			}
			// One that is there already.
			send(0)
			send(verbs.Solicited)
			y.there(t, 2)
			n, err := y.cq.Poll(y.wcs[:1])
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.NoError(t, y.ch.Wait(0))
			y.drain(t, 1)
		})
	}
}

// TestSolicitedOwn has what else rouses a waiter, and what does not: results of his own requests, failures, the loss of the CQ.
func TestSolicitedOwn(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	x, y := connectEnds(t, p, ln, pairSize{}, pairSize{solicited: true})
	waited := y.waiting()
	addr, key := y.remote(x, 0)
	y.post(t, verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled | verbs.Solicited})
	y.post(t, verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.Signaled | verbs.Solicited, SGL: y.sge(0, 8), RemoteAddr: addr, RKey: key})
	y.there(t, 2)
	require.Empty(t, waited)
	y.ch.Interrupt()
	returns(t, waited)

	waited = y.waiting()
	require.NoError(t, x.id.Disconnect())
	returns(t, waited)
	y.disconnected(t)
	y.drain(t, 2+64)

	c, err := p.(*provider).dev.CreateCQ(verbs.CQOptions{Depth: 1, Channel: y.ch, SolicitedOnly: true})
	require.NoError(t, err)
	q := c.(*cq)
	waited = y.waiting()
	q.push(&cqe{qp: new(qp)})
	require.Empty(t, waited)
	q.push(&cqe{qp: new(qp)})
	returns(t, waited)
	require.NoError(t, c.Close())
}

// TestSolicitedShared has the QPs of two connections on one CQ, for which nobody but the servants receives; one of them is closed with
// completions not polled.
func TestSolicitedShared(t *testing.T) {
	f := newSRQFixture(t, Config{}, pairSize{solicited: true}, 32)
	x1, y1 := f.connect(t)
	x2, _ := f.connect(t)
	waited := f.pool.waiting()
	for i := range 8 {
		x := x1
		if i%2 == 0 {
			x = x2
		}
		x.post(t, verbs.SendWR{Opcode: verbs.OpSend})
		f.pool.there(t, i+1)
		require.Empty(t, waited)
	}
	require.NoError(t, y1.qp.Close())
	f.pool.there(t, 4)
	require.Empty(t, waited)
	x2.post(t, verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Solicited})
	returns(t, waited)
	f.pool.drain(t, 5)
	q := f.pool.cq.(*cq)
	q.mu.Lock()
	defer q.mu.Unlock()
	require.Zero(t, q.quiet)
}

// TestSolicitedWire has the opcodes that carry the solicited event (RFC 5040, RFC 7306), and those of our own.
func TestSolicitedWire(t *testing.T) {
	ln := listen(t, New(Config{Logger: quiet}), cm.ListenOptions{})
	peer, v := victim(t, ln, enhanced(0), param(), pairSize{})
	peer.write(peer.fpdu(tagged(opWrite, 1, 0), nil))
	for _, c := range []struct {
		op           verbs.Opcode
		plain, event uint8
	}{{verbs.OpSend, 3, 5}, {verbs.OpSendWithInv, 4, 6}, {verbs.OpRDMAWriteWithImm, 8, 9}, {verbs.OpSendWithImm, opSendImm, opSendImmSE}} {
		for _, flags := range []verbs.SendFlags{0, verbs.Solicited} {
			v.post(t, verbs.SendWR{Opcode: c.op, Flags: flags, SGL: v.sge(0, 4)})
			h, _ := peer.read()
			if h.op == opWrite {
				h, _ = peer.read()
			}
			want := c.plain
			if flags != 0 {
				want = c.event
			}
			require.Equal(t, want, h.op, c.op)
		}
	}
}
