package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// processUsage is what this process has used, as the system tells.
func processUsage() usage {
	var u usage
	var ru syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &ru) == nil {
		u.CPU = time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	}
	status, _ := os.ReadFile("/proc/self/status")
	u.Threads, u.Pinned, u.Resident = statusNumbers(string(status))
	fds, _ := os.ReadDir("/proc/self/fd")
	u.FDs = len(fds)
	return u
}

// statusNumbers are the threads, and the bytes pinned and resident, of a process's status file.
func statusNumbers(status string) (threads, pinned, resident int) {
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(line, ":")
		number, _, _ := strings.Cut(strings.TrimSpace(value), " ")
		n, _ := strconv.Atoi(number)
		switch key {
		case "Threads":
			threads = n
		case "VmPin":
			pinned = n << 10
		case "VmRSS":
			resident = n << 10
		}
	}
	return threads, pinned, resident
}
