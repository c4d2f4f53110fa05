package main

import (
	"os"
	"syscall"
	"time"
)

// cpuTime is the processor time that this process has used, in user mode and in the kernel on its behalf.
func cpuTime() time.Duration {
	var ru syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &ru) != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// addProcess adds what this process has, as the system tells.
func (u *usage) addProcess() {
	status, _ := os.ReadFile("/proc/self/status")
	u.Threads, u.Pinned, u.Resident = statusNumbers(string(status))
	fds, _ := os.ReadDir("/proc/self/fd")
	u.FDs = len(fds)
}
