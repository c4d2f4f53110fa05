//go:build unix

package softiwarp

import (
	"os"
	"syscall"
)

// mapMemory maps whole pages outside Go's heap, zeroed.
func mapMemory(size int) ([]byte, error) {
	mem, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	if err := advise(mem); err != nil {
		_ = syscall.Munmap(mem)
		return nil, err
	}
	return mem, nil
}

func unmapMemory(mem []byte) error { return os.NewSyscallError("munmap", syscall.Munmap(mem)) }
