package verbstest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// The suite allows what devices do; these tests say what the fabric does.

func TestStatuses(t *testing.T) {
	t.Run("local protection", func(t *testing.T) {
		virtually(t, ib, size{}, func(t *testing.T, n *network) {
			sgl := n.a.sge(0, 8)
			sgl[0].LKey = n.a.mr.RKey()
			n.a.post(n.a.writeWR(1, n.a.sge(0, 8), n.b, 0), n.a.writeWR(2, sgl, n.b, 0), n.a.writeWR(3, n.a.sge(0, 8), n.b, 0))
			n.a.sent(1, verbs.WCRDMAWrite) // earlier ones still succeed
			n.a.failed(2, verbs.StatusLocProtErr)
			n.a.failed(3, verbs.StatusWRFlushErr)
		})
	})
	t.Run("lkey as rkey", func(t *testing.T) {
		virtually(t, ib, size{recvs: 1}, func(t *testing.T, n *network) {
			async := make(chan verbs.AsyncEvent, 1)
			defer n.db.Watch(func(e verbs.AsyncEvent) { async <- e })()
			wr := n.a.writeWR(1, n.a.sge(0, 8), n.b, 0)
			wr.RKey = n.b.mr.LKey()
			n.a.post(wr)
			n.a.failed(1, verbs.StatusRemAccessErr)
			require.Equal(t, verbs.AsyncEvent{Type: verbs.EventQPAccessErr, QPNum: n.b.qp.Num()}, <-async)
			require.Equal(t, verbs.StatusWRFlushErr, n.b.nextRecv().Status)
		})
	})
	t.Run("short receive", func(t *testing.T) {
		virtually(t, ib, size{recvs: 2}, func(t *testing.T, n *network) {
			n.a.post(sendWR(1, n.a.sge(0, 65)))
			require.Equal(t, verbs.StatusLocLenErr, n.b.nextRecv().Status)
			require.Equal(t, verbs.StatusWRFlushErr, n.b.nextRecv().Status)
			n.a.failed(1, verbs.StatusRemInvReqErr)
		})
	})
	t.Run("receive without access", func(t *testing.T) {
		virtually(t, ib, size{}, func(t *testing.T, n *network) {
			mr, err := n.b.pd.AllocMR(64, 0)
			require.NoError(t, err)
			n.b.postRecv(1, []verbs.SGE{{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()}})
			n.a.post(sendWR(1, n.a.sge(0, 8)))
			require.Equal(t, verbs.StatusLocProtErr, n.b.nextRecv().Status)
			n.a.failed(1, verbs.StatusRemOpErr)
			require.NoError(t, mr.Close())
		})
	})
	t.Run("no depth for READ", func(t *testing.T) {
		virtually(t, ib, size{}, func(t *testing.T, n *network) {
			a, b := connectWith(t, n, func(p *cm.ConnParam) { p.InitiatorDepth = 0 })
			a.post(a.readWR(1, a.sge(0, 8), b, 0))
			a.failed(1, verbs.StatusLocQPOpErr)
			a, b = connectWith(t, n, func(p *cm.ConnParam) { p.ResponderResources = 0 })
			a.post(a.readWR(1, a.sge(0, 8), b, 0))
			a.failed(1, verbs.StatusRemInvReqErr)
		})
	})
}

// READs and atomics that are too many wait for the answers of earlier ones.
func TestDepthHoldsRequests(t *testing.T) {
	for name, dc := range map[string]DeviceConfig{"ib": ib, "iwarp": iwarp} {
		t.Run(name, func(t *testing.T) {
			virtually(t, dc, size{}, func(t *testing.T, n *network) {
				took := func(depth uint8) time.Duration {
					a, b := connectWith(t, n, func(p *cm.ConnParam) { p.InitiatorDepth, p.ResponderResources = depth, depth })
					start := time.Now()
					for i := range 6 {
						a.post(a.readWR(uint64(i), a.sge(8*i, 8), b, 0))
					}
					for i := range 6 {
						a.sent(uint64(i), verbs.WCRDMARead)
					}
					return time.Since(start)
				}
				all := took(6)
				back := latency // of an answer, which the next one waits for
				if dc.Transport == verbs.TransportIWARP {
					back *= 2 // and the request's own way
				}
				require.Equal(t, all+2*back, took(2))
				require.Equal(t, all+5*back, took(1))
			})
		})
	}
}

// More READs than the peer answers at once.
func TestPeerRefusesReads(t *testing.T) {
	virtually(t, ib, size{}, func(t *testing.T, n *network) {
		a, b := connectWith(t, n, func(p *cm.ConnParam) { p.InitiatorDepth, p.ResponderResources = 3, 2 })
		for i := range 3 {
			a.post(a.readWR(uint64(i), a.sge(8*i, 8), b, 0))
		}
		a.sent(0, verbs.WCRDMARead)
		a.sent(1, verbs.WCRDMARead)
		a.failed(2, verbs.StatusRemInvReqErr)
	})
}

// The keys of an invalidated region are dead on this side too.
func TestInvalidatedLKey(t *testing.T) {
	dc := iwarp
	dc.Attr = func(a *verbs.DeviceAttr) { a.Caps.Send |= verbs.Opcodes(verbs.OpSendWithInv) }
	virtually(t, dc, size{recvs: 1}, func(t *testing.T, n *network) {
		mr := n.b.region(64, allAccess)
		n.a.post(sendInvWR(1, nil, mr.RKey()))
		n.b.received(0, 0)
		n.b.post(sendWR(2, []verbs.SGE{{Addr: mr.Addr(), Length: 8, LKey: mr.LKey()}}))
		n.b.failed(2, verbs.StatusLocProtErr)
		n.a.disconnected()
	})
}

func TestPostedInError(t *testing.T) {
	for _, lose := range []bool{false, true} {
		virtually(t, DeviceConfig{LoseInError: lose}, size{}, func(t *testing.T, n *network) {
			require.NoError(t, n.a.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState))
			n.a.post(sendWR(1, nil))
			n.a.postRecv(2, nil)
			if lose {
				n.a.quiet()
				return
			}
			n.a.failed(1, verbs.StatusWRFlushErr)
			wc := n.a.nextRecv()
			require.Equal(t, verbs.StatusWRFlushErr, wc.Status)
			require.EqualValues(t, 2, wc.ID)
		})
	}
}

func TestOverrunBreaksCQ(t *testing.T) {
	virtually(t, ib, size{}, func(t *testing.T, n *network) {
		async := make(chan verbs.AsyncEvent, 4)
		defer n.da.Watch(func(e verbs.AsyncEvent) { async <- e })()
		id := n.resolve(t, n.ln.Addr())
		d := id.Device()
		pd, err := d.AllocPD()
		require.NoError(t, err)
		cq, err := d.CreateCQ(verbs.CQOptions{Depth: 2})
		require.NoError(t, err)
		qp, err := id.CreateQP(pd, verbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}})
		require.NoError(t, err)
		_, err = qp.PostRecv(make([]verbs.RecvWR, 3))
		require.NoError(t, err)
		require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState))
		require.Equal(t, verbs.EventCQErr, (<-async).Type)
		polled, err := cq.Poll(make([]verbs.Completion, 4))
		require.Equal(t, 2, polled)
		require.NoError(t, err)
		_, err = cq.Poll(make([]verbs.Completion, 4))
		require.Error(t, err)
		require.NoError(t, qp.Close())
		require.NoError(t, cq.Close())
		require.NoError(t, pd.Close())
	})
}

func TestQueueFullIsExact(t *testing.T) {
	virtually(t, ib, size{sendWR: 4}, func(t *testing.T, n *network) {
		silent := n.a.writeWR(0, n.a.sge(0, 1), n.b, 0)
		silent.Flags = 0
		took, err := n.a.qp.PostSend([]verbs.SendWR{silent, silent, silent, silent, silent})
		require.Equal(t, 4, took)
		require.ErrorIs(t, err, verbs.ErrQueueFull)
		// They are done, but nothing has told so: the queue is stuck for good.
		time.Sleep(time.Minute)
		took, err = n.a.qp.PostSend([]verbs.SendWR{silent})
		require.Zero(t, took)
		require.ErrorIs(t, err, verbs.ErrQueueFull)
	})
	virtually(t, ib, size{sendWR: 4}, func(t *testing.T, n *network) {
		silent := n.a.writeWR(0, n.a.sge(0, 1), n.b, 0)
		silent.Flags = 0
		n.a.post(silent, silent, n.a.writeWR(1, n.a.sge(0, 1), n.b, 0), silent)
		time.Sleep(time.Minute)
		_, err := n.a.qp.PostSend([]verbs.SendWR{silent})
		require.ErrorIs(t, err, verbs.ErrQueueFull, "the completion is there, but not polled")
		n.a.sent(1, verbs.WCRDMAWrite)
		took, err := n.a.qp.PostSend([]verbs.SendWR{silent, silent, silent, silent})
		require.Equal(t, 3, took)
		require.ErrorIs(t, err, verbs.ErrQueueFull)
	})
}

// TestJitterKeepsOrder also shows that a seed repeats a run.
func TestJitterKeepsOrder(t *testing.T) {
	run := func(t *testing.T, seed uint64) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			fab := NewFabric(Config{Latency: latency, Jitter: 10 * time.Millisecond, Seed: seed})
			t.Cleanup(fab.Close)
			h := fab.Host("a", "10.0.0.1") // both ends on one device
			s := &suite{Env{Dial: h, Listen: h, Addr: mustPrefix("10.0.0.1").Addr(), Patience: time.Hour}}
			a, b := s.pair(t, size{recvs: 16})
			start := time.Now()
			for i := range 16 {
				a.post(sendWR(uint64(i), a.sge(0, i)))
			}
			for i := range 16 {
				b.received(uint64(i), i)
				a.sent(uint64(i), verbs.WCSend)
			}
			took = time.Since(start)
		})
		return took
	}
	require.Equal(t, run(t, 1), run(t, 1))
	require.NotEqual(t, run(t, 1), run(t, 2))
}
