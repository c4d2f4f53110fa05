package verbstest

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

var errPlanted = errors.New("planted")

// fault: MEM-2
func TestFailEveryStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fab := NewFabric(Config{Latency: latency})
		defer fab.Close()
		a, b := fab.Host("a", "10.0.0.1"), fab.Host("b", "10.0.0.2")
		ln, err := b.Listen(netip.MustParseAddrPort("10.0.0.2:80"), cm.ListenOptions{})
		require.NoError(t, err)
		go serve(t.Context(), ln)
		require.NoError(t, exchange(t.Context(), a, ln.Addr()))
		steps := a.Calls(AnyOp)
		require.Greater(t, steps, 8)
		for n := 1; n <= steps; n++ {
			a.Fail(AnyOp, n, errPlanted)
			require.ErrorIs(t, exchange(t.Context(), a, ln.Addr()), errPlanted, "step %d", n)
		}
		require.NoError(t, exchange(t.Context(), a, ln.Addr()))

		// The accepting side's steps; the listener goes on.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, op := range []Op{AllocPD, AllocMR, CreateChannel, CreateCQ, CreateQP, PostRecv, Accept} {
			b.Fail(op, 1, errPlanted)
			require.ErrorIs(t, exchange(ctx, a, ln.Addr()), syscall.ECONNREFUSED, op)
		}
		require.NoError(t, exchange(ctx, a, ln.Addr()))
		require.NoError(t, ln.Close())
		CheckLeaks(t, fab)
	})
}

// fault: FLOW-8
func TestFailKthRequest(t *testing.T) {
	virtually(t, ib, size{}, func(t *testing.T, n *network) {
		n.ha.Fail(PostSend, 3, syscall.ENOMEM)
		wrs := []verbs.SendWR{}
		for i := range 5 {
			wrs = append(wrs, n.a.writeWR(uint64(i), n.a.sge(0, 1), n.b, 0))
		}
		took, err := n.a.qp.PostSend(wrs)
		require.Equal(t, 2, took)
		require.ErrorIs(t, err, syscall.ENOMEM)
		took, err = n.a.qp.PostSend(wrs[2:]) // once only
		require.Equal(t, 3, took)
		require.NoError(t, err)
		for i := range 5 {
			n.a.sent(uint64(i), verbs.WCRDMAWrite)
		}

		n.ha.Fail(PostRecv, 2, errPlanted)
		took, err = n.a.qp.PostRecv(make([]verbs.RecvWR, 3))
		require.Equal(t, 1, took)
		require.ErrorIs(t, err, errPlanted)

		remove := n.ha.Fail(AllocPD, 1, errPlanted)
		remove()
		pd, err := n.da.AllocPD()
		require.NoError(t, err)
		require.NoError(t, pd.Close())
	})
}

func TestFailCallsOfOtherObjects(t *testing.T) {
	atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
		joined(a, b, verbs.RC)
		s := a.shared(1)
		for op, call := range map[Op]func() error{
			RegMR:     func() error { _, err := a.pd.RegMR(make([]byte, 8), 0); return err },
			CreateSRQ: func() error { _, err := a.pd.CreateSRQ(verbs.SRQOptions{MaxWR: 1}); return err },
			CreateAH:  func() error { _, err := a.pd.CreateAH(by().Path(verbs.Endpoint{LID: 1})); return err },
			CreateQP:  func() error { _, err := a.pd.CreateQP(verbs.QPOptions{SendCQ: a.cq, RecvCQ: a.cq}); return err },
			SetLimit:  func() error { return s.SetLimit(1) },
			Query:     func() error { _, err := s.Query(); return err },
			Modify:    func() error { return a.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState) },
			PostRecv:  func() error { _, err := s.PostRecv(make([]verbs.RecvWR, 1)); return err },
		} {
			before := a.host.Calls(op)
			a.host.Fail(op, 1, errPlanted)
			require.ErrorIs(t, call(), errPlanted, op)
			require.Equal(t, before+1, a.host.Calls(op), op)
		}
		attr, err := a.qp.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.QPRTS, attr.State)
		a.recv(s, 0) // nothing was taken
	})
}

// fault: MEM-1
func TestMemlock(t *testing.T) {
	dc := DeviceConfig{Memlock: 100_000, Attr: func(a *verbs.DeviceAttr) { a.MaxMRSize = 1 << 20 }}
	virtually(t, dc, size{}, func(t *testing.T, n *network) {
		_, err := n.a.pd.AllocMR(50_000, 0)
		var memlock *verbs.MemlockError
		require.ErrorAs(t, err, &memlock)
		require.Equal(t, verbs.MemlockError{Size: 50_000, Limit: 100_000}, *memlock)
		mr, err := n.a.pd.AllocMR(30_000, 0)
		require.NoError(t, err)
		require.NoError(t, mr.Close())
		_, err = n.a.pd.AllocMR(1<<20+1, 0)
		var limit *verbs.LimitError
		require.ErrorAs(t, err, &limit)

		n.ha.Fail(AllocMR, 2, &verbs.MemlockError{Size: 1, Limit: 0})
		mr, err = n.a.pd.AllocMR(1, 0)
		require.NoError(t, err)
		require.NoError(t, mr.Close())
		_, err = n.a.pd.AllocMR(1, 0)
		require.ErrorIs(t, err, syscall.ENOMEM)
	})
}

func TestDisconnectOvertakesData(t *testing.T) {
	virtually(t, ib, size{recvs: 2}, func(t *testing.T, n *network) {
		n.db.DelayCompletions(0, time.Second)
		n.a.post(sendWR(1, n.a.sge(0, 4)))
		n.a.sent(1, verbs.WCSend)
		require.NoError(t, n.a.id.Disconnect())
		n.b.disconnected()
		require.NoError(t, n.b.poll())
		require.Empty(t, n.b.recvs)
		n.db.DelayCompletions(0, 0) // what is delayed already keeps its place
		require.NoError(t, n.b.id.Disconnect())
		n.b.received(0, 4)
		require.Equal(t, verbs.StatusWRFlushErr, n.b.nextRecv().Status)
	})
}

func TestPeerReactsBeforeSendCompletes(t *testing.T) {
	virtually(t, ib, size{recvs: 2}, func(t *testing.T, n *network) {
		n.da.DelayCompletions(time.Second, 0)
		n.a.post(sendWR(1, n.a.sge(0, 4)))
		n.b.received(0, 4)
		n.b.post(sendWR(2, n.b.sge(0, 4)))
		n.a.received(0, 4)
		require.Empty(t, n.a.sends)
		n.a.sent(1, verbs.WCSend)
	})
}

// fault: CLOSE-6
func TestDelayedEvents(t *testing.T) {
	virtually(t, ib, size{recvs: 2}, func(t *testing.T, n *network) {
		n.db.DelayEvents(time.Minute)
		start := time.Now()
		require.NoError(t, n.a.id.Disconnect())
		n.b.disconnected()
		require.GreaterOrEqual(t, time.Since(start), time.Minute)
	})
}

func TestLostEvents(t *testing.T) {
	virtually(t, ib, size{}, func(t *testing.T, n *network) {
		n.hb.DropEvents(cm.Disconnected, 1)
		require.NoError(t, n.a.id.Disconnect())
		require.Equal(t, cm.TimewaitExit, (<-n.b.events).Type)

		timeout := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			t.Cleanup(cancel)
			return ctx
		}
		for _, e := range []cm.EventType{cm.AddrResolved, cm.RouteResolved} {
			n.ha.DropEvents(e, 1)
			_, err := n.ha.Resolve(timeout(), netip.AddrPort{}, n.ln.Addr())
			require.ErrorIs(t, err, context.DeadlineExceeded, e)
		}
		n.hb.DropEvents(cm.ConnectRequest, 1)
		_, done := n.dial(t, timeout(), n.ln.Addr(), param())
		require.ErrorIs(t, (<-done).err, context.DeadlineExceeded)

		// Established is lost on the accepting side, which gives up, and the dialing side sees the end.
		n.hb.DropEvents(cm.Established, 1)
		a, done := n.dial(t, timeout(), n.ln.Addr(), param())
		req, err := n.ln.Accept(t.Context())
		require.NoError(t, err)
		b := n.side(t, req, size{})
		require.ErrorIs(t, req.Accept(timeout(), param()), context.DeadlineExceeded)
		require.NoError(t, (<-done).err)
		b.close()
		a.disconnected()
		n.pair(t, size{})
	})
}

// fault: DEATH-5
func TestInjectedEvents(t *testing.T) {
	virtually(t, ib, size{}, func(t *testing.T, n *network) {
		n.ha.InjectEvent(cm.Event{Type: cm.AddrChange})
		n.ha.InjectEvent(cm.Event{Type: cm.Unreachable, Status: -110})
		require.Equal(t, cm.AddrChange, (<-n.a.events).Type)
		require.Equal(t, cm.Event{Type: cm.Unreachable, Status: -110}, <-n.a.events)
		n.b.quiet()

		async := make(chan verbs.AsyncEvent, 1)
		stop := n.da.Watch(func(e verbs.AsyncEvent) { async <- e })
		n.da.InjectAsync(verbs.AsyncEvent{Type: verbs.EventGIDChange, Port: 1})
		require.Equal(t, verbs.EventGIDChange, (<-async).Type)
		stop()
		n.da.InjectAsync(verbs.AsyncEvent{Type: verbs.EventGIDChange, Port: 1})
		synctest.Wait()
		require.Empty(t, async)
	})
}

func TestSpuriousWakes(t *testing.T) {
	virtually(t, ib, size{}, func(t *testing.T, n *network) {
		n.ha.SpuriousWakes(1)
		for range 3 {
			require.NoError(t, n.a.ch.Wait(0))
		}
		n.ha.SpuriousWakes(2)
		go func() { time.Sleep(time.Second); n.a.ch.Interrupt() }()
		start := time.Now()
		require.NoError(t, n.a.ch.Wait(0))
		require.Equal(t, time.Second, time.Since(start))
		require.NoError(t, n.a.ch.Wait(0))
		n.ha.SpuriousWakes(0)
	})
}

// fault: DATA-4
func TestCompletionBetweenPollAndWait(t *testing.T) {
	virtually(t, ib, size{recvs: 1}, func(t *testing.T, n *network) {
		require.NoError(t, n.b.poll())
		defer n.hb.On(Wait, func() error {
			if len(n.a.sends) == 0 {
				n.a.post(sendWR(1, n.a.sge(0, 4)))
				time.Sleep(time.Second)
			}
			return nil
		})()
		n.b.received(0, 4)
	})
}

func TestPause(t *testing.T) {
	for _, dc := range []DeviceConfig{ib, iwarp} {
		virtually(t, dc, size{recvs: 1}, func(t *testing.T, n *network) {
			n.da.Pause()
			n.a.post(sendWR(1, n.a.sge(0, 4)))
			n.a.quiet()
			n.b.quiet()
			n.da.Resume()
			n.b.received(0, 4)
			n.a.sent(1, verbs.WCSend)
		})
	}
}
