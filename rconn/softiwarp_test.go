package rconn

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/verbs"
)

// softConfigs are software devices over real TCP connections.
var softConfigs = map[string]rdma.SoftwareConfig{
	"plain": {},
	"crc":   {CRC: true},
	"mss":   {MaxFPDU: rdma.MSS},
}

// TestNettestSoftware is net.Conn's contract over the software device.
//
// fault: MEM-5 (software)
func TestNettestSoftware(t *testing.T) {
	test := func(name string, sc rdma.SoftwareConfig, cfg Config) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				d, a := newSoftware(t, sc, cfg).pair(t)
				return d, a, func() { closeBoth(d, a) }, nil
			})
		})
	}
	for name, sc := range softConfigs {
		test(name, sc, Config{})
	}
	test("1KiB", rdma.SoftwareConfig{}, Config{RecvBuffer: 1 << 10, SendBuffer: 1 << 10})
}

// TestSoftwareBothWays sends random bytes both ways at once, and ends each way by itself.
func TestSoftwareBothWays(t *testing.T) {
	const size = 16 << 20
	for name, sc := range softConfigs {
		t.Run(name, func(t *testing.T) {
			d, a := newSoftware(t, sc, Config{}).pair(t)
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
