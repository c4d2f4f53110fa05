package rconn

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// softConfigs are software devices over real TCP connections.
var softConfigs = map[string]rdma.SoftwareConfig{
	"plain": {},
	"crc":   {CRC: true},
	"mss":   {MaxFPDU: rdma.MSS},
}

// softPair makes a connection over loopback.
func softPair(t testing.TB, sc rdma.SoftwareConfig, cfg Config) (dialed, accepted *Conn) {
	t.Helper()
	providers := []cm.Provider{rdma.Software(sc)}
	lc := ListenConfig{Providers: providers, Config: cfg}
	ln, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	got := make(chan net.Conn, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	d := Dialer{Providers: providers, Config: cfg}
	c, err := d.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	return c.(*Conn), (<-got).(*Conn)
}

// TestNettestSoftware is net.Conn's contract over the software device.
func TestNettestSoftware(t *testing.T) {
	test := func(name string, sc rdma.SoftwareConfig, cfg Config) {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				d, a := softPair(t, sc, cfg)
				return d, a, func() { closeBoth(d, a) }, nil
			})
		})
	}
	for name, sc := range softConfigs {
		test(name, sc, Config{})
	}
	test("64B", rdma.SoftwareConfig{}, Config{RecvBuffer: 64, SendBuffer: 64})
}

// TestSoftwareBothWays sends random bytes both ways at once, and ends each way by itself.
func TestSoftwareBothWays(t *testing.T) {
	const size = 16 << 20
	for name, sc := range softConfigs {
		t.Run(name, func(t *testing.T) {
			d, a := softPair(t, sc, Config{})
			defer closeBoth(d, a)
			require.Equal(t, verbs.TransportIWARP, d.ep.id.Device().Attr().Transport)
			within(t, func() {
				var wg sync.WaitGroup
				for _, pair := range [][2]*Conn{{d, a}, {a, d}} {
					sent := make([]byte, size)
					rand.Read(sent)
					wg.Go(func() {
						if _, err := pair[0].Write(sent); err != nil {
							t.Error(err)
						}
						if err := pair[0].CloseWrite(); err != nil {
							t.Error(err)
						}
					})
					wg.Go(func() {
						got, err := io.ReadAll(pair[1])
						if err != nil || !bytes.Equal(sent, got) {
							t.Errorf("%d of %d bytes, %v", len(got), len(sent), err)
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

// TestSoftwareHalfClose has one side answer after the other has ended its way.
func TestSoftwareHalfClose(t *testing.T) {
	d, a := softPair(t, rdma.SoftwareConfig{}, Config{})
	defer closeBoth(d, a)
	within(t, func() {
		_, err := d.Write([]byte("question"))
		require.NoError(t, err)
		require.NoError(t, d.CloseWrite())
		got, err := io.ReadAll(a)
		require.NoError(t, err)
		require.Equal(t, "question", string(got))
		_, err = a.Write([]byte("answer"))
		require.NoError(t, err)
		require.NoError(t, a.CloseWrite())
		got, err = io.ReadAll(d)
		require.NoError(t, err)
		require.Equal(t, "answer", string(got))
	})
}
