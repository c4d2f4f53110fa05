package verbstest

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

var types = []verbs.QPType{verbs.RC, verbs.UC, verbs.UD}

// fitting are values for all attributes of a QP towards a peer, each different from its zero.
func fitting(to *station) verbs.QPAttr {
	return verbs.QPAttr{
		Access: verbs.AccessRemoteRead, Port: 1, QKey: 9, PathMTU: 2048,
		AH:        verbs.AHAttr{Port: 1, LID: to.dev.lid, Global: true, GID: to.dev.gids[0], HopLimit: 3},
		DestQPNum: 0x99, RQPSN: 7, SQPSN: 8, AckTimeout: 11, RetryCount: 5, RNRRetry: 4, MinRNRTimer: 3, MaxRdAtomic: 2, MaxDestRdAtomic: 6,
	}
}

// TestTransitions tries every attribute in every transition.
func TestTransitions(t *testing.T) {
	const all = verbs.AttrNotifyDrained<<1 - 1
	states := []verbs.QPState{verbs.QPReset, verbs.QPInit, verbs.QPRTR, verbs.QPRTS, verbs.QPSQD, verbs.QPSQE, verbs.QPError, 99}
	for _, typ := range types {
		t.Run(typ.String(), func(t *testing.T) {
			atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
				qp := a.make(typ, nil)
				attr := fitting(b)
				// in moves the QP to a state, by the shortest way.
				in := func(to verbs.QPState) {
					a.moves(qp, verbs.QPReset)
					if to == verbs.QPError {
						a.moves(qp, to)
						return
					}
					for s := verbs.QPInit; s <= to; s++ {
						attr.State = s
						require.NoError(t, qp.Modify(attr, verbs.AttrState|transitions[transition{s - 1, s}].need[typ]))
					}
				}
				try := func(from, to verbs.QPState, mask verbs.QPAttrMask, ok bool) {
					t.Helper()
					in(from)
					before, err := qp.Query()
					require.NoError(t, err)
					attr.State = to
					err = qp.Modify(attr, mask|verbs.AttrState)
					if ok {
						require.NoError(t, err, "%v to %v, %#x", from, to, mask)
						return
					}
					require.ErrorIs(t, err, syscall.EINVAL, "%v to %v, %#x", from, to, mask)
					after, err := qp.Query()
					require.NoError(t, err)
					require.Equal(t, before, after)
				}
				for _, from := range states {
					if from == verbs.QPSQE || from == 99 {
						continue // there is no way to it
					}
					for _, to := range states {
						sets, known := transitions[transition{from, to}]
						need, may := sets.need[typ], sets.may[typ]
						known = known || to == verbs.QPReset || to == verbs.QPError
						try(from, to, need, known)
						for bit := verbs.AttrState << 1; bit < all; bit <<= 1 {
							if need&bit != 0 {
								try(from, to, need&^bit, false)
							} else {
								try(from, to, need|bit, known && may&bit != 0)
							}
						}
					}
				}
			})
		})
	}
}

// TestNeededAttributes compares the table with that of verbs.QP.
func TestNeededAttributes(t *testing.T) {
	const (
		state = verbs.AttrState
		first = state | verbs.AttrPKeyIndex | verbs.AttrPort
		path  = state | verbs.AttrAH | verbs.AttrPathMTU | verbs.AttrDestQPNum | verbs.AttrRQPSN
		psn   = state | verbs.AttrSQPSN
	)
	for step, want := range map[transition][3]verbs.QPAttrMask{
		{verbs.QPReset, verbs.QPInit}: {first | verbs.AttrAccess, first | verbs.AttrAccess, first | verbs.AttrQKey},
		{verbs.QPInit, verbs.QPRTR}:   {path | verbs.AttrMaxDestRdAtomic | verbs.AttrMinRNRTimer, path, state},
		{verbs.QPRTR, verbs.QPRTS}: {
			psn | verbs.AttrAckTimeout | verbs.AttrRetryCount | verbs.AttrRNRRetry | verbs.AttrMaxRdAtomic, psn, psn,
		},
		{verbs.QPRTS, verbs.QPSQD}: {state, state, state},
		{verbs.QPSQD, verbs.QPRTS}: {state, state, state},
	} {
		for _, typ := range types {
			require.Equal(t, want[typ], state|transitions[step].need[typ], "%v: %v to %v", typ, step.from, step.to)
		}
	}
}

func TestQueryTellsWhatWasWritten(t *testing.T) {
	atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
		qp := a.make(verbs.RC, nil)
		attr, want := fitting(b), verbs.QPAttr{}
		query := func() {
			t.Helper()
			got, err := qp.Query()
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		query()
		attr.State = verbs.QPInit
		require.NoError(t, qp.Modify(attr, verbs.AttrState|attrInit))
		want.State, want.Port, want.Access = verbs.QPInit, 1, verbs.AccessRemoteRead
		query()
		attr.State = verbs.QPRTR
		require.NoError(t, qp.Modify(attr, verbs.AttrState|attrPath|verbs.AttrMaxDestRdAtomic|verbs.AttrMinRNRTimer))
		want.State, want.AH, want.PathMTU, want.DestQPNum, want.RQPSN = verbs.QPRTR, attr.AH, 2048, 0x99, 7
		want.MaxDestRdAtomic, want.MinRNRTimer = 6, 3
		query()
		attr.State = verbs.QPRTS
		require.NoError(t, qp.Modify(attr, verbs.AttrState|verbs.AttrSQPSN|attrTimers|verbs.AttrMaxRdAtomic))
		want = attr
		want.QKey = 0
		query()
		require.NoError(t, qp.Modify(verbs.QPAttr{Access: verbs.AccessRemoteWrite}, verbs.AttrAccess))
		want.Access = verbs.AccessRemoteWrite
		query()
		a.moves(qp, verbs.QPReset)
		want = verbs.QPAttr{}
		query()
	})
}

func TestWrongValues(t *testing.T) {
	for name, dc := range map[string]DeviceConfig{"ib": ib, "roce": roce} {
		t.Run(name, func(t *testing.T) {
			atHand(t, dc, func(t *testing.T, _ *Fabric, a, b *station) {
				qp := a.make(verbs.RC, nil)
				require.NoError(t, by().Init(qp))
				good := fitting(b)
				good.State = verbs.QPRTR
				mask := verbs.AttrState | transitions[transition{verbs.QPInit, verbs.QPRTR}].need[verbs.RC] | verbs.AttrPKeyIndex | verbs.AttrAccess
				wrong := map[string]func(*verbs.QPAttr){
					"MTU":         func(a *verbs.QPAttr) { a.PathMTU = 1500 },
					"small MTU":   func(a *verbs.QPAttr) { a.PathMTU = 128 },
					"large MTU":   func(a *verbs.QPAttr) { a.PathMTU = 8192 },
					"QP number":   func(a *verbs.QPAttr) { a.DestQPNum = 1 << 24 },
					"PSN":         func(a *verbs.QPAttr) { a.RQPSN = 1 << 24 },
					"RNR timer":   func(a *verbs.QPAttr) { a.MinRNRTimer = 32 },
					"depth":       func(a *verbs.QPAttr) { a.MaxDestRdAtomic = 17 },
					"pkey":        func(a *verbs.QPAttr) { a.PKeyIndex = 1 },
					"access":      func(a *verbs.QPAttr) { a.Access = verbs.AccessZeroBased },
					"port":        func(a *verbs.QPAttr) { a.AH.Port = 2 },
					"no port":     func(a *verbs.QPAttr) { a.AH.Port = 0 },
					"GID index":   func(a *verbs.QPAttr) { a.AH.GIDIndex = 1 },
					"no GID":      func(a *verbs.QPAttr) { a.AH.GID = verbs.GID{} },
					"no way":      func(a *verbs.QPAttr) { a.AH.Global, a.AH.LID = false, 0 },
					"flow label":  func(a *verbs.QPAttr) { a.AH.FlowLabel = 1 << 20 },
					"service lvl": func(a *verbs.QPAttr) { a.AH.SL = 16 },
				}
				for what, change := range wrong {
					attr := good
					change(&attr)
					require.ErrorIs(t, qp.Modify(attr, mask), syscall.EINVAL, what)
					if attr.AH != good.AH {
						_, err := a.pd.CreateAH(attr.AH)
						require.ErrorIs(t, err, syscall.EINVAL, what)
					}
				}
				require.NoError(t, qp.Modify(good, mask))
			})
		})
	}
}

// A QP of the CM tells what the CM has chosen.
func TestConnectedQPTells(t *testing.T) {
	virtually(t, ib, size{}, func(t *testing.T, n *network) {
		a, err := n.a.qp.Query()
		require.NoError(t, err)
		b, err := n.b.qp.Query()
		require.NoError(t, err)
		require.Equal(t, a.SQPSN, b.RQPSN)
		require.Equal(t, b.SQPSN, a.RQPSN)
		require.NotEqual(t, a.SQPSN, b.SQPSN)
		require.Equal(t, n.db.gids[0], a.AH.GID)
		require.Equal(t, n.db.lid, a.AH.LID)
		require.Equal(t, []int{1, 1}, []int{a.Port, a.AH.Port})
		require.EqualValues(t, 1, a.MaxRdAtomic)
		require.EqualValues(t, 1, b.MaxDestRdAtomic)
		require.NotZero(t, a.Access&verbs.AccessRemoteWrite)

		for _, s := range []verbs.QPState{verbs.QPReset, verbs.QPSQD, verbs.QPInit} {
			require.ErrorIs(t, n.a.qp.Modify(verbs.QPAttr{State: s}, verbs.AttrState), syscall.EINVAL)
		}
		require.ErrorIs(t, n.a.qp.Modify(verbs.QPAttr{}, verbs.AttrAccess), syscall.EINVAL)
	})
}

func TestSQD(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC} {
		t.Run(typ.String(), func(t *testing.T) {
			atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
				joined(a, b, typ)
				write := func(id uint64) verbs.SendWR {
					return b.remote(verbs.SendWR{ID: id, Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: a.piece(0, 8)}, 0)
				}
				a.post(a.qp, write(1))
				time.Sleep(latency + latency/2) // executed, and on RC the answer is on its way
				a.post(a.qp, write(2))
				require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPSQD, NotifyDrained: true}, verbs.AttrState|verbs.AttrNotifyDrained))
				if typ == verbs.RC {
					a.untold()
					require.ErrorIs(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPRTS}, verbs.AttrState), syscall.EINVAL, "not drained")
				}
				a.gets(1, verbs.StatusSuccess)
				a.told(verbs.EventSQDrained, a.qp)
				a.post(a.qp, write(3))
				a.quiet()
				attr, err := a.qp.Query()
				require.NoError(t, err)
				require.Equal(t, verbs.QPSQD, attr.State)
				require.False(t, attr.NotifyDrained)

				// It still receives.
				back := a.remote(write(4), 8)
				back.SGL = b.piece(0, 8)
				b.post(b.qp, back)
				b.gets(4, verbs.StatusSuccess)

				require.NoError(t, a.qp.Modify(verbs.QPAttr{}, verbs.AttrAccess)) // which is for SQD
				a.moves(a.qp, verbs.QPRTS)
				a.gets(2, verbs.StatusSuccess)
				a.gets(3, verbs.StatusSuccess)

				// Without a word when nobody asked, at once where there is nothing to drain.
				a.moves(a.qp, verbs.QPSQD)
				a.untold()
				a.moves(a.qp, verbs.QPRTS)
				require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPSQD, NotifyDrained: true}, verbs.AttrState|verbs.AttrNotifyDrained))
				a.told(verbs.EventSQDrained, a.qp)
				a.post(a.qp, write(5))
				a.moves(a.qp, verbs.QPError)
				a.gets(5, verbs.StatusWRFlushErr)
				a.untold()
			})
		})
	}
}

// A request that is being tried again is under way.
func TestSQDFinishesRetries(t *testing.T) {
	atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
		joined(a, b, verbs.RC)
		a.post(a.qp, sendWR(1, a.piece(0, 8)), sendWR(2, a.piece(0, 8)))
		time.Sleep(time.Second)
		require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPSQD, NotifyDrained: true}, verbs.AttrState|verbs.AttrNotifyDrained))
		a.quiet()
		a.untold()
		b.recv(b.qp, 1)
		b.recv(b.qp, 2)
		b.gets(1, verbs.StatusSuccess)
		a.gets(1, verbs.StatusSuccess)
		a.told(verbs.EventSQDrained, a.qp)
		b.quiet()
		a.moves(a.qp, verbs.QPRTS)
		b.gets(2, verbs.StatusSuccess)
		a.gets(2, verbs.StatusSuccess)
	})
}

// RESET at any moment of a request's way, and again connected.
func TestReset(t *testing.T) {
	for _, typ := range types {
		for _, wait := range []time.Duration{0, latency / 2, latency, latency * 3 / 2, time.Second} {
			t.Run(fmt.Sprint(typ, wait), func(t *testing.T) {
				atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
					joined(a, b, typ)
					to := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGL: a.piece(0, 8), RemoteQPNum: b.qp.Num(), RemoteQKey: 0x1234}
					if typ == verbs.UD {
						to.AH = a.handle(b)
					}
					for round := range 3 {
						a.dev.DelayCompletions(2*latency, 0)
						for i := range 8 {
							a.recv(a.qp, uint64(i)) // the queues are full
							a.post(a.qp, to)
						}
						b.recv(b.qp, 1)
						time.Sleep(wait)
						if round == 1 {
							a.moves(a.qp, verbs.QPError)
							for n := 1; n > 0; n, _ = a.cq.Poll(make([]verbs.Completion, 1)) {
								time.Sleep(4 * latency)
							}
							a.post(a.qp, to) // flushed at once
						}
						a.moves(a.qp, verbs.QPReset)
						b.moves(b.qp, verbs.QPReset)
						_, err := a.qp.PostRecv([]verbs.RecvWR{{}})
						require.ErrorIs(t, err, syscall.EINVAL)
						_, err = a.qp.PostSend([]verbs.SendWR{to})
						require.ErrorIs(t, err, syscall.EINVAL)
						if round == 2 {
							a.quiet()
							b.quiet()
						}
						a.dev.DelayCompletions(0, 0)

						join(a, b, a.qp, b.qp, func(a, b *verbs.ByHand) { a.PSN += uint32(round) })
						b.recv(b.qp, 2)
						to.ID = 9
						a.post(a.qp, to)
						b.gets(2, verbs.StatusSuccess)
						a.gets(9, verbs.StatusSuccess)
						to.ID = 0
					}
				})
			})
		}
	}
}
