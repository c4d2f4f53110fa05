package softiwarp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

func fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

func (e *end) remote(peer *end, at int) (uint64, uint32) {
	return peer.mr.Addr() + uint64(at), peer.mr.RKey()
}

// TestImmediate sends both kinds of immediate data, of several sizes.
func TestImmediate(t *testing.T) {
	for _, cfg := range []Config{{}, {CRC: true}, {MaxFPDU: minFPDU}} {
		x, y := newPair(t, cfg, pairSize{inline: 16})
		for i, n := range []int{0, 1, 8, 63, 64} {
			imm := uint32(0xfffffff0) + uint32(i)
			fill(x.mr.Bytes()[:n], uint64(i))
			x.post(t, verbs.SendWR{Opcode: verbs.OpSendWithImm, Flags: verbs.Signaled, SGL: x.sge(0, n), Imm: imm})
			wc := y.recv(t)
			require.Equal(t, verbs.WCRecv, wc.Opcode)
			require.Equal(t, verbs.WCWithImm, wc.Flags)
			require.Equal(t, imm, wc.Imm)
			require.EqualValues(t, n, wc.ByteLen)
			at := y.slot(int(wc.ID &^ recvBit))
			require.Equal(t, x.mr.Bytes()[:n], y.mr.Bytes()[at:at+n])
			require.Equal(t, verbs.WCSend, x.reap(t).Opcode)
		}
		for i, n := range []int{0, 1, 600, 50000} {
			fill(x.mr.Bytes()[:n], uint64(i))
			// A plain WRITE before does not count.
			addr, key := x.remote(y, 100)
			x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: x.sge(0, 7), RemoteAddr: addr, RKey: key})
			x.post(t, verbs.SendWR{
				Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.Signaled | verbs.Solicited, SGL: x.sge(0, n), RemoteAddr: addr, RKey: key, Imm: 7,
			})
			wc := y.recv(t)
			require.Equal(t, verbs.WCRecvRDMAWithImm, wc.Opcode)
			require.Equal(t, verbs.WCWithImm, wc.Flags)
			require.EqualValues(t, 7, wc.Imm)
			require.EqualValues(t, n, wc.ByteLen)
			require.True(t, bytes.Equal(x.mr.Bytes()[:n], y.mr.Bytes()[100:100+n]))
			require.Equal(t, verbs.WCRDMAWrite, x.reap(t).Opcode)
			require.Equal(t, verbs.WCRDMAWrite, x.reap(t).Opcode)
		}
	}
}

// TestInvalidate has the peer take away its own access to a region; this side keeps it.
func TestInvalidate(t *testing.T) {
	x, y := newPair(t, Config{}, pairSize{})
	extra, err := y.pd.AllocMR(4096, allAccess)
	require.NoError(t, err)
	defer extra.Close()
	for _, flags := range []verbs.SendFlags{0, verbs.Solicited} {
		x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: x.sge(0, 8), RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
		if flags == 0 {
			x.post(t, verbs.SendWR{Opcode: verbs.OpSendWithInv, Flags: verbs.Signaled, SGL: x.sge(0, 3), InvalidateRKey: extra.RKey()})
			wc := y.recv(t)
			require.Equal(t, verbs.WCWithInv, wc.Flags)
			require.Equal(t, extra.RKey(), wc.InvalidatedRKey)
			require.EqualValues(t, 3, wc.ByteLen)
		}
	}
	y.post(t, verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{{Addr: extra.Addr(), Length: 5, LKey: extra.LKey()}}})
	require.EqualValues(t, 5, x.recv(t).ByteLen)
	x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: x.sge(0, 8), RemoteAddr: extra.Addr(), RKey: extra.RKey()})
	y.disconnected(t)
	x.disconnected(t)
	require.NoError(t, y.qp.Close())
}

// TestAtomics counts from several connections at once, and swaps.
func TestAtomics(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	x, y := connectTo(t, p, ln, pairSize{})
	addr, key := x.remote(y, 64)
	word := y.mr.Bytes()[64:72]
	get := func() uint64 { return binary.NativeEndian.Uint64(x.mr.Bytes()[8:16]) }
	atomically := func(op verbs.Opcode, add, swap uint64) uint64 {
		x.post(t, verbs.SendWR{
			ID: 1, Opcode: op, Flags: verbs.Signaled, SGL: x.sge(8, 8), RemoteAddr: addr, RKey: key, CompareAdd: add, Swap: swap,
		})
		wc := x.reap(t)
		require.NoError(t, wc.Err())
		require.EqualValues(t, 8, wc.ByteLen)
		if op == verbs.OpAtomicCmpAndSwp {
			require.Equal(t, verbs.WCCompSwap, wc.Opcode)
		} else {
			require.Equal(t, verbs.WCFetchAdd, wc.Opcode)
		}
		return get()
	}
	binary.NativeEndian.PutUint64(word, 40)
	require.EqualValues(t, 40, atomically(verbs.OpAtomicFetchAndAdd, 2, 0))
	require.EqualValues(t, 42, atomically(verbs.OpAtomicCmpAndSwp, 41, 7))
	require.EqualValues(t, 42, atomically(verbs.OpAtomicCmpAndSwp, 42, 1<<63))
	require.EqualValues(t, uint64(1)<<63, atomically(verbs.OpAtomicFetchAndAdd, ^uint64(0), 0))
	require.EqualValues(t, uint64(1)<<63-1, binary.NativeEndian.Uint64(word))

	// READs and atomics in a row, more than the peer answers at once, and a SEND behind a fence.
	fill(y.mr.Bytes()[1000:2000], 3)
	binary.NativeEndian.PutUint64(word, 0)
	for i := range 10 {
		ra, rk := x.remote(y, 1000)
		x.post(t, verbs.SendWR{ID: uint64(i), Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: x.sge(3000, 1000), RemoteAddr: ra, RKey: rk})
		x.post(t, verbs.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.Signaled, SGL: x.sge(8, 8), RemoteAddr: addr, RKey: key, CompareAdd: 1})
	}
	x.post(t, verbs.SendWR{ID: 99, Opcode: verbs.OpSend, Flags: verbs.Signaled | verbs.Fence, SGL: x.sge(8, 8)})
	for i := range 10 {
		require.EqualValues(t, i, x.reap(t).ID)
		require.Equal(t, verbs.WCFetchAdd, x.reap(t).Opcode)
	}
	require.EqualValues(t, 99, x.reap(t).ID)
	wc := y.recv(t)
	at := y.slot(int(wc.ID &^ recvBit))
	require.EqualValues(t, 9, binary.NativeEndian.Uint64(y.mr.Bytes()[at:]))
	require.Equal(t, y.mr.Bytes()[1000:2000], x.mr.Bytes()[3000:4000])

	for _, wr := range []verbs.SendWR{
		{Opcode: verbs.OpAtomicFetchAndAdd, SGL: x.sge(0, 4), RemoteAddr: addr},
		{Opcode: verbs.OpAtomicFetchAndAdd, RemoteAddr: addr},
		{Opcode: verbs.OpAtomicFetchAndAdd, SGL: []verbs.SGE{{}, {}}, RemoteAddr: addr},
		{Opcode: verbs.OpAtomicCmpAndSwp, SGL: []verbs.SGE{{Addr: x.mr.Addr(), Length: 8, LKey: x.mr.LKey()}}, RemoteAddr: addr + 1},
	} {
		n, err := x.qp.PostSend([]verbs.SendWR{wr})
		require.Zero(t, n)
		require.Error(t, err)
	}
}

// TestEmptyRead has READs of nothing, rconn's sign of life: no memory, no keys.
func TestEmptyRead(t *testing.T) {
	x, y := newPair(t, Config{}, pairSize{})
	for i := range 20 {
		x.post(t, verbs.SendWR{ID: uint64(i), Opcode: verbs.OpRDMARead, Flags: verbs.Signaled})
	}
	for i := range 20 {
		wc := x.reap(t)
		require.NoError(t, wc.Err())
		require.EqualValues(t, i, wc.ID)
		require.Zero(t, wc.ByteLen)
	}
	x.send(t, 1)
	y.recv(t)
}

// TestGatherScatter sends several pieces into several others.
func TestGatherScatter(t *testing.T) {
	for _, cfg := range []Config{{}, {CRC: true}, {MaxFPDU: minFPDU}} {
		x, y := newPair(t, cfg, pairSize{wr: 4})
		piece := func(e *end, off, n int) verbs.SGE {
			return verbs.SGE{Addr: e.mr.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}
		}
		for range 4 { // what newEnd has posted
			x.send(t, 1)
			x.reap(t)
			y.next(t, true)
		}
		for round, sizes := range [][2][]int{
			{{100, 0, 9000, 1}, {5000, 5000}}, {{1, 1, 1}, {3}}, {{20000, 20000}, {1, 39998, 1, 50}}, {{0}, {10}},
		} {
			var from, to []verbs.SGE
			var sent []byte
			off := 0
			for _, n := range sizes[0] {
				fill(x.mr.Bytes()[off:off+n], uint64(round))
				sent = append(sent, x.mr.Bytes()[off:off+n]...)
				from = append(from, piece(x, off, n))
				off += n + 3
			}
			off = 0
			for _, n := range sizes[1] {
				to = append(to, piece(y, off, n))
				off += n + 5
			}
			_, err := y.qp.PostRecv([]verbs.RecvWR{{ID: recvBit, SGL: to}})
			require.NoError(t, err)
			x.post(t, verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGL: from})
			x.reap(t)
			wc := y.next(t, true)
			require.NoError(t, wc.Err())
			require.EqualValues(t, len(sent), wc.ByteLen)
			var got []byte
			off = 0
			for _, n := range sizes[1] {
				got = append(got, y.mr.Bytes()[off:off+n]...)
				off += n + 5
			}
			require.True(t, bytes.Equal(sent, got[:len(sent)]))
		}
	}
}

// TestSplits has a stream of all kinds of messages arrive in two parts, cut at every byte, and byte by byte.
func TestSplits(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	for _, crc := range []uint8{0, mpaCRC} {
		payload := make([]byte, 61)
		fill(payload, 1)
		stream := func(peer *rawPeer, v *end) []byte {
			part := untagged(opSend, 0, 1)
			part.last = false
			rest := untagged(opSend, 0, 1)
			rest.mo = 20
			r := readRequest{sinkSTag: 3, sinkTO: 4, size: 5, srcSTag: v.mr.RKey(), srcTO: v.mr.Addr()}
			imm := untagged(opImmediate, 0, 2)
			return bytes.Join([][]byte{
				peer.fpdu(part, payload[:20]),
				peer.fpdu(tagged(opWrite, v.mr.RKey(), v.mr.Addr()), payload),
				peer.fpdu(rest, payload[20:]),
				peer.fpdu(untagged(opReadRequest, qnRead, 1), r.append(nil)),
				peer.fpdu(imm, []byte{0, 0, 0, 5, 0, 0, 0, 0}),
			}, nil)
		}
		check := func(peer *rawPeer, v *end) {
			t.Helper()
			wc := v.next(t, true)
			require.EqualValues(t, 61, wc.ByteLen)
			require.Equal(t, payload, v.mr.Bytes()[v.slot(0):][:61])
			require.Equal(t, payload, v.mr.Bytes()[:61])
			h, body := peer.read()
			require.EqualValues(t, opReadResponse, h.op)
			require.Equal(t, payload[:5], body)
			wc = v.next(t, true)
			require.Equal(t, verbs.WCRecvRDMAWithImm, wc.Opcode)
			require.EqualValues(t, 5, wc.Imm)
		}
		n := len(stream(&rawPeer{}, &end{mr: new(mr).fake()}))
		for cut := 1; cut <= n; cut++ {
			peer, v := victim(t, ln, enhanced(crc), param(), pairSize{wr: 4, memory: 128})
			b := stream(peer, v)
			if cut < n {
				peer.write(b[:cut])
				for !v.idle() {
					runtime.Gosched()
				}
				peer.write(b[cut:])
			} else {
				for i := range b {
					peer.write(b[i : i+1])
				}
			}
			check(peer, v)
			require.NoError(t, peer.conn.Close())
		}
	}
}

// fake is a region for its key and address only.
func (m *mr) fake() *mr { m.hold(make([]byte, 8)); return m }

// idle tells whether all that came was taken.
func (e *end) idle() bool {
	q := e.qp.(*qp)
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.receiving
}

// TestAnswersUnattended READs from a process that neither waits nor polls, after it has waited before.
func TestAnswersUnattended(t *testing.T) {
	x, y := newPair(t, Config{}, pairSize{})
	fill(y.mr.Bytes()[:1000], 1)
	for range 20 {
		x.send(t, 1)
		y.recv(t) // its wait is over, and no other comes
		addr, key := x.remote(y, 0)
		x.post(t, verbs.SendWR{ID: 5, Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: x.sge(2000, 1000), RemoteAddr: addr, RKey: key})
		for x.reap(t).ID != 5 {
		}
		require.Equal(t, y.mr.Bytes()[:1000], x.mr.Bytes()[2000:3000])
	}
	require.NoError(t, x.id.Disconnect())
	y.disconnected(t)
}

// TestBothFull has both sides send far more than TCP holds before either receives anything by a wait.
func TestBothFull(t *testing.T) {
	const n, rounds = 8 << 20, 4
	for _, cfg := range []Config{{}, {CRC: true}} {
		x, y := newPair(t, cfg, pairSize{memory: 2 * n})
		fill(x.mr.Bytes()[:n], 1)
		fill(y.mr.Bytes()[:n], 2)
		for range rounds {
			for _, e := range [][2]*end{{x, y}, {y, x}} {
				addr, key := e[0].remote(e[1], n)
				e[0].post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: e[0].sge(0, n), RemoteAddr: addr, RKey: key})
				e[0].post(t, verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: e[0].sge(n, n), RemoteAddr: addr - n, RKey: key})
			}
		}
		for range 2 * rounds {
			a, b := x.reap(t), y.reap(t)
			require.NoError(t, a.Err())
			require.NoError(t, b.Err())
		}
		require.True(t, bytes.Equal(x.mr.Bytes()[:n], y.mr.Bytes()[n:2*n]))
		require.True(t, bytes.Equal(y.mr.Bytes()[:n], x.mr.Bytes()[n:2*n]))
	}
}

// TestEarlyClose closes regions that are still named in requests and known to the peer: errors, no crash.
func TestEarlyClose(t *testing.T) {
	for range 20 {
		x, y := newPair(t, Config{}, pairSize{})
		const n = 4 << 20
		big, err := x.pd.AllocMR(n, allAccess)
		require.NoError(t, err)
		target, err := y.pd.AllocMR(n, allAccess)
		require.NoError(t, err)
		for range 8 {
			x.post(t, verbs.SendWR{
				Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{{Addr: big.Addr(), Length: n, LKey: big.LKey()}},
				RemoteAddr: target.Addr(), RKey: target.RKey(),
			})
		}
		var wg sync.WaitGroup
		for _, m := range []verbs.MR{big, target} {
			wg.Go(func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		// All of it may have been sent and placed before; what follows cannot be.
		x.post(t, verbs.SendWR{
			Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: x.sge(0, 4), RemoteAddr: target.Addr(), RKey: target.RKey(),
		})
		x.disconnected(t)
		y.disconnected(t)
		for range 9 {
			x.reap(t)
		}
	}
}

// TestSharedChannel has the QPs of two connections share one CQ and its channel; the second joins while a waiter receives for the first.
func TestSharedChannel(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	x1, y1 := connectTo(t, p, ln, pairSize{})
	got := make(chan uint32, 1)
	go func() {
		for range 121 {
			got <- y1.next(t, true).QPNum
		}
	}()
	x1.send(t, 1)
	require.Equal(t, y1.qp.Num(), <-got)

	id, err := p.Resolve(t.Context(), netip.AddrPort{}, ln.Addr())
	require.NoError(t, err)
	x2 := newEnd(t, id, pairSize{})
	done := make(chan error, 1)
	go func() {
		_, err := id.Connect(t.Context(), param())
		done <- err
	}()
	req, err := ln.Accept(t.Context())
	require.NoError(t, err)
	qp, err := req.CreateQP(y1.pd, verbs.QPOptions{SendCQ: y1.cq, RecvCQ: y1.cq, Cap: y1.qp.Cap()})
	require.NoError(t, err)
	defer func() {
		require.NoError(t, qp.Close())
		require.NoError(t, req.Close())
	}()
	for range 100 {
		_, err = qp.PostRecv([]verbs.RecvWR{{ID: recvBit}})
		if err != nil {
			break
		}
	}
	require.NoError(t, req.Accept(t.Context(), param()))
	require.NoError(t, <-done)
	for i := range 60 {
		x1.post(t, verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled})
		require.Equal(t, y1.qp.Num(), <-got, i)
		x2.post(t, verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled})
		require.Equal(t, qp.Num(), <-got, i)
		x1.reap(t)
		x2.reap(t)
	}
}

// TestOverrun fills a CQ that is too small: it breaks, and its QP with it.
func TestOverrun(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	x, _ := connectTo(t, p, ln, pairSize{})
	events := make(chan verbs.AsyncEvent, 8)
	defer x.id.Device().Watch(func(e verbs.AsyncEvent) { events <- e })()
	small, err := x.id.Device().CreateCQ(verbs.CQOptions{Depth: 1})
	require.NoError(t, err)
	defer small.Close()
	q := small.(*cq)
	e := cqe{qp: x.qp.(*qp)}
	q.join(e.qp)
	q.push(&e)
	q.push(&e)
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: small}, <-events)
	require.Equal(t, verbs.EventQPFatal, (<-events).Type)
	x.disconnected(t)
	n, err := small.Poll(make([]verbs.Completion, 4))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	_, err = small.Poll(make([]verbs.Completion, 4))
	require.Error(t, err)
	q.leave(e.qp)
}

// TestAllocations sends, receives, writes and reads without allocating.
func TestAllocations(t *testing.T) {
	x, y := newPair(t, Config{}, pairSize{inline: 32})
	inline := make([]byte, 32)
	round := func() {
		addr, key := x.remote(y, 0)
		x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Inline: inline, RemoteAddr: addr, RKey: key})
		x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: x.sge(0, 5000), RemoteAddr: addr, RKey: key})
		x.send(t, 64)
		y.recv(t)
		y.send(t, 64)
		x.recv(t)
		x.post(t, verbs.SendWR{ID: 5, Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: x.sge(2000, 1000), RemoteAddr: addr, RKey: key})
		for x.reap(t).ID != 5 {
		}
	}
	for range 100 {
		round()
	}
	require.Less(t, testing.AllocsPerRun(500, round), 0.5)
}

// TestGoroutines counts what idle connections cost.
func TestGoroutines(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	before := runtime.NumGoroutine()
	const n = 20
	for range n {
		x, y := connectTo(t, p, ln, pairSize{})
		x.send(t, 1)
		y.recv(t)
	}
	time.Sleep(50 * time.Millisecond)
	require.LessOrEqual(t, runtime.NumGoroutine()-before, 2*n, "one for each end")
}

// TestRandom sends random messages both ways from several goroutines that wait and post at odd times.
func TestRandom(t *testing.T) {
	for _, cfg := range []Config{{}, {CRC: true}, {MaxFPDU: 1000}} {
		x, y := newPair(t, cfg, pairSize{memory: 1 << 20, wr: 32, inline: 64})
		var wg sync.WaitGroup
		for side, pair := range [][2]*end{{x, y}, {y, x}} {
			wg.Go(func() {
				if err := randomTraffic(t, pair[0], pair[1], uint64(side)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

// randomTraffic writes to the upper half of the peer's memory, reads it back, and compares.
func randomTraffic(t *testing.T, e, peer *end, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 7))
	const half = 1 << 18
	for round := range 300 {
		n := 1 + r.IntN(1<<r.IntN(18))
		at := r.IntN(half)
		own := e.mr.Bytes()
		fill(own[:n], uint64(round))
		addr, key := e.remote(peer, 2*half+at)
		wr := verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, SGL: e.sge(0, n), RemoteAddr: addr, RKey: key}
		if n <= 64 && r.IntN(2) == 0 {
			wr.SGL, wr.Inline = nil, own[:n]
		}
		e.post(t, wr)
		e.post(t, verbs.SendWR{ID: 2, Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: e.sge(half, n), RemoteAddr: addr, RKey: key})
		if r.IntN(4) == 0 {
			time.Sleep(time.Duration(r.IntN(1500)) * time.Microsecond)
		}
		wc := e.reap(t)
		if wc.Err() != nil || wc.ID != 2 {
			return fmt.Errorf("round %d: %+v", round, wc)
		}
		if !bytes.Equal(own[:n], own[half:half+n]) {
			return fmt.Errorf("round %d: %d bytes differ", round, n)
		}
	}
	return nil
}

// FuzzFPDUStream feeds a connection with what a fuzzer likes: it may end, but not crash, and only the peer's own memory changes.
func FuzzFPDUStream(f *testing.F) {
	peer := &rawPeer{}
	f.Add(peer.fpdu(untagged(opSend, 0, 1), []byte("hello")), false)
	f.Add(peer.fpdu(tagged(opWrite, 1, 0), nil), false)
	f.Add(peer.fpdu(untagged(opReadRequest, 1, 1), (&readRequest{}).append(nil)), false)
	f.Add(peer.fpdu(untagged(opTerminate, 2, 1), []byte{0x11, 0, 3, 0}), false)
	p := New(Config{Logger: quiet}).(*provider)
	f.Fuzz(func(t *testing.T, b []byte, crc bool) {
		a, c := net.Pipe()
		id := p.dev.newID(loopback(1), loopback(2))
		z := pairSize{wr: 4, memory: 64}
		if len(b)%2 == 1 {
			z.pool = newPool(t, p.dev, z, 2) // receives come from an SRQ
		}
		v := newEnd(t, id, z)
		secret, err := v.pd.AllocMR(64, verbs.AccessLocalWrite)
		require.NoError(t, err)
		defer secret.Close()
		require.NoError(t, v.qp.(*qp).establish(c, setup{ird: 2, ord: 2, withCRC: crc}))
		go func() { _, _ = io.Copy(io.Discard, a) }()
		_ = a.SetDeadline(time.Now().Add(patience))
		_, _ = a.Write(b)
		require.NoError(t, a.Close())
		v.disconnected(t)
		require.Equal(t, make([]byte, 64), secret.Bytes())
	})
}
