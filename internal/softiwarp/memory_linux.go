package softiwarp

import (
	"os"
	"syscall"
)

// keepFromChildren keeps the memory out of child processes, so that a fork copies none of it.
func keepFromChildren(mem []byte) error {
	return os.NewSyscallError("madvise", syscall.Madvise(mem, syscall.MADV_DONTFORK))
}
