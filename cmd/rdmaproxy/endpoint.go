package main

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"

	"github.com/rconn/rdma/rconn"
)

// conn is what all three kinds of connection have.
type conn interface {
	net.Conn
	CloseWrite() error
}

var _ = []conn{(*rconn.Conn)(nil), (*net.TCPConn)(nil), (*net.UnixConn)(nil)}

// reset ends a connection so that the peer sees it break. A Unix socket has no word for that: its peer reads an error if
// it sent what we had not read, and an end otherwise.
func reset(c conn) {
	if l, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0)
	}
	_ = c.Close()
}

// rconnConfig shapes the RDMA connections of an endpoint.
func (e endpoint) rconnConfig(cfg *config) rconn.Config {
	return rconn.Config{Device: e.device, SendBuffer: cfg.ring, RecvBuffer: cfg.ring, Logger: cfg.log}
}

func (e endpoint) listen(ctx context.Context, cfg *config) (net.Listener, error) {
	if e.rdma() {
		lc := rconn.ListenConfig{Config: e.rconnConfig(cfg)}
		return lc.Listen(ctx, e.network, e.addr)
	}
	if e.network == "unix" {
		return e.listenUnix(ctx)
	}
	return new(net.ListenConfig).Listen(ctx, e.network, e.addr)
}

// listenUnix makes a socket that at no time is open to more users than mode says: whoever connects is served later, whatever the
// permissions are by then.
func (e endpoint) listenUnix(ctx context.Context) (ln net.Listener, err error) {
	removeStale(e.addr)
	listen := func() { ln, err = new(net.ListenConfig).Listen(ctx, e.network, e.addr) }
	if e.mode == 0 {
		listen()
		return ln, err
	}
	narrowly(e.mode, listen)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(e.addr, e.mode); err != nil { // the umask may have left less
		_ = ln.Close()
		return nil, err
	}
	return ln, nil
}

// removeStale removes a socket that a process left behind when it was killed. One that somebody serves is left alone; listening
// then fails.
func removeStale(path string) {
	if fi, err := os.Lstat(path); err != nil || fi.Mode().Type() != os.ModeSocket {
		return
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path)
	}
}

func (e endpoint) dial(ctx context.Context, cfg *config) (conn, error) {
	dial := new(net.Dialer).DialContext
	if e.rdma() {
		d := &rconn.Dialer{Config: e.rconnConfig(cfg)}
		d.Config.HandshakeTimeout = cfg.dialTimeout
		dial = d.DialContext
	}
	c, err := dial(ctx, e.network, e.addr)
	if err != nil {
		return nil, err
	}
	return c.(conn), nil
}
