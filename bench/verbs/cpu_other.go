//go:build !unix

package main

import "time"

// cpuKnown says that cpuTime tells nothing.
const cpuKnown = false

// cpuTime is not known here.
func cpuTime() time.Duration { return 0 }
