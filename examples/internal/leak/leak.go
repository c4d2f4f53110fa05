// Package leak is for tests of the example programs.
package leak

import (
	"runtime"
	"testing"
	"time"
)

// Check wants no more goroutines when the test has ended than there are now. Call it first: it looks when all other cleanup is done.
func Check(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				stacks := make([]byte, 1<<20)
				t.Fatalf("%d goroutines more than before:\n%s", runtime.NumGoroutine()-before, stacks[:runtime.Stack(stacks, true)])
			}
		}
	})
}
