//go:build guest

package tests

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/internal/softiwarp"
	"github.com/rconn/rdma/rconn"
)

// The software device against the kernel's soft-iWARP, in one guest: its TCP connections go to the address of siw0, which the RDMA
// CM's go through.

const addr6 = "fd00:9::1" // addr's sister

// A softDevice is a software device and what rconn makes on it.
type softDevice struct{ provider cm.Provider }

// soft makes a software device, and keeps TCP from holding the ports of ended connections: siw, which cannot look for another, would find
// one of them taken now and then.
func soft(t *testing.T, cfg softiwarp.Config) softDevice {
	t.Helper()
	const timeWait = "/proc/sys/net/ipv4/tcp_max_tw_buckets"
	before, err := os.ReadFile(timeWait)
	if err == nil {
		err = os.WriteFile(timeWait, []byte("0"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.WriteFile(timeWait, before, 0) })
	return softDevice{softiwarp.New(cfg)}
}

func (d softDevice) listen(t *testing.T, address string) net.Listener {
	t.Helper()
	return listenOn(t, d.provider, address)
}

func (d softDevice) dial(t *testing.T, address string, cfg rconn.Config) net.Conn {
	t.Helper()
	dialer := dialerOn(d.provider)
	dialer.Config = cfg
	c, err := dialer.Dial("rdma", address)
	if err != nil {
		t.Fatal(err)
	}
	return onSoft(t, c)
}

// onSoft limits the time of a connection, which must run on the software device.
func onSoft(t *testing.T, c net.Conn) net.Conn {
	t.Helper()
	if name := c.(*rconn.Conn).Info().Device; name != softiwarp.DeviceName {
		t.Fatalf("the connection runs on %q", name)
	}
	c.SetDeadline(time.Now().Add(patience))
	return c
}

func dialerOn(p cm.Provider) *rconn.Dialer {
	return &rconn.Dialer{Timeout: patience, Providers: []cm.Provider{p}}
}

func listenOn(t *testing.T, p cm.Provider, address string) net.Listener {
	t.Helper()
	lc := rconn.ListenConfig{Providers: []cm.Provider{p}}
	ln, err := lc.Listen(t.Context(), "rdma", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// join is net.JoinHostPort for a number.
func join(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// exchangeNoise moves total bytes each way at the same time, every one of them checked, and ends the connection.
func exchangeNoise(c net.Conn, total int) error {
	c.SetDeadline(time.Now().Add(patience))
	wrote := make(chan error, 1)
	go func() {
		_, err := io.Copy(c, io.LimitReader(new(source), int64(total)))
		wrote <- errors.Join(err, c.(*rconn.Conn).CloseWrite())
	}()
	n, err := io.Copy(new(sink), c)
	err = errors.Join(err, <-wrote, c.Close())
	if err == nil && n != int64(total) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("%d bytes of %d: %w", n, total, err)
	}
	return nil
}

// onOff names the two states of something.
func onOff(what string, on bool) string {
	if on {
		return what + " on"
	}
	return what + " off"
}
