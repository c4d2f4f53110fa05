package verbstest

import (
	"errors"
	"testing"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

func (s *suite) send(t *testing.T) {
	a, b := s.pair(t, size{})
	for i, n := range []int{1, 4, 63, 64, 4096, 10000} {
		from, to := a, b
		if i%2 == 1 {
			from, to = b, a
		}
		fill(from.mr.Bytes()[:n], byte(i))
		to.postRecv(uint64(i), to.sge(20000, 10000))
		from.post(sendWR(uint64(i+100), from.sge(0, n)))
		wc := to.received(uint64(i), n)
		require.Equal(t, verbs.WCRecv, wc.Opcode)
		require.Zero(t, wc.Flags)
		from.sent(uint64(i+100), verbs.WCSend)
		require.True(t, has(to.mr.Bytes()[20000:20000+n], byte(i)))
	}
}

func (s *suite) write(t *testing.T) {
	a, b := s.pair(t, size{})
	for i, n := range []int{1, 7, 4096, 9001} {
		fill(a.mr.Bytes()[:n], byte(i))
		a.post(a.writeWR(uint64(i), a.sge(0, n), b, 30001))
		a.sent(uint64(i), verbs.WCRDMAWrite)
		b.sync(a)
		require.True(t, has(b.mr.Bytes()[30001:30001+n], byte(i)))
		require.Zero(t, b.mr.Bytes()[30000])
	}
}

func (s *suite) writeWithImm(t *testing.T) {
	a, b := s.pair(t, size{})
	if !a.dev.Attr().Caps.Send.Has(verbs.OpRDMAWriteWithImm) {
		wr := a.writeWR(1, a.sge(0, 8), b, 0)
		wr.Opcode = verbs.OpRDMAWriteWithImm
		n, err := a.qp.PostSend([]verbs.SendWR{wr})
		require.Zero(t, n)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		return
	}
	for i, c := range []struct {
		n   int
		imm uint32
	}{{1, 0}, {5, 0x01020304}, {4097, 0xffffffff}, {0, 0x80000001}} {
		fill(a.mr.Bytes()[:c.n], byte(i))
		b.postRecv(uint64(i), nil)
		wr := a.writeWR(uint64(i), a.sge(0, c.n), b, 1000)
		wr.Opcode, wr.Imm = verbs.OpRDMAWriteWithImm, c.imm
		a.post(wr)
		wc := b.received(uint64(i), c.n)
		require.Equal(t, verbs.WCRecvRDMAWithImm, wc.Opcode)
		require.Equal(t, verbs.WCWithImm, wc.Flags&verbs.WCWithImm)
		require.Equal(t, c.imm, wc.Imm)
		require.True(t, has(b.mr.Bytes()[1000:1000+c.n], byte(i)))
		a.sent(uint64(i), verbs.WCRDMAWrite)
	}
}

func (s *suite) read(t *testing.T) {
	a, b := s.pair(t, size{})
	fill(b.mr.Bytes()[:10000], 5)
	for i, n := range []int{1, 64, 4096, 10000} {
		a.post(a.readWR(uint64(i), a.sge(20000, n), b, 0))
		a.sent(uint64(i), verbs.WCRDMARead)
		require.True(t, has(a.mr.Bytes()[20000:20000+n], 5))
	}
}

func (s *suite) inline(t *testing.T) {
	a, b := s.pair(t, size{inline: 64, recvWR: 8})
	most := min(a.qp.Cap().MaxInline, 512)
	require.Positive(t, most)
	for n := 1; n <= most; n++ {
		payload := filled(n, byte(n))
		b.postRecv(uint64(n), b.sge(0, 1024))
		a.post(
			verbs.SendWR{Opcode: verbs.OpRDMAWrite, Inline: payload, RemoteAddr: b.mr.Addr() + 2000, RKey: b.mr.RKey()},
			verbs.SendWR{ID: uint64(n), Opcode: verbs.OpSend, Flags: verbs.Signaled, Inline: payload},
		)
		clear(payload) // it is copied already
		b.received(uint64(n), n)
		require.True(t, has(b.mr.Bytes()[:n], byte(n)))
		require.True(t, has(b.mr.Bytes()[2000:2000+n], byte(n)))
		a.sent(uint64(n), verbs.WCSend)
	}
	n, err := a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Inline: make([]byte, a.qp.Cap().MaxInline+1)}})
	require.Zero(t, n)
	limit := new(verbs.LimitError)
	require.ErrorAs(t, err, &limit)
	require.EqualValues(t, a.qp.Cap().MaxInline, limit.Max)
	a.sync(b) // no harm done
}

func (s *suite) zeroLength(t *testing.T) {
	a, b := s.pair(t, size{})
	for i, sgl := range [][]verbs.SGE{nil, a.sge(0, 0)} {
		id := uint64(i)
		b.postRecv(id, b.slot(0)) // one without memory is for WRITE WITH IMM alone
		a.post(sendWR(id, sgl))
		b.received(id, 0)
		a.sent(id, verbs.WCSend)

		a.post(a.writeWR(id, sgl, b, 0))
		a.sent(id, verbs.WCRDMAWrite)
	}
	// A keepalive: no payload, no address.
	a.post(verbs.SendWR{ID: 9, Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled})
	a.sent(9, verbs.WCRDMAWrite)
	a.sync(b)
}

func (s *suite) large(t *testing.T) {
	const n = 1 << 20
	a, b := s.pair(t, size{memory: 3 * n})
	fill(a.mr.Bytes()[:n], 1)
	b.postRecv(1, b.sge(n, n))
	a.post(a.writeWR(1, a.sge(0, n), b, 0), sendWR(2, a.sge(0, n)))
	b.received(1, n)
	a.sent(1, verbs.WCRDMAWrite)
	a.sent(2, verbs.WCSend)
	require.True(t, has(b.mr.Bytes()[:n], 1))
	require.True(t, has(b.mr.Bytes()[n:2*n], 1))
	a.post(a.readWR(3, a.sge(n, n), b, n))
	a.sent(3, verbs.WCRDMARead)
	require.True(t, has(a.mr.Bytes()[n:2*n], 1))
}

// batch posts many at once, and expects them in order.
func (s *suite) batch(t *testing.T) {
	const n = 16
	a, b := s.pair(t, size{})
	for round := range 10 {
		var recvs []verbs.RecvWR
		var sends []verbs.SendWR
		for i := range n {
			recvs = append(recvs, verbs.RecvWR{ID: uint64(i), SGL: b.slot(i)})
			fill(a.mr.Bytes()[64*i:64*i+i+1], byte(i+round))
			sends = append(sends, sendWR(uint64(i), a.sge(64*i, i+1)))
		}
		took, err := b.qp.PostRecv(recvs)
		require.NoError(t, err)
		require.Equal(t, n, took)
		a.post(sends...)
		for i := range n {
			b.received(uint64(i), i+1)
			at := b.slotAt(i)
			require.True(t, has(b.mr.Bytes()[at:at+i+1], byte(i+round)))
			a.sent(uint64(i), verbs.WCSend)
		}
	}
	took, err := a.qp.PostSend(nil)
	require.NoError(t, err)
	require.Zero(t, took)
}

// queueFull posts more than fits: a part is taken, and works. Devices that work on it meanwhile may take more than they say,
// even everything.
func (s *suite) queueFull(t *testing.T) {
	a, b := s.pair(t, size{sendWR: 8, recvWR: 8})
	var sends []verbs.SendWR
	for i := range 4*a.qp.Cap().MaxSendWR + 32 {
		sends = append(sends, a.writeWR(uint64(i), a.sge(i, 1), b, i))
	}
	for range 3 {
		took, err := a.qp.PostSend(sends)
		if took < len(sends) {
			require.ErrorIs(t, err, verbs.ErrQueueFull)
			require.GreaterOrEqual(t, took, a.qp.Cap().MaxSendWR)
		} else {
			require.NoError(t, err)
		}
		for i := range took {
			a.sent(uint64(i), verbs.WCRDMAWrite)
		}
		require.NoError(t, a.poll())
		require.Empty(t, a.sends)
	}

	var recvs []verbs.RecvWR
	for i := range 4*b.qp.Cap().MaxRecvWR + 32 {
		recvs = append(recvs, verbs.RecvWR{ID: uint64(i), SGL: b.slot(0)})
	}
	took, err := b.qp.PostRecv(recvs)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.GreaterOrEqual(t, took, b.qp.Cap().MaxRecvWR)
	require.Less(t, took, len(recvs))
	for i := range took {
		a.post(sendWR(uint64(i), a.sge(0, 4)))
		b.received(uint64(i), 4)
		a.sent(uint64(i), verbs.WCSend)
	}
}

// unsignaled lets most requests pass in silence, many times the queue.
func (s *suite) unsignaled(t *testing.T) {
	a, b := s.pair(t, size{sendWR: 8})
	for round := range 100 {
		for i := range 4 {
			wr := a.writeWR(uint64(round), a.sge(i, 1), b, i)
			if i < 3 {
				wr.Flags, wr.ID = 0, 77
			}
			a.post(wr)
		}
		a.sent(uint64(round), verbs.WCRDMAWrite)
	}
	require.NoError(t, a.poll())
	require.Empty(t, a.sends)
}

// unsignaledMix lets requests of every kind pass in silence. What they did is done when the last one completes.
func (s *suite) unsignaledMix(t *testing.T) {
	a, b := s.pair(t, size{sendWR: 32})
	caps := a.dev.Attr().Caps
	mr := b.region(4096, everyAccess)
	for round := range 20 {
		fill(a.mr.Bytes()[:200], byte(round))
		fill(mr.Bytes()[8:200], byte(round+100))
		before := word(mr.Bytes(), 0)
		b.postRecv(1, b.slot(0))
		wrs := []verbs.SendWR{sendWR(77, a.sge(0, 8)), a.writeWR(77, a.sge(0, 100), b, 0), at(a.readWR(77, a.sge(1000, 100), b, 0), mr, 8)}
		if caps.Send.Has(verbs.OpAtomicFetchAndAdd) {
			wrs = append(wrs, a.fetchAndAdd(77, 2000, mr, 0, 3))
		}
		for i := range wrs {
			wrs[i].Flags = 0
		}
		last := a.writeWR(uint64(round), a.sge(100, 100), b, 100)
		last.Flags |= verbs.Fence
		a.post(append(wrs, last)...)
		a.sent(uint64(round), verbs.WCRDMAWrite)
		require.True(t, has(a.mr.Bytes()[1000:1100], byte(round+100)))
		b.received(1, 8)
		b.sync(a)
		require.True(t, has(b.mr.Bytes()[:200], byte(round)))
		if len(wrs) > 3 {
			require.Equal(t, before, word(a.mr.Bytes(), 2000))
			require.Equal(t, before+3, word(mr.Bytes(), 0))
		}
	}
	require.NoError(t, a.poll())
	require.Empty(t, a.sends)
}

func (s *suite) signalAll(t *testing.T) {
	a, b := s.pair(t, size{signalAll: true})
	for i := range 5 {
		wr := a.writeWR(uint64(i), a.sge(i, 1), b, i)
		wr.Flags = 0
		a.post(wr)
	}
	for i := range 5 {
		a.sent(uint64(i), verbs.WCRDMAWrite)
	}
}

// missingOpcodes posts what the device does not have, in the middle of a batch.
func (s *suite) missingOpcodes(t *testing.T) {
	a, b := s.pair(t, size{})
	caps := a.dev.Attr().Caps
	for op := verbs.OpSend; op <= verbs.OpBindMW+1; op++ {
		if caps.Send.Has(op) {
			continue
		}
		missing := a.writeWR(2, a.sge(0, 8), b, 0)
		missing.Opcode = op
		n, err := a.qp.PostSend([]verbs.SendWR{a.writeWR(1, a.sge(0, 8), b, 0), missing, a.writeWR(3, a.sge(0, 8), b, 0)})
		require.Equal(t, 1, n, op)
		requireUnsupported(t, a.dev, err)
		a.sent(1, verbs.WCRDMAWrite)
	}
	require.NoError(t, a.poll())
	require.Empty(t, a.sends)
}

// receiveFirst has the accepting side send as soon as it may: receives were posted before the connection was made.
func (s *suite) receiveFirst(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{})
	id := s.resolve(t, ln.Addr())
	a := s.side(t, id, size{recvs: 4})
	done := make(chan error, 1)
	go func() {
		_, err := id.Connect(s.ctx(t), param())
		done <- err
	}()
	req, err := ln.Accept(s.ctx(t))
	require.NoError(t, err)
	b := s.side(t, req, size{recvs: 4})
	require.NoError(t, req.Accept(s.ctx(t), param()))
	for i := range 4 {
		b.post(sendWR(uint64(i), b.sge(0, 8)))
	}
	require.NoError(t, <-done)
	for i := range 4 {
		a.post(sendWR(uint64(i), a.sge(0, 8)))
	}
	for i := range 4 {
		a.received(uint64(i), 8)
		b.received(uint64(i), 8)
	}
}

// noReceive sends to a peer that has no receive posted: on InfiniBand it waits for one, on iWARP the connection ends.
func (s *suite) noReceive(t *testing.T) {
	a, b := s.pair(t, size{})
	a.post(sendWR(1, a.sge(0, 8)), a.writeWR(2, a.sge(0, 8), b, 0))
	if !a.dev.Attr().Caps.RNR {
		a.disconnected()
		b.disconnected()
		return
	}
	require.NoError(t, a.poll())
	require.Empty(t, a.sends)
	b.postRecv(7, b.slot(0))
	b.received(7, 8)
	a.sent(1, verbs.WCSend)
	a.sent(2, verbs.WCRDMAWrite)
}
