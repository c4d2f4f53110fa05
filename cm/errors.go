package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
)

// ErrTooManyConnects says that a Connect got no turn because too many others are blocked in the kernel. It comes joined with
// the context's error.
var ErrTooManyConnects = errors.New("too many connects are blocked in the kernel (an iWARP device connects to hosts that do not answer)")

// Error says at which step a connection failed.
type Error struct {
	Op   string // "resolve address", "resolve route", "connect", "accept", "listen", ...
	Addr netip.AddrPort
	Err  error
}

func (e *Error) Error() string {
	if e.Addr.IsValid() {
		return fmt.Sprintf("rdma %s %v: %v", e.Op, e.Addr, e.Err)
	}
	return fmt.Sprintf("rdma %s: %v", e.Op, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout makes package net's errors around this one tell a timeout.
func (e *Error) Timeout() bool {
	return errors.Is(e.Err, context.DeadlineExceeded) || errors.Is(e.Err, syscall.ETIMEDOUT)
}

// Reasons of a reject that have a meaning of their own (IBTA vol. 1, 12.6.7.2). Other values come from the device or
// the peer's kernel.
const (
	RejectNoListener = 8  // invalid service id: nobody listens
	RejectConsumer   = 28 // the peer's program refused
)

// RejectedError says that the peer refused a connection. It is syscall.ECONNREFUSED.
type RejectedError struct {
	Reason      int // RejectNoListener, RejectConsumer, another reason of the IB CM, or a positive errno on iWARP
	PrivateData []byte
}

func (e *RejectedError) Error() string {
	switch e.Reason {
	case RejectNoListener:
		return "connection refused: nobody listens"
	case RejectConsumer:
		return "connection refused by the peer: by its program, or because nobody listens on that address"
	case int(syscall.ECONNREFUSED):
		return "connection refused"
	}
	return fmt.Sprintf("connection refused (reason %d)", e.Reason)
}

// Is makes the error syscall.ECONNREFUSED.
func (e *RejectedError) Is(target error) bool { return target == syscall.ECONNREFUSED }
