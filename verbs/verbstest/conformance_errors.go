package verbstest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// reach is an operation that reaches for the peer's memory.
type reach struct {
	op     verbs.Opcode
	access verbs.Access // what it needs there
	n      int          // bytes that it moves
}

var reaches = []reach{
	{verbs.OpRDMAWrite, verbs.AccessRemoteWrite, 64},
	{verbs.OpRDMAWriteWithImm, verbs.AccessRemoteWrite, 64},
	{verbs.OpRDMARead, verbs.AccessRemoteRead, 64},
	{verbs.OpAtomicFetchAndAdd, verbs.AccessRemoteAtomic, 8},
	{verbs.OpAtomicCmpAndSwp, verbs.AccessRemoteAtomic, 8},
}

// wr is a signaled work request on the begin of a region. An atomic changes a word that is 0.
func (r reach) wr(a *side, mr verbs.MR) verbs.SendWR {
	wr := at(verbs.SendWR{ID: 1, Opcode: r.op, Flags: verbs.Signaled, SGL: a.sge(0, r.n)}, mr, 0)
	switch r.op {
	case verbs.OpAtomicFetchAndAdd:
		wr.CompareAdd = 1
	case verbs.OpAtomicCmpAndSwp:
		wr.Swap = 1
	}
	return wr
}

// step is the smallest distance between two places that the operation may work on.
func (r reach) step() uint64 {
	if atomically(r.op) {
		return atomicSize
	}
	return 1
}

// everyAccess is what peers may have at most.
const everyAccess = allAccess | verbs.AccessRemoteAtomic

// stranger is memory of a PD that no QP is of. Make it before the connection, so that it is closed after it.
func (s *suite) stranger(t *testing.T, d verbs.Device) verbs.MR {
	t.Helper()
	pd, err := d.AllocPD()
	require.NoError(t, err)
	mr, err := pd.AllocMR(4096, everyAccess)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mr.Close()); require.NoError(t, pd.Close()) })
	return mr
}

// remoteMemory reaches for memory of the peer that it may not have, by every operation. Nothing must come of it but an error.
func (s *suite) remoteMemory(t *testing.T) {
	caps := s.common(t).Caps
	for _, c := range []struct {
		name   string
		access func(reach) verbs.Access // of the region; nil: every
		change func(r reach, wr *verbs.SendWR, mr, stranger verbs.MR)
	}{
		{"no access", func(r reach) verbs.Access { return everyAccess &^ r.access }, nil},
		{"wrong key", nil, func(_ reach, wr *verbs.SendWR, _, _ verbs.MR) { wr.RKey ^= 0x5a5a00 }},
		{"below", nil, func(r reach, wr *verbs.SendWR, _, _ verbs.MR) { wr.RemoteAddr -= r.step() }},
		{"past the end", nil, func(r reach, wr *verbs.SendWR, _, _ verbs.MR) { wr.RemoteAddr += 4096 - uint64(r.n) + r.step() }},
		{"wrap", nil, func(r reach, wr *verbs.SendWR, _, _ verbs.MR) { wr.RemoteAddr = -max(r.step(), uint64(r.n)/2) }},
		{"another PD", nil, func(_ reach, wr *verbs.SendWR, _, stranger verbs.MR) { *wr = at(*wr, stranger, 0) }},
		{"freed", nil, func(_ reach, _ *verbs.SendWR, mr, _ verbs.MR) { _ = mr.Close() }},
	} {
		for _, r := range reaches {
			if !caps.Send.Has(r.op) || c.name == "no access" && r.op == verbs.OpRDMARead && s.ReadUnchecked {
				continue
			}
			t.Run(fmt.Sprintf("%s/%v", c.name, r.op), func(t *testing.T) {
				stranger := s.stranger(t, s.peerDevice(t))
				a, b := s.pair(t, size{recvs: 1})
				access := verbs.Access(everyAccess)
				if c.access != nil {
					access = c.access(r)
				}
				mr := b.region(4096, access)
				before := string(b.mr.Bytes())
				fill(a.mr.Bytes()[:64], 9)
				own := string(a.mr.Bytes())
				wr := r.wr(a, mr)
				if c.change != nil {
					c.change(r, &wr, mr, stranger)
				}
				a.post(wr)
				s.requireNoReach(t, a, b, r.op)
				require.Equal(t, before, string(b.mr.Bytes()))
				require.Equal(t, own, string(a.mr.Bytes()))
				require.Equal(t, make([]byte, 4096), stranger.Bytes())
				if c.name != "freed" {
					require.Equal(t, make([]byte, 4096), mr.Bytes())
				}
			})
		}
	}
}

// requireNoReach expects that a's request 1 was refused because of the memory, or with another status. Each side has receive 0 posted.
func (s *suite) requireNoReach(t *testing.T, a, b *side, op verbs.Opcode, or ...verbs.Status) {
	t.Helper()
	statuses := append(or, verbs.StatusRemAccessErr)
	switch {
	case op == verbs.OpRDMARead && s.ReadUnchecked:
		// The kernel's soft-iWARP may not even end the connection.
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, a.poll())
		for _, wc := range a.sends {
			require.Error(t, wc.Err())
		}
	case brings(op):
		s.requireRefused(t, a, b, statuses...)
	case op == verbs.OpRDMAWriteWithImm:
		// Some devices flush the receive, some say what was wrong.
		s.requireToldOfRefusal(t, a, b, statuses...)
		for _, e := range []*side{a, b} {
			wc := e.nextRecv()
			require.NotEqual(t, verbs.StatusSuccess, wc.Status)
			require.EqualValues(t, 0, wc.ID)
			e.inError()
		}
	default:
		s.requireBroken(t, a, b, statuses...)
	}
}

// requireBroken expects a's request 1 to have been refused by the peer's device, with one of the statuses. InfiniBand tells by its status;
// on iWARP a SEND or WRITE may have been handed over with success, and then the connection ends. Each side has receive 0 posted.
func (s *suite) requireBroken(t *testing.T, a, b *side, statuses ...verbs.Status) {
	t.Helper()
	s.requireToldOfRefusal(t, a, b, statuses...)
	// Both queue pairs are in the error state: the receives come back.
	for _, e := range []*side{a, b} {
		wc := e.nextRecv()
		require.Equal(t, verbs.StatusWRFlushErr, wc.Status)
		require.EqualValues(t, 0, wc.ID)
		e.inError()
	}
}

func (s *suite) requireToldOfRefusal(t *testing.T, a, b *side, statuses ...verbs.Status) {
	t.Helper()
	if a.iwarp() {
		a.disconnected()
		b.disconnected()
	} else {
		wc := a.nextSend()
		require.Contains(t, statuses, wc.Status)
		require.EqualValues(t, 1, wc.ID)
		require.ErrorIs(t, wc.Err(), &verbs.CompletionError{Status: wc.Status})
	}
}

// requireRefused is requireBroken for a READ or atomic, which never succeeds.
func (s *suite) requireRefused(t *testing.T, a, b *side, statuses ...verbs.Status) {
	t.Helper()
	if a.iwarp() {
		wc := a.nextSend()
		require.Contains(t, append(statuses, verbs.StatusWRFlushErr), wc.Status)
		require.EqualValues(t, 1, wc.ID)
	}
	s.requireBroken(t, a, b, statuses...)
}

// inError posts to a QP in the error state. What completes is flushed; Linux's software devices do not complete everything
// that is posted there.
func (e *side) inError() {
	e.t.Helper()
	require.NoError(e.t, e.poll())
	e.sends, e.recvs = nil, nil
	wr := sendWR(50, e.sge(0, 4))
	wr.Flags = 0
	_, _ = e.qp.PostSend([]verbs.SendWR{wr})
	_, _ = e.qp.PostRecv([]verbs.RecvWR{{ID: 51, SGL: e.slot(0)}})
	time.Sleep(5 * time.Millisecond)
	require.NoError(e.t, e.poll())
	require.LessOrEqual(e.t, len(e.sends), 1)
	require.LessOrEqual(e.t, len(e.recvs), 1)
	for _, wc := range e.sends {
		require.Equal(e.t, verbs.StatusWRFlushErr, wc.Status)
		require.EqualValues(e.t, 50, wc.ID)
	}
	for _, wc := range e.recvs {
		require.Equal(e.t, verbs.StatusWRFlushErr, wc.Status)
		require.EqualValues(e.t, 51, wc.ID)
	}
}

// badPieces are entries of n bytes that name memory of this side that may not be used.
var badPieces = []struct {
	name  string
	piece func(e *side, stranger verbs.MR, n int) verbs.SGE
}{
	{"wrong key", func(e *side, _ verbs.MR, n int) verbs.SGE {
		sge := e.sge(0, n)[0]
		sge.LKey ^= 0x5a5a00
		return sge
	}},
	{"below", func(e *side, _ verbs.MR, n int) verbs.SGE { return e.sge(-1, n)[0] }},
	{"past the end", func(e *side, _ verbs.MR, n int) verbs.SGE { return e.sge(len(e.mr.Bytes())-n+1, n)[0] }},
	{"wrap", func(e *side, _ verbs.MR, n int) verbs.SGE {
		return verbs.SGE{Addr: -uint64(n / 2), Length: uint32(n), LKey: e.mr.LKey()}
	}},
	{"another PD", func(_ *side, stranger verbs.MR, n int) verbs.SGE { return piece(stranger, 0, n) }},
	{"freed", func(e *side, _ verbs.MR, n int) verbs.SGE {
		mr := e.region(4096, everyAccess)
		sge := piece(mr, 0, n)
		require.NoError(e.t, mr.Close())
		return sge
	}},
}

// piece is an entry for a part of a region.
func piece(mr verbs.MR, off, n int) verbs.SGE {
	return verbs.SGE{Addr: mr.Addr() + uint64(off), Length: uint32(n), LKey: mr.LKey()}
}

// localMemory names memory of its own that it may not use. Devices differ in how they say it, at the post or by a completion.
func (s *suite) localMemory(t *testing.T) {
	caps := s.common(t).Caps
	for _, c := range badPieces {
		for _, r := range append(slices.Clone(reaches), reach{verbs.OpSend, 0, 64}) {
			if !caps.Send.Has(r.op) || r.op == verbs.OpRDMAWriteWithImm || r.op == verbs.OpAtomicCmpAndSwp {
				continue // as WRITE and as fetch-and-add
			}
			t.Run(fmt.Sprintf("%s/%v", c.name, r.op), func(t *testing.T) {
				stranger := s.stranger(t, s.device(t))
				a, b := s.pair(t, size{})
				mr := b.region(4096, everyAccess)
				fill(mr.Bytes()[8:], 1)
				before := string(mr.Bytes())
				wr := r.wr(a, mr)
				wr.SGL = []verbs.SGE{c.piece(a, stranger, r.n)}
				if brings(r.op) {
					a.neverSucceeds(wr)
					require.Equal(t, make([]byte, 4096), stranger.Bytes())
					return
				}
				a.failsHere(wr)
				require.Equal(t, before, string(mr.Bytes()))
			})
		}
	}
}

// failsHere posts a SEND or WRITE of memory that this side may not use.
func (e *side) failsHere(wr verbs.SendWR) {
	e.t.Helper()
	n, err := e.qp.PostSend([]verbs.SendWR{wr})
	if err != nil {
		require.Zero(e.t, n)
		return
	}
	wc := e.nextSend()
	require.Contains(e.t, []verbs.Status{
		verbs.StatusLocProtErr, verbs.StatusLocQPOpErr, verbs.StatusLocAccessErr, verbs.StatusLocLenErr, verbs.StatusGeneralErr,
	}, wc.Status)
	require.Equal(e.t, wr.ID, wc.ID)
}

// receiveMemory has receives name memory that may not be used. The message comes to nothing.
func (s *suite) receiveMemory(t *testing.T) {
	cases := slices.Clone(badPieces)
	add := func(name string, access verbs.Access) {
		c := badPieces[0]
		c.name = name
		c.piece = func(e *side, _ verbs.MR, n int) verbs.SGE { return piece(e.region(4096, access), 0, n) }
		cases = append(cases, c)
	}
	const freedMeanwhile = "freed meanwhile"
	add("no access", verbs.AccessRemoteRead)
	add(freedMeanwhile, everyAccess)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			stranger := s.stranger(t, s.peerDevice(t))
			a, b := s.pair(t, size{})
			sge := c.piece(b, stranger, 64)
			n, err := b.qp.PostRecv([]verbs.RecvWR{{ID: 5, SGL: []verbs.SGE{sge}}})
			if err != nil {
				require.Zero(t, n)
				return
			}
			before := string(b.mr.Bytes())
			if c.name == freedMeanwhile {
				require.NoError(t, b.regions[0].Close())
			}
			fill(a.mr.Bytes()[:64], 1)
			a.post(sendWR(1, a.sge(0, 64)))
			wc := b.nextRecv()
			require.NotEqual(t, verbs.StatusSuccess, wc.Status)
			require.EqualValues(t, 5, wc.ID)
			if a.iwarp() {
				a.disconnected()
			} else {
				require.NotEqual(t, verbs.StatusSuccess, a.nextSend().Status)
			}
			require.Equal(t, before, string(b.mr.Bytes()))
			require.Equal(t, make([]byte, 4096), stranger.Bytes())
		})
	}
}

// shortReceive sends more than the receive takes.
func (s *suite) shortReceive(t *testing.T) {
	a, b := s.pair(t, size{})
	b.postRecv(5, b.sge(1000, 10))
	fill(a.mr.Bytes()[:100], 1)
	a.post(sendWR(1, a.sge(0, 100)))
	wc := b.nextRecv()
	require.NotEqual(t, verbs.StatusSuccess, wc.Status)
	require.EqualValues(t, 5, wc.ID)
	require.Equal(t, make([]byte, 90), b.mr.Bytes()[1010:1100])
	if a.iwarp() {
		a.disconnected()
		return
	}
	wc = a.nextSend()
	require.Contains(t, []verbs.Status{verbs.StatusRemInvReqErr, verbs.StatusRemOpErr}, wc.Status) // Soft-RoCE says the latter
	require.EqualValues(t, 1, wc.ID)
}

// flush moves a QP to the error state: everything outstanding comes back, in order and once.
func (s *suite) flush(t *testing.T) {
	a, b := s.pair(t, size{recvs: 8})
	sends := 0
	if a.dev.Attr().Caps.RNR {
		// The peer uses up its receives, so that these wait. Every other one is unsignaled.
		for i := range 8 {
			a.post(sendWR(uint64(100+i), a.sge(0, 4)))
		}
		for i := range 8 {
			b.received(uint64(i), 4)
			a.sent(uint64(100+i), verbs.WCSend)
		}
		for sends = range 6 {
			wr := sendWR(uint64(sends), a.sge(0, 4))
			if sends%2 == 0 {
				wr.Flags = 0
			}
			a.post(wr)
		}
		sends++
	}
	require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState))
	for i := range 8 {
		wc := a.nextRecv()
		require.Equal(t, verbs.StatusWRFlushErr, wc.Status)
		require.EqualValues(t, i, wc.ID)
	}
	for i := range sends {
		wc := a.nextSend()
		require.Equal(t, verbs.StatusWRFlushErr, wc.Status)
		require.EqualValues(t, i, wc.ID)
	}
	require.NoError(t, a.poll())
	require.Empty(t, a.sends)
	require.Empty(t, a.recvs)
	a.inError()
	if !a.iwarp() {
		q, err := a.qp.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.QPError, q.State)
	}
}
