//go:build guest

package tests

import (
	"bytes"
	"errors"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

func TestBothCoreConnect(t *testing.T) {
	a, b := pair(t)
	if a.id.LocalAddr() != b.id.RemoteAddr() || a.id.RemoteAddr() != b.id.LocalAddr() {
		t.Errorf("addresses do not agree crosswise: %v %v, %v %v", a.id.LocalAddr(), a.id.RemoteAddr(), b.id.LocalAddr(), b.id.RemoteAddr())
	}
	if a.id.Device() != b.id.Device() {
		t.Error("two Device objects for one device")
	}
}

// want waits for the completion of a request and checks it.
func (e *end) want(t *testing.T, spin time.Duration, op verbs.WCOpcode) verbs.Completion {
	t.Helper()
	wc, err := e.next(spin, patience)
	if err == nil {
		err = wc.Err()
	}
	if err != nil {
		t.Fatal(err)
	}
	if wc.Opcode != op {
		t.Fatalf("completion of %v, want %v", wc.Opcode, op)
	}
	return wc
}

func TestBothCoreData(t *testing.T) {
	a, b := pair(t)
	for _, spin := range []time.Duration{0, 50 * time.Microsecond, time.Second} {
		exchange(t, a, b, spin)
		exchange(t, b, a, spin)
	}
}

func exchange(t *testing.T, a, b *end, spin time.Duration) {
	t.Helper()
	am, bm := a.mr.Bytes(), b.mr.Bytes()
	clear(am)
	clear(bm)
	text := []byte("a message that has been to the other end")

	// SEND
	copy(am, text)
	if err := a.post(verbs.SendWR{ID: 7, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.sge(0, len(text))}}); err != nil {
		t.Fatal(err)
	}
	if wc := a.want(t, spin, verbs.WCSend); wc.ID != 7 {
		t.Errorf("send completed with id %d", wc.ID)
	}
	wc := b.want(t, spin, verbs.WCRecv)
	at := memorySize - (int(wc.ID)-1000+1)*4096
	if int(wc.ByteLen) != len(text) || !bytes.Equal(bm[at:at+len(text)], text) {
		t.Errorf("received %d bytes %q", wc.ByteLen, bm[at:at+len(text)])
	}

	// SEND inline: the memory may change at once.
	inline := bytes.Clone(text)
	if err := a.post(verbs.SendWR{Opcode: verbs.OpSend, Inline: inline}); err != nil {
		t.Fatal(err)
	}
	clear(inline)
	a.want(t, spin, verbs.WCSend)
	wc = b.want(t, spin, verbs.WCRecv)
	at = memorySize - (int(wc.ID)-1000+1)*4096
	if !bytes.Equal(bm[at:at+len(text)], text) {
		t.Errorf("received inline %q", bm[at:at+len(text)])
	}

	// WRITE
	write := verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 100000)}, RemoteAddr: b.mr.Addr() + 5, RKey: b.mr.RKey()}
	for i := range 100000 {
		am[i] = byte(i * 7)
	}
	if err := a.post(write); err != nil {
		t.Fatal(err)
	}
	a.want(t, spin, verbs.WCRDMAWrite)
	if a.id.Device().Attr().Caps.WriteAcked && !bytes.Equal(am[:100000], bm[5:100005]) {
		t.Error("WRITE did not arrive whole")
	}

	// WRITE WITH IMM, or what says that there is none
	write.Opcode, write.Imm = verbs.OpRDMAWriteWithImm, 0x12345678
	err := a.post(write)
	if a.id.Device().Attr().Caps.Send.Has(verbs.OpRDMAWriteWithImm) {
		if err != nil {
			t.Fatal(err)
		}
		a.want(t, spin, verbs.WCRDMAWrite)
		wc := b.want(t, spin, verbs.WCRecvRDMAWithImm)
		if wc.Flags&verbs.WCWithImm == 0 || wc.Imm != 0x12345678 || wc.ByteLen != 100000 || wc.QPNum != b.qp.Num() {
			t.Errorf("completion %+v", wc)
		}
		if !bytes.Equal(am[:100000], bm[5:100005]) {
			t.Error("WRITE WITH IMM did not arrive whole")
		}
	} else if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("WRITE WITH IMM: %v", err)
	}
	if err := b.recv(3, 4096); err != nil {
		t.Fatal(err)
	}
}

func TestBothCoreRead(t *testing.T) {
	p := params
	p.ResponderResources, p.InitiatorDepth = 4, 4
	saved := params
	params = p
	defer func() { params = saved }()
	a, b := pair(t)
	for i := range b.mr.Bytes() {
		b.mr.Bytes()[i] = byte(i * 13)
	}
	read := verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{a.sge(0, 200000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	if err := a.post(read); err != nil {
		t.Fatal(err)
	}
	if wc := a.want(t, 0, verbs.WCRDMARead); wc.ByteLen != 200000 {
		t.Errorf("READ of %d bytes", wc.ByteLen)
	}
	if !bytes.Equal(a.mr.Bytes()[:200000], b.mr.Bytes()[:200000]) {
		t.Error("READ did not bring the peer's memory")
	}
}

// TestBothCoreCQWhileWaiting: a CQ that joins a channel wakes a Wait that was parked before.
func TestBothCoreCQWhileWaiting(t *testing.T) {
	ln := listen(t, addr)
	first, second := connect(t, ln, ln.Addr())
	ch := second.ch
	var late atomic.Pointer[end]
	arrived := make(chan error, 1)
	go func() {
		var wc [1]verbs.Completion
		for {
			if e := late.Load(); e != nil {
				if n, err := e.cq.Poll(wc[:]); n > 0 || err != nil {
					arrived <- err
					return
				}
			}
			if err := ch.Wait(0); err != nil {
				arrived <- err
				return
			}
		}
	}()
	time.Sleep(100 * time.Millisecond) // it is parked

	ctx := within(t, patience)
	done := make(chan error, 1)
	b := &end{ch: ch}
	go func() {
		req, err := ln.Accept(ctx)
		if err == nil {
			b.id, b.seen = req, make(chan cm.Event, 16)
			err = b.make()
		}
		if err == nil {
			err = b.recv(8, 4096)
		}
		if err == nil {
			late.Store(b)
			err = req.Accept(ctx, params)
		}
		done <- err
	}()
	a, _, err := dial(ctx, ln.Addr(), params)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := a.post(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("wake up")}); err != nil {
		t.Error(err)
	}
	select {
	case err := <-arrived:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the Wait slept on")
		ch.Interrupt()
		<-arrived
	}
	b.ch = nil // it is second's
	if err := errors.Join(a.close(), b.close(), first.close(), second.close()); err != nil {
		t.Error(err)
	}
}

// TestBothCorePostEarly: what is posted before the connection is made is refused, and not sent later.
func TestBothCorePostEarly(t *testing.T) {
	ln := listen(t, addr)
	ctx := within(t, patience)
	done := make(chan error, 1)
	var b *end
	go func() {
		var err error
		b, _, err = accept(ctx, ln, params)
		done <- err
	}()
	id, err := system.Resolve(ctx, netip.AddrPort{}, ln.Addr())
	if err != nil {
		t.Fatal(err)
	}
	a, err := newEnd(id)
	if err != nil {
		t.Fatal(err)
	}
	early := []verbs.SendWR{{ID: 1, Opcode: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte("early")}}
	if n, err := a.qp.PostSend(early); n != 0 || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("posted %d before Connect: %v", n, err)
	}
	if _, err := id.Connect(ctx, params); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := a.post(verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Inline: []byte("in time")}); err != nil {
		t.Fatal(err)
	}
	if wc, err := a.next(0, patience); err != nil || wc.ID != 2 || wc.Err() != nil {
		t.Errorf("sent %d, %v, %v", wc.ID, wc.Status, err)
	}
	if wc, err := b.next(0, patience); err != nil || wc.ByteLen != 7 {
		t.Errorf("received %d bytes, %v", wc.ByteLen, err)
	}
	if err := errors.Join(a.close(), b.close()); err != nil {
		t.Error(err)
	}
}
