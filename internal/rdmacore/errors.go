package rdmacore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// noDevice is ErrNoDevice with the reason and what to do about it.
func noDevice(format string, args ...any) error {
	return fmt.Errorf("%w: %s", verbs.ErrNoDevice, fmt.Sprintf(format, args...))
}

// openErr explains why a device file, which the kernel module makes, cannot be opened.
func openErr(err error, module string) error {
	switch {
	case exhausted(err):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return noDevice("%v: modprobe %s; a container needs /dev/infiniband passed in", err, module)
	case errors.Is(err, fs.ErrPermission):
		return noDevice("%v: the user needs read and write access to the files in /dev/infiniband", err)
	}
	return noDevice("%v", err)
}

// exhausted reports whether the process or the system ran out of something, which says nothing about devices.
func exhausted(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// libraryErr is a failure of librdmacm to list or open devices. It says ENODEV for all kinds of trouble.
func libraryErr(err error) error {
	if exhausted(err) {
		return err
	}
	return noDevice("librdmacm finds or opens none (%v): install ibverbs-providers (Debian, Ubuntu) or rdma-core, allow access to "+
		"/dev/infiniband/uverbs*, and see that \"ulimit -n\" is large enough", err)
}

// sysErr turns a result of the shim, 0 or a positive errno, into an error.
func sysErr(call string, errno int) error {
	if errno == 0 {
		return nil
	}
	return os.NewSyscallError(call, syscall.Errno(errno))
}

// postErr is the error for an errno that a post call returned. Drivers say ENOMEM when a queue is full.
func postErr(call string, errno int) error {
	switch syscall.Errno(errno) {
	case 0:
		return nil
	case syscall.ENOMEM, syscall.EAGAIN:
		return verbs.ErrQueueFull
	}
	return sysErr(call, errno)
}

// registerErr explains a refused registration of size bytes: limit is RLIMIT_MEMLOCK, pinned what the process has
// registered already, both in bytes.
func registerErr(err error, size int, pinned, limit uint64) error {
	if !errors.Is(err, syscall.ENOMEM) && !errors.Is(err, syscall.EPERM) {
		return err
	}
	if limit == rlimInfinity || pinned+uint64(size) <= limit {
		return err
	}
	return &verbs.MemlockError{Size: size, Limit: limit}
}

const rlimInfinity = ^uint64(0)

// addrErr gives the errors of resolving an address or a route the meaning they have in package cm.
func addrErr(err error) error {
	switch {
	case errors.Is(err, syscall.ENODEV):
		return noDevice("none serves the address (%v)", err)
	case errors.Is(err, syscall.ETIMEDOUT):
		return syscall.EHOSTUNREACH // nobody answered ARP or neighbour discovery
	}
	return err
}

// connectErr is the same for rdma_connect, which on iWARP reports the result of TCP's connect.
func connectErr(err error) error {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return &cm.RejectedError{Reason: int(syscall.ECONNREFUSED)}
	}
	return err
}

// acceptErr is the same for rdma_accept. The kernel answers EINVAL or ENOTCONN when the peer has given up its request;
// wrong parameters were refused before.
func acceptErr(err error) error {
	for _, gone := range []error{syscall.EINVAL, syscall.ENOTCONN, syscall.ECONNABORTED, syscall.EPIPE, syscall.EIO} {
		if errors.Is(err, gone) {
			return fmt.Errorf("%w: the peer gave up its request (%v)", syscall.ECONNRESET, err)
		}
	}
	return err
}

// eventErr is the error that a CM event means for the step that waits for it.
func eventErr(ev event) error {
	errno := ev.errno()
	if errno == 0 {
		errno = syscall.EHOSTUNREACH // for the events below that name no reason
	}
	switch ev.typ {
	case cm.AddrError:
		return addrErr(errno)
	case cm.RouteError:
		if errno == syscall.ENODEV {
			return addrErr(errno)
		}
		return errno
	case cm.Rejected:
		return rejectErr(ev)
	case cm.ConnectError, cm.Unreachable:
		return connectErr(errno)
	case cm.DeviceRemoval:
		return verbs.ErrDeviceRemoved
	}
	return syscall.ECONNRESET // Disconnected, or what does not belong here
}

// rejectErr is a refusal. The IB CM has a positive reason, iWARP a negative errno: of siw ECONNRESET when the peer's program refused.
func rejectErr(ev event) error {
	return &cm.RejectedError{Reason: max(ev.status, -ev.status), PrivateData: ev.conn.PrivateData}
}
