package rconn

import (
	"fmt"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/verbs/verbstest"
)

// hot measures a stream of Writes at one end and Reads at the other, or round trips. It fails where they allocate: with
// -benchtime=100x or more it is a test of that.
func hot(b *testing.B, dev device, size int, answered bool) {
	d, a := dev.network(b, Config{KeepAlive: -1, Linger: -1}).pair(b)
	sent, got := make([]byte, size), make([]byte, size)
	run := func(n int) {
		done := make(chan error, 1)
		go func() {
			var err error
			for range n {
				if _, err = io.ReadFull(a, got); err == nil && answered {
					_, err = a.Write(got)
				}
				if err != nil {
					break
				}
			}
			done <- err
		}()
		for range n {
			_, err := d.Write(sent)
			require.NoError(b, err)
			if answered {
				_, err = io.ReadFull(d, sent)
				require.NoError(b, err)
			}
		}
		require.NoError(b, <-done)
	}
	run(300) // until rings have grown and queues have their storage
	b.SetBytes(int64(size))
	b.ReportAllocs()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.ResetTimer()
	run(b.N)
	b.StopTimer()
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; b.N >= 100 && n >= uint64(b.N) {
		b.Errorf("%d objects allocated in %d operations", n, b.N)
	}
	require.NoError(b, d.Close())
	require.NoError(b, a.Close())
}

func BenchmarkWrite(b *testing.B) { sizes(b, false, 64, 1<<10, 64<<10, 1<<20) }

func BenchmarkRoundTrip(b *testing.B) { sizes(b, true, 64, 4<<10, 64<<10) }

func sizes(b *testing.B, answered bool, sizes ...int) {
	for name, dev := range map[string]device{"fabric": {new(verbstest.Config)}, "software": {}} {
		for _, size := range sizes {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) { hot(b, dev, size, answered) })
		}
	}
}
