//go:build guest

package tests

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/rconn/rdma/rconn"
)

// fault: FLOW-5
func TestBothStreamNettest(t *testing.T) {
	noRNR(t)
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

// Both ends write, read and half-close at the same time, on several connections.
//
// fault: FLOW-5
func TestBothStreamFullDuplex(t *testing.T) {
	noRNR(t)
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
// fault: FLOW-5, MEM-9
func TestRxeStreamIdle(t *testing.T) {
	noRNR(t)
	const conns = 200
	dial, accept := streams(t, rconn.Config{SendBuffer: 16 << 10, RecvBuffer: 16 << 10, Credits: 16, SendQueue: 16})
	var all []net.Conn
	for range conns {
		c, a, err := both(dial, accept)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c, a)
	}
	for _, c := range all { // a reader on each
		go c.Read(make([]byte, 1))
	}
	time.Sleep(500 * time.Millisecond)
	threads := resources(t)["thread"]
	before := cpuTime(t)
	time.Sleep(10 * time.Second)
	used := cpuTime(t) - before
	t.Logf("seen: %d connections, both ends: %d threads, %v of CPU in 10 s", conns, threads, used)
	if threads >= 20 {
		t.Error("too many threads")
	}
	if used > time.Second { // there are 400 questions for a sign of life in 15 s, and all is emulated
		t.Error("too much CPU")
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
