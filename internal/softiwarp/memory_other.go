//go:build !unix

package softiwarp

import (
	"os"
	"unsafe"
)

// mapMemory takes whole pages from Go's heap, which does not move large objects.
func mapMemory(size int) ([]byte, error) {
	page := os.Getpagesize()
	mem := make([]byte, size+page)
	skip := int(-uintptr(unsafe.Pointer(&mem[0])) & uintptr(page-1))
	return mem[skip:][:size:size], nil
}

func unmapMemory([]byte) error { return nil }
