//go:build guest

package tests

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/internal/softiwarp"
	"github.com/rconn/rdma/verbs"
)

// rping, of rdmacm-utils, against the software device and the kernel's. All its data goes by RDMA READ and WRITE of the listening side. A round:
//
//	dialing side                 listening side
//	SEND of where its text is    READs the text
//	                             SEND: go on
//	SEND of where to put it      WRITEs the text back
//	                             SEND: done
//
// Every SEND has 16 bytes: address, key and length, big-endian; the listening side's say nothing.

// An rpingEnd is one end of such a connection, after the exchange of its memory's parts:
type rpingEnd struct{ *end }

const (
	rpingText    = 0         // the text, sent or received
	rpingBack    = 128 << 10 // where it comes back
	rpingMessage = 256 << 10 // the SEND's payload
	rpingPort    = 7174
	rpingMessLen = 16
)

// rpingParam asks for one READ at a time, each way.
var rpingParam = cm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7}

// say sends a message about n bytes of the memory at off.
func (e rpingEnd) say(off, n int) error {
	m := e.mr.Bytes()[rpingMessage:][:rpingMessLen]
	binary.BigEndian.PutUint64(m, e.mr.Addr()+uint64(off))
	binary.BigEndian.PutUint32(m[8:], e.mr.RKey())
	binary.BigEndian.PutUint32(m[12:], uint32(n))
	return e.quiet(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{e.sge(rpingMessage, rpingMessLen)}})
}

// quiet posts a request that completes only if it fails.
func (e rpingEnd) quiet(wr verbs.SendWR) error {
	_, err := e.qp.PostSend([]verbs.SendWR{wr})
	return err
}

// hear takes a message.
func (e rpingEnd) hear(t *testing.T) (at uint64, key, n uint32) {
	t.Helper()
	wc := e.want(t, 0, verbs.WCRecv)
	if wc.ByteLen != rpingMessLen {
		t.Fatalf("a message of %d bytes", wc.ByteLen)
	}
	i := int(wc.ID - 1000)
	m := e.mr.Bytes()[memorySize-(i+1)*4096:]
	at, key, n = binary.BigEndian.Uint64(m), binary.BigEndian.Uint32(m[8:]), binary.BigEndian.Uint32(m[12:])
	if _, err := e.qp.PostRecv([]verbs.RecvWR{{ID: wc.ID, SGL: []verbs.SGE{e.sge(memorySize-(i+1)*4096, 4096)}}}); err != nil {
		t.Fatal(err)
	}
	return at, key, n
}

// serve answers one round and returns the text.
func (e rpingEnd) serve(t *testing.T) string {
	t.Helper()
	at, key, n := e.hear(t)
	if n > rpingBack {
		t.Fatalf("a text of %d bytes", n)
	}
	text := []verbs.SGE{e.sge(rpingText, int(n))}
	if err := e.post(verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: text, RemoteAddr: at, RKey: key}); err != nil {
		t.Fatal(err)
	}
	if wc := e.want(t, 0, verbs.WCRDMARead); wc.ByteLen != n {
		t.Fatalf("a READ of %d bytes completed with %d", n, wc.ByteLen)
	}
	if err := e.say(0, 0); err != nil {
		t.Fatal(err)
	}
	at, key, m := e.hear(t)
	if m != n {
		t.Fatalf("room for %d bytes, the text has %d", m, n)
	}
	if err := e.quiet(verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: text, RemoteAddr: at, RKey: key}); err != nil {
		t.Fatal(err)
	}
	if err := e.say(0, 0); err != nil {
		t.Fatal(err)
	}
	return string(e.mr.Bytes()[:n])
}

// ping has the peer fetch the text and bring it back.
func (e rpingEnd) ping(t *testing.T, text string) {
	t.Helper()
	copy(e.mr.Bytes()[rpingText:], text)
	back := e.mr.Bytes()[rpingBack:][:len(text)]
	clear(back)
	for _, off := range []int{rpingText, rpingBack} {
		if err := e.say(off, len(text)); err != nil {
			t.Fatal(err)
		}
		e.hear(t)
	}
	if !bytes.Equal(back, []byte(text)) {
		t.Errorf("%.60q came back as %.60q", text, back)
	}
}

func TestSiwSoftRping(t *testing.T) {
	for _, crc := range []bool{false, true} {
		dev := soft(t, softiwarp.Config{CRC: crc})
		for _, host := range []string{addr, addr6} {
			for _, size := range []int{100, 65000} {
				name := fmt.Sprintf("%s/%s/%d bytes", onOff("CRC", crc), host, size)
				t.Run(name+"/rping dials", func(t *testing.T) { rpingDials(t, dev.provider, host, size) })
				t.Run(name+"/rping listens", func(t *testing.T) { rpingListens(t, dev.provider, host, size) })
			}
		}
	}
}

// Both ends are on the kernel's device.
func TestBothCoreRping(t *testing.T) {
	for _, host := range []string{addr, addr6} {
		for _, size := range []int{100, 65000} {
			name := fmt.Sprintf("%s/%d bytes", host, size)
			t.Run(name+"/rping dials", func(t *testing.T) { rpingDials(t, system, host, size) })
			t.Run(name+"/rping listens", func(t *testing.T) { rpingListens(t, system, host, size) })
		}
	}
}

const rpingRounds = 5

func rpingCommand(role, host string, size int) []string {
	return []string{"rping", role, "-a", host, "-p", strconv.Itoa(rpingPort), "-C", strconv.Itoa(rpingRounds),
		"-S", strconv.Itoa(size), "-V", "-v"}
}

// rpingDials has the kernel answer our READs.
func rpingDials(t *testing.T, p cm.Provider, host string, size int) {
	ctx := within(t, patience)
	ln, err := p.Listen(netip.AddrPortFrom(netip.MustParseAddr(host), rpingPort), cm.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client := start(t, rpingCommand("-c", host, size)...)
	e, param, err := accept(ctx, ln, rpingParam)
	if err != nil {
		t.Fatal(err)
	}
	defer closeEnd(t, e)
	if param.InitiatorDepth != 1 || param.ResponderResources != 1 {
		t.Errorf("rping asked for %d READs there, %d here", param.InitiatorDepth, param.ResponderResources)
	}
	for i := range rpingRounds {
		text := rpingEnd{e}.serve(t)
		if want := fmt.Sprintf("rdma-ping-%d: ", i); !strings.HasPrefix(text, want) || len(text) != size || text[size-1] != 0 {
			t.Errorf("the text begins %.30q and has %d bytes", text, len(text))
		}
	}
	e.event(t, cm.Disconnected, patience)
	client.wait(t)
}

// rpingListens has the kernel READ from us.
func rpingListens(t *testing.T, p cm.Provider, host string, size int) {
	ctx := within(t, patience)
	server := start(t, rpingCommand("-s", host, size)...)
	server.listens(t)
	id, err := p.Resolve(ctx, netip.AddrPort{}, netip.AddrPortFrom(netip.MustParseAddr(host), rpingPort))
	if err != nil {
		t.Fatal(err)
	}
	e, err := softEnd(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	defer closeEnd(t, e)
	var begins []string
	for i := range rpingRounds {
		begin := fmt.Sprintf("text %d of ours ", i)
		rpingEnd{e}.ping(t, begin+strings.Repeat(string(rune('a'+i)), size-len(begin)-1)+"\x00")
		begins = append(begins, begin)
	}
	if err := e.id.Disconnect(); err != nil {
		t.Error(err)
	}
	out := server.wait(t)
	for _, begin := range begins {
		if !strings.Contains(out, "ping data: "+begin) {
			t.Errorf("rping did not print %q", begin)
		}
	}
}

// softEnd makes the dialing end on a resolved ID.
func softEnd(ctx context.Context, id cm.Resolved) (*end, error) {
	e, err := newEnd(id)
	if err != nil {
		return nil, err
	}
	if err := e.recv(8, 4096); err != nil {
		e.close()
		return nil, err
	}
	if _, err := id.Connect(ctx, rpingParam); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func closeEnd(t *testing.T, e *end) {
	t.Helper()
	if err := e.close(); err != nil {
		t.Error(err)
	}
}
