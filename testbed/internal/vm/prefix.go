package vm

import (
	"bytes"
	"io"
	"sync"
)

// A PrefixWriter puts a prefix before each line. Writers that share Out and Mu
// do not mix their lines.
type PrefixWriter struct {
	Prefix string
	Out    io.Writer
	Mu     *sync.Mutex

	partial []byte
}

func (w *PrefixWriter) Write(p []byte) (int, error) {
	w.partial = append(w.partial, p...)
	for {
		line, rest, found := bytes.Cut(w.partial, []byte("\n"))
		if !found {
			return len(p), nil
		}
		if err := w.emit(line); err != nil {
			return 0, err
		}
		w.partial = rest
	}
}

// Flush ends a last line that has no end of its own.
func (w *PrefixWriter) Flush() error {
	if len(w.partial) == 0 {
		return nil
	}
	line := w.partial
	w.partial = nil
	return w.emit(line)
}

func (w *PrefixWriter) emit(line []byte) error {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	_, err := io.WriteString(w.Out, w.Prefix+string(line)+"\n")
	return err
}
