//go:build guest

package tests

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/rconn"
	"github.com/rconn/rdma/ring"
	"github.com/rconn/rdma/verbs"
)

// Peers of rconn that post what they like, by raw verbs.

// hostileConfig is what rconn has against them: two segments of 8 KiB, 16 credits.
var hostileConfig = rconn.Config{
	SendBuffer: 16 << 10, RecvBuffer: 16 << 10, Credits: 16, SendQueue: 16, Logger: slog.New(slog.DiscardHandler),
}

// hostile is such a peer. In its memory are, from the start, its table, a segment of 64 KiB, and what it sends.
type hostile struct {
	*end
	t      *testing.T
	them   ring.Handshake
	used   int // up to here the memory was sent from
	posted int // requests whose completion was not awaited
}

const (
	hostileData = 4096
	hostileSend = hostileData + 64<<10
	hostileRecv = 8
)

func newHostile(t *testing.T, id cm.ID, receives int) (*hostile, error) {
	e, err := newEnd(id)
	if err != nil {
		return nil, err
	}
	return &hostile{end: e, t: t, used: hostileSend}, e.recv(receives, 4096)
}

// param has a handshake as an rsocket's, which change may spoil.
func (h *hostile) param(change func([]byte)) cm.ConnParam {
	p := params
	p.PrivateData = ring.Handshake{
		Credits: hostileRecv, TableAddr: h.mr.Addr(), TableRKey: h.mr.RKey(), TableEntries: 2,
		Data: ring.Segment{Addr: h.mr.Addr() + hostileData, RKey: h.mr.RKey(), Len: 64 << 10},
	}.Append(nil)
	if change != nil {
		change(p.PrivateData)
	}
	return p
}

// met takes rconn's handshake. It must be sound even if ours was not.
func (h *hostile) met(private []byte) (err error) {
	h.them, err = ring.ParseHandshake(private)
	return err
}

// A stage is where rconn meets a hostile peer.
type stage struct {
	ln   net.Listener // rconn's
	meet func(t *testing.T, s *stage, receives int, change func([]byte)) (*hostile, net.Conn, error)
}

// dials has the hostile peer dial. Refused, it has that as its error, and there is no connection to accept.
func dials(t *testing.T, s *stage, receives int, change func([]byte)) (*hostile, net.Conn, error) {
	ctx := within(t, patience)
	id, err := system.Resolve(ctx, netip.AddrPort{}, s.ln.Addr().(*net.TCPAddr).AddrPort())
	if err != nil {
		t.Fatal(err)
	}
	h, err := newHostile(t, id, receives)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := id.Connect(ctx, h.param(change))
	if err == nil {
		err = h.met(reply.PrivateData)
	}
	if err != nil {
		return nil, nil, errors.Join(err, h.close())
	}
	c, err := s.ln.Accept()
	return h, c, err
}

// listens has it listen, and answer rconn's dial.
func listens(t *testing.T, s *stage, receives int, change func([]byte)) (*hostile, net.Conn, error) {
	ctx := within(t, patience)
	ln := listen(t, addr)
	defer ln.Close()
	answered := make(chan error, 1)
	var h *hostile
	go func() {
		req, err := ln.Accept(ctx)
		if err == nil {
			h, err = newHostile(t, req, receives)
		}
		if err == nil {
			err = errors.Join(req.Accept(ctx, h.param(change)), h.met(req.Param().PrivateData))
		}
		answered <- err
	}()
	d := streamDialer(hostileConfig)
	c, err := d.Dial("rdma", ln.Addr().String())
	// What a spoiled answer does to its own side is of no interest.
	aerr := <-answered
	if err != nil {
		return nil, nil, errors.Join(err, h.close())
	}
	return h, c, aerr
}

// say writes payload to remote memory with a message as immediate data.
func (h *hostile) say(msg uint32, addr uint64, rkey uint32, payload []byte) {
	at := h.used
	h.used += copy(h.mr.Bytes()[at:], payload)
	wr := verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Imm: msg, RemoteAddr: addr, RKey: rkey}
	if len(payload) > 0 {
		wr.SGL = []verbs.SGE{h.sge(at, len(payload))}
	}
	h.send(wr)
}

func (h *hostile) send(wr verbs.SendWR) {
	if err := h.post(wr); err != nil {
		h.t.Error(err)
	}
	h.posted++
}

// data writes to the first segment, offset bytes into it, and announces n bytes.
func (h *hostile) data(n uint32, offset int, payload []byte) {
	h.say(n, h.them.Data.Addr+uint64(offset), h.them.Data.RKey, payload)
}

// control sends a message without payload.
func (h *hostile) control(msg uint32) { h.say(msg, h.them.TableAddr, h.them.TableRKey, nil) }

// credit writes an entry to the table, with a limit for messages.
func (h *hostile) credit(limit uint16, index uint64, entry []byte) {
	h.say(0x80000000|uint32(limit), h.them.TableAddr+16*index, h.them.TableRKey, entry)
}

func tableEntry(addr uint64, rkey, length uint32) []byte {
	b := binary.LittleEndian.AppendUint64(nil, addr)
	b = binary.LittleEndian.AppendUint32(b, rkey)
	return binary.LittleEndian.AppendUint32(b, length)
}

// arrived waits until all that was sent has been acknowledged, or failed.
func (h *hostile) arrived() {
	for h.posted > 0 {
		wc, err := h.next(0, patience)
		if err != nil {
			h.t.Error(err)
			return
		}
		if wc.ID < 1000 { // not one of the receives
			h.posted--
		}
	}
}

// A crime is what a hostile peer does after five honest bytes.
type crime struct {
	name string
	act  func(*hostile)
	want string // in the error; empty: the device has found it, and any reset will do
}

const told = "hello"

// honest is all that a peer may be heard to say: told, and what it says in single bytes as long as it has credits.
var honest = []byte(told + strings.Repeat("x", 100))

var crimes = []crime{
	{"data longer than the segment", func(h *hostile) { h.data(1<<28, 5, []byte("x")) }, "came with 1 bytes"},
	{"writes longer than the segment", func(h *hostile) { h.data(8<<10, 5, make([]byte, 8<<10)) }, "left of the segment"},
	{"writes behind the ring", func(h *hostile) { h.data(17<<10, 5, make([]byte, 17<<10)) }, ""},
	{"writes elsewhere", func(h *hostile) { h.say(1, h.them.Data.Addr+1<<40, h.them.Data.RKey, []byte("x")) }, ""},
	{"data never written", func(h *hostile) { h.data(100, 5, nil) }, "came with 0 bytes"},
	{"data half written", func(h *hostile) { h.data(100, 5, make([]byte, 50)) }, "came with 50 bytes"},
	{"data of no bytes", func(h *hostile) { h.data(0, 5, nil) }, "0 bytes"},
	{"more messages than credits", func(h *hostile) {
		for i := range hostileConfig.Credits + 9 { // all find receives
			h.data(1, 5+i, honest[5+i:][:1])
		}
	}, "more messages than credits"},
	{"unknown kind 1", func(h *hostile) { h.data(0x20000001, 5, []byte("x")) }, "unexpected"},
	{"unknown kind 2", func(h *hostile) { h.data(0x40000001, 5, []byte("x")) }, "unexpected"},
	{"unknown kind 3", func(h *hostile) { h.data(0x60000001, 5, []byte("x")) }, "unexpected"},
	{"unknown kind 5", func(h *hostile) { h.data(0xA0000001, 5, []byte("x")) }, "unexpected"},
	{"mapped buffer", func(h *hostile) { h.control(0xC0000000) }, "unexpected"},
	{"control with bytes", func(h *hostile) { h.say(0xE0000002, h.them.TableAddr, h.them.TableRKey, []byte("x")) }, "came with 1 bytes"},
	{"limit goes back", func(h *hostile) { h.credit(1, 0, nil) }, "limit went back"},
	{"limit too far", func(h *hostile) { h.credit(60000, 0, nil) }, "credits"},
	{"half an entry", func(h *hostile) { h.credit(hostileRecv, 1, make([]byte, 8)) }, "came with 8 bytes"},
	{"entry of no bytes", func(h *hostile) { h.credit(hostileRecv, 1, tableEntry(1, 1, 0)) }, "segment of 0 bytes"},
	{"entry that wraps", func(h *hostile) { h.credit(hostileRecv, 1, tableEntry(^uint64(0), 1, 10)) }, "wraps"},
	{"entry of 4 GiB", func(h *hostile) { h.credit(hostileRecv, 1, tableEntry(1, 1, ^uint32(0))) }, "segment of"},
	{"entry too early", func(h *hostile) {
		h.credit(hostileRecv, 1, tableEntry(1, 1, 1))
		h.credit(hostileRecv, 0, tableEntry(1, 1, 1))
	}, "before its segment was filled"},
	{"plain SEND", func(h *hostile) { h.send(verbs.SendWR{Opcode: verbs.OpSend}) }, "SEND"},
	{"plain SEND of bytes", func(h *hostile) { h.send(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("bytes")}) }, ""},
}

// commit lets a peer do it, and wants the connection to end with its name and not one byte more than what was honest.
func (x crime) commit(t *testing.T, s *stage) {
	h, c, err := s.meet(t, s, hostileRecv, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	h.data(uint32(len(told)), 0, []byte(told))
	x.act(h)
	h.arrived()
	got, err := io.ReadAll(c)
	heard := told
	if x.name == "more messages than credits" {
		heard = string(honest[:len(told)+hostileConfig.Credits-1])
	}
	if string(got) != heard || !errors.Is(err, syscall.ECONNRESET) || !strings.Contains(err.Error(), x.want) {
		t.Errorf("read %q, %v; want %q, a reset and %q", got, err, heard, x.want)
	}
	if x.want != "" && !errors.As(err, new(*ring.ProtocolError)) {
		t.Errorf("%v is no ProtocolError", err)
	}
	s.ended(t, h, c)
}

// ended closes both ends, and wants the honest to be served.
func (s *stage) ended(t *testing.T, h *hostile, c net.Conn) {
	t.Helper()
	begin := time.Now()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("Close took %v", took)
	}
	if err := h.close(); err != nil {
		t.Error(err)
	}
	s.serves(t)
}

// serves wants the listener to serve an honest client.
func (s *stage) serves(t *testing.T) {
	t.Helper()
	d := streamDialer(hostileConfig)
	c, a, err := both(func() (net.Conn, error) { return d.Dial("rdma", s.ln.Addr().String()) }, s.ln.Accept)
	if err != nil {
		t.Fatal(err)
	}
	a.SetDeadline(time.Now().Add(patience))
	_, err = c.Write([]byte(told))
	err = errors.Join(err, c.Close())
	got, rerr := io.ReadAll(a)
	if err = errors.Join(err, rerr, a.Close()); err != nil || string(got) != told {
		t.Errorf("honest client: %q, %v", got, err)
	}
}

// A peer that breaks the protocol, at either end, ends its own connection and nothing else; what it costs is bounded.
//
// fault: MEM-3
func TestRxeStreamHostile(t *testing.T) {
	for name, meet := range map[string]func(*testing.T, *stage, int, func([]byte)) (*hostile, net.Conn, error){
		"dials": dials, "listens": listens,
	} {
		t.Run(name, func(t *testing.T) {
			base(t)
			s := &stage{listenStream(t, "0", hostileConfig), meet}
			s.serves(t)
			time.Sleep(100 * time.Millisecond)
			from := counts(t)
			rss := memory(t)
			for _, x := range crimes {
				t.Run(x.name, func(t *testing.T) { x.commit(t, s) })
			}
			t.Run("handshakes", s.handshakes)
			t.Run("after the end", s.afterEnd)
			t.Run("silence", s.silence)
			t.Run("greed", s.greed)
			grown := memory(t) - rss
			t.Logf("seen: resident memory grew by %d KiB in %d connections", grown>>10, 2*len(crimes))
			if grown > 8<<20 {
				t.Error("that is too much")
			}
			backTo(t, from, patience)
		})
	}
}

// handshakes that are spoiled make no connection, and both ends learn it.
func (s *stage) handshakes(t *testing.T) {
	for name, change := range map[string]func([]byte){
		"version":         func(b []byte) { b[0] = 2 },
		"zero credits":    func(b []byte) { b[2], b[3] = 0, 0 },
		"huge segment":    func(b []byte) { b[36] = 0xff },
		"empty segment":   func(b []byte) { clear(b[36:40]) },
		"segment wraps":   func(b []byte) { copy(b[24:], "\xff\xff\xff\xff\xff\xff\xff\xff") },
		"huge table":      func(b []byte) { b[20] = 0xff },
		"table of one":    func(b []byte) { b[23] = 1 },
		"nothing but nil": func(b []byte) { clear(b) },
	} {
		_, _, err := s.meet(t, s, hostileRecv, change)
		// Who dialed the hostile peer can say what was wrong, the other one was refused.
		if !errors.As(err, new(*ring.ProtocolError)) && !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.serves(t)
}

// afterEnd: an end is an end, whatever follows.
func (s *stage) afterEnd(t *testing.T) {
	h, c, err := s.meet(t, s, hostileRecv, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	h.data(uint32(len(told)), 0, []byte(told))
	h.control(0xE0000005) // means nothing
	h.control(0xE0000000)
	h.data(3, 5, []byte("xyz"))
	h.data(1<<28, 5, nil)
	h.control(0x20000000)
	h.credit(1, 1, make([]byte, 16))
	h.arrived()
	if got, err := io.ReadAll(c); string(got) != told || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	s.ended(t, h, c)
}

// silence costs its own connection, and only until the deadline or the linger.
func (s *stage) silence(t *testing.T) {
	for _, receives := range []int{hostileRecv, 0} { // without receives its device does not take what we say either
		h, c, err := s.meet(t, s, receives, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.serves(t)
		c.SetDeadline(time.Now().Add(300 * time.Millisecond))
		if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read %d, %v", n, err)
		}
		c.SetDeadline(time.Now().Add(300 * time.Millisecond))
		if n, err := c.Write(make([]byte, 1<<20)); n > 100<<10 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("wrote %d, %v", n, err)
		}
		c.(*rconn.Conn).SetLinger(1)
		s.ended(t, h, c)
	}
}

// greed: what a peer claims to have, or to want, does not decide how much memory it gets.
func (s *stage) greed(t *testing.T) {
	var sizes []int
	for _, change := range []func([]byte){nil, func(b []byte) {
		binary.BigEndian.PutUint16(b[2:], 65535)
		binary.BigEndian.PutUint32(b[20:], 64)
		binary.BigEndian.PutUint64(b[24:], 1<<40)
		binary.BigEndian.PutUint32(b[36:], 1<<30)
	}} {
		// What the listener kept of the connections before is not this one's.
		waitFor(t, "memory to be given back", func() bool { return registered(t) == 0 })
		h, c, err := s.meet(t, s, hostileRecv, change)
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, registered(t))
		c.(*rconn.Conn).SetLinger(0)
		s.ended(t, h, c)
	}
	t.Logf("seen: registered: %d bytes, %d of a greedy peer's", sizes[0], sizes[1])
	if sizes[0] != sizes[1] || sizes[0] < 32<<10 {
		t.Error("they should be the same")
	}
}

// registered is how much memory is registered on the device.
func registered(t *testing.T) (n int) {
	t.Helper()
	var mrs []struct{ MRLen int }
	if err := json.Unmarshal([]byte(run(t, "rdma", "-j", "resource", "show", "mr")), &mrs); err != nil {
		t.Fatal(err)
	}
	for _, mr := range mrs {
		n += mr.MRLen
	}
	return n
}

// memory is this process's resident memory in bytes.
func memory(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
