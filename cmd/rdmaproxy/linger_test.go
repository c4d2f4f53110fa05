package main

import (
	"context"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// talker is a peer that sends for some time, and takes all.
type talker struct {
	net.Conn
	until  time.Time
	closed chan struct{}
}

func (c *talker) Read(b []byte) (int, error) {
	if !time.Now().Before(c.until) {
		return 0, io.EOF
	}
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	case <-time.After(10 * time.Millisecond):
		return len(b), nil
	}
}
func (c *talker) Write(b []byte) (int, error) { return len(b), nil }
func (c *talker) CloseWrite() error           { return nil }
func (c *talker) Close() error                { close(c.closed); return nil }

// leaver is a peer that has closed.
type leaver struct{ net.Conn }

func (leaver) Read([]byte) (int, error)  { return 0, io.EOF }
func (leaver) Write([]byte) (int, error) { return 0, syscall.EPIPE }
func (leaver) CloseWrite() error         { return nil }
func (leaver) Close() error              { return nil }

// A connection that is closed while its peer sends is reset by the system, and what the peer has not taken is lost. So it gets time to end.
func TestPeerOfOneThatHasClosed(t *testing.T) {
	for name, c := range map[string]struct {
		sends, stop, want time.Duration
		err               error
	}{
		"ends":         {sends: time.Second, stop: time.Hour, want: time.Second},
		"does not end": {sends: time.Hour, stop: 2 * time.Hour, want: lingerTime},
		"at the end":   {sends: time.Hour, stop: 2 * time.Second, want: 2 * time.Second, err: errStopped},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				now, cancel := context.WithTimeout(t.Context(), c.stop)
				defer cancel()
				start := time.Now()
				client := &talker{until: start.Add(c.sends), closed: make(chan struct{})}
				p := newPair(client, leaver{}, &counters{})
				require.Equal(t, c.err, p.carry(now, 0))
				require.Equal(t, c.want, time.Since(start).Truncate(100*time.Millisecond))
			})
		})
	}
}
