package verbstest

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// words is a region for atomics.
func (e *side) words() verbs.MR {
	e.t.Helper()
	return e.region(4096, allAccess|verbs.AccessRemoteAtomic)
}

// fetchAndAdd and cmpAndSwp are signaled work requests on the word at an offset of mr; the old value goes to this side's memory at off.
func (e *side) fetchAndAdd(id uint64, off int, mr verbs.MR, word int, add uint64) verbs.SendWR {
	return at(verbs.SendWR{
		ID: id, Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.Signaled, SGL: e.sge(off, 8), CompareAdd: add,
	}, mr, word)
}

func (e *side) cmpAndSwp(id uint64, off int, mr verbs.MR, word int, compare, swap uint64) verbs.SendWR {
	return at(verbs.SendWR{
		ID: id, Opcode: verbs.OpAtomicCmpAndSwp, Flags: verbs.Signaled, SGL: e.sge(off, 8), CompareAdd: compare, Swap: swap,
	}, mr, word)
}

// word is the number at an offset of memory, in this host's order.
func word(b []byte, off int) uint64 { return binary.NativeEndian.Uint64(b[off:]) }

func (s *suite) atomic(t *testing.T) {
	a, b := s.pair(t, size{})
	mr := b.words()
	const start = 0x0102030405060708
	binary.NativeEndian.PutUint64(mr.Bytes()[8:], start)
	for i, c := range []struct {
		wr        verbs.SendWR
		op        verbs.WCOpcode
		old, then uint64
	}{
		{a.fetchAndAdd(0, 16, mr, 8, 5), verbs.WCFetchAdd, start, start + 5},
		{a.fetchAndAdd(1, 16, mr, 8, 0), verbs.WCFetchAdd, start + 5, start + 5},
		{a.cmpAndSwp(2, 16, mr, 8, start+5, 77), verbs.WCCompSwap, start + 5, 77},
		{a.cmpAndSwp(3, 16, mr, 8, start+5, 78), verbs.WCCompSwap, 77, 77},
		{a.fetchAndAdd(4, 16, mr, 8, ^uint64(0)-76), verbs.WCFetchAdd, 77, 0},
		{a.fetchAndAdd(5, 16, mr, 8, ^uint64(0)), verbs.WCFetchAdd, 0, ^uint64(0)},
		{a.cmpAndSwp(6, 16, mr, 8, ^uint64(0), 1<<63), verbs.WCCompSwap, ^uint64(0), 1 << 63},
	} {
		a.post(c.wr)
		wc := a.nextSend()
		require.NoError(t, wc.Err())
		require.EqualValues(t, i, wc.ID)
		require.Equal(t, c.op, wc.Opcode)
		require.EqualValues(t, 8, wc.ByteLen)
		require.Equal(t, c.old, word(a.mr.Bytes(), 16), "%v %d", c.op, i)
		b.sync(a)
		require.Equal(t, c.then, word(mr.Bytes(), 8), "%v %d", c.op, i)
	}
	// Nothing beside either word was touched.
	require.Equal(t, make([]byte, 8), mr.Bytes()[:8])
	require.Equal(t, make([]byte, 4096-16), mr.Bytes()[16:])
	require.Equal(t, make([]byte, 16), a.mr.Bytes()[:16])
	require.Equal(t, make([]byte, 100), a.mr.Bytes()[24:124])
}

// atomicContenders counts by eight connections at the same time, half of them adding, half comparing and swapping.
func (s *suite) atomicContenders(t *testing.T) {
	const contenders, rounds = 8, 100
	a, b := s.pair(t, size{})
	mr := b.words()
	sides := []*side{a}
	for len(sides) < contenders {
		a, _ := s.pairAs(t, end{size{}, param()}, end{size{pd: b.pd}, param()})
		sides = append(sides, a)
	}
	var wg sync.WaitGroup
	for i, e := range sides {
		wg.Go(func() {
			for guess, did := uint64(0), 0; did < rounds; {
				wr := e.fetchAndAdd(1, 0, mr, 64, 1)
				if i%2 == 0 {
					wr = e.cmpAndSwp(1, 0, mr, 64, guess, guess+1)
				}
				old, err := e.execute(wr)
				if err != nil {
					t.Error(err)
					return
				}
				if i%2 != 0 || old == guess {
					did++
				}
				guess = old
			}
		})
	}
	wg.Wait()
	b.sync(a)
	require.EqualValues(t, contenders*rounds, word(mr.Bytes(), 64))
}

// execute posts an atomic with its result at offset 0 and waits for it. It fails no test: it is for other goroutines.
func (e *side) execute(wr verbs.SendWR) (old uint64, err error) {
	if _, err := e.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		return 0, err
	}
	wc, err := e.await(&e.sends, 0)
	switch {
	case err != nil:
		return 0, err
	case wc.Err() != nil:
		return 0, wc.Err()
	case wc.ID != wr.ID:
		return 0, fmt.Errorf("completion of %d for %d", wc.ID, wr.ID)
	}
	return word(e.mr.Bytes(), 0), nil
}

// atomicDepth posts more atomics than there may be under way, with READs between: each is executed once, in its turn.
func (s *suite) atomicDepth(t *testing.T) {
	a, b := s.pairOfDepth(t, s.depth(t), size{sendWR: 64})
	mr := b.words()
	const n = 20
	for i := range n {
		read := at(a.readWR(uint64(2*i+1), a.sge(1000+8*i, 8), b, 0), mr, 0)
		a.post(a.fetchAndAdd(uint64(2*i), 8*i, mr, 0, 1), read)
	}
	for i := range n {
		a.sent(uint64(2*i), verbs.WCFetchAdd)
		a.sent(uint64(2*i+1), verbs.WCRDMARead)
		require.EqualValues(t, i, word(a.mr.Bytes(), 8*i))
		// A later atomic may have been executed before the READ, an earlier one not after it.
		require.GreaterOrEqual(t, word(a.mr.Bytes(), 1000+8*i), uint64(i+1))
	}
	b.sync(a)
	require.EqualValues(t, n, word(mr.Bytes(), 0))
}

// atomicFence sends on what an atomic brings.
func (s *suite) atomicFence(t *testing.T) {
	a, b := s.pair(t, size{})
	mr := b.words()
	for i := range 10 {
		write := a.writeWR(2, a.sge(0, 8), b, 0)
		write.Flags |= verbs.Fence
		a.post(a.fetchAndAdd(1, 0, mr, 0, 3), write)
		a.sent(1, verbs.WCFetchAdd)
		a.sent(2, verbs.WCRDMAWrite)
		b.sync(a)
		require.EqualValues(t, 3*i, word(b.mr.Bytes(), 0))
	}
}

func (s *suite) atomicNoDepth(t *testing.T) {
	a, b := s.pairOfDepth(t, 0, size{})
	mr := b.words()
	a.neverSucceeds(a.fetchAndAdd(1, 0, mr, 0, 1))
	require.Zero(t, word(mr.Bytes(), 0))
}

func (s *suite) atomicMisaligned(t *testing.T) {
	for _, off := range []int{1, 4, 7} {
		a, b := s.pair(t, size{recvs: 1})
		mr := b.words()
		for i, wr := range []verbs.SendWR{a.fetchAndAdd(1, 0, mr, off, 1), a.cmpAndSwp(1, 0, mr, off, 0, 1)} {
			n, err := a.qp.PostSend([]verbs.SendWR{wr})
			if err != nil {
				require.Zero(t, n)
				continue
			}
			require.Zero(t, i, "an atomic refused at the post, another not")
			s.requireRefused(t, a, b, verbs.StatusRemInvReqErr, verbs.StatusRemAccessErr, verbs.StatusRemOpErr)
			break
		}
		require.Equal(t, make([]byte, 32), mr.Bytes()[:32])
		require.Equal(t, make([]byte, 8), a.mr.Bytes()[:8])
	}
}

// atomicResult has no good place for the old value.
func (s *suite) atomicResult(t *testing.T) {
	for name, sgl := range map[string]func(a *side) []verbs.SGE{
		"too short": func(a *side) []verbs.SGE { return a.sge(0, 4) },
		"wrong key": func(a *side) []verbs.SGE {
			sgl := a.sge(0, 8)
			sgl[0].LKey ^= 0x5a5a00
			return sgl
		},
		"no access": func(a *side) []verbs.SGE {
			mr := a.region(4096, 0)
			return []verbs.SGE{{Addr: mr.Addr(), Length: 8, LKey: mr.LKey()}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := s.pair(t, size{})
			wr := a.fetchAndAdd(1, 0, b.words(), 0, 1)
			wr.SGL = sgl(a)
			a.neverSucceeds(wr)
			require.Equal(t, make([]byte, 8), a.mr.Bytes()[:8])
		})
	}
}
