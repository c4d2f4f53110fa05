//go:build guest

package tests

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// flood keeps WRITEs in flight until one fails, and returns the failure. With a pause between them it is a trickle.
func (e *end) flood(t *testing.T, addr uint64, rkey uint32, limit, pause time.Duration) error {
	t.Helper()
	deadline := time.Now().Add(limit)
	write := verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{e.sge(0, 4096)}, RemoteAddr: addr, RKey: rkey}
	n := 8
	if pause > 0 {
		n = 1
	}
	for time.Now().Before(deadline) {
		time.Sleep(pause)
		for range n {
			if err := e.post(write); err != nil {
				return err
			}
		}
		for range n {
			wc, err := e.next(0, time.Until(deadline))
			if err == nil {
				err = wc.Err()
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// ends wants the flood to have ended with a completion in error.
func wantBroken(t *testing.T, err error) {
	t.Helper()
	var c *verbs.CompletionError
	if !errors.As(err, &c) {
		t.Errorf("work in flight ended with %v, want a completion in error", err)
		return
	}
	t.Log(err)
}

// ended closes an end and wants that to be quick.
func (e *end) ended(t *testing.T) {
	t.Helper()
	begin := time.Now()
	if err := e.close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("close took %v", took)
	}
}

const childEnv = "RDMACORE_CHILD"

// child is the other process of a test: this test again, with an argument.
func child(t *testing.T, arg string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), childEnv+"="+arg)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

// TestBothCorePeerKilled: kill -9 of the peer's process is seen by who sends to it and by who only listens.
//
// fault: DEATH-1
func TestBothCorePeerKilled(t *testing.T) {
	if to := os.Getenv(childEnv); to != "" {
		for range 2 {
			if _, _, err := dial(t.Context(), netip.MustParseAddrPort(to), params); err != nil {
				t.Fatal(err)
			}
		}
		select {}
	}
	ln := listen(t, addr)
	c := child(t, ln.Addr().String())
	var ends []*end
	for range 2 {
		e, _, err := accept(within(t, patience), ln, params)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, e)
	}
	busy, idle := ends[0], ends[1]
	broken := make(chan error, 1)
	go func() { // into a wrong address, if need be: the peer is to answer until it is dead
		for {
			if err := busy.post(verbs.SendWR{Opcode: verbs.OpRDMAWrite}); err != nil {
				broken <- err
				return
			}
			wc, err := busy.next(0, patience)
			if err == nil {
				err = wc.Err()
			}
			if err != nil {
				broken <- err
				return
			}
		}
	}()
	time.Sleep(200 * time.Millisecond)
	killed := time.Now()
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	idle.event(t, cm.Disconnected, 2*time.Second)
	busy.event(t, cm.Disconnected, 2*time.Second)
	t.Logf("seen after %v", time.Since(killed))
	if err := busy.id.Disconnect(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-broken:
		wantBroken(t, err)
	case <-time.After(5 * time.Second):
		t.Error("work in flight has not ended")
	}
	if err := idle.id.Disconnect(); err != nil {
		t.Error(err)
	}
	for { // the receives come back
		wc, err := idle.next(0, 2*time.Second)
		if err != nil {
			t.Errorf("idle end: %v", err)
			break
		}
		if wc.Status == verbs.StatusWRFlushErr {
			break
		}
	}
	busy.ended(t)
	idle.ended(t)
}

// rxe1 makes a second device, without which librdmacm never lets go of the first.
func rxe1(t *testing.T) {
	t.Helper()
	run(t, "rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "d1")
}

// readd deletes rxe0 and adds it again. It keeps asking for the devices, which is when a program without open objects learns of a removal.
func readd(t *testing.T) {
	t.Helper()
	del := start(t, "rdma", "link", "del", "rxe0")
	waitFor(t, "rdma link del", func() bool {
		system.Devices()
		select {
		case <-del.done:
			return true
		default:
			return false
		}
	})
	del.wait(t)
	add(t)
}

func add(t *testing.T) {
	t.Helper()
	run(t, "rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "d0")
	waitFor(t, "rxe0", func() bool {
		state, _ := os.ReadFile("/sys/class/infiniband/rxe0/ports/1/state")
		return strings.Contains(string(state), "ACTIVE")
	})
}

// works makes a connection and sends something over it.
func works(t *testing.T) {
	t.Helper()
	ln := listen(t, addr)
	a, b := connect(t, ln, ln.Addr())
	exchange(t, a, b, 0)
	a.ended(t)
	b.ended(t)
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
}

// fault: DEATH-2
func TestFreshRxeCoreLinkDown(t *testing.T) {
	rxe1(t)
	ln := listen(t, addr)
	busy, busyPeer := connect(t, ln, ln.Addr())
	idle, idlePeer := connect(t, ln, ln.Addr())
	broken := make(chan error, 1)
	// A trickle: a flood at that moment can stall in the driver for good (Linux 6.1), under load every other time.
	go func() {
		broken <- busy.flood(t, busyPeer.mr.Addr(), busyPeer.mr.RKey(), patience, 5*time.Millisecond)
	}()
	time.Sleep(200 * time.Millisecond)
	down := time.Now()
	run(t, "ip", "link", "set", "d0", "down")
	select {
	case err := <-broken:
		wantBroken(t, err)
		t.Logf("after %v", time.Since(down))
	case <-time.After(5 * time.Second):
		wc := make([]verbs.Completion, 8)
		n, err := busy.cq.Poll(wc)
		q, _ := busy.qp.Query()
		t.Fatalf("work in flight has not ended; polled %v, %v, QP %+v", wc[:n], err, q)
	}
	for _, e := range []*end{busy, busyPeer, idle, idlePeer} {
		e.ended(t)
	}
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	run(t, "ip", "link", "set", "d0", "up")
	readd(t)
	works(t)
}

// TestFreshRxeCoreRemoval takes the device away under 8 connections.
//
// fault: DEATH-6
func TestFreshRxeCoreRemoval(t *testing.T) {
	rxe1(t)
	ln := listen(t, addr)
	var ends []*end
	for range 8 {
		a, b := connect(t, ln, ln.Addr())
		ends = append(ends, a, b)
	}
	old := ends[0].id.Device()
	waits := make(chan error, len(ends))
	for _, e := range ends {
		go func() { waits <- e.ch.Wait(0) }()
	}
	accepted := make(chan error, 1)
	go func() {
		_, err := ln.Accept(context.Background())
		accepted <- err
	}()
	time.Sleep(100 * time.Millisecond)

	del := start(t, "rdma", "link", "del", "rxe0")
	for _, e := range ends {
		e.event(t, cm.DeviceRemoval, 5*time.Second)
	}
	for range ends {
		select {
		case err := <-waits:
			if !errors.Is(err, verbs.ErrDeviceRemoved) {
				t.Errorf("wait: %v", err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("a wait does not end")
		}
	}
	select {
	case err := <-accepted:
		if !errors.Is(err, verbs.ErrDeviceRemoved) {
			t.Errorf("accept: %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("accept does not end")
	}
	afterRemoval(t, ends[0], old)
	for _, e := range ends {
		e.ended(t)
	}
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	del.wait(t)
	if _, err := old.AllocPD(); !errors.Is(err, verbs.ErrDeviceRemoved) {
		t.Errorf("AllocPD on a removed device: %v", err)
	}
	add(t)
	works(t)
	devices, err := system.Devices()
	if err != nil || len(devices) != 2 {
		t.Errorf("%v, %v", devices, err)
	}
}

// afterRemoval: calls on what is left return errors.
func afterRemoval(t *testing.T, e *end, d verbs.Device) {
	t.Helper()
	_, err1 := d.Port(1)
	_, err2 := d.CreateCompletionChannel()
	_, err3 := d.CreateCQ(verbs.CQOptions{Depth: 1})
	_, err4 := e.pd.AllocMR(4096, 0)
	_, err5 := e.qp.Query()
	err6 := e.post(verbs.SendWR{Opcode: verbs.OpRDMAWrite})
	_, err7 := e.qp.PostRecv([]verbs.RecvWR{{}})
	for i, err := range []error{err1, err2, err3, err4, err5, err6, err7} {
		if !errors.Is(err, verbs.ErrDeviceRemoved) {
			t.Errorf("call %d on a removed device: %v", i+1, err)
		}
	}
	stop := d.Watch(func(verbs.AsyncEvent) {})
	stop()
}

// TestPairRxeCoreCable: a pulled cable ends what is in flight; who is idle closes.
//
// fault: DEATH-2
func TestPairRxeCoreCable(t *testing.T) { testPairBroken(t, "cable", "down") }

// TestPairRxeCoreLinkDown: and so does the peer's interface going down.
func TestPairRxeCoreLinkDown(t *testing.T) { testPairBroken(t, "") }

// testPairBroken has A run the command that breaks the connection to B; without one B takes its interface down.
func testPairBroken(t *testing.T, command ...string) {
	if role == "B" {
		ln, err := system.Listen(at(addr, 4711), cm.ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		barrier(t, "listening")
		busy := acceptMemory(t, ln, params)
		idle := acceptMemory(t, ln, params)
		barrier(t, "flood")
		if command[0] == "" {
			run(t, "ip", "link", "set", "eth0", "down")
		}
		barrier(t, "broken")
		if command[0] == "" { // or the driver may take a minute to let go of the ids, when the machine is busy
			run(t, "ip", "link", "set", "eth0", "up")
		}
		busy.ended(t)
		idle.ended(t)
		ln.Close()
		return
	}
	barrier(t, "listening")
	busy, rkey, to := dialMemory(t)
	idle, _, _ := dialMemory(t)
	broken := make(chan error, 1)
	go func() { broken <- busy.flood(t, to, rkey, patience, 0) }()
	time.Sleep(500 * time.Millisecond)
	barrier(t, "flood")
	down := time.Now()
	if command[0] != "" {
		run(t, command...)
	}
	select {
	case err := <-broken:
		wantBroken(t, err)
		t.Logf("after %v", time.Since(down))
	case <-time.After(10 * time.Second):
		t.Error("work in flight has not ended")
	}
	busy.ended(t)
	idle.ended(t)
	barrier(t, "broken")
}

// TestPairRxeCorePower: so does a peer whose power is cut.
func TestPairRxeCorePower(t *testing.T) {
	if role == "B" {
		ln, err := system.Listen(at(addr, 4711), cm.ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		barrier(t, "listening")
		acceptMemory(t, ln, params)
		select {}
	}
	barrier(t, "listening")
	a, rkey, to := dialMemory(t)
	broken := make(chan error, 1)
	go func() { broken <- a.flood(t, to, rkey, patience, 0) }()
	time.Sleep(500 * time.Millisecond)
	run(t, "peer", "kill")
	select {
	case err := <-broken:
		wantBroken(t, err)
	case <-time.After(10 * time.Second):
		t.Error("work in flight has not ended")
	}
	a.ended(t)
}

// acceptMemory accepts and tells the peer where its memory is.
func acceptMemory(t *testing.T, ln cm.Listener, p cm.ConnParam) *end {
	t.Helper()
	req, err := ln.Accept(within(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	e, err := newEnd(req)
	if err != nil {
		t.Fatal(err)
	}
	p.PrivateData = fmt.Appendf(nil, "%d %d ", e.mr.Addr(), e.mr.RKey())
	if err := req.Accept(within(t, patience), p); err != nil {
		t.Fatal(err)
	}
	return e
}

func dialMemory(t *testing.T) (e *end, rkey uint32, to uint64) {
	t.Helper()
	e, reply, err := dial(within(t, patience), at(peer, 4711), params)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(reply.PrivateData), &to, &rkey); err != nil {
		t.Fatalf("%q: %v", reply.PrivateData, err)
	}
	return e, rkey, to
}

// TestBothCoreParked: idle connections hold no thread and wake up.
func TestBothCoreParked(t *testing.T) {
	ln := listen(t, addr)
	const n = 40
	var as, bs []*end
	for range n {
		a, b := connect(t, ln, ln.Addr())
		as, bs = append(as, a), append(bs, b)
	}
	var wg sync.WaitGroup
	for _, b := range bs {
		wg.Go(func() {
			if _, err := b.next(0, patience); err != nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(200 * time.Millisecond)
	if threads := resources(t)["thread"]; threads > runtime.GOMAXPROCS(0)+maxCalls+10 {
		t.Errorf("%d threads for %d parked goroutines", threads, n)
	}
	for _, a := range as {
		if err := a.post(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("wake up")}); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	for i := range n {
		as[i].ended(t)
		bs[i].ended(t)
	}
}

// TestBothCoreAllocs: the data path does not allocate.
func TestBothCoreAllocs(t *testing.T) {
	a, b := pair(t)
	sends := []verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{a.sge(0, 64)}}}
	recvs := []verbs.RecvWR{{SGL: []verbs.SGE{b.sge(0, 64)}}}
	wc := make([]verbs.Completion, 16)
	poll := func(e *end, spin time.Duration) {
		for {
			if n, err := e.cq.Poll(wc); n > 0 || err != nil {
				return
			}
			if err := e.ch.Wait(spin); err != nil {
				t.Error(err)
			}
		}
	}
	for _, spin := range []time.Duration{0, 50 * time.Microsecond} {
		allocs := testing.AllocsPerRun(200, func() {
			b.qp.PostRecv(recvs)
			a.qp.PostSend(sends)
			poll(b, spin)
			poll(a, spin)
		})
		if allocs != 0 {
			t.Errorf("spin %v: %v allocations a round", spin, allocs)
		}
	}
}
