package softiwarp

import (
	"net"
	"syscall"
	"unsafe"
)

const maxIOV = 128

// vectors is scratch for readv and writev. It stands in a heap object, never on a stack.
type vectors [maxIOV]syscall.Iovec

func newStream(conn net.Conn) *stream {
	s := &stream{conn: conn}
	if tcp, ok := conn.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			s.raw = raw
		}
	}
	return s
}

func (v *vectors) fill(bufs [][]byte) uintptr {
	n := 0
	for _, b := range bufs {
		if len(b) > 0 {
			v[n].Base = &b[0]
			v[n].SetLen(len(b))
			n++
		}
	}
	return uintptr(n)
}

func (v *vectors) call(trap, single uintptr, fd uintptr, bufs [][]byte) (int, error) {
	n := v.fill(bufs)
	defer clear(v[:n])
	for {
		var r uintptr
		var errno syscall.Errno
		if n == 1 {
			r, _, errno = syscall.Syscall(single, fd, uintptr(unsafe.Pointer(v[0].Base)), uintptr(v[0].Len))
		} else {
			r, _, errno = syscall.Syscall(trap, fd, uintptr(unsafe.Pointer(v)), n)
		}
		switch errno {
		case 0:
			return int(r), nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, errAgain
		default:
			return 0, errno
		}
	}
}

// read reads into bufs without blocking: errAgain.
func (v *vectors) read(fd uintptr, bufs [][]byte) (int, error) {
	return v.call(syscall.SYS_READV, syscall.SYS_READ, fd, bufs)
}

func (v *vectors) write(fd uintptr, bufs [][]byte) (int, error) {
	return v.call(syscall.SYS_WRITEV, syscall.SYS_WRITE, fd, bufs)
}

// tune sets what package net does not.
func tune(conn *net.TCPConn, cfg *Config) (mss int) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	const tcpUserTimeout, tcpMaxSeg = 18, 2
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(cfg.UserTimeout.Milliseconds()))
		mss, _ = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpMaxSeg)
	})
	return mss
}
