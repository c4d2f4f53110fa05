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

// glance is how long one computation takes, about.
const glance = 20 * time.Millisecond

// look makes the computation once.
func (s *speed) look() {
	if s.steps == 0 {
		for s.steps = 1 << 16; compute(s.steps) < glance; s.steps *= 2 {
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

// doubt is a warning if the machine was much slower for a tenth of the time or more than for another.
func (s *speed) doubt() (notes []string) {
	if len(s.took) == 0 {
		return nil
	}
	fast, middle, slow := quantile(s.took, 0.1), median(s.took), quantile(s.took, 0.9)
	if slow > 1.25*fast {
		notes = append(notes, fmt.Sprintf("the processors were faster and slower during the run, perhaps by what others did with their cores: a fixed "+
			"computation took %.0f ms (a tenth of the time), %.0f (median), %.0f (nine tenths)", fast, middle, slow))
	}
	return notes
}
