//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd

package compat

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// peeker looks at bytes that stay in the socket, so that the connection can be handed on as it is. It needs a poller that tells of
// each arrival of bytes, also behind others that nobody has read: Go's is edge-triggered on these systems.
type peeker struct {
	tcp  *net.TCPConn
	raw  syscall.RawConn
	buf  [mpaHeader + mpaMaxPrivate]byte
	seen int
}

func newPeeker(c *net.TCPConn) looker {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	return &peeker{tcp: c, raw: raw}
}

func (p *peeker) now() verdict {
	err := p.look(false)
	if err == syscall.EAGAIN {
		return undecided
	}
	return verdictOf(p.buf[:p.seen], err)
}

// wait looks once more when the time is over: a busy process may hear of that before it hears of bytes.
func (p *peeker) wait(until time.Time) verdict {
	err := p.tcp.SetReadDeadline(until)
	if err == nil {
		err = p.look(true)
	}
	_ = p.tcp.SetReadDeadline(time.Time{})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if late := p.look(false); late != syscall.EAGAIN {
			err = late
		}
	}
	return verdictOf(p.buf[:p.seen], err)
}

// look looks once, or until there is something new; without that the error is syscall.EAGAIN.
func (p *peeker) look(wait bool) error {
	n, err := 0, error(nil)
	rerr := p.raw.Read(func(fd uintptr) bool {
		for {
			n, _, err = syscall.Recvfrom(int(fd), p.buf[:], syscall.MSG_PEEK)
			if err != syscall.EINTR {
				break
			}
		}
		if err == nil && n > 0 && n == p.seen {
			// A reset does not show before these bytes have been read.
			if code, _ := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR); code != 0 {
				err = syscall.Errno(code)
			} else {
				err = syscall.EAGAIN
			}
		}
		return err != syscall.EAGAIN || !wait
	})
	switch {
	case rerr != nil:
		return rerr
	case err != nil:
		return err
	case n == 0:
		return io.EOF
	}
	p.seen = n
	return nil
}

func (p *peeker) conn() net.Conn { return p.tcp }
