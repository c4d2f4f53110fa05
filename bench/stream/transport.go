package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/rconn/rdma/rconn"
)

// Transports.
const (
	onDevice   = "device" // rconn on the RDMA device
	onSoftware = "software"
	onTCP      = "tcp"
	onUnix     = "unix"
)

// transport says how two processes are connected, and with which settings of rconn.
type transport struct {
	Kind string
	Addr string // the listening side's address, without a port
	Spin time.Duration

	NoKeepAlive bool
}

func (t transport) config() rconn.Config {
	device := "no-software"
	if t.Kind == onSoftware {
		device = "software"
	}
	c := rconn.Config{Device: device, Spin: t.Spin}
	if t.NoKeepAlive {
		c.KeepAlive = -1
	}
	return c
}

func (t transport) dial(addr string) (net.Conn, error) {
	switch t.Kind {
	case onTCP, onUnix:
		return net.Dial(t.Kind, addr)
	}
	d := rconn.Dialer{Config: t.config()}
	return d.Dial("tcp", addr)
}

func (t transport) listen() (net.Listener, error) {
	switch t.Kind {
	case onTCP:
		return net.Listen("tcp", net.JoinHostPort(t.Addr, "0"))
	case onUnix:
		dir, err := os.MkdirTemp("", "bench")
		if err != nil {
			return nil, err
		}
		ln, err := net.Listen("unix", filepath.Join(dir, "s"))
		return tempListener{ln, dir}, err
	}
	lc := rconn.ListenConfig{Config: t.config()}
	return lc.Listen(context.Background(), "tcp", net.JoinHostPort(t.Addr, "0"))
}

// tempListener takes its folder with it.
type tempListener struct {
	net.Listener
	dir string
}

func (l tempListener) Close() error {
	err := l.Listener.Close()
	_ = os.RemoveAll(l.dir)
	return err
}
