//go:build guest

package tests

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/rconn/rdma/verbs"
)

// The ping-pong programs of ibverbs-utils against QPs that we connect by hand. They tell each other their QPs over TCP, then each
// side answers a SEND with one. With one QP their receive buffer is their send buffer, so that they echo.

// pingpong is a run of one of the programs.
type pingpong struct {
	program string
	typ     verbs.QPType
	qps     int
	srq     bool
	told    int // how many QPs are told over TCP
	size    int
	iters   int // SENDs each way, over all QPs
	events  bool
}

const (
	pingpongPort = 18515
	pingpongQKey = 0x11111111
	pingpongGID  = 1 // entry of the GID table: the IPv4 address
	tellSize     = len("0000:000000:000000:00000000000000000000000000000000\x00")
)

func TestRxePingpongRC(t *testing.T) {
	testPingpong(t, pingpong{program: "ibv_rc_pingpong", typ: verbs.RC, qps: 1, told: 1, size: 4096, iters: 200})
	testPingpong(t, pingpong{program: "ibv_rc_pingpong", typ: verbs.RC, qps: 1, told: 1, size: 100_000, iters: 20, events: true})
}

func TestRxePingpongUC(t *testing.T) {
	testPingpong(t, pingpong{program: "ibv_uc_pingpong", typ: verbs.UC, qps: 1, told: 1, size: 4096, iters: 200})
}

func TestRxePingpongUD(t *testing.T) {
	testPingpong(t, pingpong{program: "ibv_ud_pingpong", typ: verbs.UD, qps: 1, told: 1, size: 1024, iters: 200})
}

func TestRxePingpongSRQ(t *testing.T) {
	testPingpong(t, pingpong{program: "ibv_srq_pingpong", typ: verbs.RC, qps: 8, srq: true, told: 256, size: 2048, iters: 300})
}

func testPingpong(t *testing.T, p pingpong) {
	name := fmt.Sprintf("%d bytes", p.size)
	t.Run(name+"/program dials", func(t *testing.T) { p.run(t, false) })
	t.Run(name+"/program listens", func(t *testing.T) { p.run(t, true) })
}

func (p pingpong) command(more ...string) []string {
	args := []string{p.program, "-p", strconv.Itoa(pingpongPort), "-g", strconv.Itoa(pingpongGID), "-s", strconv.Itoa(p.size), "-n", strconv.Itoa(p.iters)}
	if p.srq {
		args = append(args, "-q", strconv.Itoa(p.qps))
	}
	if p.events {
		args = append(args, "-e")
	}
	return append(args, more...)
}

// run plays one role against the program, in the other.
func (p pingpong) run(t *testing.T, dial bool) {
	need(t, p.program)
	before := resources(t)
	h := p.open(t)
	if dial {
		program := start(t, p.command()...)
		conn := dialTCP(t, program)
		h.tell(t, conn)
		peers := h.hear(t, conn)
		if _, err := conn.Write([]byte("done\x00")); err != nil {
			t.Fatal(err)
		}
		h.connect(t, peers)
		h.play(t, true)
		program.wait(t)
	} else {
		ln, err := net.Listen("tcp", fmt.Sprintf(":%d", pingpongPort))
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		ln.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
		program := start(t, p.command("127.0.0.1")...)
		conn, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		h.connect(t, h.hear(t, conn))
		h.tell(t, conn)
		if _, err := io.ReadFull(conn, make([]byte, len("done\x00"))); err != nil {
			t.Fatal(err)
		}
		h.play(t, false)
		program.wait(t)
	}
	h.close(t)
	if now := resources(t); now["qp"] > before["qp"] || now["mr"] > before["mr"] || now["cq"] > before["cq"] {
		t.Errorf("open before: %v, after: %v", before, now)
	}
}

// dialTCP waits for the program to listen.
func dialTCP(t *testing.T, program *process) net.Conn {
	t.Helper()
	var conn net.Conn
	waitFor(t, "the program to listen", func() bool {
		var err error
		conn, err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", pingpongPort))
		select {
		case <-program.done:
			t.Fatalf("%v: %v\n%s", program.cmd.Args, program.err, program.out.String())
		default:
		}
		return err == nil
	})
	t.Cleanup(func() { conn.Close() })
	return conn
}

// hand is our side: QPs by hand, with what they need.
type hand struct {
	pingpong
	dev   verbs.Device
	ways  []verbs.ByHand // of each QP
	peers []verbs.Endpoint
	qps   []verbs.QP
	ah    verbs.AH
	pd    verbs.PD
	mr    verbs.MR
	ch    verbs.CompletionChannel
	cq    verbs.CQ
	srq   verbs.SRQ
	room  int      // bytes of a receive
	objs  []closer // in the order in which they were made
}

type closer interface{ Close() error }

const handRecvs = 64

func (p pingpong) open(t *testing.T) *hand {
	t.Helper()
	list, err := system.Devices()
	if err != nil {
		t.Fatal(err)
	}
	h := &hand{pingpong: p, dev: list[0], room: p.size}
	if p.typ == verbs.UD {
		h.room += verbs.GRHSize
	}
	t.Cleanup(func() { h.close(t) })
	h.pd = made(t, h, h.dev.AllocPD)
	h.mr = made(t, h, func() (verbs.MR, error) { return h.pd.AllocMR(h.size+handRecvs*h.room, verbs.AccessLocalWrite) })
	h.ch = made(t, h, h.dev.CreateCompletionChannel)
	h.cq = made(t, h, func() (verbs.CQ, error) { return h.dev.CreateCQ(verbs.CQOptions{Depth: 512, Channel: h.ch}) })
	if p.srq {
		h.srq = made(t, h, func() (verbs.SRQ, error) { return h.pd.CreateSRQ(verbs.SRQOptions{MaxWR: handRecvs, MaxSGE: 1}) })
	}
	for range p.qps {
		qp := made(t, h, func() (verbs.QP, error) {
			return h.pd.CreateQP(verbs.QPOptions{
				Type: p.typ, SendCQ: h.cq, RecvCQ: h.cq, SRQ: h.srq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: handRecvs, MaxSendSGE: 1, MaxRecvSGE: 1},
			})
		})
		way := verbs.ByHand{GIDIndex: pingpongGID, PSN: rand.Uint32(), QKey: pingpongQKey}
		if err := way.Init(qp); err != nil {
			t.Fatal(err)
		}
		h.qps, h.ways = append(h.qps, qp), append(h.ways, way)
	}
	for i := range handRecvs {
		h.postRecv(t, i)
	}
	return h
}

func made[T closer](t *testing.T, h *hand, f func() (T, error)) T {
	t.Helper()
	o, err := f()
	if err != nil {
		t.Fatal(err)
	}
	h.objs = append(h.objs, o)
	return o
}

// close closes everything, the last made first.
func (h *hand) close(t *testing.T) {
	t.Helper()
	for len(h.objs) > 0 {
		last := len(h.objs) - 1
		if err := h.objs[last].Close(); err != nil {
			t.Error(err)
		}
		h.objs = h.objs[:last]
	}
}

func (h *hand) sge(off, n int) []verbs.SGE {
	return []verbs.SGE{{Addr: h.mr.Addr() + uint64(off), Length: uint32(n), LKey: h.mr.LKey()}}
}

// slot is the memory of a receive.
func (h *hand) slot(i int) []byte { return h.mr.Bytes()[h.size+i*h.room:][:h.room] }

func (h *hand) postRecv(t *testing.T, i int) {
	t.Helper()
	wr := []verbs.RecvWR{{ID: uint64(i), SGL: h.sge(h.size+i*h.room, h.room)}}
	post := h.qps[0].PostRecv
	if h.srq != nil {
		post = h.srq.PostRecv
	}
	if _, err := post(wr); err != nil {
		t.Fatal(err)
	}
}

// tell sends our QPs, and zeros for those that the program has room for and does not use.
func (h *hand) tell(t *testing.T, conn net.Conn) {
	t.Helper()
	var b bytes.Buffer
	for i := range h.told {
		var e verbs.Endpoint
		if i < len(h.qps) {
			var err error
			if e, err = h.ways[i].Local(h.dev, h.qps[i]); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Fprintf(&b, "%04x:%06x:%06x:%s\x00", e.LID, e.QPNum, e.PSN, hex.EncodeToString(e.GID[:]))
	}
	if _, err := conn.Write(b.Bytes()); err != nil {
		t.Fatal(err)
	}
}

func (h *hand) hear(t *testing.T, conn net.Conn) []verbs.Endpoint {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, h.told*tellSize)
	if _, err := io.ReadFull(conn, b); err != nil {
		t.Fatal(err)
	}
	peers := make([]verbs.Endpoint, h.pingpong.qps)
	for i := range peers {
		e := &peers[i]
		var gid []byte
		if _, err := fmt.Sscanf(string(b[i*tellSize:][:tellSize-1]), "%x:%x:%x:%x", &e.LID, &e.QPNum, &e.PSN, &gid); err != nil || len(gid) != len(e.GID) {
			t.Fatalf("%q: %v", b[i*tellSize:][:tellSize], err)
		}
		copy(e.GID[:], gid)
	}
	return peers
}

func (h *hand) connect(t *testing.T, peers []verbs.Endpoint) {
	t.Helper()
	h.peers = peers
	for i, qp := range h.qps {
		if err := h.ways[i].Connect(qp, peers[i]); err != nil {
			t.Fatal(err)
		}
	}
	if h.typ == verbs.UD {
		h.ah = made(t, h, func() (verbs.AH, error) { return h.pd.CreateAH(h.ways[0].Path(peers[0])) })
	}
}

// send sends what is in the front of the memory.
func (h *hand) send(t *testing.T, qp int) {
	t.Helper()
	wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGL: h.sge(0, h.size)}
	if h.typ == verbs.UD {
		wr.AH, wr.RemoteQPNum, wr.RemoteQKey = h.ah, h.peers[0].QPNum, pingpongQKey
	}
	if _, err := h.qps[qp].PostSend([]verbs.SendWR{wr}); err != nil {
		t.Fatal(err)
	}
}

// play sends and receives iters messages. On each QP a SEND follows when the last one is done and was answered; begin has our side
// send first.
func (h *hand) play(t *testing.T, begin bool) {
	t.Helper()
	index := make(map[uint32]int)
	waits := make([]int, len(h.qps)) // for how many completions of the two
	var sent []byte                  // what the program has of us, with one QP
	send := func(qp, n int) {
		for i := range h.size {
			h.mr.Bytes()[i] = byte(n + i*7)
		}
		if len(h.qps) == 1 {
			sent = bytes.Clone(h.mr.Bytes()[:h.size])
		}
		waits[qp] = 2
		h.send(t, qp)
	}
	for i, qp := range h.qps {
		index[qp.Num()] = i
		waits[i] = 1
		if begin {
			send(i, 0)
		}
	}
	echoed := 0
	for sends, recvs := 0, 0; sends < h.iters || recvs < h.iters; {
		wc, err := h.next()
		if err == nil {
			err = wc.Err()
		}
		if err != nil {
			t.Fatalf("after %d sent, %d received: %v", sends, recvs, err)
		}
		qp := index[wc.QPNum]
		waits[qp]--
		if wc.Opcode == verbs.WCSend {
			sends++
		} else {
			recvs++
			got := h.check(t, wc, qp)
			if sent != nil {
				if !bytes.Equal(got, sent) {
					t.Fatalf("message %d is not what was sent", recvs)
				}
				echoed++
			}
			h.postRecv(t, int(wc.ID))
		}
		if waits[qp] == 0 && sends < h.iters {
			send(qp, sends)
		}
	}
	if want := h.iters - 1; len(h.qps) == 1 && echoed < want {
		t.Errorf("%d echoes, want %d", echoed, want)
	}
}

// check looks at a receive and returns its payload.
func (h *hand) check(t *testing.T, wc verbs.Completion, qp int) []byte {
	t.Helper()
	got := h.slot(int(wc.ID))
	if wc.Opcode != verbs.WCRecv || int(wc.ByteLen) != len(got) {
		t.Fatalf("%v of %d bytes, want %d", wc.Opcode, wc.ByteLen, len(got))
	}
	if h.typ != verbs.UD {
		return got
	}
	if wc.Flags&verbs.WCGRH == 0 || wc.SrcQPNum != h.peers[qp].QPNum {
		t.Fatalf("flags %b, from QP %#x, want one with a GRH from %#x", wc.Flags, wc.SrcQPNum, h.peers[qp].QPNum)
	}
	return got[verbs.GRHSize:]
}

// next waits for a completion.
func (h *hand) next() (verbs.Completion, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	defer context.AfterFunc(ctx, h.ch.Interrupt)()
	var wc [1]verbs.Completion
	for {
		if n, err := h.cq.Poll(wc[:]); n > 0 || err != nil {
			return wc[0], err
		}
		if ctx.Err() != nil {
			return wc[0], errors.New("no completion")
		}
		if err := h.ch.Wait(0); err != nil {
			return wc[0], err
		}
	}
}
