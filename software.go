package rdma

import (
	"log/slog"
	"sync"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/internal/softiwarp"
)

// MSS as SoftwareConfig.MaxFPDU makes FPDUs that fit one TCP segment.
const MSS = softiwarp.MSS

// SoftwareConfig shapes a software device. The zero value is usable.
type SoftwareConfig struct {
	// CRC asks the peer for CRC32C on every FPDU. A peer that asks gets it in any case.
	CRC bool

	// MaxFPDU limits the bytes of an FPDU, iWARP's unit on the TCP stream, that is sent: at least 128, or MSS. 0: 64512 bytes of
	// payload, which suits software; RDMA NICs may want MSS.
	MaxFPDU int

	// PortMapper answers the iWARP port mapper's requests, on UDP port 3935, with "not mapped". Without an answer, Linux hosts on
	// which iwpmd runs take 10 s to connect to this one. A taken port is left to its owner.
	PortMapper bool

	// RequestTimeout is how long a peer that has connected to a listener may take for its request. 0: 5 s.
	RequestTimeout time.Duration

	// ReplyTimeout is how long Connect waits for the answer. 0: 10 s.
	ReplyTimeout time.Duration

	// UserTimeout is how long sent data may stay without TCP's acknowledgement until the connection is broken
	// (TCP_USER_TIMEOUT, Linux). 0: 60 s.
	UserTimeout time.Duration

	// Logger takes what is nobody's error. Nil: slog.Default().
	Logger *slog.Logger
}

// Software makes a software device: iWARP over ordinary TCP connections, in this process. It needs no driver and no rights, serves
// all addresses of this host, loopback too, and its peers are software devices and iWARP devices. rdma.Providers has one
// with the zero configuration.
func Software(c SoftwareConfig) cm.Provider { return softiwarp.New(softiwarp.Config(c)) }

var software = sync.OnceValue(func() cm.Provider { return Software(SoftwareConfig{}) })
