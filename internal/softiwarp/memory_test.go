package softiwarp

import (
	"bytes"
	"encoding/binary"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// TestCallersMemory has peers write to, and read from, a piece of a Go slice: its neighbours stay as they are.
func TestCallersMemory(t *testing.T) {
	const n, margin = 200_001, 13
	for _, cfg := range []Config{{}, {CRC: true}, {MaxFPDU: minFPDU}} {
		x, y := newPair(t, cfg, pairSize{memory: 2 * n})
		all := bytes.Repeat([]byte{0xee}, margin+n+margin)
		piece := all[margin:][:n]
		m, err := y.pd.RegMR(piece, allAccess)
		require.NoError(t, err)
		require.Same(t, &piece[0], &m.Bytes()[0])
		require.Len(t, m.Bytes(), n)
		require.Equal(t, n, cap(m.Bytes()))
		require.EqualValues(t, uintptr(unsafe.Pointer(&piece[0])), m.Addr())
		whole := []verbs.SGE{{Addr: m.Addr(), Length: n, LKey: m.LKey()}}

		// WRITE to it, READ from it, both by the peer.
		fill(x.mr.Bytes()[:n], 1)
		x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: x.sge(0, n), RemoteAddr: m.Addr(), RKey: m.RKey()})
		x.post(t, verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: x.sge(n, n), RemoteAddr: m.Addr(), RKey: m.RKey()})
		require.Equal(t, verbs.StatusSuccess, x.reap(t).Status)
		require.Equal(t, verbs.StatusSuccess, x.reap(t).Status)
		require.True(t, bytes.Equal(x.mr.Bytes()[:n], x.mr.Bytes()[n:2*n]))
		require.True(t, bytes.Equal(x.mr.Bytes()[:n], piece))

		// READ to it, WRITE from it, both by this side.
		fill(x.mr.Bytes()[:n], 2)
		y.post(t, verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: whole, RemoteAddr: x.mr.Addr(), RKey: x.mr.RKey()})
		require.Equal(t, verbs.StatusSuccess, y.reap(t).Status)
		require.True(t, bytes.Equal(x.mr.Bytes()[:n], piece))
		fill(piece, 3)
		y.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: whole, RemoteAddr: x.mr.Addr(), RKey: x.mr.RKey()})
		y.post(t, verbs.SendWR{Opcode: verbs.OpSend})
		x.recv(t)
		require.True(t, bytes.Equal(x.mr.Bytes()[:n], piece))
		require.Equal(t, bytes.Repeat([]byte{0xee}, margin), all[:margin])
		require.Equal(t, bytes.Repeat([]byte{0xee}, margin), all[margin+n:])

		// Closed, the memory stays, and the key is gone.
		for range 2 {
			require.NoError(t, m.Close())
		}
		before := bytes.Clone(piece)
		x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: x.sge(0, n), RemoteAddr: m.Addr(), RKey: m.RKey()})
		y.disconnected(t)
		require.True(t, bytes.Equal(before, piece))
	}
}

// TestCallersMemoryCollected runs the collector while peers use memory of Go's heap, which nobody else refers to, from all sides.
func TestCallersMemoryCollected(t *testing.T) {
	for _, z := range []pairSize{
		{goMemory: true}, {goMemory: true, access: verbs.AccessZeroBased}, {access: verbs.AccessZeroBased},
	} {
		for _, cfg := range []Config{{}, {CRC: true}, {MaxFPDU: 1000}} {
			z.memory, z.wr, z.inline = 1<<20, 32, 64
			x, y := newPair(t, cfg, z)
			var stop atomic.Bool
			var collector, traffic sync.WaitGroup
			collector.Go(func() {
				for !stop.Load() {
					runtime.GC()
					_ = make([]byte, 1<<20)
				}
			})
			for side, pair := range [][2]*end{{x, y}, {y, x}} {
				traffic.Go(func() {
					if err := randomTraffic(t, pair[0], pair[1], uint64(side)); err != nil {
						t.Error(err)
					}
				})
			}
			traffic.Wait()
			stop.Store(true)
			collector.Wait()
		}
	}
}

// forgotten is memory of Go's heap that only its region keeps; freed is closed when it is collected.
func forgotten(t *testing.T, d verbs.PD) (m verbs.MR, freed chan struct{}) {
	block, freed := new([1 << 16]byte), make(chan struct{})
	runtime.AddCleanup(block, func(struct{}) { close(freed) }, struct{}{})
	m, err := d.RegMR(block[:], allAccess)
	require.NoError(t, err)
	return m, freed
}

func collected(t *testing.T, freed chan struct{}) {
	t.Helper()
	eventually(t, "the memory is freed", func() bool {
		runtime.GC()
		select {
		case <-freed:
			return true
		default:
			return false
		}
	})
}

// TestCallersMemoryAlive holds on to memory that the program has forgotten, until the region is closed.
func TestCallersMemoryAlive(t *testing.T) {
	p := New(Config{Logger: quiet}).(*provider)
	pd, err := p.dev.AllocPD()
	require.NoError(t, err)
	m, freed := forgotten(t, pd)
	key := m.RKey()
	m = nil
	for range 10 {
		runtime.GC()
	}
	select {
	case <-freed:
		t.Fatal("memory of an open region was freed")
	default:
	}
	m = p.dev.mrs.find(key)
	require.NoError(t, m.Close())
	collected(t, freed)
	require.Nil(t, m.Bytes())
	require.NoError(t, pd.Close())
}

// TestCallersMemoryLetGo closes a region after each use that there is of it: the memory is freed while queues, and the region itself,
// live on.
func TestCallersMemoryLetGo(t *testing.T) {
	of := func(m verbs.MR) []verbs.SGE { return []verbs.SGE{{Addr: m.Addr(), Length: 1 << 16, LKey: m.LKey()}} }
	done := func(t *testing.T, e *end, wr verbs.SendWR) {
		wr.Flags = verbs.Signaled
		e.post(t, wr)
		wc := e.reap(t)
		require.NoError(t, wc.Err())
	}
	with := func(op verbs.Opcode, memory []verbs.SGE, peer verbs.MR) verbs.SendWR {
		return verbs.SendWR{Opcode: op, SGL: memory, RemoteAddr: peer.Addr(), RKey: peer.RKey()}
	}
	received := func(t *testing.T, x, y *end, post func([]verbs.RecvWR) (int, error), sgl []verbs.SGE) {
		for range 64 { // what is posted already
			done(t, x, with(verbs.OpSend, x.sge(0, 1), x.mr))
			y.next(t, true)
		}
		_, err := post([]verbs.RecvWR{{ID: recvBit, SGL: sgl}})
		require.NoError(t, err)
		done(t, x, with(verbs.OpSend, x.sge(0, 1<<16), x.mr))
		wc := y.next(t, true)
		require.NoError(t, wc.Err())
	}
	for name, use := range map[string]func(t *testing.T, x, y *end, m verbs.MR){
		"WRITE from":    func(t *testing.T, x, y *end, m verbs.MR) { done(t, y, with(verbs.OpRDMAWrite, of(m), x.mr)) },
		"READ into":     func(t *testing.T, x, y *end, m verbs.MR) { done(t, y, with(verbs.OpRDMARead, of(m), x.mr)) },
		"READ from":     func(t *testing.T, x, y *end, m verbs.MR) { done(t, x, with(verbs.OpRDMARead, x.sge(0, 1<<16), m)) },
		"FETCH AND ADD": func(t *testing.T, x, y *end, m verbs.MR) { done(t, x, with(verbs.OpAtomicFetchAndAdd, x.sge(0, 8), m)) },
		"WRITE to": func(t *testing.T, x, y *end, m verbs.MR) {
			done(t, x, with(verbs.OpRDMAWrite, x.sge(0, 1<<16), m))
			done(t, x, with(verbs.OpRDMARead, x.sge(0, 8), y.mr)) // it has arrived
		},
		"receive": func(t *testing.T, x, y *end, m verbs.MR) {
			if y.srq != nil {
				received(t, x, y, y.srq.PostRecv, of(m))
			} else {
				sgl := append(of(m), append(of(m), of(m)...)...)
				sgl[0].Length, sgl[1].Length = 40<<10, 8<<10
				received(t, x, y, y.qp.PostRecv, sgl)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, cfg := range []Config{{}, {CRC: true}} {
				f := newSRQFixture(t, cfg, pairSize{memory: 1 << 17}, 64)
				for _, z := range []pairSize{{memory: 1 << 17}, {pool: f.pool}} {
					x, y := connectEnds(t, f.p, f.ln, pairSize{memory: 1 << 17}, z)
					m, freed := forgotten(t, y.pd)
					use(t, x, y, m)
					require.NoError(t, m.Close())
					collected(t, freed)
					runtime.KeepAlive(m)
				}
			}
		})
	}
}

// TestForgottenDevice drops a device with an open region: nothing happens.
func TestForgottenDevice(t *testing.T) {
	freed := make(chan struct{})
	func() {
		d := New(Config{Logger: quiet}).(*provider).dev
		runtime.AddCleanup(d, func(struct{}) { close(freed) }, struct{}{})
		pd, err := d.AllocPD()
		require.NoError(t, err)
		_, err = pd.RegMR(make([]byte, 1<<16), allAccess)
		require.NoError(t, err)
	}()
	eventually(t, "the device is collected", func() bool {
		runtime.GC()
		select {
		case <-freed:
			return true
		default:
			return false
		}
	})
	for range 3 { // a pin's finalizer would end the program
		runtime.GC()
		runtime.Gosched()
	}
}

// TestMapped registers what mmap returned.
func TestMapped(t *testing.T) {
	x, y := newPair(t, Config{}, pairSize{})
	mem, err := mapMemory(os.Getpagesize())
	require.NoError(t, err)
	m, err := y.pd.RegMR(mem, allAccess)
	require.NoError(t, err)
	copy(x.mr.Bytes(), "mapped")
	x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm, SGL: x.sge(0, 6), RemoteAddr: m.Addr() + 1, RKey: m.RKey()})
	y.recv(t)
	require.NoError(t, m.Close())
	require.Equal(t, "mapped", string(mem[1:7]))
	require.NoError(t, unmapMemory(mem))
}

// TestZeroBased has a region whose addresses begin at 0: work requests and the wire know offsets only.
func TestZeroBased(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	peer, v := victim(t, ln, enhanced(0), param(), pairSize{access: verbs.AccessZeroBased})
	require.Zero(t, v.mr.Addr())
	mem, key := v.mr.Bytes(), v.mr.RKey()
	peer.write(peer.fpdu(tagged(opWrite, key, 3), []byte("written")))
	r := readRequest{sinkSTag: 1, sinkTO: 2, size: 7, srcSTag: key, srcTO: 3}
	peer.write(peer.fpdu(untagged(opReadRequest, qnRead, 1), r.append(nil)))
	_, got := peer.read()
	require.Equal(t, "written", string(got))
	require.Equal(t, "written", string(mem[3:10]))

	v.post(t, verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: v.sge(100, 5), RemoteAddr: 9, RKey: 8})
	_, body := peer.read()
	r.parse(body)
	require.Equal(t, readRequest{sinkSTag: key, sinkTO: 100, size: 5, srcSTag: 8, srcTO: 9}, r)
	peer.write(peer.fpdu(tagged(opReadResponse, key, 100), []byte("reply")))
	require.Equal(t, verbs.StatusSuccess, v.reap(t).Status)
	require.Equal(t, "reply", string(mem[100:105]))

	binary.NativeEndian.PutUint64(mem[64:], 40)
	a := atomicRequest{op: atomicFetchAdd, stag: key, to: 64, addSwap: 2}
	peer.write(peer.fpdu(untagged(opAtomicRequest, qnRead, 2), a.append(nil)))
	peer.read()
	require.EqualValues(t, 42, binary.NativeEndian.Uint64(mem[64:]))

	peer.write(peer.fpdu(tagged(opWrite, key, uint64(len(mem))), []byte("x")))
	peer.terminated(&faultTaggedBounds)
}

// TestZeroBasedMisaligned has an offset that is a multiple of 8 at an address that is none.
func TestZeroBasedMisaligned(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	peer, v := victim(t, ln, enhanced(0), param(), pairSize{})
	words := make([]uint64, 4)
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 32)
	m, err := v.pd.RegMR(mem[4:], allAccess|verbs.AccessZeroBased)
	require.NoError(t, err)
	defer m.Close()
	a := atomicRequest{op: atomicFetchAdd, stag: m.RKey(), addSwap: 2}
	peer.write(peer.fpdu(untagged(opAtomicRequest, qnRead, 1), a.append(nil)))
	peer.terminated(&faultUnspecified)
	require.Equal(t, make([]uint64, 4), words)
}

// TestGlobalAtomics has the program and its peers add to the same word: nothing is lost.
func TestGlobalAtomics(t *testing.T) {
	const n = 2000
	p := New(Config{Logger: quiet})
	require.Equal(t, verbs.AtomicGlob, p.(*provider).dev.attr.Atomic)
	ln := listen(t, p, cm.ListenOptions{})
	word := new(uint64)
	var wg sync.WaitGroup
	for range 2 {
		x, y := connectTo(t, p, ln, pairSize{})
		m, err := y.pd.RegMR(unsafe.Slice((*byte)(unsafe.Pointer(word)), 8), allAccess)
		require.NoError(t, err)
		defer m.Close()
		wg.Go(func() {
			for range n {
				x.post(t, verbs.SendWR{
					Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.Signaled, SGL: x.sge(0, 8), RemoteAddr: m.Addr(), RKey: m.RKey(), CompareAdd: 1,
				})
				if wc := x.reap(t); wc.Err() != nil {
					t.Error(wc.Err())
					return
				}
			}
		})
	}
	wg.Go(func() {
		for range n {
			atomic.AddUint64(word, 1)
			runtime.Gosched()
		}
	})
	wg.Wait()
	require.EqualValues(t, 3*n, *word)
}

// TestAccessFlags has those that ask for nothing here, and those that do not exist.
func TestAccessFlags(t *testing.T) {
	p := New(Config{Logger: quiet}).(*provider)
	pd, err := p.dev.AllocPD()
	require.NoError(t, err)
	register := map[string]func(int, verbs.Access) (verbs.MR, error){
		"AllocMR": pd.AllocMR,
		"RegMR":   func(n int, access verbs.Access) (verbs.MR, error) { return pd.RegMR(make([]byte, n), access) },
	}
	for name, register := range register {
		for _, access := range []verbs.Access{verbs.AccessOnDemand, verbs.AccessHugeTLB, verbs.AccessRelaxedOrdering, verbs.AccessZeroBased} {
			m, err := register(100, allAccess|access)
			require.NoError(t, err, "%s %#x", name, access)
			require.NoError(t, m.Close())
		}
		for _, access := range []verbs.Access{1 << 4, 1 << 31} {
			_, err = register(100, access)
			var unsupported *verbs.UnsupportedError
			require.ErrorAs(t, err, &unsupported)
			require.Equal(t, DeviceName, unsupported.Device)
		}
		for _, access := range []verbs.Access{verbs.AccessRemoteWrite, verbs.AccessRemoteAtomic | verbs.AccessRemoteRead} {
			_, err = register(100, access)
			require.ErrorIs(t, err, syscall.EINVAL)
		}
		_, err = register(0, allAccess)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	require.NoError(t, pd.Close())
	for _, register := range register {
		_, err = register(100, allAccess)
		require.ErrorIs(t, err, verbs.ErrClosed)
	}
	require.NoError(t, p.dev.leaks())
}
