package softiwarp

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Rings are mostly never touched: where the kernel gives huge pages unasked, an idle connection would hold megabytes.
func TestMemoryIsTakenByThePage(t *testing.T) {
	const size = 8 << 20 // holds a huge page, wherever it begins
	mem, err := mapMemory(size)
	require.NoError(t, err)
	defer func() { require.NoError(t, unmapMemory(mem)) }()
	flags := mappingFlags(t, uintptr(unsafe.Pointer(&mem[size/2])))
	require.Contains(t, flags, "dc", "no copies for children")
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err == nil {
		require.Contains(t, flags, "nh", "no huge pages")
	}
}

// mappingFlags are VmFlags (proc_pid_smaps(5)) of what is mapped at an address.
func mappingFlags(t *testing.T, addr uintptr) []string {
	text, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	here := false
	for line := range strings.Lines(string(text)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			here = from <= addr && addr < to
		} else if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && here {
			return strings.Fields(flags)
		}
	}
	t.Fatalf("nothing is mapped at %#x", addr)
	return nil
}
