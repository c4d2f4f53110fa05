//go:build !linux || !cgo

package rdmacore

import (
	"context"
	"net/netip"
	"runtime"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// Provider is the provider of the system's RDMA devices, of which this program cannot reach any.
func Provider() cm.Provider { return unavailable{} }

type unavailable struct{}

func (unavailable) err() error {
	if runtime.GOOS != "linux" {
		return noDevice("the system's RDMA devices can be used on Linux only, this is %s", runtime.GOOS)
	}
	return noDevice("this program was built without cgo (CGO_ENABLED=0), which the system's RDMA devices need")
}

func (unavailable) Name() string { return providerName }

func (u unavailable) Devices() ([]verbs.Device, error) { return nil, u.err() }

func (u unavailable) Resolve(_ context.Context, _, remote netip.AddrPort) (cm.Resolved, error) {
	return nil, &cm.Error{Op: opResolveAddr, Addr: remote, Err: u.err()}
}

func (u unavailable) Listen(local netip.AddrPort, _ cm.ListenOptions) (cm.Listener, error) {
	return nil, &cm.Error{Op: opListen, Addr: local, Err: u.err()}
}
