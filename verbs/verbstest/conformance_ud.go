package verbstest

import (
	"bytes"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

func (s *suite) udCases() []testCase {
	ud := byHand(verbs.UD)
	return []testCase{
		{"AH", s.ah, ahs},
		{"UD", s.ud, ud},
		{"UDReply", s.udReply, ud},
		{"UDImm", s.udImm, ud.and(operations(verbs.OpSendWithImm))},
		{"UDInline", s.udInline, ud},
		{"UDPieces", s.udPieces, ud},
		{"UDMany", s.udMany, ud},
		{"UDWrongQKey", s.udWrongQKey, ud},
		{"UDNoReceive", s.udNoReceive, ud},
		{"UDTooLong", s.udTooLong, ud},
		{"UDWrongAH", s.udWrongAH, ud},
		{"UDMissing", s.udMissing, ud},
		{"UDSRQ", s.udSRQ, ud.and(srqs)},
	}
}

// ah makes address handles of what does not fit, and closes what is used.
func (s *suite) ah(t *testing.T) {
	p, _ := s.sites(t)
	good := p.transitions(t, verbs.RC)[verbs.QPRTR].attr.AH
	pd, err := p.dev.AllocPD()
	require.NoError(t, err)
	port, err := p.dev.Port(p.port)
	require.NoError(t, err)
	wrong := map[string]func(*verbs.AHAttr){
		"port 0":    func(a *verbs.AHAttr) { a.Port = 0 },
		"port":      func(a *verbs.AHAttr) { a.Port = p.dev.Attr().Ports + 1 },
		"GID index": func(a *verbs.AHAttr) { a.Global, a.GIDIndex = true, port.GIDs },
		"negative":  func(a *verbs.AHAttr) { a.Global, a.GIDIndex = true, -1 },
	}
	if port.Link == verbs.LinkEthernet {
		wrong["no GRH"] = func(a *verbs.AHAttr) { a.Global = false }
	}
	for name, change := range wrong {
		a := good
		change(&a)
		_, err := pd.CreateAH(a)
		require.ErrorIs(t, err, syscall.EINVAL, name)
	}

	ah, err := pd.CreateAH(good)
	require.NoError(t, err)
	require.ErrorIs(t, pd.Close(), verbs.ErrBusy)
	require.NoError(t, ah.Close())
	require.NoError(t, ah.Close())
	require.NoError(t, pd.Close())
	_, err = pd.CreateAH(good)
	require.ErrorIs(t, err, verbs.ErrClosed)
}

// uds makes UD QPs, ready to send: the first at the dialing end, the others at the accepting one.
func (s *suite) uds(t *testing.T, n int, z size) (a *side, bs []*side) {
	t.Helper()
	pa, pb := s.sites(t)
	ready := func(p site) *side {
		e := s.byHandSide(t, p, verbs.UD, z, p.hand(param()))
		require.NoError(t, e.hand.Connect(e.qp, verbs.Endpoint{}))
		return e
	}
	a = ready(pa)
	for range n {
		bs = append(bs, ready(pb))
	}
	return a, bs
}

// ahTo is an address handle for a peer, which is closed with the side.
func (e *side) ahTo(peer *side) verbs.AH {
	e.t.Helper()
	ah, err := e.pd.CreateAH(e.hand.Path(peer.local))
	require.NoError(e.t, err)
	e.ahs = append(e.ahs, ah)
	return ah
}

// udWR is a signaled SEND to a peer.
func udWR(id uint64, sgl []verbs.SGE, ah verbs.AH, peer *side) verbs.SendWR {
	wr := sendWR(id, sgl)
	wr.AH, wr.RemoteQPNum, wr.RemoteQKey = ah, peer.qp.Num(), peer.hand.QKey
	return wr
}

// datagram expects a message of n bytes in receive id, at an offset of the memory, and returns its payload.
func (e *side) datagram(id uint64, at, n int, from *side) (verbs.Completion, []byte) {
	e.t.Helper()
	wc := e.received(id, verbs.GRHSize+n)
	require.Equal(e.t, verbs.WCRecv, wc.Opcode)
	require.Equal(e.t, from.qp.Num(), wc.SrcQPNum)
	return wc, e.mr.Bytes()[at+verbs.GRHSize:][:n]
}

// mtu is the most that a message of the side may have.
func (e *side) mtu() int {
	e.t.Helper()
	p, err := e.dev.Port(e.hand.Port)
	require.NoError(e.t, err)
	return p.MTU
}

func (s *suite) ud(t *testing.T) {
	a, bs := s.uds(t, 1, size{})
	b := bs[0]
	ah := a.ahTo(b)
	for i, n := range []int{1, 64, 1024, min(a.mtu(), b.mtu()), 0} {
		fill(a.mr.Bytes()[:n], byte(i))
		fill(b.mr.Bytes()[:10000], 50)
		b.postRecv(uint64(i), b.sge(100, 9000))
		a.post(udWR(uint64(i), a.sge(0, n), ah, b))
		wc, payload := b.datagram(uint64(i), 100, n, a)
		require.True(t, has(payload, byte(i)))
		require.Zero(t, wc.Flags&verbs.WCWithImm)
		all := filled(10000, 50)
		require.Equal(t, all[:100], b.mr.Bytes()[:100])
		require.Equal(t, all[100+verbs.GRHSize+n:], b.mr.Bytes()[100+verbs.GRHSize+n:10000])
		require.Equal(t, a.hand.Path(b.local).Global, wc.Flags&verbs.WCGRH != 0)
		if wc.Flags&verbs.WCGRH != 0 {
			require.Equal(t, a.local.GID, b.source(b.mr.Bytes()[100:]), "the sender's address")
		}
		a.sent(uint64(i), verbs.WCSend)
	}
	require.Equal(t, b.hand.QKey, b.is(verbs.QPRTS).QKey)
}

// source is the sender's GID in a global route header: of IP version 6, or of version 4 in the last 20 bytes.
func (e *side) source(grh []byte) verbs.GID {
	e.t.Helper()
	gid := netip.AddrFrom16(e.local.GID)
	typ, err := e.dev.GIDType(e.hand.Port, e.hand.GIDIndex)
	require.NoError(e.t, err)
	if gid.Is4In6() && typ == verbs.GIDTypeRoCEv2 {
		require.EqualValues(e.t, 4, grh[20]>>4, "IP version")
		return verbs.GID(netip.AddrFrom4([4]byte(grh[32:36])).As16())
	}
	require.EqualValues(e.t, 6, grh[0]>>4, "IP version")
	return verbs.GID(grh[8:24])
}

// udReply answers whoever has sent, by the number in the completion.
func (s *suite) udReply(t *testing.T) {
	a, bs := s.uds(t, 1, size{})
	b := bs[0]
	there, back := a.ahTo(b), b.ahTo(a)
	for i := range 10 {
		a.postRecv(1, a.sge(1000, 200))
		b.postRecv(2, b.sge(1000, 200))
		fill(a.mr.Bytes()[:100], byte(i))
		a.post(udWR(3, a.sge(0, 100), there, b))
		wc, payload := b.datagram(2, 1000, 100, a)
		copy(b.mr.Bytes(), payload)
		reply := sendWR(4, b.sge(0, 100))
		reply.AH, reply.RemoteQPNum, reply.RemoteQKey = back, wc.SrcQPNum, a.hand.QKey
		b.post(reply)
		_, payload = a.datagram(1, 1000, 100, b)
		require.True(t, has(payload, byte(i)))
		a.sent(3, verbs.WCSend)
		b.sent(4, verbs.WCSend)
	}
}

func (s *suite) udImm(t *testing.T) {
	a, bs := s.uds(t, 1, size{})
	b := bs[0]
	ah := a.ahTo(b)
	for i, n := range []int{0, 8, 1000} {
		b.postRecv(1, b.sge(0, 2000))
		fill(a.mr.Bytes()[:n], byte(i))
		wr := udWR(1, a.sge(0, n), ah, b)
		wr.Opcode, wr.Imm = verbs.OpSendWithImm, 0x80000000|uint32(i)
		a.post(wr)
		wc, payload := b.datagram(1, 0, n, a)
		require.NotZero(t, wc.Flags&verbs.WCWithImm)
		require.Equal(t, wr.Imm, wc.Imm)
		require.True(t, has(payload, byte(i)))
		a.sent(1, verbs.WCSend)
	}
}

func (s *suite) udInline(t *testing.T) {
	a, bs := s.uds(t, 1, size{inline: 32})
	b := bs[0]
	n := min(a.qp.Cap().MaxInline, 32)
	require.Positive(t, n)
	inline := filled(n, 1)
	b.postRecv(1, b.sge(0, 200))
	wr := udWR(1, nil, a.ahTo(b), b)
	wr.Inline = inline
	a.post(wr)
	clear(inline)
	_, payload := b.datagram(1, 0, n, a)
	require.True(t, has(payload, 1))
	a.sent(1, verbs.WCSend)
}

// udPieces gathers and scatters: the header goes to memory of its own.
func (s *suite) udPieces(t *testing.T) {
	most := s.pieces(t)
	if most < 2 {
		t.Log("left out: the device has one entry only")
		return
	}
	a, bs := s.uds(t, 1, size{sendSGE: most, recvSGE: most})
	b := bs[0]
	ah := a.ahTo(b)
	fill(a.mr.Bytes()[:1000], 1)
	from, n := a.sglOf(most, 30, 0, 70, 1, 5)
	for _, cut := range []int{1, verbs.GRHSize, verbs.GRHSize + 10} {
		to, _ := b.sglOf(most, cut, verbs.GRHSize+n-cut)
		fill(b.mr.Bytes(), 50)
		before := bytes.Clone(b.mr.Bytes())
		b.postRecv(1, to)
		a.post(udWR(2, from, ah, b))
		wc := b.received(1, verbs.GRHSize+n)
		a.sent(2, verbs.WCSend)
		all := b.bytesOf(to)
		require.Equal(t, string(a.bytesOf(from)), string(all[verbs.GRHSize:]))
		require.True(t, b.untouched(to, before))
		if wc.Flags&verbs.WCGRH != 0 {
			require.Equal(t, a.local.GID, b.source(all))
		}
	}
}

// udMany sends to several QPs by one.
func (s *suite) udMany(t *testing.T) {
	a, bs := s.uds(t, 3, size{})
	var ahs []verbs.AH
	for _, b := range bs {
		ahs = append(ahs, a.ahTo(b))
	}
	for i := range 12 {
		k := i % 3
		bs[k].postRecv(uint64(i), bs[k].sge(0, 200))
		fill(a.mr.Bytes()[:i], byte(i))
		a.post(udWR(uint64(i), a.sge(0, i), ahs[k], bs[k]))
		_, payload := bs[k].datagram(uint64(i), 0, i, a)
		require.True(t, has(payload, byte(i)))
		a.sent(uint64(i), verbs.WCSend)
	}
	for _, b := range bs {
		require.NoError(t, b.poll())
		require.Empty(t, b.recvs)
	}
}

// udWrongQKey sends what is not received: the sender does not learn it. What is sent right arrives.
func (s *suite) udWrongQKey(t *testing.T) {
	a, bs := s.uds(t, 1, size{})
	b := bs[0]
	ah := a.ahTo(b)
	b.postRecv(1, b.sge(0, 200))
	for _, change := range []func(*verbs.SendWR){
		func(wr *verbs.SendWR) { wr.RemoteQKey++ },
		func(wr *verbs.SendWR) { wr.RemoteQPNum = (wr.RemoteQPNum + 0x5a5a5a) & 0xffffff },
	} {
		wr := udWR(1, a.sge(0, 10), ah, b)
		change(&wr)
		a.post(wr)
		a.sent(1, verbs.WCSend)
	}
	a.post(udWR(2, a.sge(0, 20), ah, b))
	b.datagram(1, 0, 20, a)
	a.sent(2, verbs.WCSend)
	require.NoError(t, b.poll())
	require.Empty(t, b.recvs)
}

// udNoReceive sends what nobody receives.
func (s *suite) udNoReceive(t *testing.T) {
	a, bs := s.uds(t, 2, size{})
	b, other := bs[0], bs[1]
	ah := a.ahTo(b)
	a.post(udWR(1, a.sge(0, 10), ah, b))
	a.sent(1, verbs.WCSend)
	s.settled(a, ah, other)
	b.postRecv(1, b.sge(0, 200))
	a.post(udWR(2, a.sge(0, 20), ah, b))
	b.datagram(1, 0, 20, a)
	a.sent(2, verbs.WCSend)
}

// settled returns when what was sent before has most likely come to another QP of the same device: after some messages to this one.
func (s *suite) settled(a *side, ah verbs.AH, other *side) {
	a.t.Helper()
	for range 10 {
		other.postRecv(1, other.sge(0, 200))
		a.post(udWR(900, a.sge(0, 10), ah, other))
		other.datagram(1, 0, 10, a)
		a.sent(900, verbs.WCSend)
	}
	time.Sleep(10 * time.Millisecond)
}

// udTooLong sends more than fits in a packet. It is refused, or fails, or is silently dropped as IBTA C10-93.1.1 has it.
func (s *suite) udTooLong(t *testing.T) {
	a, bs := s.uds(t, 2, size{})
	b, other := bs[0], bs[1]
	ah := a.ahTo(b)
	b.postRecv(1, b.sge(0, 20000))
	n, err := a.qp.PostSend([]verbs.SendWR{udWR(1, a.sge(0, a.mtu()+1), ah, b)})
	if err != nil {
		require.Zero(t, n)
		require.ErrorIs(t, err, syscall.EINVAL)
	} else if wc := a.nextSend(); wc.Err() != nil {
		require.EqualValues(t, 1, wc.ID)
		return // the QP is broken
	}
	s.settled(a, ah, other)
	require.NoError(t, b.poll())
	require.Empty(t, b.recvs)
}

type otherAH struct{ verbs.AH }

// udWrongAH names address handles that are not the QP's to use.
func (s *suite) udWrongAH(t *testing.T) {
	a, bs := s.uds(t, 1, size{})
	b := bs[0]
	b.postRecv(1, b.sge(0, 200))
	ah := a.ahTo(b)
	refused := func(ah verbs.AH, want error) {
		t.Helper()
		n, err := a.qp.PostSend([]verbs.SendWR{udWR(1, a.sge(0, 10), ah, b)})
		require.Zero(t, n)
		require.ErrorIs(t, err, want)
	}
	refused(nil, syscall.EINVAL)
	refused(otherAH{ah}, verbs.ErrForeign)
	closed := a.ahTo(b)
	require.NoError(t, closed.Close())
	refused(closed, verbs.ErrClosed)

	wide := udWR(1, a.sge(0, 10), ah, b)
	wide.RemoteQPNum |= 1 << 24 // a packet has 24 bits for it
	n, err := a.qp.PostSend([]verbs.SendWR{wide})
	require.Zero(t, n)
	require.ErrorIs(t, err, syscall.EINVAL)

	pd, err := a.dev.AllocPD()
	require.NoError(t, err)
	strange, err := pd.CreateAH(a.hand.Path(b.local))
	require.NoError(t, err)
	refused(strange, syscall.EINVAL)
	require.NoError(t, strange.Close())
	require.NoError(t, pd.Close())

	a.post(udWR(2, a.sge(0, 20), ah, b))
	b.datagram(1, 0, 20, a)
	a.sent(2, verbs.WCSend)
}

// udMissing posts what UD does not have.
func (s *suite) udMissing(t *testing.T) {
	a, bs := s.uds(t, 1, size{})
	b := bs[0]
	ah := a.ahTo(b)
	for _, op := range []verbs.Opcode{
		verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd, verbs.OpAtomicCmpAndSwp, verbs.OpSendWithInv,
	} {
		b.postRecv(1, b.sge(0, 200))
		wr := at(udWR(2, a.sge(0, 8), ah, b), b.mr, 0)
		wr.Opcode = op
		n, err := a.qp.PostSend([]verbs.SendWR{udWR(1, a.sge(0, 10), ah, b), wr})
		require.Equal(t, 1, n, op)
		requireUnsupported(t, a.dev, err)
		b.datagram(1, 0, 10, a)
		a.sent(1, verbs.WCSend)
	}
}

// udSRQ has QPs of several senders' messages take entries of one queue.
func (s *suite) udSRQ(t *testing.T) {
	p := s.pool(t, 8)
	pa, pb := s.sites(t)
	sides := make([]*side, 3)
	for i := range sides {
		at, z := pb, size{pd: p.pd, srq: p.srq}
		if i == 0 {
			at, z = pa, size{}
		}
		sides[i] = s.byHandSide(t, at, verbs.UD, z, at.hand(param()))
		require.NoError(t, sides[i].hand.Connect(sides[i].qp, verbs.Endpoint{}))
	}
	a, bs := sides[0], sides[1:]
	p.post(0, 5)
	for i := range 6 {
		b := bs[i%2]
		fill(a.mr.Bytes()[:20], byte(i))
		a.post(udWR(1, a.sge(0, 20), a.ahTo(b), b))
		wc := b.received(uint64(i), verbs.GRHSize+20)
		require.Equal(t, a.qp.Num(), wc.SrcQPNum)
		require.True(t, has(p.slot(i)[verbs.GRHSize:verbs.GRHSize+20], byte(i)))
		a.sent(1, verbs.WCSend)
	}
	_, err := bs[0].qp.PostRecv([]verbs.RecvWR{{}})
	require.ErrorIs(t, err, syscall.EINVAL)
}
