package main

import (
	"strconv"
	"strings"
)

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
