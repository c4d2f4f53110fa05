package main

import (
	"io"
	"sync"
)

// A connection that waits holds a small buffer for each direction; one that has much to carry a large one, as long as that is so.
// The ReadFrom and WriteTo of rconn are not used: they hold a large one all the time.
const (
	smallBuffer = 4 << 10
	largeBuffer = 256 << 10
)

var largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}

// relay copies until the end of src, and reports each piece to moved. It returns errGone when dst takes nothing more because its
// peer has closed.
func relay(dst io.Writer, src io.Reader, moved func(int)) error {
	small := make([]byte, smallBuffer)
	var large *[largeBuffer]byte
	put := func() {
		if large != nil {
			largeBuffers.Put(large)
			large = nil
		}
	}
	defer put()
	for {
		buf := small
		if large != nil {
			buf = large[:]
		}
		n, err := src.Read(buf)
		if n > 0 {
			k, err := dst.Write(buf[:n])
			moved(k)
			if err != nil {
				return writeError(err)
			}
		}
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		switch {
		case n <= smallBuffer && large != nil:
			put()
		case n == smallBuffer:
			large = largeBuffers.Get().(*[largeBuffer]byte)
		}
	}
}
