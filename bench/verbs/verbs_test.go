package main

import (
	"context"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// here is a peer in the same process.
type here struct {
	addr netip.AddrPort
	done chan time.Duration
	err  chan error
}

func (h *here) address() netip.AddrPort { return h.addr }

func (h *here) used() (time.Duration, error) {
	select {
	case used := <-h.done:
		return used, nil
	case err := <-h.err:
		return 0, err
	}
}

func newHere(t *testing.T) *here {
	ln, err := listen(netip.MustParseAddrPort("127.0.0.1:0"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	h := &here{addr: ln.Addr(), done: make(chan time.Duration, 1), err: make(chan error, 1)}
	go func() { h.err <- serve(t.Context(), ln, 0, func(used time.Duration) { h.done <- used }) }()
	return h
}

// Every operation of the software device is measured, and has its line in both tables.
func TestEveryOperation(t *testing.T) {
	o := options{rounds: 2, length: time.Millisecond, only: regexp.MustCompile(""), sizes: []int{8, 4096, 1 << 20}}
	r, err := measure(context.Background(), o, newHere(t))
	require.NoError(t, err)
	require.Empty(t, r.lacking)
	require.Len(t, r.cases, 3*(len(works)-2)+2, "atomics have one size")
	for i := range r.cases {
		c := &r.cases[i]
		require.Len(t, c.results, 2)
		for _, got := range c.results {
			require.Positive(t, got.median, c.name)
			require.GreaterOrEqual(t, got.p99, got.median, c.name)
			require.Equal(t, c.rated, got.ops > 0, c.name)
		}
	}

	var text strings.Builder
	require.NoError(t, r.print(&text, true))
	for _, w := range works {
		want := 1
		if w.rated {
			want++
		}
		require.Equal(t, want, strings.Count(text.String(), "| 8 | "+w.name+" |"), w.name)
	}
}

func TestOptions(t *testing.T) {
	o := options{rounds: 1, length: 1}
	require.NoError(t, o.parse("READ", "8,64"))
	require.Equal(t, []int{8, 64}, o.sizes)
	for _, sizes := range []string{"", "7", "0", "-8", "12", "99999999999", "x"} {
		require.Error(t, o.parse("", sizes), sizes)
	}
	require.Error(t, o.parse("(", "8"))
	o.rounds = 0
	require.Error(t, o.parse("", "8"))
}

func TestReplaceSection(t *testing.T) {
	const doc = "a\n<!-- bench-verbs x -->\nold\n<!-- end -->\nb\n<!-- bench-verbs y -->\n<!-- end -->\nc\n"
	got, err := replaceSection(doc, "y", "new\n")
	require.NoError(t, err)
	require.Equal(t, "a\n<!-- bench-verbs x -->\nold\n<!-- end -->\nb\n<!-- bench-verbs y -->\n\nnew\n\n<!-- end -->\nc\n", got)
	again, err := replaceSection(got, "y", "new")
	require.NoError(t, err)
	require.Equal(t, got, again)
	_, err = replaceSection(doc, "z", "new")
	require.ErrorContains(t, err, "bench-verbs z")
}

func TestMedian(t *testing.T) {
	middle, spread := median([]float64{3, 1, 2})
	require.Equal(t, 2.0, middle)
	require.Equal(t, 1.0, spread)
	require.Equal(t, "0.12", number(0.123))
	require.Equal(t, "12.3", number(12.34))
	require.Equal(t, "1235", number(1234.6))
}
