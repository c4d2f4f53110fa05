package compat

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// mpaKey begins an MPA request (RFC 5044, section 7.1.1).
const mpaKey = "MPA ID Req Frame"

// verdict is what the first bytes tell.
type verdict int

const (
	undecided verdict = iota
	isPlain
	isMPA
	isGone // reset, or closed here
)

// judge looks at the first bytes.
func judge(b []byte) verdict {
	n := min(len(b), len(mpaKey))
	switch {
	case string(b[:n]) != mpaKey[:n]:
		return isPlain
	case n == len(mpaKey):
		return isMPA
	}
	return undecided
}

// looker looks at the first bytes of a connection.
type looker interface {
	// now looks without waiting, wait until there is one byte more, or until the limit.
	now() verdict
	wait(limit time.Duration) verdict

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
	case err == io.EOF, errors.Is(err, os.ErrDeadlineExceeded):
		return isPlain
	}
	return isGone
}

// begun is a connection of which the first bytes have been read.
type begun struct {
	net.Conn

	mu   sync.Mutex
	head []byte // not given to Read yet
}

func (b *begun) now() verdict { return undecided }

func (b *begun) wait(limit time.Duration) verdict {
	defer b.SetReadDeadline(time.Time{})
	if err := b.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return isGone
	}
	buf := make([]byte, len(mpaKey)-len(b.head))
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
