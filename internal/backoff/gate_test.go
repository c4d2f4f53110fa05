package backoff

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// pauses has all tries fail and returns how many occasions passed between them.
func pauses(g *Gate, tries int) (list []int) {
	for range tries {
		n := 0
		for !g.Try() {
			n++
		}
		list = append(list, n)
		g.Result(false)
	}
	return list
}

func TestGate(t *testing.T) {
	var g Gate
	want := []int{0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 64}
	assert.Equal(t, want, pauses(&g, len(want)))

	for !g.Try() {
	}
	g.Result(true)
	assert.Equal(t, want, pauses(&g, len(want)), "one that helped opens it again")
}
