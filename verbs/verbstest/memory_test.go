package verbstest

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

func TestCallersMemory(t *testing.T) {
	atHand(t, ib, func(t *testing.T, fab *Fabric, a, b *station) {
		joined(a, b, verbs.RC)
		register := func() verbs.MR {
			mem := make([]byte, 100)[3:60] // any address, and more behind it
			copy(mem, "mine")
			mr, err := a.pd.RegMR(mem, verbs.AccessLocalWrite|verbs.AccessRelaxedOrdering)
			require.NoError(t, err)
			require.Len(t, mr.Bytes(), 57)
			require.Equal(t, 57, cap(mr.Bytes()))
			require.Same(t, &mem[0], &mr.Bytes()[0])
			return mr
		}
		mr := register()
		runtime.GC() // nobody but the region holds the memory
		b.recv(b.qp, 1)
		a.post(a.qp, sendWR(1, []verbs.SGE{{Addr: mr.Addr(), Length: 4, LKey: mr.LKey()}}))
		a.gets(1, verbs.StatusSuccess)
		b.gets(1, verbs.StatusSuccess)
		require.Equal(t, "mine", string(b.mr.Bytes()[pageSize+256:][:4]))

		mem := mr.Bytes()
		require.NoError(t, mr.Close())
		require.NoError(t, mr.Close())
		require.Equal(t, "mine", string(mem[:4])) // it is the caller's
		require.Empty(t, mr.Bytes())
		a.post(a.qp, sendWR(2, []verbs.SGE{{Addr: mr.Addr(), Length: 4, LKey: mr.LKey()}}))
		a.gets(2, verbs.StatusLocProtErr)

		_, err := a.pd.RegMR(nil, 0)
		require.ErrorIs(t, err, syscall.EINVAL)
	})
}

func TestAccessFlags(t *testing.T) {
	atHand(t, ib, func(t *testing.T, _ *Fabric, a, _ *station) {
		for _, f := range []verbs.Access{verbs.AccessOnDemand, verbs.AccessHugeTLB, 1 << 4, 1 << 21} {
			var lacks *verbs.UnsupportedError
			_, err := a.pd.AllocMR(8, f)
			require.ErrorAs(t, err, &lacks)
			_, err = a.pd.RegMR(make([]byte, 8), f|verbs.AccessLocalWrite)
			require.ErrorAs(t, err, &lacks)
		}
		_, err := a.pd.RegMR(make([]byte, 8), verbs.AccessRemoteAtomic)
		require.ErrorIs(t, err, syscall.EINVAL)
	})
}

func TestZeroBased(t *testing.T) {
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic | verbs.AccessZeroBased
	atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
		joined(a, b, verbs.RC)
		from, err := a.pd.AllocMR(64, access)
		require.NoError(t, err)
		mem := make([]byte, 64)
		to, err := b.pd.RegMR(mem, access)
		require.NoError(t, err)
		require.Zero(t, from.Addr()+to.Addr())
		copy(from.Bytes()[8:], "zero")
		wr := verbs.SendWR{
			Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{{Addr: 8, Length: 4, LKey: from.LKey()}},
			RemoteAddr: 60, RKey: to.RKey(),
		}
		a.post(a.qp, wr)
		a.gets(0, verbs.StatusSuccess)
		require.Equal(t, "zero", string(mem[60:64]))

		// An atomic, and one in memory that only looks aligned.
		wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.OpAtomicFetchAndAdd, 0, to.RKey()
		wr.SGL[0].Length = 8
		a.post(a.qp, wr)
		a.gets(0, verbs.StatusSuccess)
		odd, err := b.pd.RegMR(make([]byte, 17)[1:], access)
		require.NoError(t, err)
		wr.RKey = odd.RKey()
		a.post(a.qp, wr)
		a.gets(0, verbs.StatusRemInvReqErr)
		for _, mr := range []verbs.MR{from, to, odd} {
			require.NoError(t, mr.Close())
		}
	})
}

func TestSolicitedOnly(t *testing.T) {
	for name, dc := range map[string]DeviceConfig{"ib": ib, "iwarp": iwarp} {
		t.Run(name, func(t *testing.T) {
			virtually(t, dc, size{recvs: 4}, func(t *testing.T, n *network) {
				n.b.recvCQ.(*cq).solicitedOnly = true
				woken := func() bool {
					done := make(chan error, 1)
					go func() { done <- n.b.ch.Wait(0) }()
					time.Sleep(time.Minute)
					select {
					case err := <-done:
						require.NoError(t, err)
						return true
					default:
						n.b.ch.Interrupt()
						require.NoError(t, <-done)
						return false
					}
				}
				send := sendWR(0, nil)
				send.Flags = 0
				n.a.post(send)
				require.False(t, woken())
				send.Flags = verbs.Solicited
				n.a.post(send)
				require.True(t, woken())
				require.NoError(t, n.b.poll())
				require.Len(t, n.b.recvs, 2)
				require.False(t, woken())
				require.NoError(t, n.b.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState))
				require.True(t, woken(), "failed completions count")
			})
		})
	}
}

// A fabric that is forgotten with all that is open ends nothing.
func TestForgottenRegion(t *testing.T) {
	pd, err := NewFabric(Config{}).Host("a", "10.0.0.1").Device(0).AllocPD()
	require.NoError(t, err)
	_, err = pd.RegMR(make([]byte, 1<<16), verbs.AccessLocalWrite)
	require.NoError(t, err)
	pd = nil
	for range 5 {
		runtime.GC()
		runtime.Gosched()
	}
}
