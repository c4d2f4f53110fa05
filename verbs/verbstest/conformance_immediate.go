package verbstest

import (
	"testing"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

func (s *suite) sendWithImm(t *testing.T) {
	a, b := s.pair(t, size{inline: 16})
	for i, c := range []struct {
		n      int
		imm    uint32
		inline bool
	}{{1, 0, false}, {64, 0x01020304, false}, {4097, 0xffffffff, false}, {0, 0x80000001, false}, {9, 7, true}} {
		id := uint64(i)
		fill(a.mr.Bytes()[:c.n], byte(i))
		b.postRecv(id, b.sge(1000, 5000))
		wr := sendWR(id, a.sge(0, c.n))
		wr.Opcode, wr.Imm = verbs.OpSendWithImm, c.imm
		if c.inline {
			wr.SGL, wr.Inline = nil, filled(c.n, byte(i))
		}
		a.post(wr)
		wc := b.received(id, c.n)
		require.Equal(t, verbs.WCRecv, wc.Opcode)
		require.Equal(t, verbs.WCWithImm, wc.Flags)
		require.Equal(t, c.imm, wc.Imm)
		require.True(t, has(b.mr.Bytes()[1000:1000+c.n], byte(i)))
		a.sent(id, verbs.WCSend)
	}
	// The next one has none.
	b.postRecv(50, b.slot(0))
	a.post(sendWR(50, a.sge(0, 8)))
	require.Zero(t, b.received(50, 8).Flags)
}

func (s *suite) sendWithImmNoReceive(t *testing.T) {
	a, b := s.pair(t, size{})
	wr := sendWR(1, a.sge(0, 8))
	wr.Opcode, wr.Imm = verbs.OpSendWithImm, 5
	require.EqualValues(t, 5, s.comesLate(t, a, b, wr))
}

// comesLate posts a request that finds no receive: on InfiniBand it waits for one, on iWARP the connection ends.
func (s *suite) comesLate(t *testing.T, a, b *side, wr verbs.SendWR) (imm uint32) {
	t.Helper()
	a.post(wr)
	if !a.dev.Attr().Caps.RNR {
		a.disconnected()
		b.disconnected()
		require.NoError(t, b.poll())
		require.Empty(t, b.recvs)
		return wr.Imm
	}
	b.postRecv(7, b.slot(0))
	wc := b.received(7, 8)
	sent := a.nextSend()
	require.NoError(t, sent.Err())
	return wc.Imm
}

func (e *side) writeImmWR(id uint64, sgl []verbs.SGE, peer *side, at int, imm uint32) verbs.SendWR {
	wr := e.writeWR(id, sgl, peer, at)
	wr.Opcode, wr.Imm = verbs.OpRDMAWriteWithImm, imm
	return wr
}

// writeWithImmOrder mixes WRITEs with immediate, without, and SENDs: each finds its receive, and what was written is there
// with it.
func (s *suite) writeWithImmOrder(t *testing.T) {
	a, b := s.pair(t, size{sendWR: 64, recvWR: 64})
	const n = 8
	for i := range 2 * n {
		b.postRecv(uint64(i), b.slot(i))
	}
	fill(a.mr.Bytes()[:3000*n], 1)
	for i := range n {
		at, id := 3000*i, uint64(3*i)
		a.post(
			a.writeWR(id, a.sge(at, 1500), b, at),
			a.writeImmWR(id+1, a.sge(at+1500, 1500), b, at+1500, uint32(i)),
			sendWR(id+2, a.sge(i, 1)),
		)
	}
	for i := range n {
		wc := b.received(uint64(2*i), 1500)
		require.Equal(t, verbs.WCRecvRDMAWithImm, wc.Opcode)
		require.Equal(t, verbs.WCWithImm, wc.Flags)
		require.EqualValues(t, i, wc.Imm)
		require.True(t, has(b.mr.Bytes()[:3000*(i+1)], 1))
		require.Equal(t, verbs.WCRecv, b.received(uint64(2*i+1), 1).Opcode)
		require.Equal(t, a.mr.Bytes()[i], b.mr.Bytes()[b.slotAt(2*i+1)])
		a.sent(uint64(3*i), verbs.WCRDMAWrite)
		a.sent(uint64(3*i+1), verbs.WCRDMAWrite)
		a.sent(uint64(3*i+2), verbs.WCSend)
	}
	// Those of SENDs were not for WRITEs to write to.
	for i := range n {
		at := b.slotAt(2 * i)
		require.Equal(t, make([]byte, 64), b.mr.Bytes()[at:at+64])
	}
}

func (s *suite) writeWithImmNoReceive(t *testing.T) {
	a, b := s.pair(t, size{})
	require.EqualValues(t, 9, s.comesLate(t, a, b, a.writeImmWR(1, a.sge(0, 8), b, 0, 9)))
}

func sendInvWR(id uint64, sgl []verbs.SGE, rkey uint32) verbs.SendWR {
	return verbs.SendWR{ID: id, Opcode: verbs.OpSendWithInv, Flags: verbs.Signaled, SGL: sgl, InvalidateRKey: rkey}
}

// sendWithInv takes a key away that worked. What comes by it then is refused.
func (s *suite) sendWithInv(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		a, b := s.pair(t, size{})
		mr, other := b.region(4096, allAccess), b.region(4096, allAccess)
		fill(a.mr.Bytes()[:64], 1)
		a.post(at(a.writeWR(1, a.sge(0, 64), b, 0), mr, 0))
		a.sent(1, verbs.WCRDMAWrite)

		b.postRecv(2, b.sge(1000, 100))
		a.post(sendInvWR(2, a.sge(0, 64), mr.RKey()))
		wc := b.received(2, 64)
		require.Equal(t, verbs.WCRecv, wc.Opcode)
		require.Equal(t, verbs.WCWithInv, wc.Flags)
		require.Equal(t, mr.RKey(), wc.InvalidatedRKey)
		require.True(t, has(b.mr.Bytes()[1000:1064], 1))
		require.True(t, has(mr.Bytes()[:64], 1))
		a.sent(2, verbs.WCSend)

		// Other keys still work.
		a.post(at(a.writeWR(3, a.sge(0, 64), b, 0), other, 0), a.writeWR(4, a.sge(0, 64), b, 0))
		a.sent(3, verbs.WCRDMAWrite)
		a.sent(4, verbs.WCRDMAWrite)
		b.sync(a)
		require.True(t, has(other.Bytes()[:64], 1))

		a.postRecv(0, a.slot(0))
		b.postRecv(0, b.slot(0))
		fill(a.mr.Bytes()[:64], 2)
		wr := at(a.writeWR(1, a.sge(0, 64), b, 0), mr, 0)
		if wr.Opcode = op; op == verbs.OpRDMARead {
			a.post(wr)
			s.requireRefused(t, a, b, verbs.StatusRemAccessErr)
			require.True(t, has(a.mr.Bytes()[:64], 2))
		} else {
			a.post(wr)
			s.requireBroken(t, a, b, verbs.StatusRemAccessErr)
		}
		require.True(t, has(mr.Bytes()[:64], 1))
	}
}

// sendWithInvUnknown names a key that cannot be made invalid: the connection ends, and the receive does not tell of success.
func (s *suite) sendWithInvUnknown(t *testing.T) {
	for _, c := range []struct {
		name string
		key  func(t *testing.T, a, b *side) uint32
	}{
		{"unknown", func(_ *testing.T, _, b *side) uint32 { return b.mr.RKey() ^ 0x5a5a00 }},
		{"twice", func(_ *testing.T, a, b *side) uint32 {
			mr := b.region(4096, allAccess)
			b.postRecv(9, b.slot(1))
			a.post(sendInvWR(9, nil, mr.RKey()))
			b.received(9, 0)
			a.sent(9, verbs.WCSend)
			return mr.RKey()
		}},
		{"another PD", func(t *testing.T, _, b *side) uint32 {
			pd, err := b.dev.AllocPD()
			require.NoError(t, err)
			mr, err := pd.AllocMR(4096, allAccess)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, mr.Close()); require.NoError(t, pd.Close()) })
			return mr.RKey()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := s.pair(t, size{})
			key := c.key(t, a, b)
			b.postRecv(0, b.slot(0))
			a.post(sendInvWR(1, a.sge(0, 8), key))
			wc := b.nextRecv()
			require.NotEqual(t, verbs.StatusSuccess, wc.Status)
			if a.iwarp() {
				a.disconnected()
				b.disconnected()
				return
			}
			wc = a.nextSend()
			require.NotEqual(t, verbs.StatusSuccess, wc.Status)
			require.EqualValues(t, 1, wc.ID)
		})
	}
}
