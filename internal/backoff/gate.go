// Package backoff decides when something that pays off only at times is worth another try.
package backoff

const (
	misses   = 4 // in a row, before there is a pause
	maxPause = 64
)

// Gate closes for a while when tries have not helped lately, and for longer each time that the next one has not helped either. It counts
// occasions, not time. The zero Gate is open; calls must not overlap.
type Gate struct {
	misses int // tries in a row that did not help
	pause  int // occasions that pass after the next miss
	skip   int // of these, how many are to come
}

// Try tells whether to try this time. If so, Result follows, unless it was not tried after all.
func (g *Gate) Try() bool {
	if g.skip > 0 {
		g.skip--
		return false
	}
	return true
}

// Result takes whether the try helped.
func (g *Gate) Result(helped bool) {
	if helped {
		g.misses, g.pause = 0, 0
		return
	}
	if g.misses++; g.misses >= misses {
		g.pause = min(max(1, 2*g.pause), maxPause)
		g.skip = g.pause
	}
}
