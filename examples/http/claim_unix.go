//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd

package main

import (
	"errors"
	"os"
	"syscall"
)

// claim opens a file, or makes it, for this download alone. The kernel gives the claim up with the file, also when the process is killed.
func claim(name string) (*os.File, error) {
	for {
		file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
		if err != nil {
			return nil, err
		}
		switch err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case err == syscall.EWOULDBLOCK:
			file.Close()
			return nil, errClaimed
		case err != nil && !errors.Is(err, errors.ErrUnsupported): // a Lustre without flock has no claims
			file.Close()
			return nil, &os.PathError{Op: "flock", Path: name, Err: err}
		}
		// Another download may have come to its end between the two calls: then this file has another name now, or none.
		mine, err := file.Stat()
		if err != nil {
			file.Close()
			return nil, err
		}
		if now, err := os.Stat(name); err == nil && os.SameFile(mine, now) {
			return file, nil
		}
		file.Close()
	}
}
