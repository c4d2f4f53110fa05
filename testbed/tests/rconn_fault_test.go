//go:build guest

package tests

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rconn/rdma/rconn"
	"github.com/rconn/rdma/verbs"
)

// Clients that stop in the middle of their handshake do not hold others up.
//
// fault: CONN-3
func TestRxeStreamHalfHandshake(t *testing.T) {
	if to := os.Getenv(childEnv); to != "" {
		for range 8 {
			go dial(t.Context(), netip.MustParseAddrPort(to), params)
		}
		time.Sleep(20 * time.Millisecond) // some have sent their request, none has come far
		syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
	ln := listenStream(t, "0", rconn.Config{})
	c := child(t, ln.Addr().String())
	waitFor(t, "the child to stop", func() bool {
		stat, err := os.ReadFile("/proc/" + pid(c) + "/stat")
		return err == nil && strings.Contains(string(stat), ") T ")
	})
	begin := time.Now()
	own, err := streamDialer(rconn.Config{}).Dial("rdma", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for {
		a, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		a.(*rconn.Conn).SetLinger(0)
		defer a.Close()
		if a.RemoteAddr().String() == own.LocalAddr().String() {
			break
		}
	}
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("held up for %v", took)
	}
}

func pid(c *exec.Cmd) string { return strconv.Itoa(c.Process.Pid) }

// Where locked memory is scarce the error says so and what to do, and the listener goes on.
//
// fault: MEM-1
func TestRxeStreamMemlock(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		memlockChild(t)
		return
	}
	need(t, "setpriv")
	// Root may lock memory without limit, so the child gives that right up. Two connections would need 2 MiB.
	script := `ulimit -l 1600 && exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock "$0" -test.run="$1"`
	cmd := exec.Command("bash", "-c", script, os.Args[0], "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), childEnv+"=memlock")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// memlockChild runs listener and dialer in a process that may lock memory for one end of one connection, and a bit.
func memlockChild(t *testing.T) {
	large := rconn.Config{SendBuffer: 512 << 10, RecvBuffer: 512 << 10}
	ln := listenStream(t, "0", large)
	small := streamDialer(rconn.Config{SendBuffer: 4096, RecvBuffer: 4096})
	for range 2 {
		first, err := small.Dial("rdma", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		// The accepting side has no memory left for another: the peer is refused, the listener lives.
		if _, err := small.Dial("rdma", ln.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("the listener is out of memory, the peer gets %v", err)
		}
		_, err = streamDialer(large).Dial("rdma", ln.Addr().String())
		if !errors.Is(err, syscall.ENOMEM) || !strings.Contains(err.Error(), "ulimit -l") {
			t.Errorf("out of memory: %v", err)
		}
		if err := errors.Join(first.Close(), accepted.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// The device goes away under eight open connections with blocked readers: all fail, the process lives, and the device that comes back
// works.
//
// fault: DEATH-6
func TestFreshRxeStreamRemoval(t *testing.T) {
	rxe1(t)
	dial, accept := streams(t, rconn.Config{})
	var conns []net.Conn
	errs := make(chan error, 16)
	for range 8 {
		dialed := make(chan net.Conn, 1)
		go func() {
			c, err := dial()
			if err != nil {
				t.Error(err)
			}
			dialed <- c
		}()
		a, err := accept()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []net.Conn{a, <-dialed} {
			conns = append(conns, c)
			go func() {
				_, err := c.Read(make([]byte, 1))
				errs <- err
			}()
		}
	}
	del := start(t, "rdma", "link", "del", "rxe0")
	for range conns {
		select {
		case err := <-errs:
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Fatal("a reader hangs")
		}
	}
	for _, c := range conns {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := accept(); !errors.Is(err, verbs.ErrDeviceRemoved) {
		t.Errorf("the listener of the removed device: %v", err)
	}
	del.wait(t)
	add(t)
	c, a, err := streamPair(t, rconn.Config{})
	if err != nil {
		t.Fatal(err)
	}
	go c.Write([]byte("x"))
	if _, err := a.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	go c.Close()
	a.Close()
}

// A port that another listener has is EADDRINUSE, whichever of the two has all addresses.
func TestBothStreamPortInUse(t *testing.T) {
	for _, first := range []string{addr, "0.0.0.0"} {
		ln, err := rconn.Listen("rdma4", net.JoinHostPort(first, "7005"))
		if err != nil {
			t.Fatal(err)
		}
		for _, second := range []string{addr, "0.0.0.0"} {
			if _, err := rconn.Listen("rdma4", net.JoinHostPort(second, "7005")); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("%s after %s: %v", second, first, err)
			}
		}
		ln.Close()
	}
	if _, err := rconn.Listen("rdma4", "192.0.2.1:7005"); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("an address of nobody: %v", err)
	}
}

// Zones of link-local addresses are kept, at both ends.
//
// fault: CONN-4
func TestBothStreamZone(t *testing.T) {
	dev, err := net.InterfaceByName("d0")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := dev.Addrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		ip := a.(*net.IPNet).IP
		if !ip.IsLinkLocalUnicast() || ip.To4() != nil {
			continue
		}
		ln, err := rconn.Listen("rdma", "["+ip.String()+"%d0]:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		d := streamDialer(rconn.Config{})
		c, err := d.Dial("rdma", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		peer, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range []net.Addr{ln.Addr(), c.LocalAddr(), c.RemoteAddr(), peer.LocalAddr(), peer.RemoteAddr()} {
			if a.(*net.TCPAddr).Zone != "d0" {
				t.Errorf("%v has lost its zone", a)
			}
		}
		go c.Close()
		peer.Close()
		return
	}
	t.Fatal("d0 has no link-local address")
}

// The RDMA CM picks local ports without asking TCP. On siw one may be taken: another is tried.
func TestFreshSiwStreamPortTaken(t *testing.T) {
	run(t, "sysctl", "-qw", "net.ipv4.ip_local_port_range=50000 50015")
	for port := 50000; port < 50016; port += 4 {
		ln, err := net.Listen("tcp", net.JoinHostPort(addr, strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
	}
	ln := listenStream(t, "7020", smallStreams)
	for range 40 {
		c, a, err := both(func() (net.Conn, error) { return streamDialer(smallStreams).Dial("rdma", ln.Addr().String()) }, ln.Accept)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []net.Conn{c, a} {
			c.(*rconn.Conn).SetLinger(0)
			c.Close()
		}
	}
}
