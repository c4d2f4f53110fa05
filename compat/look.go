package compat

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// mpaKey begins an MPA request (RFC 5044, section 7.1.1).
const mpaKey = "MPA ID Req Frame"

// What follows the key: flags, revision and the size of the private data, then these.
const (
	mpaHeader     = len(mpaKey) + 4
	mpaMaxPrivate = 512
)

// verdict is what the first bytes tell.
type verdict int

const (
	undecided verdict = iota
	isKey             // of an MPA request that is not complete
	isPlain
	isMPA  // a complete request, or more
	isGone // reset, or closed here
)

// judge looks at the first bytes.
func judge(b []byte) verdict {
	n := min(len(b), len(mpaKey))
	switch {
	case string(b[:n]) != mpaKey[:n]:
		return isPlain
	case n < len(mpaKey):
		return undecided
	case len(b) < wanted(b):
		return isKey
	}
	return isMPA
}

// wanted is how many bytes an MPA request has that begins with b, as far as that is known. One of a wrong size is for the software device to
// refuse.
func wanted(b []byte) int {
	if len(b) < mpaHeader {
		return mpaHeader
	}
	if n := int(binary.BigEndian.Uint16(b[mpaHeader-2:])); n <= mpaMaxPrivate {
		return mpaHeader + n
	}
	return mpaHeader
}

// looker looks at the first bytes of a connection.
type looker interface {
	// now looks without waiting, wait until there is one byte more, or until the time is over.
	now() verdict
	wait(until time.Time) verdict

	// conn is the connection with all its bytes.
	conn() net.Conn
}

// newLooker prefers to leave the bytes where they are.
func newLooker(c net.Conn) looker {
	if tcp, ok := c.(*net.TCPConn); ok {
		if l := newPeeker(tcp); l != nil {
			return l
		}
	}
	return &begun{Conn: c}
}

// verdictOf is what the end of a read or a look tells. A client that closes its direction without a word may still listen.
func verdictOf(seen []byte, err error) verdict {
	switch {
	case err == nil:
		return judge(seen)
	case err != io.EOF && !errors.Is(err, os.ErrDeadlineExceeded), judge(seen) == isKey:
		return isGone
	}
	return isPlain
}

// begun is a connection of which the first bytes have been read.
type begun struct {
	net.Conn

	mu   sync.Mutex
	head []byte // not given to Read yet
}

func (b *begun) now() verdict { return undecided }

func (b *begun) wait(until time.Time) verdict {
	defer b.SetReadDeadline(time.Time{})
	if err := b.SetReadDeadline(until); err != nil {
		return isGone
	}
	buf := make([]byte, wanted(b.head)-len(b.head))
	n, err := b.Conn.Read(buf)
	b.head = append(b.head, buf[:n]...)
	if n > 0 {
		err = nil // it comes again
	}
	return verdictOf(b.head, err)
}

func (b *begun) conn() net.Conn { return b }

// Read gives the first bytes, then those of the connection.
func (b *begun) Read(p []byte) (int, error) {
	b.mu.Lock()
	if n := copy(p, b.head); n > 0 {
		b.head = b.head[n:]
		b.mu.Unlock()
		return n, nil
	}
	b.mu.Unlock()
	return b.Conn.Read(p)
}

// CloseWrite ends the sending direction, where the connection can.
func (b *begun) CloseWrite() error {
	if c, ok := b.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}

// CloseRead ends the receiving direction, where the connection can.
func (b *begun) CloseRead() error {
	if c, ok := b.Conn.(interface{ CloseRead() error }); ok {
		return c.CloseRead()
	}
	return errors.ErrUnsupported
}

// SetLinger is the TCP connection's.
func (b *begun) SetLinger(sec int) error {
	if c, ok := b.Conn.(interface{ SetLinger(int) error }); ok {
		return c.SetLinger(sec)
	}
	return errors.ErrUnsupported
}
