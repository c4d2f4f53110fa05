//go:build guest

package tests

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/rconn"
	"github.com/rconn/rdma/verbs"
)

// dialed connects to a listener's port at ip, sends a byte there and back, and returns what the connection ran on.
func dialed(t *testing.T, ln net.Listener, ip, device string) rconn.Info {
	t.Helper()
	echoed := make(chan error, 1)
	go func() {
		c, err := ln.Accept()
		if err == nil {
			b := make([]byte, 1)
			if _, err = c.Read(b); err == nil {
				_, err = c.Write(b)
			}
			c.Close()
		}
		echoed <- err
	}()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	d := rconn.Dialer{Config: rconn.Config{Device: device}}
	c, err := d.Dial("tcp", net.JoinHostPort(ip, port))
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte{7})
	require.NoError(t, err)
	b := make([]byte, 1)
	_, err = c.Read(b)
	require.NoError(t, err)
	require.EqualValues(t, 7, b[0])
	info := c.(*rconn.Conn).Info()
	require.NoError(t, c.Close()) // on iWARP the other end's Close waits for it
	require.NoError(t, <-echoed)
	return info
}

// TestBothStreamDevices has a listener on all addresses, and one on the device's: RDMA and the software device have one port; an
// iWARP device of the kernel has its addresses alone.
func TestBothStreamDevices(t *testing.T) {
	const software = "software0"
	kernel := "rxe0"
	if isSiw() {
		kernel = "siw0"
	}
	for _, listen := range []string{":0", net.JoinHostPort(addr, "0")} {
		t.Run(listen, func(t *testing.T) {
			ln, err := rconn.Listen("tcp", listen)
			require.NoError(t, err)
			defer ln.Close()
			require.Equal(t, kernel, dialed(t, ln, addr, "no-software").Device)
			require.Equal(t, kernel, dialed(t, ln, addr, kernel).Device)
			// On siw the other end is the kernel's device: the two speak the same wire.
			info := dialed(t, ln, addr, "software")
			require.Equal(t, software, info.Device)
			require.Equal(t, verbs.TransportIWARP, info.Transport)
			if listen == ":0" {
				require.Equal(t, software, dialed(t, ln, "127.0.0.1", "").Device)
				require.Equal(t, software, dialed(t, ln, "::1", "").Device)
			}
		})
	}
	lc := rconn.ListenConfig{Config: rconn.Config{Device: kernel}}
	_, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
}
