//go:build race

package softiwarp

import (
	"net"
	"runtime"
	"unsafe"
)

// What system calls do to memory of Go's heap (PD.RegMR) is told to the race detector, and that what is received comes after what was sent:
// package syscall tells it of its own calls only, and one end may be served by these and the other by ours. Memory outside Go's heap
// it does not watch.

// wires stand for connections.
var wires [1 << 12]byte

// wire is the same at both ends, if both are in this process. Connections may share one: then fewer races are found.
func (s *stream) wire() unsafe.Pointer {
	n := 0
	for _, a := range [...]net.Addr{s.conn.LocalAddr(), s.conn.RemoteAddr()} {
		n ^= int(addrPort(a).Port())
	}
	return unsafe.Pointer(&wires[n%len(wires)])
}

// beforeWrite is called before bufs are written.
func (s *stream) beforeWrite(bufs [][]byte) {
	for _, b := range bufs {
		if len(b) > 0 {
			runtime.RaceReadRange(unsafe.Pointer(&b[0]), len(b))
		}
	}
	runtime.RaceReleaseMerge(s.wire())
}

// afterRead is called after n bytes were read into bufs.
func (s *stream) afterRead(bufs [][]byte, n int) {
	runtime.RaceAcquire(s.wire())
	for _, b := range bufs {
		k := min(n, len(b))
		if k > 0 {
			runtime.RaceWriteRange(unsafe.Pointer(&b[0]), k)
		}
		n -= k
	}
}
