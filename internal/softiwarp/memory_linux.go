package softiwarp

import (
	"errors"
	"os"
	"syscall"
)

// advise keeps the memory out of child processes, so that a fork copies none of it, and has it taken as it is touched, by the page: a huge
// page is 2 MiB for the first byte of a connection that may never need more. A kernel that was built without huge pages does not
// know the advice.
func advise(mem []byte) error {
	if err := syscall.Madvise(mem, syscall.MADV_NOHUGEPAGE); err != nil && !errors.Is(err, syscall.EINVAL) {
		return os.NewSyscallError("madvise", err)
	}
	return os.NewSyscallError("madvise", syscall.Madvise(mem, syscall.MADV_DONTFORK))
}
