package rdma_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/verbs"
)

func TestProvidersAreTheCallers(t *testing.T) {
	p := rdma.Providers()
	require.NotEmpty(t, p)
	require.Equal(t, "system", p[0].Name())
	p[0] = nil
	require.NotNil(t, rdma.Providers()[0])
}

// A host has devices or is told what is missing; a device that is not there is ErrNoDevice in either case.
func TestDevices(t *testing.T) {
	devices, err := rdma.Devices()
	if len(devices) == 0 {
		require.ErrorIs(t, err, verbs.ErrNoDevice)
		require.ErrorIs(t, err, errors.ErrUnsupported)
	} else {
		require.NoError(t, err)
		d, err := rdma.Open(devices[0].Name())
		require.NoError(t, err)
		require.Equal(t, devices[0].Name(), d.Name())
	}
	_, err = rdma.Open("no such device")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
}
