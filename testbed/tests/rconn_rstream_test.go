//go:build guest

package tests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rconn/rdma/rconn"
)

// Stock rstream, of rdmacm-utils, against rconn, with data verification at both ends.

// rstreamTest is a run of rstream: iterations of count messages of size bytes from the client, and as many back.
type rstreamTest struct{ size, count, iterations int }

func (r rstreamTest) String() string { return fmt.Sprintf("%dBx%dx%d", r.size, r.count, r.iterations) }

func (r rstreamTest) args(port int, mode string) []string {
	return []string{
		"-p", strconv.Itoa(port), "-S", strconv.Itoa(r.size), "-C", strconv.Itoa(r.count), "-I", strconv.Itoa(r.iterations), "-T", "v", "-T", mode,
	}
}

// talk plays rstream's part on c: first 16 bytes each way, then the messages. With -T v each direction's bytes count up
// from 0, modulo 256.
func (r rstreamTest) talk(c net.Conn, client bool) error {
	var sent, received int
	send := func(n int) error {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(sent + i)
		}
		sent += n
		_, err := c.Write(b)
		return err
	}
	receive := func(n int) error {
		b := make([]byte, n)
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
		for i := range b {
			if b[i] != byte(received+i) {
				return fmt.Errorf("byte %d is %d, want %d", received+i, b[i], byte(received+i))
			}
		}
		received += n
		return nil
	}
	first, second := send, receive
	if !client {
		first, second = receive, send
	}
	turn := func(n, size int, f func(int) error) error {
		for range n {
			if err := f(size); err != nil {
				return fmt.Errorf("after %d bytes sent, %d received: %w", sent, received, err)
			}
		}
		return nil
	}
	if err := turn(1, 16, first); err != nil {
		return err
	}
	if err := turn(1, 16, second); err != nil {
		return err
	}
	for range r.iterations {
		if err := turn(r.count, r.size, first); err != nil {
			return err
		}
		if err := turn(r.count, r.size, second); err != nil {
			return err
		}
	}
	return nil
}

// rstream spins, unless it is told to block.
//
// fault: FLOW-5
func TestRxeRstreamPeer(t *testing.T) { testRstreamPeer(t, "n", rxeRuns) }

// fault: FLOW-5
func TestRxeRstreamBlockingPeer(t *testing.T) { testRstreamPeer(t, "b", rxeRuns) }

func TestSiwRstreamPeer(t *testing.T)         { testRstreamPeer(t, "n", siwRuns) }
func TestSiwRstreamBlockingPeer(t *testing.T) { testRstreamPeer(t, "b", siwRuns) }

var (
	rxeRuns = []rstreamTest{{64, 1, 1000}, {64, 5000, 1}, {64 << 10, 1, 100}, {64 << 10, 100, 1}, {1 << 20, 10, 1}}
	siwRuns = []rstreamTest{{64, 1, 100}, {64, 5000, 1}, {64 << 10, 100, 1}, {1 << 20, 10, 1}}
)

func testRstreamPeer(t *testing.T, mode string, runs []rstreamTest) {
	noRNR(t)
	for _, r := range runs {
		t.Run(r.String(), func(t *testing.T) { r.test(t, mode) })
	}
}

// test runs r with rconn as the server, then as the client.
func (r rstreamTest) test(t *testing.T, mode string) {
	const port = 7471
	t.Run("rstream dials", func(t *testing.T) {
		ln, err := rconn.Listen("rdma", net.JoinHostPort(addr, strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		client := start(t, append([]string{"rstream", "-s", addr}, r.args(port, mode)...)...)
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		if err := r.talk(c, false); err != nil {
			t.Error(err)
		}
		client.wait(t)
		// rstream shuts down when it is done: an orderly end.
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("after the end: %d, %v", n, err)
		}
	})
	t.Run("rstream listens", func(t *testing.T) {
		server := start(t, append([]string{"rstream", "-b", addr}, r.args(port, mode)...)...)
		server.listens(t)
		d := streamDialer(rconn.Config{})
		c, err := d.Dial("rdma", net.JoinHostPort(addr, strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		if err := r.talk(c, true); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		server.wait(t)
	})
}

// rcopy, client and server, through a relay of ours.
//
// fault: FLOW-5
func TestRxeRcopyRelay(t *testing.T) {
	noRNR(t)
	need(t, "rcopy")
	server := start(t, "rcopy", "-p", "7427")
	server.listens(t)
	ln, err := rconn.Listen("rdma", net.JoinHostPort(addr, "7428"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	relayed := make(chan error, 1)
	go func() {
		in, err := ln.Accept()
		if err != nil {
			relayed <- err
			return
		}
		out, err := rconn.Dial("rdma", net.JoinHostPort(addr, "7427"))
		if err != nil {
			relayed <- errors.Join(err, in.Close())
			return
		}
		back := make(chan error, 1)
		go func() { back <- pass(in, out) }()
		err = pass(out, in)
		relayed <- errors.Join(err, <-back, in.Close(), out.Close())
	}()

	dir := t.TempDir()
	file := make([]byte, 3<<20+17)
	for i := range file {
		file[i] = byte(i * i >> 3)
	}
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := os.WriteFile(from, file, 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "rcopy", from, addr+":"+to, "-p", "7428")
	if err := <-relayed; err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, file) {
		t.Errorf("%d bytes of %d, %v", len(got), len(file), err)
	}
}

// pass copies one direction to its end, and ends it there too.
func pass(dst, src net.Conn) error {
	_, err := io.Copy(dst, src)
	return errors.Join(err, dst.(*rconn.Conn).CloseWrite())
}
