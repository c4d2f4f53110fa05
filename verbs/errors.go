package verbs

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

var (
	// ErrNoDevice says that no RDMA device serves what was asked for. It comes wrapped in a text that says why, and is
	// errors.ErrUnsupported too.
	ErrNoDevice error = &noDeviceError{}

	// ErrDeviceRemoved says that the device went away.
	ErrDeviceRemoved = errors.New("RDMA device was removed")

	// ErrClosed says that the object was closed.
	ErrClosed = net.ErrClosed

	// ErrBusy says that an object cannot be closed because another one still uses it.
	ErrBusy = errors.New("RDMA object still in use: close the objects made from it first")

	// ErrForeign says that an object was handed to a provider, or to a device, that did not make it.
	ErrForeign = errors.New("RDMA object belongs to another provider or device")

	// ErrQueueFull says that a work queue has no free entry.
	ErrQueueFull = errors.New("RDMA work queue is full")
)

type noDeviceError struct{}

func (*noDeviceError) Error() string        { return "no RDMA device" }
func (*noDeviceError) Is(target error) bool { return target == errors.ErrUnsupported }

// UnsupportedError says what a device cannot do. It is errors.ErrUnsupported.
type UnsupportedError struct {
	Device string
	What   string // "RDMA_WRITE_WITH_IMM", "a UD queue pair"
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("RDMA device %s does not support %s", e.Device, e.What)
}

// Is makes the error errors.ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// LimitError says that something exceeds what a device or QP allows. It is syscall.EINVAL.
type LimitError struct {
	What string // "send queue entries"
	Got  uint64
	Max  uint64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%d %s exceed the limit of %d", e.Got, e.What, e.Max)
}

// Is makes the error syscall.EINVAL.
func (e *LimitError) Is(target error) bool { return target == syscall.EINVAL }

// MemlockError says that memory could not be registered because of RLIMIT_MEMLOCK. It is syscall.ENOMEM.
type MemlockError struct {
	Size  int    // bytes asked for
	Limit uint64 // the limit in bytes
}

func (e *MemlockError) Error() string {
	return fmt.Sprintf("cannot register %d bytes: locked memory is limited to %d bytes (RLIMIT_MEMLOCK); raise it with "+
		"\"ulimit -l unlimited\", LimitMEMLOCK=infinity in a systemd unit, or /etc/security/limits.conf", e.Size, e.Limit)
}

// Is makes the error syscall.ENOMEM.
func (e *MemlockError) Is(target error) bool { return target == syscall.ENOMEM }
