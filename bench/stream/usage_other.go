//go:build !linux

package main

import "time"

// cpuTime is not known here.
func cpuTime() time.Duration { return 0 }

// addProcess knows nothing here.
func (u *usage) addProcess() {}
