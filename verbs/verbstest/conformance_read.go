package verbstest

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// depth is as many READs as both devices have under way, but not more than a few.
func (s *suite) depth(t *testing.T) uint8 {
	t.Helper()
	attr := s.device(t).Attr()
	return uint8(min(attr.MaxQPRdAtom, attr.MaxQPInitRdAtom, 4))
}

// pairOfDepth makes a connection with so many READs and atomics at once, each way.
func (s *suite) pairOfDepth(t *testing.T, depth uint8, z size) (a, b *side) {
	t.Helper()
	p := param()
	p.InitiatorDepth, p.ResponderResources = depth, depth
	return s.pairAs(t, end{z, p}, end{z, p})
}

// readDepth posts more READs than there may be under way, both ways: the others wait, and complete in order.
func (s *suite) readDepth(t *testing.T) {
	for _, depth := range []uint8{1, s.depth(t)} {
		a, b := s.pairOfDepth(t, depth, size{sendWR: 64})
		for i, e := range []*side{a, b} {
			fill(e.mr.Bytes()[:20000], byte(i))
		}
		const n = 20
		for i := range n {
			a.post(a.readWR(uint64(i), a.sge(40000+100*i, 100), b, 100*i))
			if !s.ReadOneWay {
				b.post(b.readWR(uint64(i), b.sge(30000+1000*i, 1000), a, 1000*i))
			}
		}
		for i := range n {
			a.sent(uint64(i), verbs.WCRDMARead)
			if !s.ReadOneWay {
				b.sent(uint64(i), verbs.WCRDMARead)
			}
		}
		require.True(t, has(a.mr.Bytes()[40000:40000+100*n], 1))
		if !s.ReadOneWay {
			require.True(t, has(b.mr.Bytes()[30000:30000+1000*n], 0))
		}
	}
}

// readNoDepth has no READ under way: it fails, and in time.
func (s *suite) readNoDepth(t *testing.T) {
	a, b := s.pairOfDepth(t, 0, size{})
	a.post(a.writeWR(1, a.sge(0, 8), b, 0))
	a.sent(1, verbs.WCRDMAWrite)
	fill(b.mr.Bytes()[:8], 3)
	a.neverSucceeds(a.readWR(2, a.sge(100, 8), b, 0))
	require.Equal(t, make([]byte, 8), a.mr.Bytes()[100:108])
}

// neverSucceeds posts a request that is wrong on this side. Devices differ in how they say it, at the post or by a completion.
func (e *side) neverSucceeds(wr verbs.SendWR) {
	e.t.Helper()
	n, err := e.qp.PostSend([]verbs.SendWR{wr})
	if err != nil {
		require.Zero(e.t, n)
		return
	}
	wc := e.nextSend()
	require.NotEqual(e.t, verbs.StatusSuccess, wc.Status)
	require.Equal(e.t, wr.ID, wc.ID)
}

// depthLimit asks for more READs under way than the device has.
func (s *suite) depthLimit(t *testing.T) {
	attr := s.device(t).Attr()
	for what, p := range map[string]cm.ConnParam{
		"ResponderResources": {ResponderResources: uint8(min(attr.MaxQPRdAtom+1, 255)), InitiatorDepth: 1},
		"InitiatorDepth":     {ResponderResources: 1, InitiatorDepth: uint8(min(attr.MaxQPInitRdAtom+1, 255))},
	} {
		if int(p.ResponderResources) <= attr.MaxQPRdAtom && int(p.InitiatorDepth) <= attr.MaxQPInitRdAtom {
			continue // it has as many as can be asked for
		}
		id := s.resolve(t, netip.AddrPortFrom(s.Addr, 7471))
		s.side(t, id, size{})
		_, err := id.Connect(s.ctx(t), p)
		require.ErrorIs(t, err, syscall.EINVAL, what)
		limit, ok := errors.AsType[*verbs.LimitError](err)
		require.True(t, ok, "%s: %v", what, err)
		require.Less(t, limit.Max, limit.Got, what)
	}
}

func (s *suite) readNothing(t *testing.T) {
	a, b := s.pair(t, size{})
	fill(a.mr.Bytes()[:64], 1)
	for i, sgl := range [][]verbs.SGE{nil, a.sge(0, 0)} {
		a.post(a.readWR(uint64(i), sgl, b, 0))
		wc := a.nextSend()
		require.NoError(t, wc.Err())
		require.Equal(t, verbs.WCRDMARead, wc.Opcode)
		require.EqualValues(t, i, wc.ID)
		require.Zero(t, wc.ByteLen)
	}
	require.True(t, has(a.mr.Bytes()[:64], 1))
	// A keepalive: no memory, no address.
	a.post(verbs.SendWR{ID: 9, Opcode: verbs.OpRDMARead, Flags: verbs.Signaled})
	a.sent(9, verbs.WCRDMARead)
	a.sync(b) // no harm done
}

// readOrder mixes READs with what is not answered: a READ brings what was written before it, and completions keep the order.
func (s *suite) readOrder(t *testing.T) {
	a, b := s.pair(t, size{sendWR: 64})
	const n = 8
	for i := range n {
		b.postRecv(uint64(i), b.slot(i))
		fill(a.mr.Bytes()[1000*i:1000*(i+1)], byte(i))
	}
	for i := range n {
		write := a.writeWR(uint64(10*i), a.sge(1000*i, 1000), b, 0)
		read := a.readWR(uint64(10*i+1), a.sge(20000+1000*i, 1000), b, 0)
		send := sendWR(uint64(10*i+2), a.sge(0, 8))
		next := write
		next.ID, next.SGL = uint64(10*i+3), a.sge(1000*(n-1), 1000)
		next.RemoteAddr += 5000
		a.post(write, read, send, next)
		wcs := []verbs.Completion{a.nextSend(), a.nextSend(), a.nextSend(), a.nextSend()}
		if s.ReadUnordered {
			slices.SortFunc(wcs, func(x, y verbs.Completion) int { return cmp.Compare(x.ID, y.ID) })
		}
		for k, op := range []verbs.WCOpcode{verbs.WCRDMAWrite, verbs.WCRDMARead, verbs.WCSend, verbs.WCRDMAWrite} {
			wc := wcs[k]
			require.NoError(t, wc.Err())
			require.EqualValues(t, 10*i+k, wc.ID)
			require.Equal(t, op, wc.Opcode)
			if op == verbs.WCRDMARead {
				require.EqualValues(t, 1000, wc.ByteLen)
			}
		}
		require.True(t, has(a.mr.Bytes()[20000+1000*i:20000+1000*(i+1)], byte(i)), "READ %d", i)
		b.received(uint64(i), 8)
	}
}

// readFence sends on what a READ brings.
func (s *suite) readFence(t *testing.T) {
	a, b := s.pair(t, size{sendWR: 64})
	for i := range 10 {
		fill(b.mr.Bytes()[:2000], byte(i))
		write := a.writeWR(2, a.sge(4000, 2000), b, 30000)
		write.Flags |= verbs.Fence
		a.post(a.readWR(1, a.sge(4000, 2000), b, 0), write)
		a.sent(1, verbs.WCRDMARead)
		a.sent(2, verbs.WCRDMAWrite)
		b.sync(a)
		require.True(t, has(b.mr.Bytes()[30000:32000], byte(i)))
	}
}

// readLocalAccess reads into memory that may not be written.
func (s *suite) readLocalAccess(t *testing.T) {
	a, b := s.pair(t, size{})
	fill(b.mr.Bytes()[:64], 1)
	mr := a.region(4096, 0)
	a.neverSucceeds(a.readWR(1, []verbs.SGE{{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()}}, b, 0))
	require.Equal(t, make([]byte, 64), mr.Bytes()[:64])
}
