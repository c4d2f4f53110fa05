package progress

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var known, unknown strings.Builder
		writers := []*Writer{New(&known, 8<<20), New(&unknown, -1)}
		for range 4 {
			for _, w := range writers {
				n, err := w.Write(make([]byte, 1<<20))
				require.NoError(t, err)
				require.Equal(t, 1<<20, n)
			}
			time.Sleep(125 * time.Millisecond)
		}
		require.Equal(t, "3 of 8 MiB (37%), 12 MiB/s\n", known.String())
		require.Equal(t, "3 MiB, 12 MiB/s\n", unknown.String())
	})
}
