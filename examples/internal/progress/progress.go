// Package progress tells how far a long transfer is.
package progress

import (
	"fmt"
	"io"
	"time"
)

const interval = 250 * time.Millisecond

// Writer counts what is written to it and prints a line now and then.
type Writer struct {
	out         io.Writer
	done, total int64
	start, next time.Time
}

// New makes a Writer that prints to out. total is the number of bytes that will come; below 1 it is not known.
func New(out io.Writer, total int64) *Writer {
	now := time.Now()
	return &Writer{out: out, total: total, start: now, next: now.Add(interval)}
}

// Write implements io.Writer. It fails never.
func (w *Writer) Write(b []byte) (int, error) {
	w.done += int64(len(b))
	now := time.Now()
	if now.Before(w.next) {
		return len(b), nil
	}
	w.next = now.Add(interval)
	rate := float64(w.done>>20) / now.Sub(w.start).Seconds()
	if w.total > 0 {
		fmt.Fprintf(w.out, "%d of %d MiB (%d%%), %.0f MiB/s\n", w.done>>20, w.total>>20, w.done*100/w.total, rate)
	} else {
		fmt.Fprintf(w.out, "%d MiB, %.0f MiB/s\n", w.done>>20, rate)
	}
	return len(b), nil
}
