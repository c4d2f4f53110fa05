package verbstest

import (
	"testing"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// What a peer does not take is sent again and again, and told in the end.
func TestMismatchIsNotAccepted(t *testing.T) {
	for name, change := range map[string]func(attr *verbs.QPAttr, b *station){
		"PSN ahead":   func(attr *verbs.QPAttr, _ *station) { attr.RQPSN++ },
		"PSN behind":  func(attr *verbs.QPAttr, _ *station) { attr.RQPSN-- },
		"another QP":  func(attr *verbs.QPAttr, _ *station) { attr.DestQPNum++ },
		"another GID": func(attr *verbs.QPAttr, b *station) { attr.AH.GID = b.dev.gids[0] },
		"another LID": func(attr *verbs.QPAttr, b *station) { attr.AH.LID = b.dev.lid },
	} {
		t.Run(name, func(t *testing.T) {
			atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
				joined(a, b, verbs.RC)
				attr, err := b.qp.Query()
				require.NoError(t, err)
				b.moves(b.qp, verbs.QPReset)
				change(&attr, b)
				require.NoError(t, by().Init(b.qp))
				b.recv(b.qp, 1)
				attr.State = verbs.QPRTR
				require.NoError(t, b.qp.Modify(attr, verbs.AttrState|transitions[transition{verbs.QPInit, verbs.QPRTR}].need[verbs.RC]))

				start := time.Now()
				a.post(a.qp, sendWR(1, a.piece(0, 8)))
				a.gets(1, verbs.StatusRetryExcErr)
				require.Equal(t, latency+unanswered, time.Since(start))
				b.quiet()
			})
		})
	}
	t.Run("another type", func(t *testing.T) {
		atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
			join(a, b, a.make(verbs.RC, nil), b.make(verbs.UC, nil))
			b.recv(b.qp, 1)
			a.post(a.qp, sendWR(1, a.piece(0, 8)))
			a.gets(1, verbs.StatusRetryExcErr)
			b.quiet()
		})
	})
}

// Packets, not messages, are counted, over the end of the 24 bits; and one side alone cannot begin anew.
func TestPSNFollowsPackets(t *testing.T) {
	atHand(t, ib, func(t *testing.T, fab *Fabric, a, b *station) {
		joined(a, b, verbs.RC) // a begins two packets before the end
		many := b.remote(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: a.piece(0, 3*1024+1)}, 0)
		read := b.remote(verbs.SendWR{ID: 2, Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: a.piece(0, 1025)}, 0)
		none := b.remote(verbs.SendWR{ID: 3, Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled}, 0)
		a.post(a.qp, many, read, none)
		a.gets(1, verbs.StatusSuccess)
		a.gets(2, verbs.StatusSuccess)
		a.gets(3, verbs.StatusSuccess)
		require.EqualValues(t, (0xfffffe+4+2+1)&maxPSN, fab.qps[b.qp.Num()].rc.expects)

		attr, err := a.qp.Query()
		require.NoError(t, err)
		a.moves(a.qp, verbs.QPReset)
		require.NoError(t, by().Init(a.qp))
		require.NoError(t, by().Connect(a.qp, verbs.Endpoint{QPNum: b.qp.Num(), PSN: attr.RQPSN, LID: b.dev.lid, GID: b.dev.gids[0]}))
		a.post(a.qp, many)
		a.gets(1, verbs.StatusRetryExcErr)
	})
}

func TestPathMTUs(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC} {
		atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
			joined(a, b, typ, func(a, _ *verbs.ByHand) { a.PathMTU = 2048 })
			write := b.remote(verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: a.piece(0, 1024)}, pageSize)
			fill(a.mr.Bytes()[:1025], 1)
			a.post(a.qp, write) // one packet for both
			a.gets(0, verbs.StatusSuccess)
			require.True(t, has(b.mr.Bytes()[pageSize:pageSize+1024], 1))
			write.SGL = a.piece(0, 1025)
			a.post(a.qp, write)
			if typ == verbs.RC {
				a.gets(0, verbs.StatusRemInvReqErr)
				b.told(verbs.EventQPReqErr, b.qp)
			} else {
				a.gets(0, verbs.StatusSuccess)
				require.Zero(t, b.mr.Bytes()[pageSize+1024])
			}
		})
	}
}

// The QP's own access comes before that of the memory.
func TestQPAccess(t *testing.T) {
	for op, need := range map[verbs.Opcode]verbs.Access{
		verbs.OpRDMAWrite: verbs.AccessRemoteWrite, verbs.OpRDMARead: verbs.AccessRemoteRead, verbs.OpAtomicFetchAndAdd: verbs.AccessRemoteAtomic,
	} {
		atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
			joined(a, b, verbs.RC, func(_, b *verbs.ByHand) { b.Access &^= need })
			wr := b.remote(verbs.SendWR{Opcode: op, Flags: verbs.Signaled, SGL: a.piece(0, 8), CompareAdd: 1}, 0)
			before := string(b.mr.Bytes())
			a.mr.Bytes()[0] = 1
			a.post(a.qp, wr)
			a.gets(0, verbs.StatusRemInvReqErr)
			require.Equal(t, before, string(b.mr.Bytes()))

			a.moves(a.qp, verbs.QPReset)
			b.moves(b.qp, verbs.QPReset)
			join(a, b, a.qp, b.qp)
			a.post(a.qp, wr)
			a.gets(0, verbs.StatusSuccess)
		})
	}
}

func TestByHandTimers(t *testing.T) {
	t.Run("RNR", func(t *testing.T) {
		atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
			joined(a, b, verbs.RC, func(a, b *verbs.ByHand) { a.RNRRetry, b.MinRNRTimer = 2, 14 })
			start := time.Now()
			a.post(a.qp, sendWR(1, a.piece(0, 8)))
			a.gets(1, verbs.StatusRNRRetryExcErr)
			require.Equal(t, latency+2*1280*time.Microsecond, time.Since(start))
		})
	})
	t.Run("no timeout", func(t *testing.T) {
		atHand(t, ib, func(t *testing.T, fab *Fabric, a, b *station) {
			joined(a, b, verbs.RC)
			a.moves(a.qp, verbs.QPSQD)
			require.NoError(t, a.qp.Modify(verbs.QPAttr{AckTimeout: 0}, verbs.AttrAckTimeout))
			a.moves(a.qp, verbs.QPRTS)
			b.recv(b.qp, 1)
			fab.Cut(a.host, b.host)
			a.post(a.qp, sendWR(1, a.piece(0, 8)))
			time.Sleep(time.Second)
			fab.Heal(a.host, b.host)
			a.quiet() // nobody sends it again
			a.moves(a.qp, verbs.QPError)
			a.gets(1, verbs.StatusWRFlushErr)
		})
	})
	t.Run("depth", func(t *testing.T) {
		atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
			joined(a, b, verbs.RC, func(a, b *verbs.ByHand) { a.MaxRdAtomic, b.MaxDestRdAtomic = 2, 1 })
			read := b.remote(verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: a.piece(0, 8)}, 0)
			a.post(a.qp, read, read)
			a.gets(0, verbs.StatusSuccess)
			a.gets(0, verbs.StatusRemInvReqErr)
		})
	})
}

// What is sent before the peer is connected is lost, and found by a retry.
func TestSentBeforeThePeerIsThere(t *testing.T) {
	atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
		qa, qb := a.make(verbs.RC, nil), b.make(verbs.RC, nil)
		ha, hb := by(), by()
		require.NoError(t, ha.Init(qa))
		require.NoError(t, hb.Init(qb))
		b.recv(qb, 1)
		la, err := ha.Local(a.dev, qa)
		require.NoError(t, err)
		lb, err := hb.Local(b.dev, qb)
		require.NoError(t, err)
		require.NoError(t, ha.Connect(qa, lb))
		start := time.Now()
		a.post(qa, sendWR(1, a.piece(0, 8)))
		time.Sleep(time.Millisecond)
		require.NoError(t, hb.Connect(qb, la))
		b.gets(1, verbs.StatusSuccess)
		require.Equal(t, latency+unanswered/4, time.Since(start))
		a.gets(1, verbs.StatusSuccess)
	})
}

// A QP may be connected to itself, and break itself.
func TestConnectedToItself(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC} {
		atHand(t, ib, func(t *testing.T, _ *Fabric, a, _ *station) {
			qp := a.make(typ, nil)
			h := by()
			require.NoError(t, h.Init(qp))
			self, err := h.Local(a.dev, qp)
			require.NoError(t, err)
			require.NoError(t, h.Connect(qp, self))
			a.recv(qp, 1)
			a.post(qp, sendWR(2, a.piece(0, 8)))
			a.gets(1, verbs.StatusSuccess)
			a.gets(2, verbs.StatusSuccess)

			_, err = qp.PostRecv([]verbs.RecvWR{{ID: 3, SGL: []verbs.SGE{{Length: 64}}}})
			require.NoError(t, err)
			a.post(qp, sendWR(4, a.piece(0, 8)))
			a.gets(3, verbs.StatusLocProtErr)
			a.gets(4, verbs.StatusWRFlushErr)
			a.told(verbs.EventQPFatal, qp)
		})
	}
}

func TestByHandAndTheEndOfAHost(t *testing.T) {
	atHand(t, ib, func(t *testing.T, fab *Fabric, a, b *station) {
		joined(a, b, verbs.RC)
		a.recv(a.qp, 1)
		b.host.RemoveDevice(b.dev)
		a.post(a.qp, sendWR(2, a.piece(0, 8)))
		a.gets(2, verbs.StatusRetryExcErr)
		a.gets(1, verbs.StatusWRFlushErr)
		require.ErrorIs(t, b.qp.Modify(verbs.QPAttr{}, verbs.AttrState), verbs.ErrDeviceRemoved)
		_, err := b.pd.CreateSRQ(verbs.SRQOptions{MaxWR: 1})
		require.ErrorIs(t, err, verbs.ErrDeviceRemoved)

		c := newStation(t, fab.Host("c", "10.0.0.3"))
		a.moves(a.qp, verbs.QPReset)
		join(a, c, a.qp, c.make(verbs.RC, c.shared(1)))
		c.recv(c.qp.(*qp).srq, 1)
		mr, err := c.pd.RegMR(make([]byte, 8), 0)
		require.NoError(t, err)
		c.later(mr.Close)
		c.host.Kill()
		require.Equal(t, Objects{}, c.host.Objects())
		a.post(a.qp, sendWR(3, a.piece(0, 8)))
		a.gets(3, verbs.StatusRetryExcErr)
	})
}
