package compat

import (
	"errors"
	"net"
	"strings"
)

// isStream tells whether RDMA can carry the network. Others, such as "unix", are package net's.
func isStream(network string) bool {
	switch network {
	case "tcp", "tcp4", "tcp6", "rdma", "rdma4", "rdma6":
		return true
	}
	return false
}

// plain is the network's name in package net.
func plain(network string) string {
	if family, ok := strings.CutPrefix(network, "rdma"); ok {
		return "tcp" + family
	}
	return network
}

// opError is err as package net's type, which it mostly is.
func opError(op, network string, addr net.Addr, err error) error {
	if _, ok := err.(*net.OpError); ok {
		return err
	}
	return &net.OpError{Op: op, Net: network, Addr: addr, Err: err}
}

// cause is what a *net.OpError wraps.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// reset ends a connection that nobody accepted, as package net does.
func reset(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0)
	}
	_ = c.Close()
}
