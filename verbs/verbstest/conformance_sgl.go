package verbstest

import (
	"errors"
	"testing"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

func (s *suite) sglCases() []testCase {
	return []testCase{
		{"SGLSend", s.sglSend, nil},
		{"SGLWrite", s.sglWrite, nil},
		{"SGLRead", s.sglRead, nil},
		{"SGLTooLong", s.sglTooLong, nil},
		{"SGLOneBad", s.sglOneBad, nil},
	}
}

// sglOf are the sizes of entries, as many as are allowed: some are empty, none begins where the last one ended.
func (e *side) sglOf(allowed int, sizes ...int) (sgl []verbs.SGE, total int) {
	at := 40
	for i, n := range sizes[:min(allowed, len(sizes))] {
		sgl = append(sgl, e.sge(at, n)...)
		at += n + 11*(i+1)
		total += n
	}
	return sgl, total
}

// bytesOf is what a list of entries of the side's memory names, one after the other.
func (e *side) bytesOf(sgl []verbs.SGE) []byte {
	var all []byte
	for _, s := range sgl {
		off := s.Addr - e.mr.Addr()
		all = append(all, e.mr.Bytes()[off:off+uint64(s.Length)]...)
	}
	return all
}

// untouched reports whether everything of a memory that holds a pattern is as it was, but for the entries.
func (e *side) untouched(sgl []verbs.SGE, before []byte) bool {
	now := append([]byte(nil), e.mr.Bytes()...)
	for _, s := range sgl {
		off := s.Addr - e.mr.Addr()
		copy(now[off:off+uint64(s.Length)], before[off:])
	}
	return string(now) == string(before)
}

// pieces is how many entries the cases use.
func (s *suite) pieces(t *testing.T) int {
	t.Helper()
	return min(s.device(t).Attr().MaxSGE, s.peerDevice(t).Attr().MaxSGE, 5)
}

func (s *suite) sglSend(t *testing.T) {
	most := s.pieces(t)
	a, b := s.pair(t, size{sendSGE: most, recvSGE: most})
	for i, sizes := range [][]int{{3, 0, 100, 0, 7}, {0, 1, 0, 1, 1}, {0, 0, 0, 0, 5000}, {4096, 1, 4095, 4097, 0}} {
		from, n := a.sglOf(most, sizes...)
		for _, room := range [][]int{{n}, {0, n}, {1, n}, {n, 100}, {n / 2, 0, n}, {1, 0, n / 3, 2, n}} {
			to, space := b.sglOf(most, room...)
			if space < n {
				continue // the device has too few entries
			}
			fill(a.mr.Bytes(), byte(i))
			fill(b.mr.Bytes(), 50)
			before := append([]byte(nil), b.mr.Bytes()...)
			b.postRecv(1, to)
			a.post(sendWR(1, from))
			b.received(1, n)
			a.sent(1, verbs.WCSend)
			require.Equal(t, string(a.bytesOf(from)), string(b.bytesOf(to)[:n]), "%v to %v", sizes, room)
			require.Equal(t, before[b.end(to, n):], b.mr.Bytes()[b.end(to, n):], "%v to %v", sizes, room)
			require.True(t, b.untouched(to, before), "%v to %v", sizes, room)
		}
	}
}

// end is where in the side's memory the n-th byte of the entries would be.
func (e *side) end(sgl []verbs.SGE, n int) int {
	at := 0
	for _, s := range sgl {
		at = int(s.Addr-e.mr.Addr()) + min(n, int(s.Length))
		if n -= min(n, int(s.Length)); n == 0 {
			break
		}
	}
	return at
}

func (s *suite) sglWrite(t *testing.T) {
	most := s.pieces(t)
	a, b := s.pair(t, size{sendSGE: most})
	for i, sizes := range [][]int{{3, 0, 100, 0, 7}, {0, 1, 0, 1, 1}, {4096, 1, 4095, 4097, 0}} {
		from, n := a.sglOf(most, sizes...)
		fill(a.mr.Bytes(), byte(i))
		a.post(a.writeWR(1, from, b, 9))
		a.sent(1, verbs.WCRDMAWrite)
		b.sync(a)
		require.Equal(t, string(a.bytesOf(from)), string(b.mr.Bytes()[9:9+n]), "%v", sizes)
	}
}

// sglRead brings the answer to as many entries as a READ may have.
func (s *suite) sglRead(t *testing.T) {
	most := min(s.pieces(t), s.device(t).Attr().MaxSGERead)
	a, b := s.pair(t, size{sendSGE: most})
	fill(b.mr.Bytes(), 1)
	for _, sizes := range [][]int{{3, 0, 100, 0, 7}, {0, 1, 0, 1, 1}, {4096, 1, 4095, 4097, 0}} {
		to, n := a.sglOf(most, sizes...)
		fill(a.mr.Bytes(), 50)
		before := append([]byte(nil), a.mr.Bytes()...)
		a.post(a.readWR(1, to, b, 9))
		wc := a.nextSend()
		require.NoError(t, wc.Err())
		require.EqualValues(t, n, wc.ByteLen)
		require.Equal(t, string(b.mr.Bytes()[9:9+n]), string(a.bytesOf(to)), "%v", sizes)
		require.True(t, a.untouched(to, before), "%v", sizes)
	}
}

// sglTooLong posts more entries than the QP or the device has.
func (s *suite) sglTooLong(t *testing.T) {
	a, b := s.pair(t, size{sendSGE: 2, recvSGE: 2})
	limited := func(n int, err error, most int) {
		t.Helper()
		require.Zero(t, n)
		limit, ok := errors.AsType[*verbs.LimitError](err)
		require.True(t, ok, "%v", err)
		require.EqualValues(t, most, limit.Max)
		require.Greater(t, limit.Got, limit.Max)
	}
	long := func(e *side, n int) (sgl []verbs.SGE) {
		for range n {
			sgl = append(sgl, e.sge(0, 1)...)
		}
		return sgl
	}
	most := a.qp.Cap().MaxSendSGE
	n, err := a.qp.PostSend([]verbs.SendWR{sendWR(1, long(a, most+1))})
	limited(n, err, most)
	n, err = a.qp.PostSend([]verbs.SendWR{a.writeWR(1, long(a, most+1), b, 0)})
	limited(n, err, most)
	most = b.qp.Cap().MaxRecvSGE
	n, err = b.qp.PostRecv([]verbs.RecvWR{{SGL: long(b, most+1)}})
	limited(n, err, most)
	most = min(a.qp.Cap().MaxSendSGE, a.dev.Attr().MaxSGERead)
	n, err = a.qp.PostSend([]verbs.SendWR{a.readWR(1, long(a, most+1), b, 0)})
	limited(n, err, most)
	a.sync(b) // no harm done
}

// sglOneBad has one wrong entry among good ones. The request fails as a whole.
func (s *suite) sglOneBad(t *testing.T) {
	if s.pieces(t) < 2 {
		t.Log("left out: the device has one entry only")
		return
	}
	for i := range 2 {
		a, b := s.pair(t, size{sendSGE: 2})
		wr := a.writeWR(1, append(a.sge(0, 50), a.sge(50, 50)...), b, 0)
		wr.SGL[i].LKey ^= 0x5a5a00
		a.failsHere(wr)
	}
}
