package rdma_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/verbs"
)

func TestProvidersAreTheCallers(t *testing.T) {
	p := rdma.Providers()
	require.Len(t, p, 2)
	require.Equal(t, "system", p[0].Name())
	require.Equal(t, "software", p[1].Name())
	require.Same(t, p[1], rdma.Providers()[1], "one software device for the process")
	require.NotSame(t, p[1], rdma.Software(rdma.SoftwareConfig{}))
	p[0] = nil
	require.NotNil(t, rdma.Providers()[0])
}

// The software device is there on every host, last; a device that is not there is ErrNoDevice.
func TestDevices(t *testing.T) {
	devices, err := rdma.Devices()
	require.NoError(t, err)
	require.NotEmpty(t, devices)
	for _, d := range devices {
		opened, err := rdma.Open(d.Name())
		require.NoError(t, err)
		require.Same(t, d, opened)
	}
	last := devices[len(devices)-1]
	require.Equal(t, "software0", last.Name())
	require.Equal(t, verbs.TransportIWARP, last.Attr().Transport)
	_, err = rdma.Open("no such device")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
}
