package rconn

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/ring"
	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

// rawPeer is a peer that posts what it likes.
type rawPeer struct {
	*endpoint
	t    *testing.T
	them ring.Handshake
	used int // bytes of the send memory, each used once: the device may still read it
}

// dialRaw connects as an rsocket would; change may spoil the handshake.
func dialRaw(t *testing.T, n *network, addr net.Addr, change func([]byte)) (*rawPeer, error) {
	cfg := must(Config{SendQueue: 600}.populate())
	id, err := n.dialing.Resolve(t.Context(), netip.AddrPort{}, addr.(*net.TCPAddr).AddrPort())
	require.NoError(t, err)
	ep, err := newEndpoint(id, cfg, nil)
	require.NoError(t, err)
	p := ep.param(cfg)
	if change != nil {
		change(p.PrivateData)
	}
	t.Cleanup(func() { ep.release(cfg) })
	reply, err := id.Connect(t.Context(), p)
	if err != nil {
		return nil, err
	}
	them, err := ring.ParseHandshake(reply.PrivateData)
	require.NoError(t, err)
	return &rawPeer{endpoint: ep, t: t, them: them}, nil
}

// say writes payload to addr and sends a message: with it as immediate data, or behind it on iWARP.
func (p *rawPeer) say(msg uint32, addr uint64, rkey uint32, payload []byte) {
	wr := verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Imm: msg, RemoteAddr: addr, RKey: rkey, SGL: p.copied(payload)}
	if p.variant == ring.Separate {
		if wr.Opcode = verbs.OpRDMAWrite; len(payload) > 0 {
			p.post(wr)
		}
		wr = verbs.SendWR{Opcode: verbs.OpSend, SGL: p.copied(binary.LittleEndian.AppendUint32(nil, msg))}
	}
	p.post(wr)
}

// copied puts payload into the send memory.
func (p *rawPeer) copied(payload []byte) []verbs.SGE {
	if len(payload) == 0 {
		return nil
	}
	at := p.used
	p.used += copy(p.send.Bytes()[at:], payload)
	return []verbs.SGE{{Addr: p.send.Addr() + uint64(at), Length: uint32(len(payload)), LKey: p.send.LKey()}}
}

func (p *rawPeer) post(wr verbs.SendWR) {
	_, err := p.qp.PostSend([]verbs.SendWR{wr})
	require.NoError(p.t, err)
}

// data writes to the first segment and announces n bytes.
func (p *rawPeer) data(n uint32, payload []byte) {
	p.say(n, p.them.Data.Addr, p.them.Data.RKey, payload)
}

func entryBytes(addr uint64, rkey, length uint32) []byte {
	b := binary.LittleEndian.AppendUint64(nil, addr)
	b = binary.LittleEndian.AppendUint32(b, rkey)
	return binary.LittleEndian.AppendUint32(b, length)
}

// credit writes an entry into the peer's table, with a limit.
func (p *rawPeer) credit(limit uint16, index uint64, entry []byte) {
	p.say(0x80000000|uint32(limit), p.them.TableAddr+16*index, p.them.TableRKey, entry)
}

// A hostile peer ends its own connection with an error that names what it did, and harms nobody else.
//
// fault: MEM-3 (software)
func TestHostilePeer(t *testing.T) {
	const reset, harmless = "", "-"
	for name, c := range map[string]struct {
		act             func(*rawPeer)
		want, wantIWARP string // in the error; or any reset; or nothing, for want of a message that could lie
	}{
		"data longer than the segment": {func(p *rawPeer) { p.data(1<<28, nil) }, "came with", "bytes"},
		"data never written":           {func(p *rawPeer) { p.data(100, nil) }, "came with 0 bytes", harmless},
		"data of 0":                    {func(p *rawPeer) { p.data(0, nil) }, "0 bytes", "0 bytes"},
		"unknown kind":                 {func(p *rawPeer) { p.data(0x20000001, []byte("x")) }, "unexpected", "unexpected"},
		"mapped buffer":                {func(p *rawPeer) { p.data(0xC0000000, nil) }, "unexpected", "unexpected"},
		"limit goes back":              {func(p *rawPeer) { p.credit(1, 0, nil) }, "limit went back", "limit went back"},
		"limit too far":                {func(p *rawPeer) { p.credit(60000, 0, nil) }, "credits", "credits"},
		"entry of 0 bytes":             {func(p *rawPeer) { p.credit(256, 1, entryBytes(1, 1, 0)) }, "segment of 0 bytes", harmless},
		"entry that wraps":             {func(p *rawPeer) { p.credit(256, 1, entryBytes(^uint64(0), 1, 10)) }, "wraps", "wraps"},
		"entry of 4 GiB":               {func(p *rawPeer) { p.credit(256, 1, entryBytes(1, 1, ^uint32(0))) }, "segment of", "segment of"},
		"half an entry":                {func(p *rawPeer) { p.credit(256, 1, make([]byte, 8)) }, "came with 8 bytes", harmless},
		"outside the memory":           {func(p *rawPeer) { p.say(1, p.them.Data.Addr+1<<40, p.them.Data.RKey, []byte("x")) }, reset, reset},
		"another key":                  {func(p *rawPeer) { p.say(1, p.them.Data.Addr, p.them.Data.RKey^1<<30, []byte("x")) }, reset, reset},
		"plain SEND":                   {func(p *rawPeer) { p.post(verbs.SendWR{Opcode: verbs.OpSend}) }, "SEND", "a message of 0 bytes"},
		"long SEND": {func(p *rawPeer) {
			p.post(verbs.SendWR{Opcode: verbs.OpSend, SGL: p.copied(make([]byte, 100))})
		}, reset, reset},
	} {
		t.Run(name, func(t *testing.T) {
			forDevices(t, func(t *testing.T, dev device) {
				n := dev.network(t, Config{})
				ln := n.listen(t, n.addr)
				defer ln.Close()
				peer, err := dialRaw(t, n, ln.Addr(), nil)
				require.NoError(t, err)
				conn, err := ln.Accept()
				require.NoError(t, err)
				want := c.want
				if peer.variant == ring.Separate {
					want = c.wantIWARP
				}
				within(t, func() {
					c.act(peer)
					if want == harmless {
						require.NoError(t, conn.(*Conn).SetLinger(0))
					} else {
						_, err = io.Copy(io.Discard, struct{ io.Reader }{conn})
						require.ErrorIs(t, err, syscall.ECONNRESET)
					}
					if want != harmless && want != reset {
						require.ErrorAs(t, err, new(*ring.ProtocolError))
						require.ErrorContains(t, err, want)
					}
					require.NoError(t, conn.Close())
					serveNext(t, n, ln)
				})
			})
		})
	}
}

// All messages are there before the first is looked at: more than were ever granted.
//
// fault: MEM-3
func TestMoreMessagesThanCredits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{})
		ln := n.listen(t, addrB+":0")
		peer, err := dialRaw(t, n, ln.Addr(), nil)
		require.NoError(t, err)
		conn, err := ln.Accept()
		require.NoError(t, err)
		for range 300 {
			peer.data(1, []byte("x"))
		}
		synctest.Wait()
		_, err = io.Copy(io.Discard, struct{ io.Reader }{conn})
		require.ErrorContains(t, err, "more messages than credits")
		require.NoError(t, errors.Join(conn.Close(), ln.Close()))
	})
}

// serveNext wants a listener to serve an honest client.
func serveNext(t *testing.T, n *network, ln *Listener) {
	t.Helper()
	c, err := n.dialer().Dial("rdma", ln.Addr().String())
	require.NoError(t, err)
	a, err := ln.Accept()
	require.NoError(t, err)
	_, err = a.Write([]byte("hello"))
	require.NoError(t, err)
	buf := make([]byte, 5)
	_, err = io.ReadFull(c, buf)
	require.NoError(t, err)
	require.Equal(t, "hello", string(buf))
	closeBoth(c.(*Conn), a.(*Conn))
}

// A spoiled handshake never gets as far as Accept.
//
// fault: MEM-3 (software)
func TestHostileHandshake(t *testing.T) {
	forDevices(t, func(t *testing.T, dev device) {
		n := dev.network(t, Config{})
		ln := n.listen(t, n.addr)
		defer ln.Close()
		for name, change := range map[string]func([]byte){
			"version":       func(b []byte) { b[0] = 2 },
			"no credits":    func(b []byte) { b[2], b[3] = 0, 0 },
			"huge segment":  func(b []byte) { b[36] = 0xff },
			"huge table":    func(b []byte) { b[20] = 0xff },
			"empty segment": func(b []byte) { clear(b[36:40]) },
			"zeros":         func(b []byte) { clear(b) },
		} {
			t.Run(name, func(t *testing.T) {
				_, err := dialRaw(t, n, ln.Addr(), change)
				require.ErrorIs(t, err, syscall.ECONNREFUSED)
				within(t, func() { serveNext(t, n, ln) })
			})
		}
	})
}

// What comes after DISCONNECT counts for nothing, and silence after the connection is made costs only that connection.
func TestGarbageAfterDisconnectAndSilence(t *testing.T) {
	forDevices(t, func(t *testing.T, dev device) {
		n := dev.network(t, Config{})
		ln := n.listen(t, n.addr)
		defer ln.Close()
		_, err := dialRaw(t, n, ln.Addr(), nil) // silent
		require.NoError(t, err)
		silent, err := ln.Accept()
		require.NoError(t, err)

		peer, err := dialRaw(t, n, ln.Addr(), nil)
		require.NoError(t, err)
		conn, err := ln.Accept()
		require.NoError(t, err)
		within(t, func() {
			peer.data(5, []byte("hello"))
			peer.say(0xE0000000, peer.them.TableAddr, peer.them.TableRKey, nil)
			peer.data(0x1fffffff, nil)
			peer.data(0x20000000, nil)
			got, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.Equal(t, "hello", string(got))
			require.NoError(t, conn.Close())
			serveNext(t, n, ln)
			require.NoError(t, silent.(*Conn).SetLinger(0))
			require.NoError(t, silent.Close())
		})
	})
}

// An end of the stream stays one, though a peer sends on. C peers do.
func TestEndStays(t *testing.T) {
	forDevices(t, func(t *testing.T, dev device) {
		n := dev.network(t, Config{Linger: 100 * time.Millisecond})
		ln := n.listen(t, n.addr)
		defer ln.Close()
		peer, err := dialRaw(t, n, ln.Addr(), nil)
		require.NoError(t, err)
		conn, err := ln.Accept()
		require.NoError(t, err)
		within(t, func() {
			peer.say(0xE0000002, peer.them.TableAddr, peer.them.TableRKey, nil)
			buf := make([]byte, 10)
			_, err = conn.Read(buf)
			require.Equal(t, io.EOF, err)
			peer.data(1, []byte("x"))
			require.Eventually(t, func() bool {
				c := conn.(*Conn)
				c.mu.Lock()
				c.progress() // as a Write that waits would
				c.mu.Unlock()
				return c.Stats().BytesReceived == 1
			}, 10*time.Second, time.Millisecond)
			_, err = conn.Read(buf)
			require.Equal(t, io.EOF, err)
			require.NoError(t, conn.Close())
		})
	})
}
