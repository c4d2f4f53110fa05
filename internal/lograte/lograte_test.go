package lograte

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var buf bytes.Buffer
		log := slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
		logged := func() string {
			defer buf.Reset()
			return buf.String()
		}
		var l Limiter
		l.Warn(log, "oops", "n", 1)
		require.Equal(t, "level=WARN msg=oops n=1\n", logged())
		time.Sleep(interval - 1)
		l.Warn(log, "oops", "n", 2)
		require.Equal(t, "level=DEBUG msg=oops n=2\n", logged())
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { l.Warn(log, "oops") })
		}
		wg.Wait()
		require.NotContains(t, logged(), "WARN")
		time.Sleep(time.Nanosecond)
		l.Warn(log, "oops", "n", 3)
		require.Equal(t, "level=WARN msg=oops n=3 left_out=21\n", logged())
		time.Sleep(interval)
		l.Warn(log, "oops", "n", 4)
		require.Equal(t, "level=WARN msg=oops n=4\n", logged())
		new(Limiter).Warn(log, "oops")
		require.Equal(t, "level=WARN msg=oops\n", logged())
	})
}
