//go:build linux && cgo

package rdmacore

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// memlock returns what the process has pinned and RLIMIT_MEMLOCK, in bytes.
func memlock() (pinned, limit uint64) {
	const rlimitMemlock = 8
	var r syscall.Rlimit
	if syscall.Getrlimit(rlimitMemlock, &r) != nil {
		return 0, rlimInfinity
	}
	return pinnedMemory(), r.Cur
}

// pinnedMemory is VmPin of the process, where the kernel counts registered memory.
func pinnedMemory() uint64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		if rest, ok := bytes.CutPrefix(s.Bytes(), []byte("VmPin:")); ok {
			kib, _ := strconv.ParseUint(string(bytes.TrimSpace(bytes.TrimSuffix(rest, []byte("kB")))), 10, 64)
			return kib << 10
		}
	}
	return 0
}
