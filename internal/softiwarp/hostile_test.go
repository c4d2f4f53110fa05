package softiwarp

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// rawPeer is a peer that speaks MPA by hand and then sends whatever a test wants.
type rawPeer struct {
	t    testing.TB
	conn net.Conn
	crc  bool
}

func dialRaw(t testing.TB, ln cm.Listener) *rawPeer {
	t.Helper()
	conn, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	t.Cleanup(func() { conn.Close() })
	return &rawPeer{t: t, conn: conn}
}

func (p *rawPeer) write(b []byte) {
	p.t.Helper()
	_, err := p.conn.Write(b)
	require.NoError(p.t, err)
}

// request sends an MPA request and returns the reply.
func (p *rawPeer) request(f mpaFrame) mpaFrame {
	p.t.Helper()
	p.write(f.append(nil, mpaRequestKey))
	var reply mpaFrame
	require.NoError(p.t, reply.read(p.conn, mpaReplyKey))
	p.crc = reply.flags&mpaCRC != 0
	return reply
}

// fpdu encodes a segment.
func (p *rawPeer) fpdu(h header, payload []byte) []byte {
	h.payload = len(payload)
	return sealFPDU(append(h.append(nil), payload...), 0, p.crc)
}

// read reads one FPDU.
func (p *rawPeer) read() (h header, payload []byte) {
	p.t.Helper()
	head := make([]byte, untaggedSize)
	_, err := io.ReadFull(p.conn, head[:taggedSize])
	require.NoError(p.t, err)
	n, f := h.parse(head[:taggedSize])
	require.Nil(p.t, f)
	if n == 0 {
		_, err = io.ReadFull(p.conn, head[taggedSize:])
		require.NoError(p.t, err)
		n, f = h.parse(head)
		require.Nil(p.t, f)
	}
	rest := make([]byte, h.total()-n)
	_, err = io.ReadFull(p.conn, rest)
	require.NoError(p.t, err)
	if p.crc {
		require.True(p.t, checkCRC(append(head[:n:n], rest...)))
	}
	return h, rest[:h.payload]
}

// terminated expects a Terminate message and the end of the stream.
func (p *rawPeer) terminated(want *fault) {
	p.t.Helper()
	h, payload := p.read()
	require.EqualValues(p.t, opTerminate, h.op)
	require.Equal(p.t, []byte{want.layer<<4 | want.etype, want.code}, payload[:2], "% x", payload)
	p.eof()
}

func (p *rawPeer) eof() {
	p.t.Helper()
	_, err := p.conn.Read(make([]byte, 1))
	require.Error(p.t, err)
	require.NotErrorIs(p.t, err, os.ErrDeadlineExceeded)
}

// victim accepts a raw peer's connection.
func victim(t testing.TB, ln cm.Listener, f mpaFrame, p cm.ConnParam, z pairSize) (*rawPeer, *end) {
	t.Helper()
	peer := dialRaw(t, ln)
	e := make(chan *end, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		req, err := ln.Accept(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		v := newEnd(t, req, z)
		if err := req.Accept(ctx, p); err != nil {
			t.Error(err)
		}
		e <- v
	}()
	peer.request(f)
	return peer, <-e
}

func enhanced(flags uint8) mpaFrame {
	return mpaFrame{flags: mpaEnhanced | flags, revision: 2, ird: 4, ord: 4}
}

func tagged(op uint8, stag uint32, to uint64) header {
	return header{op: op, tagged: true, last: true, stag: stag, to: to}
}

func untagged(op uint8, qn, msn uint32) header { return header{op: op, last: true, qn: qn, msn: msn} }

// TestHostileFPDUs has each kind of wrong message: the right Terminate goes back, nothing is written where it must not be, and another
// connection of the same listener does not notice.
func TestHostileFPDUs(t *testing.T) {
	for _, crc := range []uint8{0, mpaCRC} {
		p := New(Config{Logger: quiet})
		ln := listen(t, p, cm.ListenOptions{})
		x, y := connectTo(t, p, ln, pairSize{})

		type env struct {
			*rawPeer
			v       *end
			key     uint32
			addr    uint64
			size    uint64
			foreign verbs.MR // of another PD
			private verbs.MR // local access only
		}
		write := func(e *env, key uint32, to uint64, n int) []byte {
			return e.fpdu(tagged(opWrite, key, to), bytes.Repeat([]byte{0xee}, n))
		}
		read := func(e *env, r readRequest) []byte {
			return e.fpdu(untagged(opReadRequest, qnRead, 1), r.append(nil))
		}
		atomics := func(e *env, r atomicRequest) []byte {
			return e.fpdu(untagged(opAtomicRequest, qnRead, 1), r.append(nil))
		}
		raw := func(e *env, s string) []byte {
			b := append(unhex(t, s), make([]byte, 28)...)
			n := lengthSize + int(binary.BigEndian.Uint16(b))
			if len(b) < n {
				b = append(b, make([]byte, n-len(b))...)
			}
			return sealFPDU(b[:n], 0, e.crc)
		}
		for _, c := range []struct {
			name  string
			want  *fault
			bytes func(e *env) []byte
		}{
			{"write: unknown key", &faultTaggedSTag, func(e *env) []byte { return write(e, e.key^0x100, e.addr, 8) }},
			{"write: key 0", &faultTaggedSTag, func(e *env) []byte { return write(e, 0, e.addr, 8) }},
			{"write: below", &faultTaggedBounds, func(e *env) []byte { return write(e, e.key, e.addr-1, 8) }},
			{"write: past the end", &faultTaggedBounds, func(e *env) []byte { return write(e, e.key, e.addr+e.size-7, 8) }},
			{"write: second segment past the end", &faultTaggedBounds, func(e *env) []byte {
				h := tagged(opWrite, e.key, e.addr+e.size-8)
				h.last = false
				return append(e.fpdu(h, make([]byte, 8)), write(e, e.key, e.addr+e.size, 1)...)
			}},
			{"write: another PD", &faultTaggedPD, func(e *env) []byte { return write(e, e.foreign.RKey(), e.foreign.Addr(), 8) }},
			{"write: wraps", &faultTaggedWrap, func(e *env) []byte { return write(e, e.key, ^uint64(0)-3, 8) }},
			{"write: no access", &faultWriteAccess, func(e *env) []byte { return write(e, e.private.RKey(), e.private.Addr(), 8) }},
			{"DDP version, tagged", &faultTaggedVersion, func(e *env) []byte { return raw(e, "0020 c240") }},
			{"DDP version, untagged", &faultUntaggedVersion, func(e *env) []byte { return raw(e, "0020 4343") }},
			{"RDMAP version", &faultRDMAPVersion, func(e *env) []byte { return raw(e, "0020 4183") }},

			{"read: unknown key", &faultRequestSTag, func(e *env) []byte {
				return read(e, readRequest{size: 8, srcSTag: e.key ^ 1, srcTO: e.addr})
			}},
			{"read: past the end", &faultRequestBounds, func(e *env) []byte {
				return read(e, readRequest{size: 8, srcSTag: e.key, srcTO: e.addr + e.size - 7})
			}},
			{"read: longer than any message", &faultRequestBounds, func(e *env) []byte {
				return read(e, readRequest{size: 1<<32 - 1, srcSTag: e.key, srcTO: e.addr})
			}},
			{"read: no access", &faultRequestAccess, func(e *env) []byte {
				return read(e, readRequest{size: 8, srcSTag: e.private.RKey(), srcTO: e.private.Addr()})
			}},
			{"read: another PD", &faultRequestPD, func(e *env) []byte {
				return read(e, readRequest{size: 8, srcSTag: e.foreign.RKey(), srcTO: e.foreign.Addr()})
			}},
			{"read: wraps", &faultRequestWrap, func(e *env) []byte {
				return read(e, readRequest{size: 8, srcSTag: e.key, srcTO: ^uint64(0) - 3})
			}},
			{"read: sink wraps", &faultUnspecified, func(e *env) []byte {
				return read(e, readRequest{size: 8, srcSTag: e.key, srcTO: e.addr, sinkTO: ^uint64(0) - 3})
			}},
			{"read: not last", &faultUnspecified, func(e *env) []byte {
				h := untagged(opReadRequest, qnRead, 1)
				h.last = false
				return e.fpdu(h, make([]byte, readRequestSize))
			}},
			{"read: wrong queue", &faultQN, func(e *env) []byte {
				return e.fpdu(untagged(opReadRequest, qnSend, 1), make([]byte, readRequestSize))
			}},
			{"read: wrong number", &faultMSN, func(e *env) []byte {
				return e.fpdu(untagged(opReadRequest, qnRead, 2), make([]byte, readRequestSize))
			}},
			{"read: offset", &faultMO, func(e *env) []byte {
				h := untagged(opReadRequest, qnRead, 1)
				h.mo = 1
				return e.fpdu(h, make([]byte, readRequestSize))
			}},
			{"read: wrong size", &faultStart, func(e *env) []byte {
				return e.fpdu(untagged(opReadRequest, qnRead, 1), make([]byte, readRequestSize+1))
			}},

			{"atomic: unknown key", &faultRequestSTag, func(e *env) []byte { return atomics(e, atomicRequest{stag: 9, to: e.addr}) }},
			{"atomic: no access", &faultRequestAccess, func(e *env) []byte {
				return atomics(e, atomicRequest{stag: e.private.RKey(), to: e.private.Addr()})
			}},
			{"atomic: not aligned", &faultUnspecified, func(e *env) []byte { return atomics(e, atomicRequest{stag: e.key, to: e.addr + 4}) }},
			{"atomic: unknown operation", &faultUnspecified, func(e *env) []byte {
				return atomics(e, atomicRequest{op: 1, stag: e.key, to: e.addr})
			}},
			{"atomic: past the end", &faultRequestBounds, func(e *env) []byte {
				return atomics(e, atomicRequest{stag: e.key, to: e.addr + e.size})
			}},

			{"send: wrong queue", &faultQN, func(e *env) []byte { return e.fpdu(untagged(opSend, 5, 1), nil) }},
			{"send: wrong number", &faultMSN, func(e *env) []byte { return e.fpdu(untagged(opSend, 0, 2), nil) }},
			{"send: number 0", &faultMSN, func(e *env) []byte { return e.fpdu(untagged(opSend, 0, 0), nil) }},
			{"send: offset", &faultMO, func(e *env) []byte {
				h := untagged(opSend, 0, 1)
				h.mo = 4
				return e.fpdu(h, []byte("abcd"))
			}},
			{"send: too long", &faultTooLong, func(e *env) []byte { return e.fpdu(untagged(opSend, 0, 1), make([]byte, recvSlot+1)) }},
			{"send: too long in parts", &faultTooLong, func(e *env) []byte {
				h := untagged(opSend, 0, 1)
				h.last = false
				b := e.fpdu(h, make([]byte, recvSlot))
				h.mo, h.last = recvSlot, true
				return append(b, e.fpdu(h, []byte{1})...)
			}},
			{"send: changes its kind", &faultOpcode, func(e *env) []byte {
				h := untagged(opSend, 0, 1)
				h.last = false
				b := e.fpdu(h, make([]byte, 4))
				h.op, h.mo = opSendSE, 4
				return append(b, e.fpdu(h, []byte{1})...)
			}},
			{"send: no receive left", &faultNoBuffer, func(e *env) []byte {
				var b []byte
				for i := range uint32(65) {
					b = append(b, e.fpdu(untagged(opSend, 0, i+1), nil)...)
				}
				return b
			}},
			{"send with invalidate: unknown key", &faultInvalidate, func(e *env) []byte {
				h := untagged(opSendInv, 0, 1)
				h.ulp = e.key ^ 1
				return e.fpdu(h, nil)
			}},
			{"send with invalidate: another PD", &faultInvalidate, func(e *env) []byte {
				h := untagged(opSendInv, 0, 1)
				h.ulp = e.foreign.RKey()
				return e.fpdu(h, nil)
			}},
			{"write: invalidated key", &faultTaggedSTag, func(e *env) []byte {
				h := untagged(opSendInv, 0, 1)
				h.ulp = e.key
				return append(e.fpdu(h, nil), write(e, e.key, e.addr, 8)...)
			}},
			{"immediate inside a send", &faultOpcode, func(e *env) []byte {
				h := untagged(opSend, 0, 1)
				h.last = false
				return append(e.fpdu(h, make([]byte, 4)), e.fpdu(untagged(opImmediate, 0, 1), make([]byte, 8))...)
			}},

			{"read response: none expected", &faultOpcode, func(e *env) []byte {
				return e.fpdu(tagged(opReadResponse, e.key, e.addr), make([]byte, 8))
			}},
			{"atomic response: none expected", &faultOpcode, func(e *env) []byte {
				return e.fpdu(untagged(opAtomicResponse, qnAtomicResponse, 1), make([]byte, 12))
			}},
			{"read response inside a write", &faultOpcode, func(e *env) []byte {
				h := tagged(opWrite, e.key, e.addr)
				h.last = false
				return append(e.fpdu(h, nil), e.fpdu(tagged(opReadResponse, e.key, e.addr), make([]byte, 8))...)
			}},
			{"opcode 14", &faultOpcode, func(e *env) []byte { return raw(e, "0020 414e") }},
			{"tagged send", &faultOpcode, func(e *env) []byte { return raw(e, "0020 c143") }},
			{"untagged write", &faultOpcode, func(e *env) []byte { return raw(e, "0020 4140") }},
			{"length 0", &faultStart, func(e *env) []byte { return raw(e, "0000 0000 0000 0000") }},
			{"length below the header", &faultStart, func(e *env) []byte { return raw(e, "0010 4143") }},
		} {
			t.Run(c.name, func(t *testing.T) {
				peer, v := victim(t, ln, enhanced(crc), param(), pairSize{})
				e := &env{rawPeer: peer, v: v, key: v.mr.RKey(), addr: v.mr.Addr(), size: uint64(len(v.mr.Bytes()))}
				e.t = t
				pd, err := v.id.Device().AllocPD()
				require.NoError(t, err)
				e.foreign, err = pd.AllocMR(4096, allAccess)
				require.NoError(t, err)
				e.private, err = v.pd.AllocMR(4096, verbs.AccessLocalWrite)
				require.NoError(t, err)
				defer func() {
					require.NoError(t, v.qp.Close())
					require.NoError(t, e.private.Close())
					require.NoError(t, e.foreign.Close())
					require.NoError(t, pd.Close())
				}()
				before := bytes.Clone(v.mr.Bytes())

				e.write(c.bytes(e))
				e.terminated(c.want)
				v.disconnected(t)
				require.True(t, bytes.Equal(before, v.mr.Bytes()))
				require.Equal(t, make([]byte, 4096), e.foreign.Bytes())
				require.Equal(t, make([]byte, 4096), e.private.Bytes())
				// All receives come back, the rest flushed.
				for range 64 {
					v.next(t, true)
				}
				attr, err := v.qp.Query()
				require.NoError(t, err)
				require.Equal(t, verbs.QPError, attr.State)
			})
		}
		// The other connection still works.
		x.send(t, 4)
		require.EqualValues(t, 4, y.recv(t).ByteLen)
	}
}

// TestHostileCRC changes each byte of an FPDU in turn: nothing of it is placed.
func TestHostileCRC(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	for _, at := range []int{2, 3, 4, 9, 16, 20, 23, 24, 27} {
		peer, v := victim(t, ln, enhanced(mpaCRC), param(), pairSize{})
		b := peer.fpdu(tagged(opWrite, v.mr.RKey(), v.mr.Addr()), bytes.Repeat([]byte{0xee}, 8))
		b[at] ^= 0x10
		peer.write(b)
		peer.terminated(&faultCRC)
		require.Zero(t, bytes.Count(v.mr.Bytes(), []byte{0xee}))
	}
}

// TestHostileReads has the peer ask for more READs than were agreed on while it takes no answer.
func TestHostileReads(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	const size = 8 << 20
	peer, v := victim(t, ln, enhanced(0), param(), pairSize{memory: size})
	var b []byte
	for i := range uint32(64) {
		r := readRequest{size: size, srcSTag: v.mr.RKey(), srcTO: v.mr.Addr()}
		b = append(b, peer.fpdu(untagged(opReadRequest, qnRead, i+1), r.append(nil))...)
	}
	peer.write(b)
	v.disconnected(t)
}

// TestZeroLength has messages without bytes: keys and addresses do not matter.
func TestZeroLength(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	peer, v := victim(t, ln, enhanced(0), param(), pairSize{})
	peer.write(peer.fpdu(tagged(opWrite, 1, 0), nil))
	peer.write(peer.fpdu(tagged(opWrite, 0xffffffff, ^uint64(0)), nil))
	r := readRequest{sinkSTag: 5, sinkTO: 6, srcSTag: 7, srcTO: 8}
	peer.write(peer.fpdu(untagged(opReadRequest, qnRead, 1), r.append(nil)))
	h, payload := peer.read()
	require.Equal(t, header{op: opReadResponse, tagged: true, last: true, stag: 5, to: 6}, h)
	require.Empty(t, payload)
	peer.write(peer.fpdu(untagged(opSend, 0, 1), nil))
	require.Zero(t, v.recv(t).ByteLen)
}

// TestEndsMidFPDU has the stream end within an FPDU, by FIN and by reset, while the peer is owed nothing.
func TestEndsMidFPDU(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	for _, reset := range []bool{false, true} {
		peer, v := victim(t, ln, enhanced(0), param(), pairSize{})
		b := peer.fpdu(tagged(opWrite, v.mr.RKey(), v.mr.Addr()), make([]byte, 1000))
		peer.write(b[:500])
		if reset {
			require.NoError(t, peer.conn.(*net.TCPConn).SetLinger(0))
		}
		require.NoError(t, peer.conn.Close())
		v.disconnected(t)
		for range 64 {
			require.Equal(t, verbs.StatusWRFlushErr, v.next(t, true).Status)
		}
	}
}

// TestPad has a pad that is not zero: without CRCs it does not matter.
func TestPad(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	peer, v := victim(t, ln, enhanced(0), param(), pairSize{})
	b := peer.fpdu(untagged(opSend, 0, 1), []byte{1})
	for i := untaggedSize + 1; i < len(b); i++ {
		b[i] = 0xee
	}
	peer.write(append(b, peer.fpdu(untagged(opSend, 0, 2), []byte{2, 2})...))
	require.EqualValues(t, 1, v.recv(t).ByteLen)
	require.EqualValues(t, 2, v.recv(t).ByteLen)
	at := v.slot(0)
	require.Equal(t, []byte{1, 0}, v.mr.Bytes()[at:at+2])
}

// TestLargestFPDU has FPDUs as large as their length field allows, which we do not send ourselves.
func TestLargestFPDU(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	for _, crc := range []uint8{0, mpaCRC} {
		const n = maxULPDU - (taggedSize - lengthSize)
		peer, v := victim(t, ln, enhanced(crc), param(), pairSize{memory: 4 * n})
		payload := make([]byte, n)
		fill(payload, 1)
		for i := range uint64(4) {
			h := tagged(opWrite, v.mr.RKey(), v.mr.Addr()+i*n)
			h.last = i == 3
			peer.write(peer.fpdu(h, payload))
		}
		peer.write(peer.fpdu(untagged(opSend, 0, 1), nil))
		v.recv(t)
		for i := range 4 {
			require.True(t, bytes.Equal(payload, v.mr.Bytes()[i*n:][:n]))
		}
	}
}

// TestAfterTerminate sends on after a fault: it is thrown away.
func TestAfterTerminate(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	peer, v := victim(t, ln, enhanced(0), param(), pairSize{})
	b := peer.fpdu(untagged(opSend, 7, 1), nil)
	for range 1000 {
		b = append(b, peer.fpdu(tagged(opWrite, v.mr.RKey(), v.mr.Addr()), []byte{1, 2, 3, 4})...)
	}
	peer.write(b)
	peer.terminated(&faultQN)
	require.Zero(t, v.mr.Bytes()[0])
}

// TestPeerTerminates has the peer end the stream with a Terminate message, in both layouts: a READ that waits learns of it.
func TestPeerTerminates(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	for word, want := range map[string]verbs.Status{
		"0102e000": verbs.StatusRemAccessErr,
		"10000700": verbs.StatusRemAccessErr,
		"20060000": verbs.StatusRemInvReqErr,
		"1202c000": verbs.StatusRemInvReqErr,
		"20020000": verbs.StatusRemOpErr,
	} {
		peer, v := victim(t, ln, enhanced(0), param(), pairSize{})
		peer.write(peer.fpdu(tagged(opWrite, 1, 0), nil))
		v.post(t, verbs.SendWR{ID: 1, Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: v.sge(0, 8), RemoteAddr: 1, RKey: 2})
		v.send(t, 4)
		h, _ := peer.read()
		require.EqualValues(t, opReadRequest, h.op)
		h, _ = peer.read()
		require.EqualValues(t, opSend, h.op)
		peer.write(peer.fpdu(untagged(opTerminate, qnTerminate, 1), unhex(t, word)))
		require.Equal(t, want, v.reap(t).Status, word)
		require.Equal(t, verbs.StatusWRFlushErr, v.reap(t).Status)
		v.disconnected(t)
		peer.eof() // no Terminate in return
	}
}

// TestReadResponses has the peer answer a READ in wrong ways.
func TestReadResponses(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	for name, c := range map[string]struct {
		change func(h *header)
		n      int
		want   *fault
	}{
		"wrong key":    {func(h *header) { h.stag ^= 1 }, 100, &faultTaggedSTag},
		"wrong place":  {func(h *header) { h.to++ }, 100, &faultTaggedBounds},
		"too short":    {func(*header) {}, 99, &faultTaggedBounds},
		"too long":     {func(*header) {}, 101, &faultTaggedBounds},
		"without end":  {func(h *header) { h.last = false }, 100, &faultTaggedBounds},
		"more to come": {func(h *header) { h.last = false }, 200, &faultTaggedBounds},
	} {
		t.Run(name, func(t *testing.T) {
			peer, v := victim(t, ln, enhanced(0), param(), pairSize{})
			peer.t = t
			peer.write(peer.fpdu(tagged(opWrite, 1, 0), nil))
			v.post(t, verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: v.sge(1000, 100), RemoteAddr: 1, RKey: 2})
			_, body := peer.read()
			var r readRequest
			r.parse(body)
			require.EqualValues(t, 100, r.size)
			h := tagged(opReadResponse, r.sinkSTag, r.sinkTO)
			c.change(&h)
			peer.write(peer.fpdu(h, bytes.Repeat([]byte{0xee}, c.n)))
			peer.terminated(c.want)
			require.NotEqual(t, verbs.StatusSuccess, v.reap(t).Status)
			require.Zero(t, bytes.Count(v.mr.Bytes(), []byte{0xee}))
		})
	}
}
