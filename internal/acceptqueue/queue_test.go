package acceptqueue

import (
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

type accepted struct {
	c   int
	err error
}

// accept starts an Accept that waits.
func accept(q *Queue[int]) <-chan accepted {
	result := make(chan accepted, 1)
	go func() {
		c, err := q.Accept()
		result <- accepted{c, err}
	}()
	synctest.Wait()
	return result
}

func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New[int](2)
		first := accept(q)
		for i := range 3 {
			require.True(t, q.Put(i))
			synctest.Wait()
		}
		require.Equal(t, accepted{0, nil}, <-first)
		require.Equal(t, 2, q.Len())

		// There is room for two: the next one waits for an Accept.
		put := make(chan bool, 1)
		go func() { put <- q.Put(3) }()
		synctest.Wait()
		require.Empty(t, put)
		for i := range 3 {
			require.Equal(t, accepted{i + 1, nil}, <-accept(q))
		}
		require.True(t, <-put)
	})
}

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New[int](1)
		start := time.Now()
		waits := accept(q)
		require.NoError(t, q.SetDeadline(start.Add(time.Hour)))
		require.NoError(t, q.SetDeadline(start.Add(time.Minute))) // sooner
		require.ErrorIs(t, (<-waits).err, os.ErrDeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(start))

		// What is over is checked before what waits, which stays.
		require.True(t, q.Put(1))
		_, err := q.Accept()
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, q.SetDeadline(start.Add(time.Hour)))
		c, err := q.Accept()
		require.NoError(t, err)
		require.Equal(t, 1, c)

		waits = accept(q)
		require.NoError(t, q.SetDeadline(time.Time{}))
		time.Sleep(2 * time.Hour)
		require.Empty(t, waits)
		require.NoError(t, q.SetDeadline(time.Unix(1, 0)))
		require.ErrorIs(t, (<-waits).err, os.ErrDeadlineExceeded)
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New[int](1)
		waits := accept(q)
		require.False(t, q.IsClosed())
		require.True(t, q.Close())
		require.False(t, q.Close())
		require.True(t, q.IsClosed())
		require.Equal(t, accepted{0, net.ErrClosed}, <-waits)
		require.False(t, q.Put(1))
		require.ErrorIs(t, q.SetDeadline(time.Time{}), net.ErrClosed)
		require.Equal(t, accepted{0, net.ErrClosed}, <-accept(q))

		// What waits is not accepted any more, and drained; who waits for room gets his connection back.
		q = New[int](2)
		require.True(t, q.Put(1))
		require.True(t, q.Put(2))
		put := make(chan bool, 1)
		go func() { put <- q.Put(3) }()
		synctest.Wait()
		require.True(t, q.Close())
		require.False(t, <-put)
		require.Equal(t, accepted{0, net.ErrClosed}, <-accept(q))
		var left []int
		q.Drain(func(c int) { left = append(left, c) })
		require.Equal(t, []int{1, 2}, left)
		require.Zero(t, q.Len())
	})
}

func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New[int](2)
		waits := accept(q)
		gone := errors.New("the device is gone")
		q.End(gone)
		q.End(errors.New("again"))
		require.Equal(t, accepted{0, gone}, <-waits)

		// What came before the end comes first; a closed queue is closed.
		require.True(t, q.Put(1))
		require.True(t, q.Put(2))
		require.Equal(t, accepted{1, nil}, <-accept(q))
		require.Equal(t, accepted{2, nil}, <-accept(q))
		require.Equal(t, accepted{0, gone}, <-accept(q))
		require.True(t, q.Close())
		require.Equal(t, accepted{0, net.ErrClosed}, <-accept(q))
	})
}

// Each connection is accepted, refused to its Put, or drained: none is lost, and none is there twice.
func TestNothingIsLost(t *testing.T) {
	for range 100 {
		q := New[int](3)
		const n = 50
		var seen [n]int
		var mu sync.Mutex
		note := func(c int) {
			mu.Lock()
			seen[c]++
			mu.Unlock()
		}
		var putting, accepting sync.WaitGroup
		for i := range n {
			putting.Go(func() {
				if !q.Put(i) {
					note(i)
				}
			})
		}
		for range 4 {
			accepting.Go(func() {
				for {
					c, err := q.Accept()
					if err != nil {
						return
					}
					note(c)
					if c == n/2 {
						q.Close()
					}
				}
			})
		}
		accepting.Go(func() {
			for q.SetDeadline(time.Now().Add(time.Hour)) == nil {
			}
		})
		putting.Wait()
		q.Close()
		accepting.Wait()
		q.Drain(note)
		for i, times := range seen {
			require.Equal(t, 1, times, i)
		}
	}
}
