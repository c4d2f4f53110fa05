package softiwarp

import (
	"log/slog"
	"time"
)

// MSS as Config.MaxFPDU makes FPDUs that fit one TCP segment.
const MSS = -1

// Config shapes a software device. The zero value is usable.
type Config struct {
	// CRC asks the peer for CRC32C on every FPDU. A peer that asks gets it in any case.
	//
	// Leave it off where peers are Linux's soft-iWARP, which asks for none by itself: when TCP brings pad and CRC of an FPDU in two parts, it
	// (siw_get_trailer in 6.1) writes the second over the first, finds the CRC wrong, and ends the connection.
	CRC bool

	// MaxFPDU limits the bytes of an FPDU that is sent: at least 128, or MSS. 0: 64512 bytes of payload, which suits software; RDMA
	// NICs may want MSS.
	MaxFPDU int

	// PortMapper answers the iWARP port mapper's requests, on UDP port 3935, with "not mapped". Without an answer, hosts on which iwpmd
	// runs take 10 s to connect to this one. A taken port is left to its owner.
	PortMapper bool

	// RequestTimeout is how long a peer that has connected to a listener may take for its MPA request. 0: 5 s.
	RequestTimeout time.Duration

	// ReplyTimeout is how long Connect waits for the MPA reply. 0: 10 s.
	ReplyTimeout time.Duration

	// UserTimeout is how long sent data may stay without TCP's acknowledgement until the connection is broken
	// (TCP_USER_TIMEOUT, Linux). 0: 60 s.
	UserTimeout time.Duration

	// Logger takes what is nobody's error. Nil: slog.Default().
	Logger *slog.Logger
}

const (
	defaultPayload = 64512
	minFPDU        = 128
)

func (c Config) populate() Config {
	orDefault := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	orDefault(&c.RequestTimeout, 5*time.Second)
	orDefault(&c.ReplyTimeout, 10*time.Second)
	orDefault(&c.UserTimeout, 60*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// payload is the most payload of one FPDU, given a TCP segment's size. It is a multiple of 4, so that only a message's last FPDU has a
// pad.
func (c *Config) payload(mss int) int {
	fpdu := c.MaxFPDU
	switch {
	case fpdu == 0:
		return defaultPayload
	case fpdu < 0:
		fpdu = mss
	}
	return min(max(fpdu, minFPDU)-untaggedSize-crcSize, defaultPayload) &^ 3
}
