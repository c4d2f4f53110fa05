package softiwarp

import (
	"net"
	"syscall"
	"time"
)

// stream is a connection's TCP stream. Where the system has it, raw reads and writes without blocking and scatters and gathers; a
// wrapped net.Conn and other systems have Read and Write only.
type stream struct {
	conn net.Conn
	raw  syscall.RawConn // nil: conn alone
}

var longAgo = time.Unix(1, 0)

// interruptRead makes a read return os.ErrDeadlineExceeded, now or the next time; resumeRead ends that.
func (s *stream) interruptRead()  { _ = s.conn.SetReadDeadline(longAgo) }
func (s *stream) resumeRead()     { _ = s.conn.SetReadDeadline(time.Time{}) }
func (s *stream) interruptWrite() { _ = s.conn.SetWriteDeadline(longAgo) }
