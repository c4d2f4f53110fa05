//go:build linux || darwin || freebsd

package progress

import (
	"io"
	"os"
	"syscall"
	"unsafe"
)

// columns is the width of the terminal that out is; 0: it is none that can draw.
func columns(out io.Writer) (n int) {
	file, ok := out.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return 0
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		var size struct{ rows, columns, x, y uint16 } // struct winsize
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size))); errno == 0 {
			if n = int(size.columns); n == 0 { // not told, as on a serial line
				n = 80
			}
		}
	})
	return n
}
