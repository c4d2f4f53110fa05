package softiwarp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// TestHostileRequests has requests that are answered by the end of the stream, and some that are rejected.
func TestHostileRequests(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	for name, s := range map[string]string{
		"garbage":    "474554202f20485454502f312e310d0a 0d 0a 0000",
		"reply":      "4d504120494420526570204672616d65 10 02 0004 00000000",
		"revision 3": "4d504120494420526571204672616d65 10 03 0004 00000000",
		"too long":   "4d504120494420526571204672616d65 10 02 0201",
	} {
		peer := dialRaw(t, ln)
		peer.write(unhex(t, s))
		start := time.Now()
		peer.eof()
		require.Less(t, time.Since(start), time.Second, name)
	}
	for name, s := range map[string]string{
		"markers":       "4d504120494420526571204672616d65 90 02 0004 00000000",
		"words missing": "4d504120494420526571204672616d65 10 02 0002 0000",
	} {
		peer := dialRaw(t, ln)
		peer.write(unhex(t, s))
		head := make([]byte, mpaHeaderSize)
		_, err := io.ReadFull(peer.conn, head)
		require.NoError(t, err, name)
		var f mpaFrame
		_, err = f.parseHeader(head, mpaReplyKey)
		require.NoError(t, err)
		require.Equal(t, uint8(mpaReject), f.flags&(mpaReject|mpaMarkers), name)
	}
	connectTo(t, p, ln, pairSize{})
}

// TestRevisions connects as peers of each revision do.
func TestRevisions(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	for _, f := range []mpaFrame{
		{revision: 0}, {revision: 1}, {revision: 1, flags: mpaCRC}, {revision: 2},
		{revision: 2, flags: mpaEnhanced, ird: 0, ord: 1}, {revision: 2, flags: mpaEnhanced | mpaCRC, ird: 200, ord: 200},
	} {
		peer := dialRaw(t, ln)
		accepted := make(chan *end, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			req, err := ln.Accept(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			v := newEnd(t, req, pairSize{})
			// What the request offers is ready to be agreed to.
			if err := req.Accept(ctx, req.Param()); err != nil {
				t.Error(err)
			}
			accepted <- v
		}()
		reply := peer.request(f)
		require.Equal(t, f.revision, reply.revision)
		require.Equal(t, f.flags, reply.flags)
		if f.enhanced() {
			require.Equal(t, [2]uint16{min(f.ord, maxDepth), min(f.ird, maxDepth)}, [2]uint16{reply.ird, reply.ord})
		}
		v := <-accepted
		peer.write(peer.fpdu(untagged(opSend, 0, 1), []byte("hello")))
		require.EqualValues(t, 5, v.recv(t).ByteLen)
		v.send(t, 3)
		h, payload := peer.read()
		require.EqualValues(t, opSend, h.op)
		require.Len(t, payload, 3)
	}
}

// TestPeerToPeer has each way in which a peer-to-peer connection may begin. Accept returns when it has.
func TestPeerToPeer(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	for offer, begin := range map[rtrKinds]func(peer *rawPeer){
		rtrWrite: func(peer *rawPeer) { peer.write(peer.fpdu(tagged(opWrite, 1, 0), nil)) },
		rtrRead: func(peer *rawPeer) {
			peer.write(peer.fpdu(untagged(opReadRequest, qnRead, 1), (&readRequest{}).append(nil)))
			h, _ := peer.read()
			require.EqualValues(t, opReadResponse, h.op)
		},
		rtrSend: func(peer *rawPeer) { peer.write(peer.fpdu(untagged(opSend, 0, 1), nil)) },
	} {
		peer := dialRaw(t, ln)
		accepted := make(chan *end, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			req, err := ln.Accept(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			v := newEnd(t, req, pairSize{})
			if err := req.Accept(ctx, cm.ConnParam{}); err != nil {
				t.Error(err)
			}
			accepted <- v
		}()
		reply := peer.request(mpaFrame{flags: mpaEnhanced, revision: 2, peerToPeer: true, rtr: offer})
		require.True(t, reply.peerToPeer)
		require.Equal(t, offer, reply.rtr)
		select {
		case <-accepted:
			t.Fatal("Accept did not wait")
		case <-time.After(20 * time.Millisecond):
		}
		begin(peer)
		v := <-accepted
		// The beginning used up nothing but, if it was a SEND or READ, its number.
		msn := uint32(1)
		if offer == rtrSend {
			msn = 2
		}
		peer.write(peer.fpdu(untagged(opSend, 0, msn), []byte("x")))
		wc := v.recv(t)
		require.Equal(t, uint64(recvBit), wc.ID)
		require.EqualValues(t, 1, wc.ByteLen)
	}
}

// TestPeerToPeerSilent has the peer never begin.
func TestPeerToPeerSilent(t *testing.T) {
	p := New(Config{Logger: quiet, RequestTimeout: 50 * time.Millisecond})
	ln := listen(t, p, cm.ListenOptions{})
	peer := dialRaw(t, ln)
	peer.write((&mpaFrame{flags: mpaEnhanced, revision: 2, peerToPeer: true}).append(nil, mpaRequestKey))
	req, err := ln.Accept(t.Context())
	require.NoError(t, err)
	v := newEnd(t, req, pairSize{})
	require.ErrorIs(t, req.Accept(t.Context(), cm.ConnParam{}), syscall.ETIMEDOUT)
	v.disconnected(t)
}

// TestPeerToPeerGone has the peer leave before it begins: Accept does not wait for it.
func TestPeerToPeerGone(t *testing.T) {
	ln := listen(t, New(Config{Logger: quiet, RequestTimeout: time.Minute}), cm.ListenOptions{})
	peer := dialRaw(t, ln)
	peer.write((&mpaFrame{flags: mpaEnhanced, revision: 2, peerToPeer: true}).append(nil, mpaRequestKey))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := ln.Accept(ctx)
	require.NoError(t, err)
	newEnd(t, req, pairSize{})
	require.NoError(t, peer.conn.Close())
	require.ErrorIs(t, req.Accept(ctx, cm.ConnParam{}), syscall.ECONNRESET)
}

// TestPeerToPeerGate has the accepting program send before the peer has begun: it waits for that as long as it takes.
func TestPeerToPeerGate(t *testing.T) {
	ln := listen(t, New(Config{Logger: quiet}), cm.ListenOptions{})
	peer := dialRaw(t, ln)
	done := make(chan *end)
	go func() {
		req, err := ln.Accept(context.Background())
		if err != nil {
			t.Error(err)
			return
		}
		v := newEnd(t, req, pairSize{})
		accepted := make(chan error, 1)
		go func() { accepted <- req.Accept(context.Background(), param()) }()
		for {
			if a, _ := v.qp.Query(); a.State == verbs.QPRTS {
				break
			}
			time.Sleep(time.Millisecond)
		}
		v.send(t, 4)
		if err := <-accepted; err != nil {
			t.Error(err)
		}
		done <- v
	}()
	f := enhanced(0)
	f.peerToPeer, f.rtr = true, rtrWrite
	peer.request(f)
	require.NoError(t, peer.conn.SetReadDeadline(time.Now().Add(5*gateTime)))
	_, err := peer.conn.Read(make([]byte, 1))
	require.Error(t, err, "it sent before the peer had begun")
	require.NoError(t, peer.conn.SetReadDeadline(time.Now().Add(patience)))
	peer.write(peer.fpdu(tagged(opWrite, 1, 0), nil))
	<-done
	h, _ := peer.read()
	require.EqualValues(t, opSend, h.op)
}

// TestGate has the accepting side send first: nothing may go out before the dialing side has begun, or for gateTime.
func TestGate(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	for _, begins := range []bool{true, false} {
		start := time.Now()
		peer, v := victim(t, ln, enhanced(0), param(), pairSize{})
		v.send(t, 4)
		require.NoError(t, peer.conn.SetReadDeadline(time.Now().Add(gateTime/3)))
		_, err := peer.conn.Read(make([]byte, 1))
		if time.Since(start) < gateTime {
			require.Error(t, err)
		}
		require.NoError(t, peer.conn.SetReadDeadline(time.Now().Add(patience)))
		if begins {
			peer.write(peer.fpdu(tagged(opWrite, 1, 0), nil))
		}
		h, _ := peer.read()
		require.EqualValues(t, opSend, h.op)
		if !begins {
			require.GreaterOrEqual(t, time.Since(start), gateTime)
		}
		v.reap(t)
	}
}

// fault: CONN-3
//
// TestSlowLoris has more peers that never send their request than a listener takes: others get through, in time, and the silent ones
// are thrown out when others need their places. Otherwise they would have longer than the test.
func TestSlowLoris(t *testing.T) {
	p := New(Config{Logger: quiet, RequestTimeout: time.Hour}).(*provider)
	ln := listen(t, p, cm.ListenOptions{})
	var silent []*rawPeer
	for i := range 2 * maxHandshakes {
		peer := dialRaw(t, ln)
		peer.write([]byte(mpaRequestKey)[:i%(len(mpaRequestKey)+1)])
		silent = append(silent, peer)
	}
	l := ln.(*listener)
	require.LessOrEqual(t, len(l.slots), maxHandshakes)
	connectTo(t, p, ln, pairSize{})
	for _, peer := range silent[:maxHandshakes] {
		peer.eof()
	}
}

// fault: CONN-10 (software)
//
// TestBurst has a thousand peers come at once while nobody accepts. All get through.
func TestBurst(t *testing.T) {
	const peers = 1000
	p := New(Config{Logger: quiet, ReplyTimeout: patience})
	ln := listen(t, p, cm.ListenOptions{Backlog: peers})
	conns := make(chan net.Conn, peers)
	var dials sync.WaitGroup
	for range peers {
		dials.Go(func() {
			conn, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			conns <- conn
			f := enhanced(0)
			_, err = conn.Write(f.append(nil, mpaRequestKey))
			if err != nil {
				t.Error(err)
			}
		})
	}
	dials.Wait()
	eventually(t, "all wait", func() bool {
		l := ln.(*listener)
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.queue) == peers
	})
	close(conns)
	for conn := range conns {
		require.NoError(t, conn.Close())
	}
}

// TestWithin has the context end while an answer is sent. One that is sent stands: the peer takes the connection for made.
func TestWithin(t *testing.T) {
	for _, fails := range []bool{false, true} {
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		ctx, cancel := context.WithCancel(t.Context())
		err := within(ctx, a, time.Hour, func() error {
			cancel()
			if fails {
				_, err := a.Read(make([]byte, 1)) // until the deadline
				return err
			}
			return nil
		})
		if fails {
			require.ErrorIs(t, err, context.Canceled)
			continue
		}
		require.NoError(t, err)
		go func() { _, _ = b.Write([]byte("x")) }()
		_, err = a.Read(make([]byte, 1)) // there is no deadline any more
		require.NoError(t, err)
	}
}

// TestRejectsBounded has many peers refused that do not leave: few of the connections stay open.
func TestRejectsBounded(t *testing.T) {
	p := New(Config{Logger: quiet}).(*provider)
	ln := listen(t, p, cm.ListenOptions{})
	bounded := false
	for i := 0; i < 3 && !bounded; i++ { // a busy machine may take longer than rejectTime
		start := time.Now()
		for range 4 * maxRejects {
			dialRaw(t, ln).request(enhanced(mpaMarkers))
		}
		for ; time.Since(start) < rejectTime && !bounded; runtime.Gosched() { // later nobody is there in any case
			bounded = p.dev.open.streams.Load() <= maxRejects
		}
	}
	require.True(t, bounded)
	eventually(t, "all gone", func() bool { return p.dev.open.streams.Load() == 0 })
}

// TestCloseListenerWithSilentPeers does not wait for them.
func TestCloseListenerWithSilentPeers(t *testing.T) {
	p := New(Config{Logger: quiet}).(*provider)
	ln := listen(t, p, cm.ListenOptions{})
	for range maxHandshakes + 3 {
		dialRaw(t, ln)
	}
	start := time.Now()
	require.NoError(t, ln.Close())
	require.Less(t, time.Since(start), time.Second)
}

// rawListener accepts one connection and hands it to f.
func rawListener(t *testing.T, f func(net.Conn)) netip.AddrPort {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() {
		c, err := ln.Accept()
		if err == nil {
			defer c.Close()
			f(c)
		}
	}()
	return addrPort(ln.Addr())
}

// TestHostileReplies dials peers that answer in wrong ways.
func TestHostileReplies(t *testing.T) {
	for name, c := range map[string]struct {
		reply string
		want  error
	}{
		"garbage":          {"485454502f312e31203430302042616420526571 0d0a0d0a", syscall.EPROTO},
		"request":          {"4d504120494420526571204672616d65 10 02 0004 00000000", syscall.EPROTO},
		"revision 3":       {"4d504120494420526570204672616d65 10 03 0004 00000000", syscall.EPROTO},
		"too long":         {"4d504120494420526570204672616d65 10 02 ffff 00000000", syscall.EPROTO},
		"words missing":    {"4d504120494420526570204672616d65 10 02 0000", syscall.EPROTO},
		"markers":          {"4d504120494420526570204672616d65 90 02 0004 00000000", syscall.EPROTO},
		"many READs":       {"4d504120494420526570204672616d65 10 02 0004 00003000", syscall.EPROTO},
		"reject":           {"4d504120494420526570204672616d65 30 02 0004 00000000", syscall.ECONNREFUSED},
		"ends":             {"4d504120494420526570", syscall.ECONNRESET},
		"ends in the data": {"4d504120494420526570204672616d65 10 02 0010 00000000", syscall.ECONNRESET},
		"nothing":          {"", syscall.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			addr := rawListener(t, func(conn net.Conn) {
				var f mpaFrame
				if f.read(conn, mpaRequestKey) == nil {
					_, _ = conn.Write(unhex(t, c.reply))
				}
			})
			p := New(Config{Logger: quiet}).(*provider)
			_, err := connectRaw(t, p, addr, t.Context())
			require.ErrorIs(t, err, c.want)
			var step *cm.Error
			require.ErrorAs(t, err, &step)
		})
	}
}

func connectRaw(t *testing.T, p cm.Provider, addr netip.AddrPort, ctx context.Context) (*end, error) {
	id, err := p.Resolve(ctx, netip.AddrPort{}, addr)
	require.NoError(t, err)
	e := newEnd(t, id, pairSize{})
	_, err = id.Connect(ctx, param())
	return e, err
}

// TestSilentReply dials a peer that never answers.
func TestSilentReply(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	silent := func() netip.AddrPort { return rawListener(t, func(net.Conn) { <-stop }) }
	_, err := connectRaw(t, New(Config{Logger: quiet, ReplyTimeout: 50 * time.Millisecond}), silent(), t.Context())
	require.ErrorIs(t, err, syscall.ETIMEDOUT)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = connectRaw(t, New(Config{Logger: quiet}), silent(), ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// TestOtherProtocol dials servers that speak first, in fewer bytes than an MPA frame's header has, and wait then. The first byte that does not
// fit is enough.
func TestOtherProtocol(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	for _, greeting := range []string{"SSH-2.0-Go\r\n", "220 \r\n", "M", "MPA ID Rep frame"} {
		addr := rawListener(t, func(conn net.Conn) {
			_, _ = conn.Write([]byte(greeting))
			if greeting == "M" {
				_, _ = conn.Write([]byte("E"))
			}
			<-stop
		})
		_, err := connectRaw(t, New(Config{Logger: quiet, ReplyTimeout: time.Hour}), addr, t.Context())
		require.ErrorIs(t, err, errMPAKey, greeting)
		require.ErrorIs(t, err, syscall.EPROTO)
	}
}

// TestFPDUsBehindReply has the peer send at once, in the same segment as its reply.
func TestFPDUsBehindReply(t *testing.T) {
	addr := rawListener(t, func(conn net.Conn) {
		var f mpaFrame
		if f.read(conn, mpaRequestKey) != nil {
			return
		}
		peer := rawPeer{t: t}
		b := (&mpaFrame{flags: mpaEnhanced, revision: 2}).append(nil, mpaReplyKey)
		b = append(b, peer.fpdu(untagged(opSend, 0, 1), []byte("early"))...)
		_, _ = conn.Write(b)
		_, _ = io.Copy(io.Discard, conn)
	})
	e, err := connectRaw(t, New(Config{Logger: quiet}), addr, t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 5, e.recv(t).ByteLen)
}

// TestCRCDemanded has a peer that does not give what we insist on.
func TestCRCDemanded(t *testing.T) {
	addr := rawListener(t, func(conn net.Conn) {
		var f mpaFrame
		if f.read(conn, mpaRequestKey) == nil && f.flags&mpaCRC != 0 {
			_, _ = conn.Write((&mpaFrame{flags: mpaEnhanced, revision: 2}).append(nil, mpaReplyKey))
		}
	})
	_, err := connectRaw(t, New(Config{Logger: quiet, CRC: true}), addr, t.Context())
	require.ErrorIs(t, err, syscall.EPROTO)
}

// TestResolve has the errors of routes.
func TestResolve(t *testing.T) {
	p := New(Config{Logger: quiet})
	id, err := p.Resolve(t.Context(), netip.AddrPort{}, loopback(80))
	require.NoError(t, err)
	require.Equal(t, loopback(0), id.LocalAddr())
	require.Equal(t, loopback(80), id.RemoteAddr())
	require.NoError(t, id.Close())

	_, err = p.Resolve(t.Context(), netip.AddrPort{}, netip.AddrPort{})
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = p.Resolve(t.Context(), netip.MustParseAddrPort("192.0.2.77:0"), loopback(80))
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	// TCP has no route to where UDP has one.
	_, err = connectRaw(t, p, netip.MustParseAddrPort("255.255.255.255:80"), t.Context())
	require.ErrorIs(t, err, syscall.ENETUNREACH)

	mapped := netip.AddrPortFrom(netip.MustParseAddr("::ffff:127.0.0.1"), 80)
	id, err = p.Resolve(t.Context(), netip.AddrPort{}, mapped)
	require.NoError(t, err)
	require.Equal(t, loopback(80), id.RemoteAddr())
	require.NoError(t, id.Close())
}

// TestLocalPort dials from a port of the user's choice, which may be taken.
func TestLocalPort(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	taken := listen(t, p, cm.ListenOptions{})
	id, err := p.Resolve(t.Context(), taken.Addr(), ln.Addr())
	require.NoError(t, err)
	newEnd(t, id, pairSize{})
	_, err = id.Connect(t.Context(), param())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
}

func TestListenErrors(t *testing.T) {
	p := New(Config{Logger: quiet})
	_, err := p.Listen(netip.MustParseAddrPort("192.0.2.77:0"), cm.ListenOptions{})
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	ln := listen(t, p, cm.ListenOptions{})
	require.Equal(t, p.(*provider).dev, ln.Device())
	all, err := p.Listen(netip.MustParseAddrPort("0.0.0.0:0"), cm.ListenOptions{})
	require.NoError(t, err)
	require.Nil(t, all.Device())
	require.True(t, all.Addr().Addr().IsUnspecified())
	// The other family has the port to itself.
	other, err := p.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), all.Addr().Port()), cm.ListenOptions{})
	require.NoError(t, err)
	require.NoError(t, other.Close())
	require.NoError(t, all.Close())
	require.ErrorIs(t, func() error { _, err := all.Accept(t.Context()); return err }(), verbs.ErrClosed)
}

func TestPortMapper(t *testing.T) {
	request := make([]byte, 60)
	request[0], request[47] = 0x01, 9
	want := append([]byte{0x31}, request[1:48]...)
	require.Equal(t, want, mapperAnswer(append([]byte(nil), request...)))
	require.Nil(t, mapperAnswer(request[:47]))
	request[0] = 0x10 // an answer
	require.Nil(t, mapperAnswer(request))

	// While there is a listener, and a taken port is no error.
	a, b := New(Config{Logger: quiet, PortMapper: true}), New(Config{Logger: quiet, PortMapper: true})
	for _, p := range []cm.Provider{a, b, a} {
		ln, err := p.Listen(loopback(0), cm.ListenOptions{})
		require.NoError(t, err)
		defer ln.Close()
	}
	conn, err := net.Dial("udp", "127.0.0.1:3935")
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	request[0] = 0x01
	_, err = conn.Write(request)
	require.NoError(t, err)
	answer := make([]byte, 100)
	n, err := conn.Read(answer)
	require.NoError(t, err)
	require.Equal(t, want, answer[:n])
}
