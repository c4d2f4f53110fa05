package verbstest

import (
	"bytes"
	"testing"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

func (s *suite) ucCases() []testCase {
	uc := byHand(verbs.UC)
	both := uc.and(byHand(verbs.RC))
	return []testCase{
		{"UC", s.uc, uc},
		{"UCImm", s.ucImm, uc.and(operations(verbs.OpSendWithImm, verbs.OpRDMAWriteWithImm))},
		{"UCInline", s.ucInline, uc},
		{"UCMissing", s.ucMissing, uc},
		{"UCNoReceive", s.ucNoReceive, both},
		{"UCRemoteMemory", s.ucRemoteMemory, both},
	}
}

func (s *suite) ucPair(t *testing.T, z size) (a, b *side) {
	t.Helper()
	return s.connectByHand(t, verbs.UC, end{z, param()}, end{z, param()})
}

// seeing is a UC connection with an RC one beside it, by which a sees what has come to b: UC itself does not tell.
type seeing struct {
	a, b *side
	eye  *side
	mark byte
}

func (s *suite) seeing(t *testing.T, z size) *seeing {
	t.Helper()
	v := new(seeing)
	v.a, v.b = s.ucPair(t, z)
	v.eye, _ = s.connectByHand(t, verbs.RC, end{size{}, param()}, end{size{pd: v.b.pd}, param()})
	return v
}

// arrived returns when everything that a has sent is at b's device, or lost: when a WRITE behind it has come.
func (v *seeing) arrived(s *suite) {
	v.a.t.Helper()
	const at = 60000
	v.mark++
	v.a.mr.Bytes()[at] = v.mark
	s.eventually(v.a.t, "a WRITE by UC", func() bool {
		v.a.post(v.a.writeWR(900, v.a.sge(at, 1), v.b, at))
		v.a.sent(900, verbs.WCRDMAWrite)
		v.eye.post(v.eye.readWR(901, v.eye.sge(at, 1), v.b, at))
		v.eye.sent(901, verbs.WCRDMARead)
		return v.eye.mr.Bytes()[at] == v.mark
	})
}

func (s *suite) uc(t *testing.T) {
	a, b := s.ucPair(t, size{})
	for i, n := range []int{1, 64, 1024, 1025, 10000} {
		from, to := a, b
		if i%2 == 1 {
			from, to = b, a
		}
		fill(from.mr.Bytes()[:n], byte(i))
		to.postRecv(uint64(i), to.sge(20000, 10000))
		from.post(from.writeWR(1, from.sge(0, n), to, 40000), sendWR(2, from.sge(0, n)))
		wc := to.received(uint64(i), n)
		require.Equal(t, verbs.WCRecv, wc.Opcode)
		from.sent(1, verbs.WCRDMAWrite)
		from.sent(2, verbs.WCSend)
		require.True(t, has(to.mr.Bytes()[20000:20000+n], byte(i)))
		require.True(t, has(to.mr.Bytes()[40000:40000+n], byte(i)))
	}
}

func (s *suite) ucImm(t *testing.T) {
	a, b := s.ucPair(t, size{})
	fill(a.mr.Bytes()[:3000], 1)
	for i, n := range []int{0, 8, 3000} {
		b.postRecv(1, b.sge(20000, 3000))
		wr := sendWR(1, a.sge(0, n))
		wr.Opcode, wr.Imm = verbs.OpSendWithImm, 0x80000000|uint32(i)
		a.post(wr)
		wc := b.received(1, n)
		require.Equal(t, verbs.WCRecv, wc.Opcode)
		require.Equal(t, verbs.WCWithImm, wc.Flags&verbs.WCWithImm)
		require.Equal(t, wr.Imm, wc.Imm)
		require.True(t, has(b.mr.Bytes()[20000:20000+n], 1))
		a.sent(1, verbs.WCSend)

		b.postRecv(2, nil)
		a.post(a.writeImmWR(2, a.sge(0, n), b, 30000, uint32(i)))
		wc = b.received(2, n)
		require.Equal(t, verbs.WCRecvRDMAWithImm, wc.Opcode)
		require.EqualValues(t, i, wc.Imm)
		require.True(t, has(b.mr.Bytes()[30000:30000+n], 1))
		a.sent(2, verbs.WCRDMAWrite)
	}
}

func (s *suite) ucInline(t *testing.T) {
	a, b := s.ucPair(t, size{inline: 32})
	n := min(a.qp.Cap().MaxInline, 32)
	require.Positive(t, n)
	payload := filled(n, 1)
	b.postRecv(1, b.sge(0, 64))
	a.post(
		verbs.SendWR{Opcode: verbs.OpRDMAWrite, Inline: payload, RemoteAddr: b.mr.Addr() + 2000, RKey: b.mr.RKey()},
		verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.Signaled, Inline: payload},
	)
	clear(payload)
	b.received(1, n)
	a.sent(1, verbs.WCSend)
	require.True(t, has(b.mr.Bytes()[:n], 1))
	require.True(t, has(b.mr.Bytes()[2000:2000+n], 1))
}

// ucMissing posts what UC does not have.
func (s *suite) ucMissing(t *testing.T) {
	a, b := s.ucPair(t, size{recvs: 8})
	for i, op := range []verbs.Opcode{verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd, verbs.OpAtomicCmpAndSwp, verbs.OpSendWithInv} {
		wr := a.readWR(2, a.sge(0, 8), b, 0)
		wr.Opcode = op
		n, err := a.qp.PostSend([]verbs.SendWR{sendWR(1, a.sge(0, 8)), wr, sendWR(3, a.sge(0, 8))})
		require.Equal(t, 1, n, op)
		requireUnsupported(t, a.dev, err)
		a.sent(1, verbs.WCSend)
		b.received(uint64(i), 8)
	}
}

// ucNoReceive sends what nobody receives: it is lost, the sender does not learn it, and the next message arrives.
func (s *suite) ucNoReceive(t *testing.T) {
	v := s.seeing(t, size{})
	for i := range 3 {
		v.a.post(sendWR(1, v.a.sge(0, 10)), sendWR(2, v.a.sge(0, 5000)))
		v.a.sent(1, verbs.WCSend)
		v.a.sent(2, verbs.WCSend)
		v.arrived(s)
		v.b.postRecv(uint64(i), v.b.slot(0))
		v.a.post(sendWR(3, v.a.sge(0, 20)))
		v.b.received(uint64(i), 20)
		v.a.sent(3, verbs.WCSend)
	}
}

// ucRemoteMemory writes where it may not: nothing is changed, the sender does not learn it, and the QPs go on.
func (s *suite) ucRemoteMemory(t *testing.T) {
	v := s.seeing(t, size{})
	a, b := v.a, v.b
	fill(a.mr.Bytes()[:64], 1)
	mr, noWrite := b.region(4096, everyAccess), b.region(4096, verbs.AccessLocalWrite|verbs.AccessRemoteRead)
	before := bytes.Clone(b.mr.Bytes()[:50000])
	for _, change := range []func(wr *verbs.SendWR){
		func(wr *verbs.SendWR) { wr.RKey ^= 0x5a5a00 },
		func(wr *verbs.SendWR) { wr.RemoteAddr-- },
		func(wr *verbs.SendWR) { wr.RemoteAddr += 4096 - 63 },
		func(wr *verbs.SendWR) { *wr = at(*wr, noWrite, 0) },
	} {
		wr := at(a.writeWR(1, a.sge(0, 64), b, 0), mr, 0)
		change(&wr)
		a.post(wr)
		a.sent(1, verbs.WCRDMAWrite)
		v.arrived(s)
		require.Equal(t, make([]byte, 4096), mr.Bytes())
		require.Equal(t, make([]byte, 4096), noWrite.Bytes())
		require.True(t, bytes.Equal(before, b.mr.Bytes()[:50000]))
	}
	require.NoError(t, b.poll())
	require.Empty(t, b.recvs)
}
