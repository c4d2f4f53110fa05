//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd

package compat

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"
)

// peeker looks at bytes that stay in the socket, so that the connection can be handed on as it is. It needs a poller that tells of
// each arrival of bytes, also behind others that nobody has read: Go's is edge-triggered on these systems.
type peeker struct {
	tcp  *net.TCPConn
	raw  syscall.RawConn
	buf  [len(mpaKey)]byte
	seen int
}

func newPeeker(c *net.TCPConn) looker {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	return &peeker{tcp: c, raw: raw}
}

func (p *peeker) now() verdict { return p.look(false) }

func (p *peeker) wait(limit time.Duration) verdict {
	defer p.tcp.SetReadDeadline(time.Time{})
	if err := p.tcp.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return isGone
	}
	return p.look(true)
}

// look looks once, or until there is something new.
func (p *peeker) look(wait bool) verdict {
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
		return verdictOf(nil, rerr)
	case errors.Is(err, syscall.EAGAIN):
		return undecided
	case err == nil && n == 0:
		err = io.EOF
	}
	p.seen = max(n, 0) // an error is -1
	return verdictOf(p.buf[:p.seen], err)
}

func (p *peeker) conn() net.Conn { return p.tcp }
