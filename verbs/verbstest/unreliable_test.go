package verbstest

import (
	"encoding/binary"
	"syscall"
	"testing"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// UC and UD lose without a word, and go on.
func TestLossIsSilent(t *testing.T) {
	faults := map[string]struct {
		begin, end func(*Fabric, *station, *station)
	}{
		"cut": {
			func(f *Fabric, a, b *station) { f.Cut(a.host, b.host) }, func(f *Fabric, a, b *station) { f.Heal(a.host, b.host) },
		},
		"sender's link": {
			func(_ *Fabric, a, _ *station) { a.dev.SetLink(false) }, func(_ *Fabric, a, _ *station) { a.dev.SetLink(true) },
		},
		"receiver's link": {
			func(_ *Fabric, _, b *station) { b.dev.SetLink(false) }, func(_ *Fabric, _, b *station) { b.dev.SetLink(true) },
		},
	}
	for _, typ := range []verbs.QPType{verbs.UC, verbs.UD} {
		for name, fault := range faults {
			t.Run(typ.String()+" "+name, func(t *testing.T) {
				atHand(t, roce, func(t *testing.T, fab *Fabric, a, b *station) {
					joined(a, b, typ)
					send := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGL: a.piece(0, 100)}
					if typ == verbs.UD {
						send.AH, send.RemoteQPNum, send.RemoteQKey = a.handle(b), b.qp.Num(), 0x1234
					}
					b.recv(b.qp, 1)
					fault.begin(fab, a, b)
					for range 20 { // more than the queue holds: entries become free
						a.post(a.qp, send)
						a.gets(0, verbs.StatusSuccess)
					}
					b.quiet()
					fault.end(fab, a, b)
					fill(a.mr.Bytes()[:100], 5)
					a.post(a.qp, send)
					a.gets(0, verbs.StatusSuccess)
					wc := b.gets(1, verbs.StatusSuccess)
					at := b.mr.Bytes()[pageSize+256:]
					if typ == verbs.UD {
						require.EqualValues(t, 140, wc.ByteLen)
						at = at[verbs.GRHSize:]
					}
					require.True(t, has(at[:100], 5))
				})
			})
		}
	}
}

func TestUCDrops(t *testing.T) {
	atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
		joined(a, b, verbs.UC)
		readOnly, err := b.pd.AllocMR(64, 0)
		require.NoError(t, err)
		a.mr.Bytes()[0] = 1
		write := b.remote(verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: a.piece(0, 8)}, 0)
		dropped := func(change func(*verbs.SendWR)) {
			t.Helper()
			wr := write
			change(&wr)
			a.post(a.qp, wr)
			a.gets(0, verbs.StatusSuccess)
		}
		dropped(func(wr *verbs.SendWR) { wr.RKey ^= 1 })
		dropped(func(wr *verbs.SendWR) { wr.RemoteAddr += 4 * pageSize })
		dropped(func(wr *verbs.SendWR) { *wr = at(*wr, readOnly, 0) })
		dropped(func(wr *verbs.SendWR) { wr.Opcode = verbs.OpRDMAWriteWithImm }) // no receive
		dropped(func(wr *verbs.SendWR) { wr.Opcode = verbs.OpSend })
		b.recv(b.qp, 1)
		dropped(func(wr *verbs.SendWR) { wr.Opcode, wr.SGL = verbs.OpSend, a.piece(0, 257) }) // too long
		dropped(func(wr *verbs.SendWR) { wr.Opcode, wr.RKey = verbs.OpRDMAWriteWithImm, 0 })
		require.Zero(t, b.mr.Bytes()[0])
		b.quiet()

		// A message may begin at any PSN: the receive is still there.
		write.Opcode, write.Imm = verbs.OpRDMAWriteWithImm, 7
		a.post(a.qp, write)
		a.gets(0, verbs.StatusSuccess)
		wc := b.gets(1, verbs.StatusSuccess)
		require.Equal(t, []any{verbs.WCRecvRDMAWithImm, verbs.WCWithImm, uint32(7), uint32(8)}, []any{wc.Opcode, wc.Flags, wc.Imm, wc.ByteLen})
		require.NotZero(t, b.mr.Bytes()[0])
		b.untold()

		// Without the QP's leave.
		require.NoError(t, b.qp.Modify(verbs.QPAttr{}, verbs.AttrAccess))
		clear(b.mr.Bytes())
		dropped(func(wr *verbs.SendWR) { wr.Opcode = verbs.OpRDMAWrite })
		require.Zero(t, b.mr.Bytes()[0])

		// This side's own mistakes are told.
		wr := write
		wr.SGL = []verbs.SGE{{Length: 8}}
		a.post(a.qp, wr, wr)
		a.gets(0, verbs.StatusLocProtErr)
		a.gets(0, verbs.StatusWRFlushErr)
		require.NoError(t, readOnly.Close())
	})
}

func TestUDDrops(t *testing.T) {
	atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
		joined(a, b, verbs.UD)
		send := verbs.SendWR{
			Opcode: verbs.OpSend, Flags: verbs.Signaled, SGL: a.piece(0, 8), AH: a.handle(b), RemoteQPNum: b.qp.Num(), RemoteQKey: 0x1234,
		}
		nowhere := by().Path(verbs.Endpoint{LID: 0xeee, GID: verbs.GID{1}})
		lost, err := a.pd.CreateAH(nowhere)
		require.NoError(t, err)
		defer func() { require.NoError(t, lost.Close()) }()
		dropped := func(change func(*verbs.SendWR)) {
			t.Helper()
			wr := send
			change(&wr)
			a.post(a.qp, wr)
			a.gets(0, verbs.StatusSuccess)
			b.quiet()
		}
		dropped(func(*verbs.SendWR) {}) // no receive
		b.recv(b.qp, 1)
		dropped(func(wr *verbs.SendWR) { wr.RemoteQKey++ })
		dropped(func(wr *verbs.SendWR) { wr.RemoteQPNum += 1000 })
		dropped(func(wr *verbs.SendWR) { wr.AH = lost })
		dropped(func(wr *verbs.SendWR) { wr.SGL = a.piece(0, 256-verbs.GRHSize+1) }) // too long
		require.NoError(t, a.qp.Modify(verbs.QPAttr{QKey: 0x99}, verbs.AttrQKey))
		dropped(func(wr *verbs.SendWR) { wr.RemoteQKey = 1 << 31 }) // the sender's own
		require.NoError(t, a.qp.Modify(verbs.QPAttr{QKey: 0x1234}, verbs.AttrQKey))
		send.RemoteQKey = 1<<31 | 0x99
		send.Opcode, send.Imm = verbs.OpSendWithImm, 0x5a
		a.post(a.qp, send)
		a.gets(0, verbs.StatusSuccess)
		wc := b.gets(1, verbs.StatusSuccess)
		require.Equal(t, verbs.Completion{
			ID: 1, Opcode: verbs.WCRecv, Flags: verbs.WCGRH | verbs.WCWithImm, ByteLen: 48, Imm: 0x5a, QPNum: b.qp.Num(),
			SrcQPNum: a.qp.Num(), SLID: a.dev.lid,
		}, wc)
	})
}

func TestUDHeaders(t *testing.T) {
	for _, c := range []struct {
		name   string
		dc     DeviceConfig
		v6     bool
		global bool
	}{
		{"InfiniBand", ib, false, true},
		{"InfiniBand by LID alone", ib, false, false},
		{"RoCE over IPv6", roce, true, true},
		{"RoCE over IPv4", roce, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			atHand(t, c.dc, func(t *testing.T, fab *Fabric, a, b *station) {
				if c.v6 {
					a, b = newStation(t, fab.Host("c", "fd00::1")), newStation(t, fab.Host("d", "fd00::2"))
				}
				joined(a, b, verbs.UD)
				to := verbs.AHAttr{Port: 1, LID: b.dev.lid, SL: 3, Global: c.global, GID: b.dev.gids[0], FlowLabel: 0xabcde, HopLimit: 9, TrafficClass: 0x41}
				h, err := a.pd.CreateAH(to)
				require.NoError(t, err)
				defer func() { require.NoError(t, h.Close()) }()
				copy(a.mr.Bytes(), "hello")
				b.recv(b.qp, 1)
				a.post(a.qp, verbs.SendWR{Opcode: verbs.OpSend, SGL: a.piece(0, 5), AH: h, RemoteQPNum: b.qp.Num(), RemoteQKey: 0x1234})
				wc := b.gets(1, verbs.StatusSuccess)
				require.EqualValues(t, 45, wc.ByteLen)
				require.Equal(t, c.global, wc.Flags&verbs.WCGRH != 0)
				require.EqualValues(t, 3, wc.SL)
				require.Equal(t, a.dev.lid, wc.SLID)
				m := b.mr.Bytes()[pageSize+256:]
				grh := m[:verbs.GRHSize]
				require.Equal(t, "hello", string(m[40:45]))

				const transport = 12 + 8 + 8 + 4 // BTH, DETH, the payload padded, ICRC
				switch {
				case !c.global:
					require.Equal(t, make([]byte, 40), grh) // untouched
				case c.v6 || !c.dc.RoCE:
					require.EqualValues(t, 0x641abcde, binary.BigEndian.Uint32(grh))
					require.Equal(t, a.dev.gids[0][:], grh[8:24])
					require.Equal(t, b.dev.gids[0][:], grh[24:40])
					require.EqualValues(t, 9, grh[7])
					if c.dc.RoCE {
						require.EqualValues(t, 17, grh[6])
						require.EqualValues(t, 8+transport, binary.BigEndian.Uint16(grh[4:]))
					} else {
						require.EqualValues(t, 0x1b, grh[6])
						require.EqualValues(t, transport, binary.BigEndian.Uint16(grh[4:]))
					}
				default:
					require.Equal(t, make([]byte, 20), grh[:20])
					ip := grh[20:]
					require.Equal(t, []byte{0x45, 0x41, 0, 20 + 8 + transport}, ip[:4])
					require.Equal(t, []byte{9, 17}, ip[8:10])
					require.Equal(t, []byte{10, 0, 0, 1, 10, 0, 0, 2}, ip[12:20])
					require.Zero(t, checksum(ip)) // over all of it, its own included
				}
			})
		})
	}
}

// What is wrong with a request is told at the post.
func TestUnreliableRefusals(t *testing.T) {
	atHand(t, roce, func(t *testing.T, fab *Fabric, a, b *station) {
		joined(a, b, verbs.UD)
		other := newStation(t, fab.Host("c", "10.0.0.3"))
		other.make(verbs.UD, nil)
		h := a.handle(b)
		good := verbs.SendWR{Opcode: verbs.OpSend, SGL: a.piece(0, 8), AH: h, RemoteQPNum: b.qp.Num(), RemoteQKey: 0x1234}
		pd, err := a.dev.AllocPD()
		require.NoError(t, err)
		attr := by().Path(verbs.Endpoint{GID: b.dev.gids[0]})
		strange, err := pd.CreateAH(attr)
		require.NoError(t, err)
		closed, err := a.pd.CreateAH(attr)
		require.NoError(t, err)
		require.NoError(t, closed.Close())
		require.NoError(t, closed.Close())
		for what, c := range map[string]struct {
			change func(*verbs.SendWR)
			err    error
		}{
			"no AH":         {func(wr *verbs.SendWR) { wr.AH = nil }, syscall.EINVAL},
			"another PD":    {func(wr *verbs.SendWR) { wr.AH = strange }, syscall.EINVAL},
			"another host":  {func(wr *verbs.SendWR) { wr.AH = other.handle(b) }, verbs.ErrForeign},
			"closed":        {func(wr *verbs.SendWR) { wr.AH = closed }, verbs.ErrClosed},
			"QP number":     {func(wr *verbs.SendWR) { wr.RemoteQPNum = 1 << 24 }, syscall.EINVAL},
			"two packets":   {func(wr *verbs.SendWR) { wr.SGL = a.piece(0, pathMTU+1) }, &verbs.LimitError{What: "bytes of a UD message", Got: pathMTU + 1, Max: pathMTU}},
			"WRITE":         {func(wr *verbs.SendWR) { wr.Opcode = verbs.OpRDMAWrite }, &verbs.UnsupportedError{Device: "fab0", What: "RDMA_WRITE on a UD queue pair"}},
			"another local": {func(wr *verbs.SendWR) { wr.SGL = append(a.piece(0, 1), append(a.piece(0, 1), a.piece(0, 1)...)...) }, &verbs.LimitError{What: "scatter/gather entries", Got: 3, Max: 2}},
		} {
			wr := good
			c.change(&wr)
			n, err := a.qp.PostSend([]verbs.SendWR{wr})
			require.Zero(t, n, what)
			if _, ok := err.(interface{ Is(error) bool }); ok {
				require.Equal(t, c.err, err, what)
			} else {
				require.ErrorIs(t, err, c.err, what)
			}
		}
		require.NoError(t, strange.Close())
		require.NoError(t, pd.Close())

		uc := a.make(verbs.UC, nil)
		join(a, b, uc, b.make(verbs.UC, nil))
		for _, op := range []verbs.Opcode{verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd} {
			_, err = uc.PostSend([]verbs.SendWR{{Opcode: op, SGL: a.piece(0, 8)}})
			var lacks *verbs.UnsupportedError
			require.ErrorAs(t, err, &lacks)
		}
	})
}

// A request holds what it names until it is sent: at the end of the way, here.
func TestUnreliableReadsMemoryLate(t *testing.T) {
	atHand(t, ib, func(t *testing.T, _ *Fabric, a, b *station) {
		joined(a, b, verbs.UC)
		b.recv(b.qp, 1)
		a.post(a.qp, sendWR(1, a.piece(0, 8)))
		copy(a.mr.Bytes(), "too late")
		b.gets(1, verbs.StatusSuccess)
		require.Equal(t, "too late", string(b.mr.Bytes()[pageSize+256:][:8]))
		a.gets(1, verbs.StatusSuccess)
		time.Sleep(time.Second)
	})
}
