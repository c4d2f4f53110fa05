package rconn

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/rconn/rdma/verbs"
)

// Snapshot is what a Monitor knows at one moment.
type Snapshot struct {
	Time      time.Time
	Conns     []ConnStatus     // open connections
	Listeners []ListenerStatus // open listeners
	Totals    []Total          // all connections, open and closed, each in one Total
}

// ConnStatus is an open connection.
type ConnStatus struct {
	Info
	Stats

	State         State
	Err           error // why it is broken
	Local, Remote netip.AddrPort
	Listener      netip.AddrPort // where it was accepted; not valid: it was dialed
	Since         time.Time      // when it was made
	Heard         time.Time      // when something last came from the peer's device, as far as a call or keepalive has looked
	CreditsLeft   int            // messages of Info.PeerCredits that may be sent now; the last few, 8 at most, are not for data
	Unread        int            // bytes that arrived and wait for Read
	Unsent        int            // bytes written that wait for company, credits, space at the peer, or the device
}

// ListenerStatus is an open listener. Opened, Open and Stats are of the connections that were made, whether Accept has returned them or not.
type ListenerStatus struct {
	ListenerStats
	Stats

	Network string
	Addr    netip.AddrPort
	Devices []string // what serves the address; an empty name stands for any device
	Lost    bool     // the devices that served the address were removed
	Since   time.Time
	Opened  uint64
	Open    int // of these, open now
}

// ListenerStats counts what a listener has done.
type ListenerStats struct {
	Accepted   uint64 // connections that Accept has returned
	Failed     uint64 // handshakes that made no connection; the log says why
	Handshakes int    // under way now, and connections that find no place to wait for Accept
	Waiting    int    // connections that wait for Accept now
}

// Total sums connections, those that are closed too.
type Total struct {
	Stats

	// What the connections have in common.
	Device    string
	Transport verbs.Transport
	Accepted  bool   // else dialed
	Host      string // the remote host, see Monitor.Hosts

	Opened uint64 // connections that were made
	Open   int    // of these, open now
}

// totalKey is what connections of a Total have in common.
type totalKey struct {
	device    string
	transport verbs.Transport
	accepted  bool
	host      string
}

func compareTotals(a, b Total) int {
	side := func(accepted bool) int {
		if accepted {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Transport, b.Transport),
		cmp.Compare(side(a.Accepted), side(b.Accepted)), cmp.Compare(a.Host, b.Host))
}

// State is how far a connection has come to its end.
type State uint8

// The states. Half-closed is used as in HTTP/2 (RFC 9113, section 5.1): local is this side's direction.
const (
	StateOpen             State = iota
	StateHalfClosedLocal        // CloseWrite was called
	StateHalfClosedRemote       // the peer has ended its direction
	StateEnded                  // both directions have ended, or the peer has ended both; Close has not been called
	StateBroken                 // it failed; Close has not been called
	StateClosing                // Close waits for the peer, or frees the objects
)

// String returns the state in words.
func (s State) String() string {
	names := [...]string{"open", "half-closed (local)", "half-closed (remote)", "ended", "broken", "closing"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// status fills in what the connection itself knows.
func (c *Conn) status(s *ConnStatus) {
	s.Info = c.Info()
	s.Local, s.Remote = c.laddr.AddrPort(), c.raddr.AddrPort()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone.Load() != nil && c.err == nil && !c.closed {
		c.progress() // what arrived before the event says which end it was; perhaps nobody reads
	}
	s.State = c.state()
	if s.State == StateBroken {
		s.Err = c.failure()
	}
	s.Stats = c.statsLocked()
	s.Heard, s.CreditsLeft = c.keepalive.heard, c.stream.CreditsLeft()
	s.Unread, s.Unsent = c.stream.Unread(), c.stream.Unposted()
}

func (c *Conn) state() State {
	switch {
	case c.closed:
		return StateClosing
	case c.err != nil:
		return StateBroken
	case c.stream.Ended():
		return StateEnded
	case c.shutdown:
		return StateHalfClosedLocal
	case c.stream.PeerShutdown():
		return StateHalfClosedRemote
	}
	return StateOpen
}

// Stats returns the counts up to now. They stay readable after Close.
func (l *Listener) Stats() ListenerStats {
	return ListenerStats{
		Accepted: l.accepted.Load(), Failed: l.failed.Load(), Handshakes: len(l.slots), Waiting: l.queue.Len(),
	}
}

// status fills in what the listener itself knows.
func (l *Listener) status(s *ListenerStatus) {
	s.ListenerStats, s.Network, s.Addr, s.Lost = l.Stats(), l.network, l.addr.AddrPort(), l.alive.Load() == 0
	for _, ln := range l.lns {
		name := ""
		if d := ln.Device(); d != nil {
			name = d.Name()
		}
		s.Devices = append(s.Devices, name)
	}
}
