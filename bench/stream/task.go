package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// The kinds of work.
const (
	transfer = "transfer" // what rstream does: messages one way, then as many back; again and again
	duplex   = "duplex"   // both directions at once
	share    = "share"    // one way on many connections at once
	fan      = "fan"      // small messages and their echoes on many connections
	connects = "connects" // connect, one byte, close
	requests = "requests" // of net/http
	file     = "file"     // from a file to a connection by io.Copy
	idle     = "idle"     // nothing
)

// task is work with its numbers.
type task struct {
	Kind  string
	Size  int // bytes of a message
	Count int // messages before the direction turns; connections made; requests
	Iters int // times that it turns
	Conns int // connections at once
}

// messages is how many there are of a task, both directions together.
func (t task) messages() int {
	switch t.Kind {
	case transfer:
		return 2 * t.Count * t.Iters
	case duplex:
		return 2 * t.Count
	case fan:
		return 2 * t.Conns * t.Iters
	}
	return t.Count
}

// syncSize is the size of rstream's first messages, one each way.
const syncSize = 16

// transfer plays one side of rstream. It returns the times of the turns, in both directions together.
func (t task) transfer(c net.Conn, first bool) (took time.Duration, times []time.Duration, err error) {
	buf := make([]byte, max(t.Size, syncSize))
	turn := func(send bool, size, count int) error {
		for range count {
			if send {
				if _, err := c.Write(buf[:size]); err != nil {
					return err
				}
			} else if _, err := io.ReadFull(c, buf[:size]); err != nil {
				return err
			}
		}
		return nil
	}
	if err := errors.Join(turn(first, syncSize, 1), turn(!first, syncSize, 1)); err != nil {
		return 0, nil, err
	}
	times = make([]time.Duration, 0, t.Iters)
	start := time.Now()
	last := start
	for range t.Iters {
		if err := turn(first, t.Size, t.Count); err != nil {
			return 0, nil, err
		}
		if err := turn(!first, t.Size, t.Count); err != nil {
			return 0, nil, err
		}
		now := time.Now()
		times = append(times, now.Sub(last))
		last = now
	}
	return last.Sub(start), times, nil
}

// duplex sends and receives at the same time. A byte each way before and after brings both sides to the same time.
func (t task) duplex(c net.Conn, first bool) (time.Duration, error) {
	meet := task{Size: 1, Count: 1, Iters: 1}
	if _, _, err := meet.transfer(c, first); err != nil {
		return 0, err
	}
	start := time.Now()
	sent := make(chan error, 1)
	go func() {
		buf := make([]byte, t.Size)
		for range t.Count {
			if _, err := c.Write(buf); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	buf := make([]byte, t.Size)
	for range t.Count {
		if _, err := io.ReadFull(c, buf); err != nil {
			return 0, errors.Join(err, c.Close(), <-sent)
		}
	}
	if err := <-sent; err != nil {
		return 0, err
	}
	_, _, err := meet.transfer(c, first)
	return time.Since(start), err
}

// serve is the part of the side that accepts.
func (w *worker) serve(t task) {
	if t.Kind == requests {
		w.serveHTTP()
		return
	}
	for {
		c, err := w.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			w.fail(err)
			return
		}
		if t.Kind != connects {
			w.add(c)
		}
		w.wg.Go(func() {
			if err := t.answer(c); err != nil {
				w.fail(fmt.Errorf("%s, %d bytes, the serving side: %w", t.Kind, t.Size, err))
			}
		})
	}
}

// answer does the accepting side's part on a connection, until the other side has ended it.
func (t task) answer(c net.Conn) error {
	var err error
	switch t.Kind {
	case transfer:
		_, _, err = t.transfer(c, false)
	case fan:
		return t.echo(c)
	case duplex:
		_, err = t.duplex(c, false)
	case file:
		err = t.take(c)
	}
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, c); err != nil {
		return err
	}
	switch t.Kind {
	case connects:
		return c.Close()
	case share:
		_, err = c.Write([]byte{1})
	}
	return err
}

// echo sends every message back, until there are no more.
func (t task) echo(c net.Conn) error {
	buf := make([]byte, t.Size)
	for {
		if _, err := io.ReadFull(c, buf); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
}

// ask sends messages and waits for the echo of each.
func (t task) ask(c net.Conn) ([]time.Duration, error) {
	buf := make([]byte, t.Size)
	times := make([]time.Duration, t.Iters)
	for i := range times {
		start := time.Now()
		if _, err := c.Write(buf); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			return nil, err
		}
		times[i] = time.Since(start)
	}
	return times, nil
}

// take receives files, and answers each with a byte.
func (t task) take(c net.Conn) error {
	buf := make([]byte, min(t.Size, 1<<20))
	for range t.Count {
		for left := t.Size; left > 0; {
			n, err := c.Read(buf[:min(left, len(buf))])
			if left -= n; left > 0 && err != nil {
				return err
			}
		}
		if _, err := c.Write(buf[:1]); err != nil {
			return err
		}
	}
	return nil
}

// run is the part of the side that has connected.
func (w *worker) run(q request) (r reply, err error) {
	t := q.Task
	switch t.Kind {
	case transfer:
		var turns []time.Duration
		r.Took, turns, err = t.transfer(w.conns[0], true)
		if t.Count == 1 {
			r.Times = quantiles(turns, 2)
		}
	case duplex:
		r.Took, err = t.duplex(w.conns[0], true)
	case fan:
		r.Took, r.Times, err = w.fan(t)
	case connects:
		r.Took, err = t.connects(q)
	case requests:
		r.Took, r.Times, err = t.requests(q)
	case file:
		r.Took, err = t.send(w.conns[0])
	case share:
		r.Took, r.Uneven, err = w.push(t)
	}
	return r, err
}

// fan keeps all connections busy. The times are those of round trips.
func (w *worker) fan(t task) (time.Duration, []float64, error) {
	turns := make([][]time.Duration, len(w.conns))
	var wg sync.WaitGroup
	start := time.Now()
	for i, c := range w.conns {
		wg.Go(func() {
			var err error
			if turns[i], err = t.ask(c); err != nil {
				w.fail(err)
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	w.mu.Lock()
	defer w.mu.Unlock()
	return took, quantiles(slices.Concat(turns...), 1), w.err
}

// connects makes and ends connections, one after the other.
func (t task) connects(q request) (time.Duration, error) {
	start := time.Now()
	for range t.Count {
		c, err := q.Transport.dial(q.Addr)
		if err != nil {
			return 0, err
		}
		if _, err := c.Write([]byte{1}); err != nil {
			return 0, errors.Join(err, c.Close())
		}
		if err := c.Close(); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// send copies a file to the connection, again and again.
func (t task) send(c net.Conn) (time.Duration, error) {
	f, err := os.CreateTemp("", "bench")
	if err != nil {
		return 0, err
	}
	defer func() { _ = errors.Join(f.Close(), os.Remove(f.Name())) }()
	if _, err := f.Write(make([]byte, t.Size)); err != nil {
		return 0, err
	}
	start := time.Now()
	for range t.Count {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return 0, err
		}
		if _, err := io.Copy(c, f); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// quantiles are 200 points of the distribution of times, each divided by parts, in µs.
func quantiles(times []time.Duration, parts float64) []float64 {
	if len(times) == 0 {
		return nil
	}
	slices.Sort(times)
	points := make([]float64, 200)
	for i := range points {
		at := (2*i + 1) * len(times) / (2 * len(points))
		points[i] = float64(times[at].Nanoseconds()) / 1e3 / parts
	}
	return points
}
