package verbstest

import (
	"bytes"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

func (s *suite) memoryCases() []testCase {
	return []testCase{
		{"AccessFlags", s.accessFlags, nil},
		{"AccessEnough", s.accessEnough, nil},
		{"ZeroBased", s.zeroBased, nil},
		{"RegMR", s.regMR, nil},
		{"RegMRMapped", s.regMRMapped, nil},
		{"RegMRTwice", s.regMRTwice, nil},
		{"RegMRCollected", s.regMRCollected, nil},
	}
}

// accessFlags registers with every set of flags, allocated memory and the program's.
func (s *suite) accessFlags(t *testing.T) {
	d := s.device(t)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	mem := make([]byte, 4096)
	for name, register := range map[string]func(verbs.Access) (verbs.MR, error){
		"AllocMR": func(a verbs.Access) (verbs.MR, error) { return pd.AllocMR(4096, a) },
		"RegMR":   func(a verbs.Access) (verbs.MR, error) { return pd.RegMR(mem, a) },
	} {
		for a := range verbs.Access(1 << 4) {
			mr, err := register(a)
			if a&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 && a&verbs.AccessLocalWrite == 0 {
				require.ErrorIs(t, err, syscall.EINVAL, "%s %#x", name, a)
				continue
			}
			require.NoError(t, err, "%s %#x", name, a)
			require.Len(t, mr.Bytes(), 4096)
			require.NoError(t, mr.Close())
		}
		for _, a := range []verbs.Access{verbs.AccessZeroBased, verbs.AccessOnDemand, verbs.AccessRelaxedOrdering} {
			mr, err := register(allAccess | a)
			if err != nil {
				requireUnsupported(t, d, err)
				require.NotEqual(t, verbs.Access(verbs.AccessRelaxedOrdering), a, "it is a hint")
				t.Logf("%s: %v", name, err)
				continue
			}
			require.NoError(t, mr.Close())
		}
		_, err = register(allAccess | 1<<30)
		requireUnsupported(t, d, err)
	}
	require.NoError(t, pd.Close())
}

// accessEnough has each operation use a region that allows nothing else.
func (s *suite) accessEnough(t *testing.T) {
	caps := s.common(t).Caps
	a, b := s.pair(t, size{})
	for _, r := range reaches {
		if !caps.Send.Has(r.op) {
			continue
		}
		access := r.access
		if r.op != verbs.OpRDMARead {
			access |= verbs.AccessLocalWrite
		}
		mr := b.region(4096, access)
		fill(mr.Bytes()[8:100], 2)
		fill(a.mr.Bytes()[:64], 1)
		if r.op == verbs.OpRDMAWriteWithImm {
			b.postRecv(3, nil)
		}
		a.post(r.wr(a, mr))
		wc := a.nextSend()
		require.NoError(t, wc.Err(), r.op)
		if r.op == verbs.OpRDMAWriteWithImm {
			b.received(3, r.n)
		}
		b.sync(a)
		switch {
		case atomically(r.op):
			require.EqualValues(t, 1, word(mr.Bytes(), 0), r.op)
		case r.op == verbs.OpRDMARead:
			require.Equal(t, mr.Bytes()[:64], a.mr.Bytes()[:64])
		default:
			require.True(t, has(mr.Bytes()[:64], 1), r.op)
		}
	}
	// What is only sent needs no access, what is only received AccessLocalWrite.
	from, to := a.region(4096, 0), b.region(4096, verbs.AccessLocalWrite)
	fill(from.Bytes(), 3)
	b.postRecv(4, []verbs.SGE{piece(to, 0, 4096)})
	a.post(sendWR(4, []verbs.SGE{piece(from, 0, 4096)}))
	b.received(4, 4096)
	a.sent(4, verbs.WCSend)
	require.True(t, has(to.Bytes(), 3))
}

// zeroBased uses a region whose addresses begin at 0, on both sides.
func (s *suite) zeroBased(t *testing.T) {
	a, b := s.pair(t, size{})
	var mrs []verbs.MR
	for _, e := range []*side{a, b} {
		mr, err := e.pd.AllocMR(8192, everyAccess|verbs.AccessZeroBased)
		if err != nil {
			requireUnsupported(t, e.dev, err)
			t.Logf("left out: %v", err)
			return
		}
		e.regions = append(e.regions, mr)
		require.Zero(t, mr.Addr())
		mrs = append(mrs, mr)
	}
	own, peers := mrs[0], mrs[1]
	fill(own.Bytes()[:100], 1)
	for i, off := range []uint64{0, 1, 5000} {
		local := []verbs.SGE{{Addr: 0, Length: 100, LKey: own.LKey()}}
		back := []verbs.SGE{{Addr: 200 + 100*uint64(i), Length: 100, LKey: own.LKey()}}
		write := verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: local, RemoteAddr: off, RKey: peers.RKey()}
		read := verbs.SendWR{ID: 2, Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: back, RemoteAddr: off, RKey: peers.RKey()}
		a.post(write, read)
		a.sent(1, verbs.WCRDMAWrite)
		a.sent(2, verbs.WCRDMARead)
		require.True(t, has(own.Bytes()[200+100*i:300+100*i], 1))
		b.sync(a)
		require.True(t, has(peers.Bytes()[off:off+100], 1))
	}
	b.postRecv(3, []verbs.SGE{{Addr: 7000, Length: 100, LKey: peers.LKey()}})
	a.post(sendWR(3, []verbs.SGE{{Length: 100, LKey: own.LKey()}}))
	b.received(3, 100)
	a.sent(3, verbs.WCSend)
	require.True(t, has(peers.Bytes()[7000:7100], 1))

	// It ends where it ends.
	a.postRecv(0, a.slot(0))
	b.postRecv(0, b.slot(0))
	before := string(peers.Bytes())
	a.post(verbs.SendWR{
		ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: a.sge(0, 64), RemoteAddr: 8192 - 63, RKey: peers.RKey(),
	})
	s.requireBroken(t, a, b, verbs.StatusRemAccessErr)
	require.Equal(t, before, string(peers.Bytes()))
}

// regMR registers memory of Go's at odd places. Data arrives there, and nowhere else.
func (s *suite) regMR(t *testing.T) {
	a, b := s.pair(t, size{})
	for _, e := range []*side{a, b} {
		for _, mem := range [][]byte{nil, {}} {
			_, err := e.pd.RegMR(mem, allAccess)
			require.ErrorIs(t, err, syscall.EINVAL)
		}
	}
	for i, off := range []int{0, 1, 7, 4095} {
		for _, n := range []int{1, 63, 4096, 10001} {
			s.roundTrip(t, a, b, make([]byte, off+n+9), make([]byte, off+n+9), off, n, byte(i))
		}
	}
}

// regMRMapped registers memory that the program has mapped.
func (s *suite) regMRMapped(t *testing.T) {
	const n = 1 << 16
	from, to := mapped(t, n), mapped(t, n)
	if from == nil {
		t.Log("left out: package syscall maps no memory on this system")
		return
	}
	a, b := s.pair(t, size{})
	s.roundTrip(t, a, b, from, to, 0, n, 1)
	s.roundTrip(t, a, b, from, to, 4096, 8192, 2)
	s.roundTrip(t, a, b, from, to, 100, 5000, 3)
}

// roundTrip registers n bytes at an offset of two memories, a's and b's, and moves data from one to the other by WRITE and SEND, and back
// by READ.
func (s *suite) roundTrip(t *testing.T, a, b *side, from, to []byte, off, n int, seed byte) {
	t.Helper()
	var mrs []verbs.MR
	for i, e := range []*side{a, b} {
		mem := [][]byte{from, to}[i]
		fill(mem, 77)
		mr, err := e.pd.RegMR(mem[off:off+n], allAccess)
		require.NoError(t, err)
		require.Len(t, mr.Bytes(), n)
		require.Same(t, &mem[off], unsafe.SliceData(mr.Bytes()), "it is the same memory")
		mrs = append(mrs, mr)
	}
	src, dst := mrs[0], mrs[1]
	neighbours := func(mem []byte) bool {
		all := filled(len(mem), 77)
		return bytes.Equal(mem[:off], all[:off]) && bytes.Equal(mem[off+n:], all[off+n:])
	}
	all := []verbs.SGE{piece(src, 0, n)}

	fill(from[off:off+n], seed)
	a.post(at(a.writeWR(1, all, b, 0), dst, 0))
	a.sent(1, verbs.WCRDMAWrite)
	b.sync(a)
	require.True(t, has(to[off:off+n], seed))
	require.True(t, neighbours(to))

	fill(from[off:off+n], seed+1)
	b.postRecv(2, []verbs.SGE{piece(dst, 0, n)})
	a.post(sendWR(2, all))
	b.received(2, n)
	a.sent(2, verbs.WCSend)
	require.True(t, has(to[off:off+n], seed+1))
	require.True(t, neighbours(to))

	clear(from[off : off+n])
	a.post(at(a.readWR(3, all, b, 0), dst, 0))
	a.sent(3, verbs.WCRDMARead)
	require.True(t, has(from[off:off+n], seed+1))
	require.True(t, neighbours(from))

	for _, mr := range mrs {
		require.NoError(t, mr.Close())
		require.NoError(t, mr.Close())
	}
	// The memory is the program's as before.
	require.True(t, has(to[off:off+n], seed+1))
	require.True(t, neighbours(to))
}

// regMRTwice registers the same memory twice: each region has its own key and rights, and lives on without the other.
func (s *suite) regMRTwice(t *testing.T) {
	a, b := s.pair(t, size{})
	mem := make([]byte, 4096)
	first, err := b.pd.RegMR(mem, allAccess)
	require.NoError(t, err)
	second, err := b.pd.RegMR(mem[1000:3000], verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	require.NoError(t, err)
	b.regions = append(b.regions, second)
	require.NotEqual(t, first.RKey(), second.RKey())

	fill(a.mr.Bytes()[:200], 1)
	a.post(at(a.writeWR(1, a.sge(0, 100), b, 0), first, 1000), at(a.writeWR(2, a.sge(100, 100), b, 0), second, 100))
	a.sent(1, verbs.WCRDMAWrite)
	a.sent(2, verbs.WCRDMAWrite)
	b.sync(a)
	require.True(t, has(mem[1000:1200], 1))

	require.NoError(t, first.Close())
	fill(a.mr.Bytes()[:200], 2)
	a.post(at(a.writeWR(3, a.sge(0, 200), b, 0), second, 1800))
	a.sent(3, verbs.WCRDMAWrite)
	b.sync(a)
	require.True(t, has(mem[2800:3000], 2))

	a.postRecv(0, a.slot(0))
	b.postRecv(0, b.slot(0))
	before := string(mem)
	a.post(at(a.writeWR(1, a.sge(0, 1), b, 0), second, 2000))
	s.requireBroken(t, a, b, verbs.StatusRemAccessErr)
	require.Equal(t, before, string(mem))
}

// regMRCollected moves data between memories that the program has forgotten, while garbage is collected all the time and new memory
// written to. The memory is kept as long as it is registered, and no longer.
func (s *suite) regMRCollected(t *testing.T) {
	kept := new(atomic.Int32)
	t.Run("registered", func(t *testing.T) { s.whileCollecting(t, kept) })
	s.eventually(t, "the memory of closed regions is collected", func() bool {
		runtime.GC()
		return kept.Load() == 0
	})
}

func (s *suite) whileCollecting(t *testing.T, kept *atomic.Int32) {
	const n, rounds = 20000, 20
	a, b := s.pair(t, size{})
	src, dst := forgotten(t, a.pd, n, kept), forgotten(t, b.pd, n, kept)
	var wg sync.WaitGroup
	over := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
			}
			runtime.GC()
			for range 8 {
				fill(make([]byte, n), 99)
			}
		}
	})
	func() {
		defer wg.Wait()
		defer close(over)
		all, there := []verbs.SGE{piece(src, 0, n)}, []verbs.SGE{piece(dst, 0, n)}
		for i := range rounds {
			fill(src.Bytes(), byte(2*i))
			a.post(at(a.writeWR(1, all, b, 0), dst, 0))
			a.sent(1, verbs.WCRDMAWrite)
			b.sync(a)
			require.True(t, has(dst.Bytes(), byte(2*i)), "round %d", i)

			fill(dst.Bytes(), byte(2*i+1))
			a.sync(b) // the memory's owner says that it is ready
			a.post(at(a.readWR(2, all, b, 0), dst, 0))
			a.sent(2, verbs.WCRDMARead)
			require.True(t, has(src.Bytes(), byte(2*i+1)), "round %d", i)

			b.postRecv(3, there)
			fill(src.Bytes(), byte(2*i+2))
			a.post(sendWR(3, all))
			b.received(3, n)
			a.sent(3, verbs.WCSend)
			require.True(t, has(dst.Bytes(), byte(2*i+2)), "round %d", i)
		}
	}()
	require.EqualValues(t, 2, kept.Load())
	require.NoError(t, src.Close())
	require.NoError(t, dst.Close())
}

// forgotten registers memory that nobody but the provider knows. It counts in kept until it is collected.
//
//go:noinline
func forgotten(t *testing.T, pd verbs.PD, n int, kept *atomic.Int32) verbs.MR {
	t.Helper()
	mem := make([]byte, n+100)
	kept.Add(1)
	runtime.AddCleanup(&mem[0], func(kept *atomic.Int32) { kept.Add(-1) }, kept)
	mr, err := pd.RegMR(mem[50:50+n], allAccess)
	require.NoError(t, err)
	return mr
}
