//go:build unix

package main

import (
	"os"
	"syscall"
)

// narrowly calls f, in which nothing is created that has more permissions than mode. The umask is that of the process: whatever else creates
// files meanwhile gets less too, never more.
func narrowly(mode os.FileMode, f func()) {
	old := syscall.Umask(0o777)
	syscall.Umask(old | int(^mode.Perm()&0o777))
	defer syscall.Umask(old)
	f()
}
