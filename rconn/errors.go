package rconn

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// The operations that an OpError names.
const (
	opDial   = "dial"
	opListen = "listen"
	opAccept = "accept"
	opRead   = "read"
	opWrite  = "write"
	opClose  = "close"
	opSet    = "set"
)

// opError is the only place where a *net.OpError is made. io.EOF stays bare, as readers expect it.
func opError(op, network string, source, addr net.Addr, err error) error {
	switch {
	case err == nil || err == io.EOF:
		return err
	case errors.Is(err, verbs.ErrClosed):
		err = net.ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		// OpError.Timeout looks at its Err itself and does not unwrap.
		err = os.ErrDeadlineExceeded
	}
	return &net.OpError{Op: op, Net: network, Source: source, Addr: addr, Err: err}
}

// brokenError is why a connection ended: the errno that net users look for, and what led to it.
type brokenError struct {
	errno syscall.Errno
	cause error
}

func broken(errno syscall.Errno, cause error) error { return &brokenError{errno, cause} }

func (e *brokenError) Error() string {
	if e.cause == nil {
		return e.errno.Error()
	}
	return fmt.Sprintf("%v (%v)", e.errno, e.cause)
}

// Timeout is the errno's, as in package net: true for a peer that keepalive found dead.
func (e *brokenError) Timeout() bool { return e.errno.Timeout() }

func (e *brokenError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.errno}
	}
	return []error{e.errno, e.cause}
}

// eventError is the end of a connection as the connection manager told it.
func eventError(ev cm.Event) error {
	if ev.Type == cm.DeviceRemoval {
		return broken(syscall.ECONNRESET, verbs.ErrDeviceRemoved)
	}
	return broken(syscall.ECONNRESET, fmt.Errorf("connection manager: %v", ev))
}
