//go:build guest

package tests

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/rconn/rdma/rconn"
)

// streams makes connections of rconn over the guest's device.
func streams(t testing.TB, cfg rconn.Config) (dial, accept func() (net.Conn, error)) {
	lc := rconn.ListenConfig{Config: cfg}
	ln, err := lc.Listen(t.Context(), "rdma", net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	d := rconn.Dialer{Config: cfg, Timeout: patience}
	return func() (net.Conn, error) { return d.Dial("rdma", ln.Addr().String()) }, ln.Accept
}

// streamPair makes one connection.
func streamPair(t testing.TB, cfg rconn.Config) (dialed, accepted net.Conn, err error) {
	dial, accept := streams(t, cfg)
	ch := make(chan error, 1)
	go func() {
		var err error
		dialed, err = dial()
		ch <- err
	}()
	accepted, err = accept()
	return dialed, accepted, errors.Join(err, <-ch)
}

func TestBothStreamNettest(t *testing.T) {
	for range 3 {
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			c1, c2, err = streamPair(t, rconn.Config{})
			return c1, c2, func() {
				go c1.Close() // on iWARP each end waits for the other
				c2.Close()
			}, err
		})
	}
}

// rnrErrors reads the device's counts of receiver-not-ready.
func rnrErrors(t *testing.T) (n int) {
	for _, name := range []string{"rcvd_rnr_err", "send_rnr_err"} {
		b, err := os.ReadFile("/sys/class/infiniband/rxe0/ports/1/hw_counters/" + name)
		if err != nil {
			t.Fatal(err)
		}
		k, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		n += k
	}
	return n
}

// 64 KiB are written and the connection closed at once: every byte arrives, then an orderly end; and nothing is left.
//
// fault: CLOSE-4, FLOW-5
func TestRxeStreamWriteAndClose(t *testing.T) {
	before := rnrErrors(t)
	testWriteAndClose(t, 1000)
	if after := rnrErrors(t); after != before {
		t.Errorf("receives ran out %d times", after-before)
	}
}

// fault: CLOSE-4
func TestSiwStreamWriteAndClose(t *testing.T) { testWriteAndClose(t, 100) }

func testWriteAndClose(t *testing.T, rounds int) {
	from := base(t)
	// The rings are small, so that a guest makes them fast enough.
	dial, accept := streams(t, rconn.Config{SendBuffer: 64 << 10, RecvBuffer: 64 << 10, Credits: 32, SendQueue: 32})
	from["cm_id"]++        // the listener
	from["goroutine"] += 2 // and what serves it
	sent := make([]byte, 64<<10)
	for i := range sent {
		sent[i] = byte(rand.Uint32())
	}
	go func() {
		for range rounds {
			c, err := dial()
			if err == nil {
				_, err = c.Write(sent)
				err = errors.Join(err, c.Close())
			}
			if err != nil {
				t.Error(err)
			}
		}
	}()
	for i := range rounds {
		c, err := accept()
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("connection %d: %d bytes, %v", i, len(got), err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	backTo(t, from, patience)
}

// Both ends write, read and half-close at the same time, on several connections.
func TestBothStreamFullDuplex(t *testing.T) {
	dial, accept := streams(t, rconn.Config{})
	const total = 2 << 20
	var wg sync.WaitGroup
	talk := func(c net.Conn) {
		defer c.Close()
		c.SetDeadline(time.Now().Add(2 * patience))
		wrote := make(chan error, 1)
		go func() {
			_, err := c.Write(make([]byte, total))
			wrote <- errors.Join(err, c.(*rconn.Conn).CloseWrite())
		}()
		n, err := io.Copy(io.Discard, c)
		if err = errors.Join(err, <-wrote); err != nil || n != total {
			t.Error(n, err)
		}
	}
	for range 4 {
		wg.Go(func() {
			if c, err := dial(); err != nil {
				t.Error(err)
			} else {
				talk(c)
			}
		})
		wg.Go(func() {
			if c, err := accept(); err != nil {
				t.Error(err)
			} else {
				talk(c)
			}
		})
	}
	wg.Wait()
}

// Idle connections cost no thread and no CPU worth naming.
//
// fault: MEM-9
func TestRxeStreamIdle(t *testing.T) {
	const conns = 200
	dial, accept := streams(t, rconn.Config{SendBuffer: 16 << 10, RecvBuffer: 16 << 10, Credits: 16, SendQueue: 16})
	var all []net.Conn
	for range conns {
		ch := make(chan net.Conn, 1)
		go func() {
			c, err := dial()
			if err != nil {
				t.Error(err)
			}
			ch <- c
		}()
		c, err := accept()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c, <-ch)
	}
	for _, c := range all { // a reader on each
		go c.Read(make([]byte, 1))
	}
	time.Sleep(500 * time.Millisecond)
	threads := resources(t)["thread"]
	before := cpuTime(t)
	time.Sleep(5 * time.Second)
	used := cpuTime(t) - before
	t.Logf("%d connections: %d threads, %v of CPU in 5 s", len(all), threads, used)
	if threads >= 20 || used > 250*time.Millisecond {
		t.Errorf("too much")
	}
	for _, c := range all {
		c.(*rconn.Conn).SetLinger(0)
		c.Close()
	}
}

// cpuTime is the CPU time that this process has used.
func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A pulled cable is found by a sender and by an idle reader, within the keepalive budget.
//
// fault: DEATH-3
func TestPairRxeStreamCable(t *testing.T) {
	cfg := rconn.Config{KeepAlive: time.Second, KeepAliveTimeout: time.Second}
	const conns = 2 // one writes, one only reads
	if role == "A" {
		lc := rconn.ListenConfig{Config: cfg}
		ln, err := lc.Listen(t.Context(), "rdma", net.JoinHostPort(addr, "7001"))
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		barrier(t, "listening")
		for range conns {
			c, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			go io.Copy(io.Discard, c)
		}
		barrier(t, "connected")
		barrier(t, "done")
		return
	}
	barrier(t, "listening")
	d := rconn.Dialer{Config: cfg, Timeout: patience}
	errs := make(chan error, conns)
	var pulled time.Time
	for i := range conns {
		c, err := d.Dial("rdma", net.JoinHostPort(peer, "7001"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.(*rconn.Conn).SetLinger(0)
		go func() {
			var err error
			for err == nil && i == 0 {
				_, err = c.Write(make([]byte, 4096))
				time.Sleep(10 * time.Millisecond)
			}
			if i != 0 {
				_, err = c.Read(make([]byte, 1))
			}
			errs <- err
		}()
	}
	barrier(t, "connected")
	pulled = time.Now()
	run(t, "cable", "down")
	for range conns {
		select {
		case err := <-errs:
			t.Logf("after %v: %v", time.Since(pulled), err)
			if !errors.Is(err, syscall.ETIMEDOUT) && !errors.Is(err, syscall.ECONNRESET) {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Fatal("a dead link was not found")
		}
	}
	if took := time.Since(pulled); took > 4*time.Second {
		t.Errorf("found after %v", took)
	}
	run(t, "cable", "up")
	barrier(t, "done")
}

// A slow and lossy cable loses no byte.
func TestPairRxeStreamLossy(t *testing.T) {
	const total = 32 << 20
	run(t, "cable", "netem", "delay", "20ms", "loss", "1%")
	talk := func(c net.Conn) {
		defer c.Close()
		c.SetDeadline(time.Now().Add(50 * time.Second))
		wrote := make(chan error, 1)
		go func() {
			_, err := c.Write(bytes.Repeat([]byte("0123456789abcdef"), total/16))
			wrote <- errors.Join(err, c.(*rconn.Conn).CloseWrite())
		}()
		got, err := io.ReadAll(c)
		if err = errors.Join(err, <-wrote); err != nil || len(got) != total || bytes.Count(got, []byte("0123456789abcdef")) != total/16 {
			t.Error(len(got), err)
		}
	}
	if role == "A" {
		ln, err := rconn.Listen("rdma", net.JoinHostPort(addr, "7001"))
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		barrier(t, "listening")
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		talk(c)
		barrier(t, "done")
		return
	}
	barrier(t, "listening")
	d := rconn.Dialer{Timeout: patience}
	c, err := d.Dial("rdma", net.JoinHostPort(peer, "7001"))
	if err != nil {
		t.Fatal(err)
	}
	talk(c)
	barrier(t, "done")
}
