//go:build unix

package verbstest

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// mapped is memory that mmap returned, until the case ends. Call it before what registers the memory is made.
func mapped(t *testing.T, n int) []byte {
	t.Helper()
	mem, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(mem)) })
	return mem
}
