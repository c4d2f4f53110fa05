package rconn

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/rconn/rdma/internal/lograte"
	"github.com/rconn/rdma/ring"
	"github.com/rconn/rdma/verbs"
)

// Config shapes connections. The zero value is usable; each field says what its zero means. A copy is taken when a
// connection is made.
type Config struct {
	// Device restricts the choice of device: the name of one, such as "mlx5_0", or "software" for the software device, or
	// "no-software" for all but that. Where it does not serve the address, Dial and Listen fail with verbs.ErrNoDevice.
	// Empty: what the environment variable RCONN_DEVICE says, and if that is empty too, any device.
	Device string

	// SendBuffer and RecvBuffer are the sizes in bytes of the rings that a connection registers: pinned memory. The
	// receive ring bounds what a peer may have under way. 0: 64 KiB and 128 KiB, and for a connection that carries bulk 512 KiB and 2 MiB
	// besides, from then on; on an iWARP device of the system 512 KiB each; on a device that does not lock memory, where only what
	// was used costs something, 1 MiB and 2 MiB. 2 bytes to 1 GiB; an odd RecvBuffer is rounded up. Except on
	// iWARP a listener keeps up to 1 MiB of connections that have ended for those that come, but not for longer than 4 s.
	SendBuffer, RecvBuffer int

	growSend, growRecv int // sizes for a connection that carries bulk; 0: the rings stay as they are

	// Credits is the number of messages that the peer may send ahead. Each costs a receive, with the device's memory
	// for it. 0: 256. 1 to 65534, less where the device has less.
	Credits int

	// SendQueue is the number of entries of the send queue. 0: 128. At least 16, less where the device has less.
	SendQueue int

	// Spin is how long a call that must wait watches the completion queue before it sleeps, or on the software device its TCP socket, while
	// no other connection is busy. Spinning saves a wake-up and costs a processor. It is given up for a while when it does not help.
	// 0: 20 µs. Negative: never.
	Spin time.Duration

	// Linger is how long Close waits at most for the peer's device to acknowledge what was written. 0: 3 s. Negative: not
	// at all, what is under way is lost.
	Linger time.Duration

	// KeepAlive is how long nothing may be heard from the peer's device before it is asked for a sign of life, and
	// KeepAliveTimeout how long it has for that; then the connection is broken, with syscall.ETIMEDOUT. KeepAlive may take up to an
	// eighth longer: many connections ask at once, so that an idle process seldom wakes up. It is the peer's
	// device that must answer, not its program. 0: 15 s and 5 s. A negative KeepAlive turns it off. On iWARP a
	// peer can refuse such questions when the connection is made, as C programs that dial do; TCP's own limits are left then.
	KeepAlive, KeepAliveTimeout time.Duration

	// HandshakeTimeout limits the exchange that makes a connection, after the address was resolved. 0: 10 s.
	HandshakeTimeout time.Duration

	// AckTimeout is how long a device waits for an acknowledgement before it sends again: 4.096 µs × 2^n. Six tries
	// later a link counts as dead. 0: 16, about 0.27 s. 1 to 31. Not used on iWARP.
	AckTimeout uint8

	// Monitor gets to know the connections, and the listeners that make them. Nil: nobody does.
	Monitor *Monitor

	// Logger gets events that no call can return. Nil: slog.Default().
	Logger *slog.Logger

	warnings *lograte.Limiter // those about peers; a listener's connections share it
}

// The defaults.
const (
	defaultSend             = 64 << 10
	defaultRecv             = 128 << 10
	defaultIWARP            = 512 << 10
	defaultBulkSend         = 512 << 10
	defaultBulkRecv         = 2 << 20
	defaultUnlockedSend     = 1 << 20
	defaultUnlockedRecv     = 2 << 20
	defaultCredits          = 256
	defaultSendQueue        = 128
	defaultSpin             = 20 * time.Microsecond
	defaultLinger           = 3 * time.Second
	defaultKeepAlive        = 15 * time.Second
	defaultKeepAliveTimeout = 5 * time.Second
	defaultHandshakeTimeout = 10 * time.Second
	defaultAckTimeout       = 16
)

// wantInline is the inline size asked of the device. It saves the device a read of small payloads; the table entries and the
// messages of iWARP are small.
const wantInline = 64

// orDefault is v, or d where v is its zero.
func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// populate returns a copy with the defaults filled in that do not depend on the device, or says what is out of bounds.
func (c Config) populate() (Config, error) {
	c.Device = chosenDevice(c.Device)
	c.RecvBuffer += c.RecvBuffer & 1
	c.Credits = orDefault(c.Credits, defaultCredits)
	c.SendQueue = orDefault(c.SendQueue, defaultSendQueue)
	c.Spin = max(0, orDefault(c.Spin, defaultSpin))
	c.Linger = orDefault(c.Linger, defaultLinger)
	c.KeepAlive = orDefault(c.KeepAlive, defaultKeepAlive)
	c.KeepAliveTimeout = orDefault(c.KeepAliveTimeout, defaultKeepAliveTimeout)
	c.HandshakeTimeout = orDefault(c.HandshakeTimeout, defaultHandshakeTimeout)
	c.AckTimeout = orDefault(c.AckTimeout, defaultAckTimeout)
	c.Logger = orDefault(c.Logger, slog.Default())
	c.warnings = new(lograte.Limiter)
	switch {
	case c.SendBuffer < 0 || c.SendBuffer > ring.MaxRing:
		return c, outOfBounds("SendBuffer", c.SendBuffer)
	case c.RecvBuffer < 0 || c.RecvBuffer > ring.MaxRing:
		return c, outOfBounds("RecvBuffer", c.RecvBuffer)
	case c.Credits < ring.MinCredits || c.Credits > ring.MaxCredits:
		return c, outOfBounds("Credits", c.Credits)
	case c.SendQueue < ring.MinSendQueue:
		return c, outOfBounds("SendQueue", c.SendQueue)
	case c.HandshakeTimeout < 0:
		return c, outOfBounds("HandshakeTimeout", c.HandshakeTimeout)
	case c.KeepAliveTimeout < 0:
		return c, outOfBounds("KeepAliveTimeout", c.KeepAliveTimeout)
	case c.AckTimeout > 31:
		return c, outOfBounds("AckTimeout", c.AckTimeout)
	}
	return c, nil
}

func outOfBounds(field string, v any) error {
	return fmt.Errorf("rconn: Config.%s is out of bounds: %v", field, v)
}

// fit fills in the sizes that depend on the device, and lowers those of the queues to what it has.
func (c Config) fit(a verbs.DeviceAttr) (Config, error) {
	send, recv := defaultSend, defaultRecv
	switch {
	case !a.Caps.LocksMemory:
		send, recv = defaultUnlockedSend, defaultUnlockedRecv
	case a.Transport == verbs.TransportIWARP:
		// Of these there was only Linux's soft-iWARP to try. Where the peer wants CRCs it breaks the connection now and then (see
		// softiwarp.Config), with rings that had grown in most runs of a test and with these in none of six.
		send, recv = defaultIWARP, defaultIWARP
	default:
		if c.SendBuffer == 0 {
			c.growSend = defaultBulkSend
		}
		if c.RecvBuffer == 0 {
			c.growRecv = defaultBulkRecv
		}
	}
	c.SendBuffer, c.RecvBuffer = orDefault(c.SendBuffer, send), orDefault(c.RecvBuffer, recv)
	if a.MaxQPWR > 0 {
		c.SendQueue = min(c.SendQueue, a.MaxQPWR)
		c.Credits = min(c.Credits, a.MaxQPWR-ring.ReceiveReserve)
	}
	if a.MaxCQE > 0 {
		c.SendQueue = min(c.SendQueue, a.MaxCQE/2)
		c.Credits = min(c.Credits, a.MaxCQE-c.SendQueue-ring.ReceiveReserve)
	}
	if c.SendQueue < ring.MinSendQueue || c.Credits < ring.MinCredits {
		return c, fmt.Errorf("the device's queues are too small: %d work requests, %d completions", a.MaxQPWR, a.MaxCQE)
	}
	return c, nil
}
