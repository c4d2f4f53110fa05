package main

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// push sends messages on all connections at once, each as fast as it may, until all of them together have sent Count, and waits until
// they have arrived. It returns how much the one that differs most differs from an equal share: 0.2 is a fifth more, or less.
func (w *worker) push(t task) (took time.Duration, uneven float64, err error) {
	var left atomic.Int64
	left.Store(int64(t.Count))
	sent := make([]int, len(w.conns))
	var wg sync.WaitGroup
	start := time.Now()
	for i, c := range w.conns {
		wg.Go(func() {
			if err := pushOne(c, t.Size, &left, &sent[i]); err != nil {
				w.fail(err)
			}
		})
	}
	wg.Wait()
	took = time.Since(start)
	w.mu.Lock()
	defer w.mu.Unlock()
	return took, unevenness(sent), w.err
}

func pushOne(c net.Conn, size int, left *atomic.Int64, sent *int) error {
	buf := make([]byte, size)
	for left.Add(-1) >= 0 {
		if _, err := c.Write(buf); err != nil {
			return err
		}
		*sent++
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err
	}
	_, err := io.ReadFull(c, buf[:1])
	return err
}

// unevenness is the largest difference from the mean, as a part of the mean.
func unevenness(counts []int) (most float64) {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	if sum == 0 {
		return 0 // there was an error
	}
	mean := float64(sum) / float64(len(counts))
	for _, n := range counts {
		most = max(most, float64(n)/mean-1, 1-float64(n)/mean)
	}
	return most
}
