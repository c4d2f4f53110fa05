//go:build guest

package tests

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rconn/rdma/compat"
	"github.com/rconn/rdma/rconn"
)

// A server at a compat.Listener and one of plain TCP in guest A. In B nothing of RoCE comes in from some point on, as behind a firewall:
// dials are as good as those of plain TCP, but for a second, and leave nothing there.
func TestPairRxeDialFirewalled(t *testing.T) {
	need(t, "tc")
	const both, plain = 7001, 7002
	if role == "A" {
		ln, err := compat.Listen("tcp", join(addr, both))
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		tcp, err := net.Listen("tcp", join(addr, plain))
		if err != nil {
			t.Fatal(err)
		}
		defer tcp.Close()
		go echo(ln)
		go echo(tcp)
		barrier(t, "listening")
		barrier(t, "done")
		return
	}
	barrier(t, "listening")
	dial := func(port int, policy compat.Policy, fallback time.Duration, want string) time.Duration {
		t.Helper()
		var log lockedBuffer
		d := compat.Dialer{Policy: policy, Timeout: patience, RDMA: rconn.Dialer{
			Config: rconn.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, FallbackDelay: fallback,
		}}
		begin := time.Now()
		c, err := d.Dial("tcp", join(peer, port))
		took := time.Since(begin)
		if err == nil {
			err = errors.Join(echoes(c), c.Close())
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, log.String())
		}
		way := "tcp"
		if rc, ok := c.(*rconn.Conn); ok {
			way = rc.Info().Device
		}
		if way != want {
			t.Errorf("port %d, %v: took %s, want %s\n%s", port, policy, way, want, log.String())
		}
		t.Logf("seen: %s after %v: %s", way, took.Round(time.Millisecond), strings.TrimSpace(log.String()))
		return took
	}
	dial(both, compat.Require, patience, "rxe0") // an emulated processor takes its time when it does something for the first time
	healthy := dial(both, compat.TCPOnly, 0, "tcp")
	dial(plain, compat.Prefer, 0, "tcp")
	time.Sleep(100 * time.Millisecond)
	from := counts(t)

	run(t, "tc", "qdisc", "add", "dev", "eth0", "ingress")
	defer run(t, "tc", "qdisc", "del", "dev", "eth0", "ingress")
	run(t, "tc", "filter", "add", "dev", "eth0", "parent", "ffff:", "protocol", "ip", "u32",
		"match", "ip", "protocol", "17", "0xff", "match", "ip", "dport", "4791", "0xffff", "action", "drop") // RoCE v2's UDP port
	for _, c := range []struct {
		port   int
		policy compat.Policy
		want   string
	}{
		{both, compat.Prefer, "software0"}, {both, compat.Require, "software0"}, {plain, compat.Prefer, "tcp"},
	} {
		if took := dial(c.port, c.policy, 0, c.want); took > healthy+2*time.Second { // one is promised, one is slack
			t.Errorf("port %d, %v: connected after %v, plain TCP after %v", c.port, c.policy, took, healthy)
		}
	}
	backTo(t, from, patience)
	barrier(t, "done")
}

// echo serves connections until ln is closed.
func echo(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}

func echoes(c net.Conn) error {
	c.SetDeadline(time.Now().Add(patience))
	sent := []byte("is there anybody?")
	got := make([]byte, len(sent))
	if _, err := c.Write(sent); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !bytes.Equal(got, sent) {
		return errors.New("not the echo")
	}
	return nil
}
