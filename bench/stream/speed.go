package main

import (
	"fmt"
	"runtime"
	"sync"
	"time"
)

// speed watches how fast the machine itself is, by what a fixed computation takes on all processors at once. Who shares a processor's core
// with us, on a virtual machine another's guest, slows it down, and no load average tells.
type speed struct {
	steps int // of the computation
	took  []float64
}

// glance is the least that one computation takes, about; fewLooks are too few to tell a slow time from a slow moment.
const (
	glance   = 20 * time.Millisecond
	fewLooks = 20
)

// look makes the computation once.
func (s *speed) look() {
	if s.steps == 0 {
		// The shortest of a few: a moment's pause would pass for a long computation.
		for s.steps = 1 << 16; min(compute(s.steps), compute(s.steps), compute(s.steps)) < glance; s.steps *= 2 {
		}
	}
	s.took = append(s.took, compute(s.steps).Seconds()*1e3)
}

// compute is the time of so many steps on each processor.
func compute(steps int) time.Duration {
	var wg sync.WaitGroup
	start := time.Now()
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			x := uint64(steps)
			for range steps { // each step needs the one before
				x ^= x << 13
				x ^= x >> 7
				x ^= x << 17
			}
			if x == 0 { // never, but the compiler does not know
				panic("a xorshift generator does not come to 0")
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// doubt is a warning if the slowest tenth of the looks took much longer than the fastest.
func (s *speed) doubt() (notes []string) {
	if len(s.took) < fewLooks {
		return nil
	}
	fast, middle, slow := quantile(s.took, 0.1), median(s.took), quantile(s.took, 0.9)
	if slow > 1.25*fast {
		notes = append(notes, fmt.Sprintf("the processors were faster and slower during the run, perhaps by what others did with their cores: a fixed "+
			"computation took up to %.0f ms in a tenth of all looks, %.0f in half of them, %.0f and more in another tenth", fast, middle, slow))
	}
	return notes
}
