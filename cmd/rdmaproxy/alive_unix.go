//go:build unix

package main

import "syscall"

// toldOnce says that the system tells of a reset to one call only, whichever comes first.
const toldOnce = true

// alive asks whether c could be written to, without a wait for a Write that is in progress. The error is what a Write would meet.
func alive(c conn) error {
	sc, ok := c.(syscall.Conn)
	if !ok { // RDMA
		_, err := c.Write(nil)
		return err
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := raw.Control(func(fd uintptr) { _, err = syscall.Write(int(fd), nil) }); cerr != nil {
		return cerr
	}
	return err
}
